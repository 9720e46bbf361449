"""Sixteen-bit and double precision, and the scaling of losses."""

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from tests.equivalence.harness import (
    ON_JAX,
    ON_TENSORFLOW,
    check,
    data,
    dense_model,
    reversed_batches,
    run,
)

# 35 rows divide evenly over neither two nor three devices.
ROWS, BATCH = 70, 35
STEPS = 8


@pytest.fixture
def policy(request: pytest.FixtureRequest) -> Iterator[str]:
    """Sets the dtype policy that the test names, and takes it back."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy(before)


@pytest.fixture
def double_precision() -> Iterator[None]:
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    with _wide_numbers():
        yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


def _wide_numbers() -> Any:
    if not ON_JAX:
        return nullcontext()
    import jax

    return jax.enable_x64(True)


def model_with(optimizer: Any) -> Any:
    """A model whose probabilities are not rounded to 16 bits at its end."""
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(13, activation="tanh"),
            keras.layers.Dense(12, activation="relu"),
            keras.layers.Dense(5, activation="softmax", dtype="float32"),
        ]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def steps(model: Any, reverse: bool = False, batches: int = 2) -> Any:
    """Fits and predicts; in reverse the rows of each batch are summed backwards."""
    x, y = data(ROWS)
    if reverse:
        x, y = reversed_batches(x, BATCH), reversed_batches(y, BATCH)
    history = model.fit(
        x, y, batch_size=BATCH, epochs=batches, shuffle=False, verbose=0
    )
    predicted = model.predict(x, batch_size=BATCH, verbose=0)
    return history, reversed_batches(predicted, BATCH) if reverse else predicted


def in_parts(model: Any, parts: int) -> Any:
    """The model, which computes a batch in parts on one device and joins them."""
    call = model.call

    def parted(inputs: Any, training: Any = None, mask: Any = None) -> Any:
        rows = ops.shape(inputs)[0]
        bounds = [rows * part // parts for part in range(parts + 1)]
        return ops.concatenate(
            [
                call(inputs[begin:end], training=training)
                for begin, end in itertools.pairwise(bounds)
            ]
        )

    model.call = parted
    return model


def rounding(use: Any, devices: int) -> Any:
    """`use` on one device with its sums of 16-bit numbers in another order.

    On JAX the compiler chooses how the rows of each device are summed, so that
    other orders are the measure. On TensorFlow the gradient of each part is rounded
    to 16 bits before the parts are added, which one device does for parts too.
    """
    if ON_TENSORFLOW:
        return lambda model: use(in_parts(model, devices))
    return lambda model: use(model, reverse=True)


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.001, epsilon=1e-3),
}


# Sums of 16-bit numbers in another order differ by more than 1e-5 on one device
# too: what that makes is the measure.
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"], indirect=True)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_mixed_precision(name: str, policy: str, devices: int) -> None:
    check(
        lambda: model_with(OPTIMIZERS[name]()),
        steps,
        devices=devices,
        rows=[BATCH],
        floor=rounding(steps, devices),
    )


@pytest.mark.parametrize("policy", ["bfloat16"], indirect=True)
def test_weights_in_16_bits(policy: str, devices: int) -> None:
    floor = rounding(steps, devices)
    check(dense_model, steps, devices=devices, rows=[BATCH], floor=floor)


def overflowing() -> Any:
    """Its first steps overflow, until the scale has come down; then it grows."""
    inner = keras.optimizers.SGD(0.05, momentum=0.9)
    return model_with(
        keras.optimizers.LossScaleOptimizer(
            inner, initial_scale=2.0**20, dynamic_growth_steps=3
        )
    )


def scales(model: Any, reverse: bool = False) -> Any:
    """The scale and the steps since it changed, and whether a step was skipped."""
    x, y = data(ROWS)
    if reverse:
        x, y = reversed_batches(x, BATCH), reversed_batches(y, BATCH)
    before = [weights.copy() for weights in model.get_weights()]
    seen, skipped = [], []
    for step in range(STEPS):
        part = slice(step % 2 * BATCH, (step % 2 + 1) * BATCH)
        model.train_on_batch(x[part], y[part])
        optimizer = model.optimizer
        seen.append([float(optimizer.dynamic_scale), int(optimizer.step_counter)])
        after = [weights.copy() for weights in model.get_weights()]
        skipped.append(all(map(np.array_equal, before, after)))
        before = after
    return {"scales": seen, "skipped": skipped}


@pytest.mark.parametrize("policy", ["mixed_float16"], indirect=True)
def test_steps_that_overflow_are_skipped_alike(policy: str, devices: int) -> None:
    found = run(overflowing, scales)
    skipped = [name for name in found if "skipped" in name and found[name]]
    assert 0 < len(skipped) < STEPS, "no overflow, or no recovery from it"
    # Rounding in 16 bits, as above.
    floor = rounding(scales, devices)
    check(overflowing, scales, devices=devices, rows=[BATCH], floor=floor)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_double_precision(name: str, devices: int) -> None:
    def use(model):
        return steps(model, batches=5)

    check(
        lambda: dense_model(optimizer=OPTIMIZERS[name]()),
        use,
        devices=devices,
        rows=[BATCH],
        tolerance=1e-12,
    )
