"""A library that says nothing unless something is degraded."""

import pytest

from tests.process.scripts import output_of, run_python

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


def test_training_with_verbose_0_prints_nothing():
    found = run_python(TRAIN, TF_CPP_MIN_LOG_LEVEL="3", PYTHONWARNINGS="ignore")
    assert output_of(found) == ""
    lines = [line for line in found.stderr.splitlines() if "onednn" not in line.lower()]
    assert not [line for line in lines if "absl" not in line], found.stderr


def test_training_gives_no_warning_of_ours():
    code = f"import warnings\nwarnings.simplefilter('error', UserWarning)\n{TRAIN}"
    output_of(run_python(code))


def test_a_degraded_path_warns_once_per_model():
    code = TRAIN.replace(
        'model.compile("sgd", "mse")', 'model.compile("sgd", "mse", run_eagerly=True)'
    )
    found = run_python(code)
    output_of(found)
    assert found.stderr.count("UnisonWarning") == 1
    assert "A step that runs eagerly cannot be divided over 2 devices" in found.stderr
