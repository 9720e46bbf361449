"""TensorFlow forgets the steps of models that are gone."""

import gc
from typing import Any

import keras
import numpy as np
import pytest

import keras_unison as ku
from tests.equivalence.harness import ON_TENSORFLOW

pytestmark = pytest.mark.skipif(
    not ON_TENSORFLOW, reason="TensorFlow registers gradients for ever"
)


def registered() -> set[str]:
    from keras_unison.engines.tensorflow.differentiable import registered_gradients

    return set(registered_gradients())


def graphs() -> int:
    gc.collect()
    return sum(type(found).__name__ == "FuncGraph" for found in gc.get_objects())


def model_with_sums(jit_compile: bool = False) -> Any:
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(13),
            keras.layers.BatchNormalization(),
            # Not known to compute row by row, so that it is tried first.
            keras.layers.Lambda(lambda x: x - keras.ops.mean(x, axis=0)),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=jit_compile)
    return model


def train(model: Any) -> None:
    x, y = np.ones((35, 8), "float32"), np.zeros(35)
    model.fit(x, y, verbose=0)
    model.evaluate(x, y, verbose=0)


@pytest.mark.filterwarnings("ignore::keras_unison.UnisonWarning")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_model_that_is_gone_leaves_no_gradients_and_graphs(
    jit_compile: bool, devices: int
) -> None:
    train(ku.DataParallel(model_with_sums(jit_compile), devices))
    before, kept = registered(), graphs()
    model = ku.DataParallel(model_with_sums(jit_compile), devices)
    train(model)
    assert registered() - before
    assert graphs() > kept
    del model
    assert graphs() <= kept
    assert not registered() - before


def test_gradients_stay_while_the_model_is_there(devices: int) -> None:
    model = ku.DataParallel(model_with_sums(), devices)
    train(model)
    gc.collect()
    before = registered()
    train(model)
    gc.collect()
    assert before <= registered()
