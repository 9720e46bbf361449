"""The code of the two articles that this library makes true, as they print it.

`tests/data/seeds` holds their blocks about data parallelism, letter by letter.
"""

import os
import subprocess
import sys

import pytest

from tests.process.scripts import NEEDS_TENSORFLOW, ROOT, on_both

pytestmark = pytest.mark.process

SEEDS = ROOT / "tests" / "data" / "seeds"
BLOCKS = ["first_data_parallel.py", "first_multi_gpu.py"]


def text_of(name):
    return (SEEDS / name).read_text(encoding="utf-8")


def run_script(folder, text, backend):
    script = folder / "script.py"
    script.write_text(text, encoding="utf-8")
    environment = os.environ | {
        "KERAS_BACKEND": backend,
        "KERAS_HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    environment.pop("KERAS_UNISON_SIMULATE", None)
    return subprocess.run(
        [sys.executable, "-m", "keras_unison", "run", "--simulate", "2", str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def replaced(text, old, new):
    assert text.count(old) == 1
    return text.replace(old, new)


@on_both
@pytest.mark.parametrize("block", BLOCKS)
def test_the_first_articles_block_runs_unchanged(block, backend, tmp_path):
    done = run_script(tmp_path, text_of(block), backend)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@on_both
@pytest.mark.parametrize("block", BLOCKS)
def test_the_first_articles_model_trains_on_two_devices_as_on_one(
    block, backend, tmp_path
):
    done = run_script(tmp_path, text_of(block) + text_of("compare.py"), backend)
    assert done.returncode == 0, done.stderr
    # Four values of two epochs, evaluate's two, the predictions, six weights, and
    # two variables of the optimizer.
    assert done.stdout.splitlines() == [
        "devices of the steps: [1]",
        "devices of the steps: [2]",
        "values compared: 19",
    ]


FITTED = """
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(96, 100)).astype("float32")
y = np.eye(10, dtype="float32")[np.random.default_rng(1).integers(0, 10, size=96)]
start = model.get_weights()
history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
print(type(strategy).__module__.split(".")[0], strategy.num_replicas_in_sync)
"""
# Batches that divide and a mean over rows: here TensorFlow's numbers are those of
# one device too.
AGAINST_ONE_DEVICE = """
plain = keras.Sequential.from_config(model.get_config())
plain.set_weights(start)
plain.compile(loss='categorical_crossentropy', optimizer='sgd')
expected = plain.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
np.testing.assert_allclose(history.history["loss"], expected.history["loss"], 1e-5)
for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
print("equal to one device")
"""


@NEEDS_TENSORFLOW
def test_the_first_articles_strategy_goes_on_working_beside_us(tmp_path):
    """It takes the simulated devices for its replicas."""
    article = text_of("first_mirrored_strategy.py")
    done = run_script(tmp_path, article + FITTED + AGAINST_ONE_DEVICE, "tensorflow")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["tensorflow 2", "equal to one device"]


@on_both
@NEEDS_TENSORFLOW
def test_the_first_articles_strategy_of_ours_trains_on_all_devices(backend, tmp_path):
    article = text_of("first_mirrored_strategy.py")
    ours = replaced(
        article,
        "strategy = tf.distribute.MirroredStrategy()",
        "import keras_unison\nstrategy = keras_unison.MirroredStrategy()",
    )
    watched = replaced(FITTED, "history = ", "with programs() as seen:\n    history = ")
    text = "\n".join(
        [
            ours,
            "from tests.equivalence.harness import assert_divided, programs",
            watched,
            "assert_divided(seen, devices=2, rows=[32])",
            AGAINST_ONE_DEVICE,
            text_of("compare.py"),
        ]
    )
    done = run_script(tmp_path, text, backend)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "keras_unison 2",
        "equal to one device",
        "devices of the steps: [1]",
        "devices of the steps: [2]",
        "values compared: 19",
    ]


@on_both
@NEEDS_TENSORFLOW
def test_the_second_articles_missing_line_is_named(backend, tmp_path):
    done = run_script(tmp_path, text_of("second_training.py"), backend)
    assert done.returncode == 1
    error, fix = done.stderr.splitlines()[-2:]
    assert error == "NameError: name 'num_gpus' is not defined"
    assert fix == (
        "To fix: `import keras_unison; num_gpus = len(keras_unison.devices())` above "
        "this line"
    )


# Real images in place of a download: handwritten digits of 8 x 8, enlarged.
DIGITS = """
import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
images = np.kron(digits.images[:501] / 16, np.ones((4, 4)))
images = np.repeat(images[..., None], 3, axis=-1).astype("float32")
labels = digits.target[:501]
(x_train, y_train), (x_test, y_test) = (
    (images[:401], labels[:401]), (images[401:], labels[401:])
)
"""
MISSING = "import keras_unison\nnum_gpus = len(keras_unison.devices())\n"
REPLICAS = """
parallel = tf.keras.utils.multi_gpu_model(replicas, gpus=num_gpus)
assert parallel is replicas[0]
parallel.compile(optimizer='adam', loss='sparse_categorical_crossentropy')
with programs() as replicated:
    parallel.fit(x_train, y_train, batch_size=128 * num_gpus, verbose=0)
assert_divided(replicated, devices=2, rows=[256, 145])
"""


@on_both
@NEEDS_TENSORFLOW
def test_the_second_articles_training_runs_with_its_replicas(backend, tmp_path):
    article = text_of("second_training.py")
    missing = "multi_gpu_model = tf.keras.utils.multi_gpu_model(model, gpus=num_gpus)\n"
    text = replaced(article, missing, MISSING + missing)
    text = replaced(
        text,
        "(x_train, y_train), (x_test, y_test) = tf.keras.datasets.cifar10.load_data()",
        DIGITS,
    )
    text = replaced(text, "epochs=10", "epochs=1")
    fit = "multi_gpu_model.fit("
    text = replaced(text, fit, f"with programs() as seen:\n    history = {fit}")
    # TensorFlow sees no GPU here, so that the article's own function makes one
    # replica; counting the simulated devices it makes two.
    start, end = article.index("def create_model_for_gpu"), article.index("# 编译模型")
    counting_ours = replaced(
        article[start:end],
        "len(tf.config.experimental.list_physical_devices('GPU'))",
        "len(keras_unison.devices())",
    )
    lines = [
        "from tests.equivalence.harness import assert_divided, programs",
        text,
        "assert_divided(seen, devices=2, rows=[256, 145])",
        "print(sorted(history.history))",
        "replicas = create_model_for_gpu()",
        "print('replicas:', len(replicas))",
        "assert tf.keras.utils.multi_gpu_model(replicas, gpus=num_gpus) is replicas[0]",
        counting_ours,
        "replicas = create_model_for_gpu()",
        "print('replicas:', len(replicas))",
        REPLICAS,
    ]
    done = run_script(tmp_path, "\n".join(lines), backend)
    assert done.returncode == 0, done.stderr
    assert "1/2" in done.stdout
    assert done.stdout.splitlines()[-3:] == [
        "['accuracy', 'loss', 'val_accuracy', 'val_loss']",
        "replicas: 1",
        "replicas: 2",
    ]
