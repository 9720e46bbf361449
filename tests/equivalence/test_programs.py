"""A step is traced as often as in plain Keras."""

from typing import Any

import keras
import pytest

import keras_unison as ku
from tests.equivalence.harness import ON_JAX, data

TRACES: list[int] = []


class Counting(keras.Sequential):
    """Counts by a side effect in Python, which only tracing has."""

    def train_step(self, *args: Any) -> Any:
        TRACES.append(1)
        return super().train_step(*args)


def counting_model() -> Any:
    model = Counting([keras.Input((8,)), keras.layers.Dense(5, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


@pytest.fixture(autouse=True)
def _no_traces_yet() -> None:
    TRACES.clear()


def test_a_step_is_traced_as_often_as_in_plain_keras(devices: int) -> None:
    x, y = data(99)

    def fit(model: Any) -> int:
        TRACES.clear()
        model.fit(x, y, batch_size=31, epochs=2, verbose=0)
        return len(TRACES)

    found = fit(ku.DataParallel(counting_model(), devices))
    # JAX knows one program for each number of rows, TensorFlow one for all.
    assert found == (2 if ON_JAX else 1)
    assert found == fit(counting_model())


def test_wrapping_again_with_the_same_devices_traces_nothing(devices: int) -> None:
    x, y = data(66)
    model = ku.DataParallel(counting_model(), devices)
    model.fit(x, y, batch_size=33, verbose=0)
    before = len(TRACES)
    ku.DataParallel(model, devices)
    model.fit(x, y, batch_size=33, verbose=0)
    assert len(TRACES) == before > 0
