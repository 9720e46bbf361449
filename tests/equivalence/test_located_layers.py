"""Layers that mix rows in ways that only a look at their results can tell.

On TensorFlow the check before the first step has to find them; on JAX the
partitioner divides them by itself.
"""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_unison as ku
from tests.equivalence.harness import (
    ON_JAX,
    ON_TENSORFLOW,
    TOLERANCE,
    check,
    compare,
    data,
    run,
)

# 35 rows divide evenly over neither two nor three devices.
ROWS, BATCH = 70, 35
ONLY_TENSORFLOW = pytest.mark.skipif(
    not ON_TENSORFLOW, reason="what is written with TensorFlow runs on it only"
)


def model_with(*inner: Any, **compiled: Any) -> Any:
    """These layers between two dense ones."""
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(13, activation="tanh"),
            *inner,
            layers.Dense(5, activation="softmax"),
        ]
    )
    settings = {"optimizer": keras.optimizers.SGD(0.1), **compiled}
    model.compile(loss="sparse_categorical_crossentropy", **settings)
    return model


def trained(model: Any) -> Any:
    x, y = data(ROWS)
    return (
        model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0),
        model.evaluate(x, y, batch_size=BATCH, verbose=0),
        model.predict(x, batch_size=BATCH, verbose=0),
    )


def check_divided(
    build: Callable[[], Any], devices: int, coupled: bool = False
) -> None:
    """The work is divided, and nothing is said of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ku.UnisonWarning)
        check(
            build,
            trained,
            devices=devices,
            rows=[BATCH],
            all_steps=True,
            coupled=coupled,
        )


def check_whole(build: Callable[[], Any], devices: int, match: str) -> None:
    """One device computes the layer, which is said once."""
    with pytest.warns(ku.UnisonWarning, match=match) as caught:
        parallel = run(build, trained, lambda model: ku.DataParallel(model, devices))
    compare(run(build, trained), parallel, TOLERANCE)
    said = [w for w in caught if w.category is ku.UnisonWarning]
    # Training and inference are looked at one by one.
    assert len({str(w.message) for w in said}) == len(said) <= 2


# --- losses that layers add -------------------------------------------------


class AddsLoss(layers.Layer):
    """Adds a loss that its function makes of the rows."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * self.function(x))
        return x


ADDED: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: ops.mean(x**2),
    "sum": lambda x: ops.sum(x**2),
    "square_of_a_sum": lambda x: ops.sum(x) ** 2 / 100.0,
    "spread": lambda x: ops.mean(ops.std(x, axis=0)),
    "per_row": lambda x: ops.mean(x**2, axis=1),
}


@pytest.mark.parametrize("name", ADDED)
def test_a_loss_that_a_layer_adds(name: str, devices: int) -> None:
    check_divided(lambda: model_with(AddsLoss(ADDED[name])), devices)


def test_several_losses_of_different_kinds(devices: int) -> None:
    check_divided(lambda: model_with(*map(AddsLoss, ADDED.values())), devices)


class SquareOfTheSum(keras.regularizers.Regularizer):
    def __call__(self, x: Any) -> Any:
        return 0.3 * ops.tanh(ops.sum(x) / 10) ** 2


ACTIVITIES: dict[str, Callable[[], Any]] = {
    "l2": lambda: keras.regularizers.L2(0.01),
    "l1l2": lambda: keras.regularizers.L1L2(0.01, 0.02),
    "orthogonal": lambda: keras.regularizers.OrthogonalRegularizer(0.01),
    "square_of_the_sum": SquareOfTheSum,
}


@pytest.mark.parametrize("name", ACTIVITIES)
def test_an_activity_regularizer(name: str, devices: int) -> None:
    check_divided(
        lambda: model_with(
            layers.Dense(11, activity_regularizer=ACTIVITIES[name](), name="regular")
        ),
        devices,
        # It multiplies all rows with each other.
        coupled=name == "orthogonal" and ON_JAX,
    )


# --- what hides from a look -------------------------------------------------


class Gated(layers.Layer):
    """Mixes rows behind a gate that is closed at first."""

    def build(self, shape: Any) -> None:
        self.gate = self.add_weight(shape=(), initializer="zeros", name="gate")

    def call(self, x: Any) -> Any:
        return x + self.gate * ops.mean(x, axis=0)


def test_a_gate_that_is_closed_at_first(devices: int) -> None:
    check_divided(lambda: model_with(Gated()), devices)


class OnlyInTraining(layers.Layer):
    def call(self, x: Any, training: bool = False) -> Any:
        return x - ops.mean(x, axis=0) if training else x


def test_a_layer_that_mixes_in_training_only(devices: int) -> None:
    check_divided(lambda: model_with(OnlyInTraining()), devices)


class RootOfPositive(layers.Layer):
    """Has no value for numbers below 0."""

    def call(self, x: Any) -> Any:
        x = ops.sqrt(x + 1.0)
        return x - ops.mean(x, axis=0)


def test_a_layer_that_has_no_value_for_some_numbers(devices: int) -> None:
    check_divided(lambda: model_with(RootOfPositive()), devices)


class Block(layers.Layer):
    """Layers of Keras, and a mean over rows of its own between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(12, activation="tanh")
        self.second = layers.Dense(11)

    def build(self, shape: Any) -> None:
        self.first.build(shape)
        self.second.build((None, 12))

    def call(self, x: Any) -> Any:
        hidden = self.first(x)
        return self.second(hidden - ops.mean(hidden, axis=0))


def test_a_block_that_mixes_rows_between_its_layers(devices: int) -> None:
    check_divided(lambda: model_with(Block()), devices)


def test_a_layer_deep_inside_other_models(devices: int) -> None:
    def build() -> Any:
        inner = keras.Sequential([layers.Dense(12), Gated(), layers.Dense(11)])
        return model_with(keras.Sequential([inner, layers.Activation("tanh")]))

    check_divided(build, devices)


class Flattened(layers.Layer):
    """Folds the axis of time into the rows, mixes all, and takes it out again."""

    def call(self, x: Any) -> Any:
        flat = ops.reshape(x, (-1, 7))
        flat = flat - ops.mean(flat, axis=0)
        return ops.reshape(flat, (-1, 4, 7))


class Centred(layers.Layer):
    def call(self, x: Any) -> Any:
        return x - ops.mean(x, axis=0)


def test_rows_times_time_as_first_axis(devices: int) -> None:
    """Inside of a functional model, so that tensors of both kinds go around."""

    def build() -> Any:
        inputs = keras.Input((8,))
        # Four steps of time: a device's part of rows times time is no number of rows.
        x = layers.Reshape((4, 7))(layers.Dense(28)(inputs))
        x = Flattened()(x)
        flat = ops.reshape(x, (-1, 7))
        flat = layers.Dropout(0.3, seed=5)(Centred()(layers.Dense(7)(flat)))
        x = layers.Flatten()(ops.reshape(flat, (-1, 4, 7)))
        model = keras.Model(inputs, layers.Dense(5, activation="softmax")(x))
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        return model

    with warnings.catch_warnings():
        warnings.simplefilter("error", ku.UnisonWarning)
        check(build, trained, devices=devices, rows=[BATCH])


# --- what cannot be located -------------------------------------------------


class OwnCall(keras.Model):
    """A model that mixes rows itself, between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(13, activation="tanh")
        self.second = layers.Dense(5, activation="softmax")

    def call(self, x: Any) -> Any:
        hidden = self.first(x)
        return self.second(hidden / ops.max(ops.abs(hidden)))


@ONLY_TENSORFLOW
def test_a_model_that_mixes_rows_itself_is_computed_whole(devices: int) -> None:
    def build() -> Any:
        model = OwnCall()
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        return model

    check_whole(build, devices, match="own_call.*is not divided over")


@ONLY_TENSORFLOW
def test_draws_of_tensorflow_are_made_by_one_device(devices: int) -> None:
    import tensorflow as tf

    class Noisy(layers.Layer):
        def call(self, x: Any, training: bool = False) -> Any:
            return x + tf.random.normal(tf.shape(x)) if training else x

    def build() -> Any:
        return model_with(Noisy())

    check_whole(build, devices, match="tf.random")


@ONLY_TENSORFLOW
def test_a_variable_of_tensorflow_is_assigned_once(devices: int) -> None:
    import tensorflow as tf

    class Counting(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.seen = tf.Variable(0, trainable=False)

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.seen.assign_add(tf.shape(x)[0])
            return x

    counts = []

    def use(model: Any) -> Any:
        result = trained(model)
        counts.append(int(model.layers[1].seen))
        return result

    def build() -> Any:
        return model_with(Counting())

    with pytest.warns(ku.UnisonWarning, match="assigns a tf.Variable"):
        parallel = run(build, use, lambda model: ku.DataParallel(model, devices))
    compare(run(build, use), parallel, TOLERANCE)
    assert counts == [2 * ROWS, 2 * ROWS]


@ONLY_TENSORFLOW
def test_a_layer_that_needs_a_number_of_rows_gets_its_own(devices: int) -> None:
    """It asks for the length of its first axis in Python."""

    class Asking(layers.Layer):
        def call(self, x: Any) -> Any:
            return ops.reshape(x, (int(x.shape[0]), 13)) * 2.0

    x, y = data(ROWS)

    def use(model: Any) -> Any:
        return [model.train_on_batch(x[:BATCH], y[:BATCH]) for _ in range(2)]

    def build() -> Any:
        inputs = keras.Input(batch_shape=(BATCH, 8))
        hidden = Asking()(layers.Dense(13)(inputs))
        model = keras.Model(inputs, layers.Dense(5, activation="softmax")(hidden))
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        return model

    with warnings.catch_warnings():
        warnings.simplefilter("error", ku.UnisonWarning)
        check(build, use, devices=devices, rows=[BATCH])


# --- draws that differ by replica -------------------------------------------


@ONLY_TENSORFLOW
def test_draws_may_differ_from_those_of_one_device(devices: int) -> None:
    """With exact_draws=False they are other draws, and the same in each run."""
    x, y = data(ROWS)

    def build() -> Any:
        return model_with(layers.Dropout(0.5))

    def use(model: Any) -> Any:
        return model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)

    def wrap(model: Any) -> Any:
        return ku.DataParallel(model, devices, exact_draws=False)

    first, again = run(build, use, wrap), run(build, use, wrap)
    compare(first, again, TOLERANCE)
    plain = run(build, use)
    with pytest.raises(AssertionError, match="returned/loss"):
        compare(plain, first, 1e-3)


@ONLY_TENSORFLOW
def test_replicas_draw_different_numbers(devices: int) -> None:
    """With exact_draws=False no replica repeats what another draws."""
    model = keras.Sequential([keras.Input((40,)), layers.Dropout(0.5)])
    ku.DataParallel(model, devices, exact_draws=False)
    step = ku.step(lambda x: model(x, training=True))
    seen = np.array(step(np.ones((12, 40), "float32")))
    assert len(np.unique(seen, axis=0)) == 12


# --- a step of one's own ----------------------------------------------------


class Several(layers.Layer):
    """A number, rows, rows times two, and what is common to all rows."""

    def call(self, x: Any) -> Any:
        return 7, x * 2.0, ops.reshape(x, (-1, 4)), ops.mean(x, axis=0)


class Holding(layers.Layer):
    """Mixes no rows itself: what does is found inside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.several = Several()

    def call(self, x: Any) -> Any:
        return self.several(x)


@ONLY_TENSORFLOW
def test_outputs_of_all_kinds_keep_their_places(devices: int) -> None:
    import tensorflow as tf

    x, _ = data(BATCH)
    layer = Holding()
    expected = layer(x)
    model = keras.Sequential([keras.Input((8,)), layers.Dense(5)])
    ku.DataParallel(model, devices)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ku.UnisonWarning)
        found = ku.step(tf.function(lambda values: layer(values)))(tf.constant(x))
    for one, many in zip(expected, found, strict=True):
        np.testing.assert_allclose(many, one, rtol=TOLERANCE, atol=TOLERANCE)


@ONLY_TENSORFLOW
def test_an_array_builds_a_model_in_a_step(devices: int) -> None:
    x, _ = data(BATCH)

    def called(count: int) -> Any:
        keras.utils.set_random_seed(3)
        model = keras.Sequential([layers.Dense(13), layers.Dense(5)])
        ku.DataParallel(model, count)
        return np.array(ku.step(lambda values: model(values))(x))

    np.testing.assert_allclose(
        called(devices), called(1), rtol=TOLERANCE, atol=TOLERANCE
    )
