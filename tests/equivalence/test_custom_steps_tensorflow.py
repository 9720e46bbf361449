"""Steps and loops of the user on TensorFlow: `tf.GradientTape` and `tf.function`."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_unison as ku
from tests.equivalence.harness import ON_TENSORFLOW, check
from tests.equivalence.own_steps import (
    BATCH,
    DIVIDED,
    ROWS,
    Distiller,
    X,
    Y,
    all_steps_of,
    body,
    compiled,
    distiller,
    going_on,
    loop_model,
    trained,
)

if not ON_TENSORFLOW:
    pytest.skip("these steps are written for TensorFlow", allow_module_level=True)

import tensorflow as tf

BATCHES = [slice(start, start + BATCH) for start in range(0, ROWS, BATCH)]


def latent_model(*, normalized: bool) -> Any:
    """Makes 8 features of 6 random numbers."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(13, name="g1"),
            *([layers.BatchNormalization(momentum=0.8)] if normalized else []),
            layers.Activation("tanh"),
            layers.Dense(8, name="g2"),
        ],
        name="generator",
    )


def judging_model() -> Any:
    """Gives 8 features a score."""
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(14, activation="tanh", name="c1"),
            layers.Dense(1, name="c2"),
        ],
        name="judge",
    )


# --- train_step, test_step and predict_step ----------------------------------


class GuideStep(keras.Model):
    """Steps of a model as Keras's guide for TensorFlow has them."""

    def train_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        norm = tf.linalg.global_norm(gradients)
        return {**self.metrics_after(loss, y, predicted, weight), "gradient": norm}

    def test_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        predicted = self(x, training=False)
        loss = self.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight)
        return self.metrics_after(loss, y, predicted, weight)

    def metrics_after(self, loss, y, predicted, weight):
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted, weight)
        return {metric.name: metric.result() for metric in self.metrics}

    def predict_step(self, data):
        outputs = super().predict_step(data)
        return {"label": ops.argmax(outputs, axis=-1), "all": outputs}


@pytest.mark.parametrize("eagerly", [False, True])
def test_steps_as_in_keras_guide(eagerly: bool, devices: int) -> None:
    check(
        compiled(GuideStep, run_eagerly=eagerly),
        all_steps_of,
        devices=devices,
        rows=DIVIDED,
        all_steps=True,
    )


class OwnTrackers(keras.Model):
    """A step without compute_loss: its own loss and its own metrics."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean(name="loss")
        self.distance = keras.metrics.MeanAbsoluteError(name="distance")

    @property
    def metrics(self):
        return [self.tracker, self.distance]

    def train_step(self, data):
        x, y = data
        wanted = tf.one_hot(y, 5)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = tf.reduce_mean(keras.losses.mean_squared_error(wanted, predicted))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.tracker.update_state(loss)
        self.distance.update_state(wanted, predicted)
        return {"loss": self.tracker.result(), "distance": self.distance.result()}

    def test_step(self, data):
        x, y = data
        self.distance.update_state(tf.one_hot(y, 5), self(x, training=False))
        return {"distance": self.distance.result()}


class RaisedWeights(keras.Model):
    """A step that changes the data around the usual one."""

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        weight = 1.0 + ops.cast(y == ops.max(y), "float32")
        logs = super().train_step((x - ops.mean(x, axis=0), y, weight))
        return {**logs, "largest": ops.max(ops.abs(x))}


class Adversarial(keras.Model):
    """Calls itself twice, and takes a gradient by the inputs."""

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        if not training:
            return loss
        with tf.GradientTape() as tape:
            tape.watch(x)
            by_inputs = self.loss_at(x, y)
        changed = x + 0.05 * tf.sign(tape.gradient(by_inputs, x))
        return loss + 0.5 * self.loss_at(changed, y)

    def loss_at(self, x, y):
        predicted = self(x, training=True)
        losses = keras.losses.sparse_categorical_crossentropy(y, predicted)
        return tf.reduce_mean(losses)


class SmoothModel(keras.Model):
    """A penalty on the gradient by the inputs: a gradient of a gradient."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                predicted = self(x, training=True)
                loss = self.compute_loss(x, y, predicted)
            slope = tf.reduce_mean(tf.square(inner.gradient(loss, x))) * ROWS
            total = loss + slope
        gradients = tape.gradient(total, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {**self.compute_metrics(x, y, predicted), "slope": slope}


class ByHandAccumulation(keras.Model):
    """Applies the sum of the gradients of two batches, as users write it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        unseen = {"initializer": "zeros", "trainable": False, "name": "kept"}
        self.count = self.add_weight(shape=(), dtype="int32", **unseen)
        self.sums = [
            self.add_weight(shape=v.shape, **unseen) for v in self.trainable_variables
        ]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.count.assign_add(1)
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign_add(gradient)
        tf.cond(self.count % 2 == 0, self.apply_sums, lambda: None)
        return self.compute_metrics(x, y, predicted)

    def apply_sums(self):
        self.optimizer.apply([s.value / 2 for s in self.sums], self.trainable_variables)
        for total in self.sums:
            total.assign(tf.zeros_like(total))


class MicroBatches(keras.Model):
    """Goes through a batch in three parts, and applies the sum of their gradients."""

    def train_step(self, data):
        x, y = data
        rows = tf.shape(x)[0]
        sums, parts = [tf.zeros_like(v) for v in self.trainable_variables], []
        for part in range(3):
            own = slice(rows * part // 3, rows * (part + 1) // 3)
            with tf.GradientTape() as tape:
                parts.append(self(x[own], training=True))
                loss = tf.reduce_sum(
                    keras.losses.sparse_categorical_crossentropy(y[own], parts[-1])
                )
            gradients = tape.gradient(loss, self.trainable_variables)
            sums = [s + g for s, g in zip(sums, gradients, strict=True)]
        gradients = [s / tf.cast(rows, "float32") for s in sums]
        self.optimizer.apply(gradients, self.trainable_variables)
        return self.compute_metrics(x, y, tf.concat(parts, 0))


STEPS: dict[str, type] = {
    "own_metrics_and_no_compute_loss": OwnTrackers,
    "data_changed_around_the_usual_step": RaisedWeights,
    "compute_loss_with_a_gradient_by_the_inputs": Adversarial,
    "gradient_of_a_gradient": SmoothModel,
    "accumulation_over_batches": ByHandAccumulation,
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_of_the_user(name: str, devices: int) -> None:
    seen = check(
        compiled(STEPS[name]),
        trained(X, Y),
        devices=devices,
        rows=DIVIDED,
        all_steps=True,
    )
    assert_both_steps_divided(seen, devices)


def test_a_step_in_micro_batches(devices: int) -> None:
    """Each call of the model is divided by itself: 16 rows, and 11 or 12."""
    seen = check(
        compiled(MicroBatches), trained(X, Y), devices=devices, rows=[16, 11, 12]
    )
    assert_both_steps_divided(seen, devices)


def assert_both_steps_divided(seen: Any, devices: int) -> None:
    names = {p.name for p in seen.programs if p.partitions == devices}
    assert names == {"jit_train_step", "jit_test_step"}
    assert {p.partitions for p in seen.programs} == {devices}


# --- several networks in one step ---------------------------------------------


class Adversaries(keras.Model):
    """A generator against a discriminator, with an optimizer each."""

    def __init__(self, normalized: bool = False) -> None:
        super().__init__()
        self.generator = latent_model(normalized=normalized)
        self.discriminator = judging_model()
        self.seeds = keras.random.SeedGenerator(9)
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")
        self.built = True

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def latent(self, real):
        return keras.random.normal((ops.shape(real)[0], 6), seed=self.seeds)

    def train_step(self, real):
        if isinstance(real, tuple):
            real = real[0]
        made = self.generator(self.latent(real), training=True)
        both = tf.concat([made, real], axis=0)
        labels = tf.concat([tf.ones_like(real[:, :1]), tf.zeros_like(real[:, :1])], 0)
        labels += 0.05 * keras.random.uniform(ops.shape(labels), seed=self.seeds)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both, training=True))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(
            zip(tape.gradient(d_loss, weights), weights, strict=True)
        )
        latent = self.latent(real)
        with tf.GradientTape() as tape:
            scores = self.discriminator(self.generator(latent, training=True))
            g_loss = self.loss_fn(tf.zeros_like(real[:, :1]), scores)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(
            zip(tape.gradient(g_loss, weights), weights, strict=True)
        )
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {metric.name: metric.result() for metric in self.metrics}


class Critics(Adversaries):
    """Wasserstein distance with a penalty on gradients between real and made."""

    def penalty(self, real, made):
        share = keras.random.uniform((ops.shape(real)[0], 1), seed=self.seeds)
        between = real + share * (made - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            score = self.discriminator(between, training=True)
        slope = tape.gradient(score, [between])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(slope), axis=1) + 1e-12)
        return tf.reduce_mean(tf.square(norm - 1.0))

    def train_step(self, real):
        if isinstance(real, tuple):
            real = real[0]
        for _ in range(2):
            latent = self.latent(real)
            with tf.GradientTape() as tape:
                made = self.generator(latent, training=True)
                d_loss = tf.reduce_mean(self.discriminator(made, training=True))
                d_loss -= tf.reduce_mean(self.discriminator(real, training=True))
                d_loss += 10.0 * self.penalty(real, made)
            weights = self.discriminator.trainable_variables
            self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        latent = self.latent(real)
        with tf.GradientTape() as tape:
            made = self.generator(latent, training=True)
            g_loss = -tf.reduce_mean(self.discriminator(made, training=True))
        weights = self.generator.trainable_variables
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {metric.name: metric.result() for metric in self.metrics}


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("kind", [Adversaries, Critics])
def test_two_networks_with_an_optimizer_each(
    kind: type, normalized: bool, devices: int
) -> None:
    def build() -> Any:
        model = kind(normalized)
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.5),
            keras.optimizers.SGD(0.02, momentum=0.9),
        )
        return model

    def use(model: Any) -> Any:
        history = model.fit(X, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        made = model.generator.predict(X[:34, :6], batch_size=34, verbose=0)
        slots = [*model.d_optimizer.variables, *model.g_optimizer.variables]
        return history, made, slots

    # A discriminator that sees made and real rows together has twice as many: half
    # of them are as many as the batch has.
    twice = kind is Adversaries and devices == 2
    seen = check(build, use, devices=devices, rows=DIVIDED, coupled=twice)
    assert {p.partitions for p in seen.programs} == {1, devices}


class TwoLosses(keras.Model):
    """Two optimizers for two parts of one network, and one tape for both."""

    def __init__(self) -> None:
        super().__init__()
        self.body = keras.Sequential(
            [keras.Input((8,)), layers.Dense(13, activation="tanh")]
        )
        self.head = keras.Sequential([keras.Input((13,)), layers.Dense(5)])
        self.built = True

    def call(self, x):
        return self.head(self.body(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
            hidden = tf.reduce_mean(tf.abs(self.body(x, training=True)))
            both = loss + hidden
        weights = self.body.trainable_variables
        self.second.apply(tape.gradient(both, weights), weights)
        weights = self.head.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return self.compute_metrics(x, y, predicted)


def test_one_tape_for_two_optimizers(devices: int) -> None:
    def build() -> Any:
        model = TwoLosses()
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        model.optimizer.build(model.head.trainable_variables)
        model.second = keras.optimizers.Adam(0.01)
        # Built before wrapping, and not known to the model.
        model.second.build(model.body.trainable_variables)
        return model

    def use(model: Any) -> Any:
        return trained(X, Y)(model), list(model.second.variables)

    check(build, use, devices=devices, rows=DIVIDED, all_steps=True)


class StudentStep(Distiller):
    """Follows a frozen teacher in a step of its own."""

    def train_step(self, data):
        x, y = data
        soft = self.teacher(x, training=False)
        with tf.GradientTape() as tape:
            predicted = self.student(x, training=True)
            hard = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(y, predicted)
            )
            distance = tf.reduce_mean(keras.losses.kl_divergence(soft, predicted))
            loss = 0.3 * hard + 0.7 * distance
        weights = self.student.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {**self.compute_metrics(x, y, predicted), "distance": distance}


def test_a_frozen_teacher_in_the_step(devices: int) -> None:
    def build() -> Any:
        model = StudentStep()
        model.compile(
            keras.optimizers.SGD(0.1),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return model

    check(build, trained(X, Y), devices=devices, rows=DIVIDED, all_steps=True)


class Likeness(keras.Model):
    """Two views of each row must find each other in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential(
            [
                keras.Input((8,)),
                layers.GaussianNoise(0.3, seed=5),
                layers.Dense(13, activation="tanh"),
                layers.Dense(7),
            ]
        )
        self.built = True

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            one = tf.math.l2_normalize(self.encoder(x, training=True), axis=1)
            other = tf.math.l2_normalize(self.encoder(x, training=True), axis=1)
            likeness = tf.matmul(one, other, transpose_b=True) / 0.5
            own = tf.range(tf.shape(likeness)[0])
            loss = keras.losses.sparse_categorical_crossentropy(
                tf.concat([own, own], 0),
                tf.concat([likeness, tf.transpose(likeness)], 0),
                from_logits=True,
            )
            loss = tf.reduce_mean(loss)
        weights = self.encoder.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def test_a_loss_among_two_views_of_the_batch(devices: int) -> None:
    def build() -> Any:
        model = Likeness()
        model.compile(keras.optimizers.SGD(0.1))
        return model

    def use(model: Any) -> Any:
        return model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)

    check(build, use, devices=devices, rows=DIVIDED)


# --- step: the user's own loop ------------------------------------------------


def in_function(step: Any) -> Any:
    return ku.step(tf.function(step))


def around_function(step: Any) -> Any:
    @ku.step
    @tf.function
    def train_step(*args: Any) -> Any:
        return step(*args)

    return train_step


def inside_function(step: Any) -> Any:
    @tf.function
    @ku.step
    def train_step(*args: Any) -> Any:
        return step(*args)

    return train_step


def with_unknown_rows(step: Any) -> Any:
    return ku.step(tf.function(step, reduce_retracing=True))


WAYS: dict[str, Callable[[Any], Any]] = {
    "step_of_a_function": in_function,
    "step_above_tf_function": around_function,
    "tf_function_above_step": inside_function,
    "reduced_retracing": with_unknown_rows,
}


def loop(model: Any, way: Callable[[Any], Any], epochs: int = 2) -> Any:
    """Trains by hand, with an optimizer and metrics of its own."""
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    optimizer.build(model.trainable_variables)

    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_fn(y, logits)
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply(gradients, model.trainable_weights)
        accuracy.update_state(y, logits)
        return loss

    run = way(train_step)
    seen = []
    for _ in range(epochs):
        for rows in BATCHES:
            seen.append(float(run(tf.constant(X[rows]), tf.constant(Y[rows]))))
        seen.append(float(accuracy.result()))
        accuracy.reset_state()
    return seen, list(optimizer.variables)


@pytest.mark.parametrize("name", WAYS)
def test_a_loop_of_the_user(name: str, devices: int) -> None:
    seen = check(
        loop_model,
        lambda model: loop(model, WAYS[name]),
        devices=devices,
        rows=DIVIDED,
    )
    assert {p.partitions for p in seen.programs} == {devices}


def row_model() -> Any:
    """Without BatchNormalization, for which replicas must meet."""
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(13, activation="tanh"),
            layers.Dropout(0.2, seed=3),
            layers.Dense(5),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.parametrize("normalized", [False, True])
def test_a_loop_in_eager_mode(normalized: bool, devices: int) -> None:
    """Divided as well; where replicas must meet it is right, and says so."""
    says_so = pytest.warns(ku.UnisonWarning, match="in eager mode they run one after")
    with says_so if normalized else nullcontext():
        check(
            loop_model if normalized else row_model,
            # Evaluation needs no sums over replicas.
            lambda model: (loop(model, ku.step), evaluated(model, ku.step)),
            devices=devices,
            rows=DIVIDED,
        )


def evaluated(model: Any, way: Callable[[Any], Any]) -> Any:
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    def test_step(x: Any, y: Any) -> Any:
        logits = model(x, training=False)
        accuracy.update_state(y, logits)
        return logits

    run = way(test_step)
    logits = [run(tf.constant(X[rows]), tf.constant(Y[rows])) for rows in BATCHES]
    return np.concatenate(logits), accuracy.result()


@pytest.mark.parametrize("name", WAYS)
def test_an_evaluation_of_the_user(name: str, devices: int) -> None:
    check(
        loop_model,
        lambda model: evaluated(model, WAYS[name]),
        devices=devices,
        rows=DIVIDED,
    )


def test_a_loop_over_a_dataset(devices: int) -> None:
    """Batches of tf.data, with the optimizer, loss and metrics of `compile`."""

    def use(model: Any) -> Any:
        @ku.step
        @tf.function
        def train_step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                loss = model.compute_loss(x, y, logits)
            weights = model.trainable_variables
            model.optimizer.apply_gradients(
                zip(tape.gradient(loss, weights), weights, strict=True)
            )
            return {"loss": loss, **model.compute_metrics(x, y, logits)}

        dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
        return [train_step(x, y) for _ in range(2) for x, y in dataset]

    check(loop_model, use, devices=devices, rows=DIVIDED)


def test_several_batches_in_one_function(devices: int) -> None:
    """A loop over the dataset inside the compiled function."""

    def use(model: Any) -> Any:
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

        @ku.step
        @tf.function
        def train_epoch(dataset: Any) -> Any:
            total = 0.0
            for x, y in dataset:
                with tf.GradientTape() as tape:
                    logits = model(x, training=True)
                    loss = tf.reduce_mean(
                        tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
                    )
                weights = model.trainable_variables
                optimizer.apply(tape.gradient(loss, weights), weights)
                total += loss
            return total

        dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
        return train_epoch(dataset), train_epoch(dataset)

    check(loop_model, use, devices=devices, rows=DIVIDED)


def test_a_model_goes_on_after_a_loop(tmp_path: Any, devices: int) -> None:
    """Called, fitted, saved and loaded with what the loop assigned."""

    def use(model: Any) -> Any:
        return going_on(
            model,
            lambda model: loop(model, in_function),
            lambda model: loop(model, around_function, epochs=1),
            tmp_path / "model.keras",
        )

    check(loop_model, use, devices=devices, rows=DIVIDED)


def test_a_loop_over_two_models(devices: int) -> None:
    """A student follows a teacher; both were made parallel."""

    def use(model: Any) -> Any:
        student, teacher = model.student, model.teacher
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(student.trainable_variables)

        @ku.step
        @tf.function
        def train_step(x: Any) -> Any:
            soft = teacher(x, training=False)
            with tf.GradientTape() as tape:
                hard = student(x, training=True)
                loss = tf.reduce_mean(keras.losses.kl_divergence(soft, hard))
            weights = student.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            return loss

        batches = (slice(0, 48), slice(48, 82), slice(10, 58))
        return [train_step(tf.constant(X[rows])) for rows in batches]

    def wrap(model: Any, count: int) -> Any:
        ku.DataParallel(model.teacher, count)
        ku.DataParallel(model.student, count)
        return model

    check(distiller, use, devices=devices, rows=DIVIDED, wrap=wrap)


def test_a_loop_of_two_networks(devices: int) -> None:
    """A GAN's loop, whose networks are called on data and on each other's results."""

    def build() -> Any:
        return keras.Sequential(
            [latent_model(normalized=True), judging_model()], name="both"
        )

    def use(model: Any) -> Any:
        generator, judge = model.layers
        first, second = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.05)
        first.build(judge.trainable_variables)
        second.build(generator.trainable_variables)
        loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

        @ku.step
        @tf.function
        def train_step(latent: Any, real: Any) -> Any:
            with tf.GradientTape() as d_tape, tf.GradientTape() as g_tape:
                scores = judge(generator(latent, training=True), training=True)
                real_scores = judge(real, training=True)
                g_loss = loss_fn(tf.ones_like(scores), scores)
                d_loss = loss_fn(tf.zeros_like(scores), scores)
                d_loss += loss_fn(tf.ones_like(real_scores), real_scores)
            weights = judge.trainable_variables
            first.apply(d_tape.gradient(d_loss, weights), weights)
            weights = generator.trainable_variables
            second.apply(g_tape.gradient(g_loss, weights), weights)
            return d_loss, g_loss

        return [
            train_step(tf.constant(X[rows, ::-1][:, :6]), tf.constant(X[rows]))
            for rows in [*BATCHES, *BATCHES]
        ]

    check(build, use, devices=devices, rows=DIVIDED)


def test_a_step_without_a_parallel_model_is_plain() -> None:
    inputs, outputs = body()
    model = keras.Model(inputs, outputs)
    step = ku.step(tf.function(lambda x: model(x)))
    x = tf.constant(X)
    np.testing.assert_allclose(step(x), model(x), atol=1e-6)
