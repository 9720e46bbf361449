"""Steps and loops of the user on JAX: from state to state, compiled by `jax.jit`."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_unison as ku
from tests.equivalence.harness import ON_JAX, check
from tests.equivalence.own_steps import (
    BATCH,
    DIVIDED,
    ROWS,
    X,
    Y,
    all_steps_of,
    check_own,
    compiled,
    distiller,
    going_on,
    loop_model,
)

if not ON_JAX:
    pytest.skip("these steps are written for JAX", allow_module_level=True)

import jax

# Compiled steps of a test: one that is gone cannot be looked at any more.
STEPS: list[Any] = []


@pytest.fixture(autouse=True)
def _steps_last_for_a_test() -> Iterator[None]:
    yield
    STEPS.clear()


def kept(step: Any) -> Any:
    STEPS.append(step)
    return step


# --- train_step and test_step -----------------------------------------------


def updated(metrics: list[Any], values: list[Any], update: Callable[..., Any]) -> Any:
    """New values of all metrics' variables, and the logs."""
    logs, rest, new = {}, list(values), []
    for metric in metrics:
        own, rest = rest[: len(metric.variables)], rest[len(metric.variables) :]
        own = update(metric, own)
        logs[metric.name] = metric.stateless_result(own)
        new += own
    return logs, new


class GuideStep(keras.Model):
    """The train_step and test_step of a model on JAX, from state to state."""

    def losses_and_updates(self, trainable, non_trainable, x, y, weight, training):
        predicted, non_trainable = self.stateless_call(
            trainable, non_trainable, x, training=training
        )
        loss = self.compute_loss(x, y, predicted, weight, training=training)
        return loss, (predicted, non_trainable)

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        gradient = jax.value_and_grad(self.losses_and_updates, has_aux=True)
        (loss, (predicted, non_trainable)), gradients = gradient(
            trainable, non_trainable, x, y, weight, True
        )
        trainable, optimizer = self.optimizer.stateless_apply(
            optimizer, gradients, trainable
        )
        logs, metrics = self.metrics_after(metrics, loss, y, predicted, weight)
        norm = ops.sqrt(sum(ops.sum(ops.square(g)) for g in gradients))
        return {**logs, "gradient": norm}, (
            trainable,
            non_trainable,
            optimizer,
            metrics,
        )

    def test_step(self, state, data):
        trainable, non_trainable, metrics = state
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        loss, (predicted, non_trainable) = self.losses_and_updates(
            trainable, non_trainable, x, y, weight, False
        )
        logs, metrics = self.metrics_after(metrics, loss, y, predicted, weight)
        return logs, (trainable, non_trainable, metrics)

    def metrics_after(self, values, loss, y, predicted, weight):
        def update(metric, own):
            if metric.name == "loss":
                return metric.stateless_update_state(own, loss)
            return metric.stateless_update_state(own, y, predicted, weight)

        return updated(self.metrics, values, update)

    def predict_step(self, state, data):
        outputs, state = super().predict_step(state, data)
        return {"label": ops.argmax(outputs, axis=-1), "all": outputs}, state


def test_steps_as_in_keras_guide(devices: int) -> None:
    check(compiled(GuideStep), all_steps_of, devices=devices, rows=DIVIDED)


class RaisedWeights(keras.Model):
    """A step that changes the data around the usual one."""

    def train_step(self, state, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        weight = 1.0 + ops.cast(y == ops.max(y), "float32")
        logs, state = super().train_step(state, (x - ops.mean(x, axis=0), y, weight))
        return {**logs, "largest": ops.max(ops.abs(x))}, state


class Adversarial(keras.Model):
    """Calls itself twice, and takes a gradient by the inputs."""

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        if not training:
            return loss

        def by_inputs(inputs):
            return ops.mean(self.loss_of(y, self(inputs, training=True)))

        changed = x + 0.05 * ops.sign(jax.grad(by_inputs)(x))
        return loss + 0.5 * by_inputs(changed)

    def loss_of(self, y, y_pred):
        return keras.losses.sparse_categorical_crossentropy(y, y_pred)


OVERRIDES: dict[str, type] = {
    "data_changed_in_train_step": RaisedWeights,
    "compute_loss_with_a_gradient_by_the_inputs": Adversarial,
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_overridden_methods(name: str, devices: int) -> None:
    check_own(OVERRIDES[name], devices)


# --- several networks in one step -------------------------------------------


class Adversaries(keras.Model):
    """A generator against a discriminator, with an optimizer each.

    The generator's optimizer keeps its variables among the model's, since a
    step on JAX carries the variables of one optimizer.
    """

    def __init__(self) -> None:
        super().__init__()
        # The second optimizer's variables are named after these layers.
        self.generator = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(13, activation="tanh", name="g1"),
                layers.Dense(8, name="g2"),
            ],
            name="generator",
        )
        self.discriminator = keras.Sequential(
            [keras.Input((8,)), layers.Dense(14, activation="tanh"), layers.Dense(1)],
            name="discriminator",
        )
        self.seeds = keras.random.SeedGenerator(9)
        self.built = True

    def compile(self, first, second):
        super().compile(optimizer=first)
        self.second = second
        self.second.build(self.generator.trainable_variables)
        self.kept = list(self.second.variables)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def draw(self, non_trainable, rows):
        held = zip(self.non_trainable_variables, non_trainable, strict=True)
        with keras.StatelessScope(state_mapping=held) as scope:
            latent = keras.random.normal((rows, 6), seed=self.seeds)
        new = [scope.get_current_value(v) for v in self.non_trainable_variables]
        old = zip(new, non_trainable, strict=True)
        return latent, [n if n is not None else o for n, o in old]

    def scores(self, discriminator, images):
        return self.discriminator.stateless_call(discriminator, [], images)[0]

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        (real,) = data if isinstance(data, tuple) else (data,)
        split = len(self.generator.trainable_variables)
        generator, discriminator = trainable[:split], trainable[split:]
        latent, non_trainable = self.draw(non_trainable, real.shape[0])

        def discriminator_loss(discriminator):
            fake, _ = self.generator.stateless_call(generator, [], latent)
            real_score = self.scores(discriminator, real)
            fake_score = self.scores(discriminator, fake)
            return self.loss_fn(ops.ones_like(real_score), real_score) + self.loss_fn(
                ops.zeros_like(fake_score), fake_score
            )

        def generator_loss(generator):
            fake, _ = self.generator.stateless_call(generator, [], latent)
            score = self.scores(discriminator, fake)
            return self.loss_fn(ops.ones_like(score), score)

        d_loss, gradients = jax.value_and_grad(discriminator_loss)(discriminator)
        discriminator, optimizer = self.optimizer.stateless_apply(
            optimizer, gradients, discriminator
        )
        g_loss, gradients = jax.value_and_grad(generator_loss)(generator)
        places = [
            next(i for i, v in enumerate(self.non_trainable_variables) if v is kept)
            for kept in self.kept
        ]
        slots = [non_trainable[place] for place in places]
        generator, slots = self.second.stateless_apply(slots, gradients, generator)
        for place, slot in zip(places, slots, strict=True):
            non_trainable[place] = slot
        state = [*generator, *discriminator], non_trainable, optimizer, metrics
        return {"d_loss": d_loss, "g_loss": g_loss}, state


def test_two_networks_with_an_optimizer_each(devices: int) -> None:
    def build() -> Any:
        model = Adversaries()
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.5),
            keras.optimizers.SGD(0.05, momentum=0.9),
        )
        model.optimizer.build(model.discriminator.trainable_variables)
        return model

    def use(model: Any) -> Any:
        made = model.generator.predict(X[:34, :6], batch_size=34, verbose=0)
        history = model.fit(X, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        return made, history, model.second.iterations, model.kept

    # The lengths hold the generator's products too: none has the whole batch.
    check(build, use, devices=devices, rows=DIVIDED)


# --- step: the user's own loop ------------------------------------------------

JITS: dict[str, Callable[[Any], Any]] = {
    "jitted": jax.jit,
    "donated": lambda function: jax.jit(function, donate_argnums=0),
    "divided_inside": lambda function: function,
}


def loop(model: Any, jit: Callable[[Any], Any], epochs: int = 2) -> Any:
    """Trains by hand from state to state, and assigns the result."""
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    def loss_and_updates(trainable, non_trainable, x, y):
        predicted, non_trainable = model.stateless_call(
            trainable, non_trainable, x, training=True
        )
        return loss_fn(y, predicted), (predicted, non_trainable)

    gradient = jax.value_and_grad(loss_and_updates, has_aux=True)

    def train_step(state, batch):
        trainable, non_trainable, slots, counted = state
        x, y = batch
        (loss, (predicted, non_trainable)), gradients = gradient(
            trainable, non_trainable, x, y
        )
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        counted = accuracy.stateless_update_state(counted, y, predicted)
        return loss, (trainable, non_trainable, slots, counted)

    run = kept(ku.step(jit(train_step)))
    state = tuple(
        [variable.value for variable in group]
        for group in (
            model.trainable_variables,
            model.non_trainable_variables,
            optimizer.variables,
            accuracy.variables,
        )
    )
    losses = []
    for _ in range(epochs):
        for start in range(0, ROWS, BATCH):
            rows = slice(start, start + BATCH)
            loss, state = run(state, (X[rows], Y[rows]))
            losses.append(loss)
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        optimizer.variables,
        accuracy.variables,
    )
    for variables, values in zip(groups, state, strict=True):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    return losses, accuracy.result(), list(optimizer.variables)


@pytest.mark.parametrize("name", ["jitted", "donated"])
def test_a_loop_of_the_user(name: str, devices: int) -> None:
    check(
        loop_model,
        lambda model: loop(model, JITS[name]),
        devices=devices,
        rows=DIVIDED,
    )


def test_a_loop_that_is_not_compiled_is_right(devices: int) -> None:
    """Nothing to see in a compiled step; the fit around it shows the division."""

    def use(model: Any) -> Any:
        return loop(model, JITS["divided_inside"], epochs=1), model.fit(
            X, Y, batch_size=BATCH, shuffle=False, verbose=0
        )

    check(loop_model, use, devices=devices, rows=DIVIDED)


def test_a_model_goes_on_after_a_loop(tmp_path: Any, devices: int) -> None:
    """Called, fitted, saved and loaded with what the loop assigned."""

    def use(model: Any) -> Any:
        return going_on(
            model,
            lambda model: loop(model, JITS["donated"]),
            lambda model: loop(model, JITS["jitted"], epochs=1),
            tmp_path / "model.keras",
        )

    check(loop_model, use, devices=devices, rows=DIVIDED)


def test_an_evaluation_of_the_user(devices: int) -> None:
    def use(model: Any) -> Any:
        accuracy = keras.metrics.SparseCategoricalAccuracy()

        @kept
        @ku.step
        @jax.jit
        def test_step(trainable, non_trainable, counted, x, y):
            logits, _ = model.stateless_call(trainable, non_trainable, x)
            return logits, accuracy.stateless_update_state(counted, y, logits)

        trainable = [v.value for v in model.trainable_variables]
        non_trainable = [v.value for v in model.non_trainable_variables]
        counted = [v.value for v in accuracy.variables]
        found = []
        for start in range(0, ROWS, 34):
            rows = slice(start, start + 34)
            logits, counted = test_step(
                trainable, non_trainable, counted, x=X[rows], y=Y[rows]
            )
            found.append(np.array(logits))
        return np.concatenate(found), accuracy.stateless_result(counted)

    check(loop_model, use, devices=devices, rows=[34])


def test_a_loop_over_two_models(devices: int) -> None:
    """A student follows a teacher; both were made parallel."""

    def use(model: Any) -> Any:
        student, teacher = model.student, model.teacher

        def loss_of(weights, fixed, x):
            soft, _ = teacher.stateless_call([], fixed, x)
            hard, _ = student.stateless_call(weights, [], x)
            return ops.mean(keras.losses.kl_divergence(soft, hard))

        @kept
        @ku.step
        @jax.jit
        def train_step(weights, fixed, x):
            loss, gradients = jax.value_and_grad(loss_of)(weights, fixed, x)
            moved = [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]
            return loss, moved

        weights = [v.value for v in student.trainable_variables]
        fixed = [v.value for v in teacher.non_trainable_variables]
        losses = []
        for rows in (slice(0, 48), slice(48, 82), slice(10, 58)):
            loss, weights = train_step(weights, fixed, X[rows])
            losses.append(loss)
        return losses, weights

    def wrap(model: Any, count: int) -> Any:
        ku.DataParallel(model.teacher, count)
        ku.DataParallel(model.student, count)
        return model

    check(distiller, use, devices=devices, rows=DIVIDED, wrap=wrap)


def test_results_of_a_step_lie_on_the_first_device(devices: int) -> None:
    kinds = []

    def use(model: Any) -> Any:
        result = loop(model, JITS["jitted"], epochs=1)
        kinds.append({v.value.devices() == {jax.devices()[0]} for v in model.variables})
        return result

    check(loop_model, use, devices=devices, rows=DIVIDED)
    assert kinds == [{True}, {True}]
