"""A library that says nothing unless something is degraded."""

import pytest

from tests.process.scripts import on_both, output_of, run_python

pytestmark = pytest.mark.process

TRAIN = """
import logging, sys, warnings
import keras, numpy as np
import keras_unison as ku
ku.simulate(2)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
ku.DataParallel(model, devices=2)
model.compile("sgd", "mse")
x, y = np.ones((11, 4), "float32"), np.ones((11, 3), "float32")
for _ in range(2):
    model.fit(x, y, batch_size=5, verbose=0, validation_data=(x, y))
model.evaluate(x, y, verbose=0)
model.predict(x, verbose=0)
assert not logging.getLogger().handlers
"""


@on_both
def test_training_with_verbose_0_prints_nothing(backend):
    found = run_python(
        TRAIN,
        KERAS_BACKEND=backend,
        TF_CPP_MIN_LOG_LEVEL="3",
        PYTHONWARNINGS="ignore",
    )
    assert output_of(found) == ""
    lines = [line for line in found.stderr.splitlines() if "onednn" not in line.lower()]
    assert not [line for line in lines if "absl" not in line], found.stderr


@on_both
def test_training_gives_no_warning_of_ours(backend):
    code = f"import warnings\nwarnings.simplefilter('error', UserWarning)\n{TRAIN}"
    output_of(run_python(code, KERAS_BACKEND=backend))


EAGERLY = 'model.compile("sgd", "mse", run_eagerly=True)'
DEGRADED = {
    # Uneven parts exist only in a compiled program.
    "jax": ("Dense(3)", "A step that runs eagerly cannot be divided over 2 devices"),
    # In eager mode parts run one after the other, and cannot wait for a sum.
    "tensorflow": (
        "Dense(3), keras.layers.BatchNormalization()",
        "(Sequential) is not divided over 2 devices, because replicas exchange sums",
    ),
}


@on_both
def test_a_degraded_path_warns_once_per_model(backend):
    layers, text = DEGRADED[backend]
    code = TRAIN.replace('model.compile("sgd", "mse")', EAGERLY)
    code = code.replace("Dense(3)", layers)
    found = run_python(code, KERAS_BACKEND=backend)
    output_of(found)
    assert found.stderr.count("UnisonWarning") == 1
    assert text in found.stderr
