"""Layers that mix the rows of a batch mix all of them, as on one device.

On JAX the partitioner divides them, but for a few. On TensorFlow the check before
the first step finds them, and they run on all rows between layers that are divided.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_unison.errors import UnisonWarning
from tests.equivalence.harness import ON_JAX, assert_divided, check, data
from tests.equivalence.programs import Seen

# 35 rows divide evenly over neither two nor three devices, 48 over both.
UNEVEN, EVEN = 35, 48


def centred(x: Any) -> Any:
    return x - ops.mean(x, axis=0)


class Centred(keras.layers.Layer):
    """Takes the mean of the batch away."""

    def call(self, x: Any) -> Any:
        return centred(x)


class Rowwise(keras.layers.Layer):
    """What a function makes of all rows."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def call(self, x: Any) -> Any:
        return self.function(x)


def model_with(layer: Callable[[Any], Any]) -> Any:
    """A model with this layer, or operation, between two dense layers."""
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(13, activation="tanh")(inputs)
    outputs = keras.layers.Dense(5, activation="softmax")(layer(hidden))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return model


def use_with(batch: int) -> Callable[[Any], Any]:
    """Trains, evaluates and predicts batches of so many rows."""
    x, y = data(2 * batch)

    def use(model):
        return (
            model.fit(x, y, batch_size=batch, verbose=0),
            model.evaluate(x, y, batch_size=batch, verbose=0),
            model.predict(x, batch_size=batch, verbose=0),
        )

    return use


@contextmanager
def warning_once() -> Iterator[None]:
    """Requires one warning within, that a step could not be divided."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    texts = [str(w.message) for w in caught if w.category is UnisonWarning]
    assert len(texts) == 1, texts
    assert "cannot be divided" in texts[0]
    assert "Results are right" in texts[0]


@contextmanager
def whole_on_jax() -> Iterator[None]:
    """Requires one warning within on JAX, and none elsewhere."""
    with warning_once() if ON_JAX else no_warning():
        yield


@contextmanager
def no_warning() -> Iterator[None]:
    """Requires that nothing was computed whole within."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnisonWarning)
        yield


def assert_whole_on_jax(
    seen: Seen, devices: int, rows: int, step: str = "jit_"
) -> None:
    """Requires on JAX that each device computed all rows, elsewhere its part."""
    if not ON_JAX:
        assert_divided(seen, devices=devices, rows=[rows], all_steps=True)
        return
    found = [
        p for p in seen.programs if p.partitions == devices and p.name.startswith(step)
    ]
    assert found
    for program in found:
        assert rows in program.lengths, program


# --- divided, whatever the batch ----------------------------------------------


@pytest.mark.parametrize("batch", [UNEVEN, EVEN])
@pytest.mark.parametrize("form", ["layer", "operation", "lambda"])
def test_the_mean_of_the_batch(form: str, batch: int, devices: int) -> None:
    forms: dict[str, Callable[[], Any]] = {
        "layer": Centred,
        "operation": lambda: centred,
        "lambda": lambda: keras.layers.Lambda(centred),
    }
    with no_warning():
        check(
            lambda: model_with(forms[form]()),
            use_with(batch),
            devices=devices,
            rows=[batch],
            all_steps=True,
        )


def pairs(x: Any) -> Any:
    apart = ops.sum((x[:, None] - x[None]) ** 2, axis=-1)
    return x * ops.mean(ops.exp(-apart), axis=1, keepdims=True)


def mean_windows(x: Any) -> Any:
    """The mean of each row and the next two, written as a sum of slices."""
    padded = ops.pad(x, ((0, 2), (0, 0)))
    rows = ops.shape(x)[0]
    return (padded[:rows] + padded[1 : rows + 1] + padded[2 : rows + 2]) / 3.0


MIXES: dict[str, Callable[[Any], Any]] = {
    "max": lambda x: x - ops.max(x, axis=0),
    "min_and_max": lambda x: (
        (x - ops.min(x, axis=0)) / (ops.max(x, axis=0) - ops.min(x, axis=0))
    ),
    "argmax": lambda x: x - ops.take(x, ops.argmax(x[:, 0]), axis=0),
    "std": lambda x: x / (ops.std(x, axis=0) + 0.1),
    "logsumexp": lambda x: x - ops.logsumexp(x, axis=0),
    "softmax": lambda x: ops.softmax(x, axis=0) * 10.0,
    "cumsum": lambda x: 0.1 * ops.cumsum(x, axis=0),
    "flip": lambda x: 0.7 * x + 0.3 * ops.flip(x, axis=0),
    "roll": lambda x: x * ops.roll(x, 1, axis=0),
    "first_row": lambda x: x - x[0],
    "difference": lambda x: ops.concatenate([x[:1], x[1:] - x[:-1]], axis=0),
    "windows": mean_windows,
    "pairs": pairs,
    "top_k": lambda x: x - ops.transpose(ops.top_k(ops.transpose(x), 1)[0]),
    "segments": lambda x: (
        x
        - ops.take(
            ops.segment_sum(x, ops.arange(ops.shape(x)[0]) % 4, num_segments=4),
            ops.arange(ops.shape(x)[0]) % 4,
            axis=0,
        )
    ),
    "whitened": lambda x: ops.matmul(
        x,
        ops.linalg.inv(
            ops.matmul(ops.transpose(x), x) / ops.cast(ops.shape(x)[0], "float32")
            + ops.eye(13)
        ),
    ),
}


@pytest.mark.parametrize("name", MIXES)
def test_rows_are_mixed_over_all_devices(name: str, devices: int) -> None:
    with no_warning():
        check(
            lambda: model_with(Rowwise(MIXES[name])),
            use_with(UNEVEN),
            devices=devices,
            rows=[UNEVEN],
            all_steps=True,
        )


@pytest.mark.parametrize("batch", [UNEVEN, EVEN])
def test_attention_of_each_row_to_all_rows(batch: int, devices: int) -> None:
    def attend(x):
        return ops.matmul(ops.softmax(ops.matmul(x, ops.transpose(x))), x)

    with no_warning():
        check(
            lambda: model_with(Rowwise(attend)),
            use_with(batch),
            devices=devices,
            rows=[batch],
            all_steps=True,
            coupled=True,
        )


def test_attention_layer_over_the_batch(devices: int) -> None:
    def build():
        attention = keras.layers.MultiHeadAttention(2, 4)

        class Over(keras.layers.Layer):
            """Attention with the rows as its sequence."""

            def build(self, shape: Any) -> None:
                attention.build((1, *shape), (1, *shape))
                self.attention = attention

            def call(self, x: Any) -> Any:
                return x + self.attention(x[None], x[None])[0]

        return model_with(Over())

    with no_warning():
        check(
            build,
            use_with(UNEVEN),
            devices=devices,
            rows=[UNEVEN],
            all_steps=True,
            coupled=True,
        )


# --- sorts ----------------------------------------------------------------------


ORDERS: dict[str, Callable[[Any], Any]] = {
    "order": lambda x: (
        x * 0.1 * ops.cast(ops.argsort(ops.argsort(x, axis=0), axis=0), "float32")
    ),
    "rows_by_a_feature": lambda x: ops.take(x, ops.argsort(x[:, 0]), axis=0),
    "features_by_their_order": lambda x: ops.take_along_axis(
        x, ops.argsort(x, axis=1), axis=1
    ),
}


@pytest.mark.parametrize("batch", [UNEVEN, EVEN])
@pytest.mark.parametrize("name", ORDERS)
def test_an_order_is_found_over_all_devices(
    name: str, batch: int, devices: int
) -> None:
    with no_warning():
        check(
            lambda: model_with(Rowwise(ORDERS[name])),
            use_with(batch),
            devices=devices,
            rows=[batch],
            all_steps=True,
        )


# The gradient of these is computed whole where the rows do not divide evenly.
SORTS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: ops.sort(x, axis=0),
    "features": lambda x: x + ops.sort(x, axis=1),
    "median": lambda x: x - ops.median(x, axis=0),
    "quantile": lambda x: x - ops.quantile(x, 0.3, axis=0),
}


@pytest.mark.parametrize("name", SORTS)
def test_the_gradient_of_a_sort_of_uneven_batches_is_computed_whole(
    name: str, devices: int
) -> None:
    with whole_on_jax():
        seen = check(
            lambda: model_with(Rowwise(SORTS[name])),
            use_with(UNEVEN),
            devices=devices,
            rows=[],
        )
    assert_whole_on_jax(seen, devices, UNEVEN, step="jit_train_step")
    forward = Seen([p for p in seen.programs if p.name != "jit_train_step"])
    assert_divided(forward, devices=devices, rows=[UNEVEN], all_steps=True)


@pytest.mark.parametrize("name", SORTS)
def test_a_sort_of_even_batches_is_divided(name: str, devices: int) -> None:
    with no_warning():
        check(
            lambda: model_with(Rowwise(SORTS[name])),
            use_with(EVEN),
            devices=devices,
            rows=[EVEN],
            all_steps=True,
        )


def test_only_the_uneven_batches_of_a_sort_are_computed_whole(devices: int) -> None:
    x, y = data(EVEN + UNEVEN)

    def use(model):
        return model.fit(x, y, batch_size=EVEN, epochs=2, verbose=0)

    with whole_on_jax():
        seen = check(
            lambda: model_with(Rowwise(SORTS["rows"])),
            use,
            devices=devices,
            rows=[EVEN],
        )
    whole = any(UNEVEN in program.lengths for program in seen.programs)
    assert whole == ON_JAX


# --- windows that slide over rows ---------------------------------------------


def largest_of_three_rows(x: Any) -> Any:
    return ops.max_pool(x[None], 3, strides=1, padding="same")[0]


def smallest_of_four_rows(x: Any) -> Any:
    rows = ops.transpose(x)[:, :, None]
    pooled = -ops.max_pool(-rows, 4, strides=1, padding="same")
    return ops.transpose(pooled[:, :, 0])


@pytest.mark.parametrize("batch", [UNEVEN, EVEN])
@pytest.mark.parametrize("function", [largest_of_three_rows, smallest_of_four_rows])
def test_a_maximum_over_windows_of_rows_is_computed_whole(
    function: Any, batch: int, devices: int
) -> None:
    with whole_on_jax():
        seen = check(
            lambda: model_with(Rowwise(function)),
            use_with(batch),
            devices=devices,
            rows=[],
        )
    assert_whole_on_jax(seen, devices, batch)


def test_a_maximum_over_windows_of_rows_and_time(devices: int) -> None:
    def over_rows_and_time(x):
        flat = ops.reshape(x, (1, -1, 6))
        pooled = ops.max_pool(flat, 3, strides=1, padding="same")
        return ops.reshape(pooled, (-1, 7, 6))

    def build():
        inputs = keras.Input((7, 3))
        hidden = keras.layers.Dense(6)(inputs)
        mixed = Rowwise(over_rows_and_time)(hidden)
        flat = keras.layers.Flatten()(mixed)
        model = keras.Model(inputs, keras.layers.Dense(5, activation="softmax")(flat))
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        return model

    x = np.random.default_rng(13).normal(size=(2 * UNEVEN, 7, 3)).astype("float32")
    _, y = data(2 * UNEVEN)

    def use(model):
        return model.fit(x, y, batch_size=UNEVEN, verbose=0)

    with whole_on_jax():
        seen = check(build, use, devices=devices, rows=[])
    assert_whole_on_jax(seen, devices, UNEVEN)
