"""Simulated devices, each time in a fresh process."""

import pytest

from tests.process.scripts import NEEDS_TENSORFLOW, on_both, output_of, run_python

pytestmark = pytest.mark.process

NAMES = "print(*[device.name for device in ku.devices()])"

# The article's CNN at batch 128: with XLA's pool as it is, two devices wait for
# each other for ever on a machine with few cores, and the process is aborted.
CNN = """
import keras_unison as ku
ku.simulate(2)
import keras, numpy as np
from keras import layers
model = keras.Sequential([
    keras.Input((32, 32, 3)),
    layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(),
    layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(),
    layers.Flatten(), layers.Dense(64, activation="relu"),
    layers.Dense(10, activation="softmax"),
])
ku.DataParallel(model, devices=2)
model.compile("adam", "sparse_categorical_crossentropy")
x = np.random.rand(128 * 6, 32, 32, 3).astype("float32")
y = np.random.randint(0, 10, 128 * 6)
history = model.fit(x, y, batch_size=128, epochs=2, verbose=0)
print("trained", len(history.history["loss"]))
"""


@NEEDS_TENSORFLOW
def test_the_articles_cnn_trains_on_tensorflow():
    found = run_python(CNN, KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")
    assert output_of(found).split() == ["trained", "2"]


@pytest.mark.parametrize("time", range(10))
def test_the_articles_cnn_trains_in_every_fresh_process(time):
    assert output_of(run_python(CNN)).split() == ["trained", "2"]


@on_both
def test_simulate_makes_devices_before_the_backend_starts(backend):
    code = f"import keras_unison as ku; ku.simulate(4); {NAMES}"
    found = output_of(run_python(code, KERAS_BACKEND=backend))
    assert found.split() == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]


@on_both
@pytest.mark.parametrize("first", ["import keras", "pass"])
def test_the_environment_variable_does_the_same(backend, first):
    code = f"{first}\nimport keras_unison as ku\n{NAMES}"
    found = output_of(
        run_python(code, KERAS_BACKEND=backend, KERAS_UNISON_SIMULATE="2")
    )
    assert found.split() == ["cpu:0", "cpu:1"]


@pytest.mark.parametrize(
    ("backend", "start"),
    [
        ("jax", "import jax; jax.numpy.ones(3)"),
        ("tensorflow", "import tensorflow as tf; tf.ones(3)"),
    ],
)
def test_simulating_after_the_backend_started_says_so(backend, start):
    code = f"""
import keras, keras_unison as ku
{start}
try:
    ku.simulate(2)
except ku.SimulationError as error:
    print(error)
"""
    text = output_of(run_python(code, KERAS_BACKEND=backend))
    assert "simulate(2) comes too late" in text
    assert "KERAS_UNISON_SIMULATE=2 python script.py" in text


def test_torch_has_no_simulated_devices_yet():
    code = """
import keras_unison as ku
try:
    ku.simulate(2)
except ku.UnsupportedError as error:
    print(error)
"""
    assert "torch" in output_of(run_python(code, KERAS_BACKEND="torch"))


def test_a_bad_number_in_the_environment_is_named():
    found = run_python("import keras_unison", KERAS_UNISON_SIMULATE="two")
    assert found.returncode == 1
    assert "KERAS_UNISON_SIMULATE must be a whole number" in found.stderr


SHOWN = {
    "jax": "import jax\nprint(jax.default_backend(), jax.config.jax_platforms)",
    "tensorflow": "import tensorflow as tf\n"
    "print(*{d.device_type.lower() for d in tf.config.list_logical_devices()},"
    "len(tf.config.get_visible_devices('GPU')))",
}


@on_both
def test_simulated_devices_win_over_gpus_and_say_so(backend):
    """The GPUs are shown by their device file; none has to be there."""
    code = f"""
import logging, os.path
logging.basicConfig()
exists = os.path.exists
os.path.exists = lambda path: path == "/dev/nvidia0" or exists(path)
import keras_unison as ku
ku.simulate(2)
{SHOWN[backend]}
"""
    found = run_python(code, KERAS_BACKEND=backend)
    wanted = {"jax": ["cpu", "cpu"], "tensorflow": ["cpu", "0"]}[backend]
    assert output_of(found).split() == wanted
    assert "the GPUs of this machine are not used" in found.stderr


def test_torch_says_that_it_is_not_built():
    code = """
import keras, keras_unison as ku
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
for wrap in (lambda: ku.DataParallel(model, devices=1), lambda: ku.step(print)):
    try:
        wrap()
    except ku.UnsupportedError as error:
        print(error)
print([device.name for device in ku.devices()])
"""
    text = output_of(run_python(code, KERAS_BACKEND="torch"))
    assert text.count("not built for the torch backend; it runs on jax, tensorf") == 2
    assert "KERAS_BACKEND=jax" in text


@on_both
def test_one_device_is_plain_keras_without_simulation(backend):
    code = """
import keras, keras_unison as ku
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
assert ku.DataParallel(model) is model
assert type(model) is keras.Sequential
try:
    ku.DataParallel(model, devices=2)
except ValueError as error:
    print(error)
"""
    text = output_of(run_python(code, KERAS_BACKEND=backend, CUDA_VISIBLE_DEVICES=""))
    assert "This machine has 1 device(s) for the active backend: cpu:0" in text
