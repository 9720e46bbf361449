"""The old names, by the command and by the one import line."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.process.scripts import NEEDS_TENSORFLOW, on_both

pytestmark = pytest.mark.process

LINE = "import keras_unison.legacy.install\n"
COMMAND = ["-m", "keras_unison", "run"]
WAYS = {"command": (COMMAND, ""), "line": ([], LINE)}


def _run(folder, text, way="command", options=(), **changes):
    start, before = WAYS[way]
    script = folder / "script.py"
    script.write_text(before + text)
    environment = os.environ | {
        "KERAS_BACKEND": "jax",
        "KERAS_HOME": str(folder),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    for name in ("KERAS_UNISON_SIMULATE", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, *start, *options, str(script)],
        env=environment | changes,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def _good(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


# One form of import each, in a process of their own; each prints what it got.
FORMS = [
    "from keras.utils import multi_gpu_model as found",
    "import keras; found = keras.utils.multi_gpu_model",
    "import keras.utils; found = keras.utils.multi_gpu_model",
    "from keras import utils; found = utils.multi_gpu_model",
    "from keras.utils.multi_gpu_utils import multi_gpu_model as found",
    "from keras.utils.training_utils import multi_gpu_model as found",
    "import keras.utils.multi_gpu_utils as m; found = m.multi_gpu_model",
    "import keras; found = keras.utils.multi_gpu_utils.multi_gpu_model",
    "from keras.utils import *; found = multi_gpu_model",
    "from keras.utils.multi_gpu_utils import *; found = multi_gpu_model",
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_import_finds_the_old_name(form, way, tmp_path):
    text = (
        f"{form}\nimport keras_unison\nprint(found is keras_unison.multi_gpu_model)\n"
    )
    assert _good(_run(tmp_path, text, way)) == "True\n"


@pytest.mark.parametrize("form", FORMS)
def test_the_line_works_after_keras_was_imported(form, tmp_path):
    text = (
        "import keras, keras.utils, sys\n"
        f"{LINE}{form}\n"
        "import keras_unison\n"
        "print(found is keras_unison.multi_gpu_model)\n"
    )
    (tmp_path / "plain.py").write_text(text)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "plain.py")],
        env=os.environ | {"KERAS_BACKEND": "jax", "KERAS_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert _good(done) == "True\n"


def test_installing_imports_nothing_and_twice_is_once(tmp_path):
    text = (
        "import sys\n"
        "from keras_unison.legacy import names\n"
        "before = list(sys.meta_path)\n"
        "names.install()\n"
        "assert sys.meta_path == before\n"
        "print({'keras', 'jax', 'tensorflow', 'torch'} & set(sys.modules))\n"
        "import keras\n"
        "print(keras.utils.__all__.count('multi_gpu_model'))\n"
        "print('tensorflow' in sys.modules)\n"
    )
    assert _good(_run(tmp_path, text)) == "set()\n1\nFalse\n"


def test_keras_keeps_what_it_had(tmp_path):
    text = (
        "import inspect, keras, importlib\n"
        "import keras_unison\n"
        "assert keras.utils.DataParallel is keras_unison.DataParallel\n"
        "print(keras.utils.to_categorical([1]).shape)\n"
        "print(hasattr(keras.utils, 'no_such_name'))\n"
        "print(type(keras.utils.__spec__.loader).__name__)\n"
        'print(inspect.getsource(keras.utils)[:3] == \'"""\')\n'
        "try:\n"
        "    keras.utils.nothing\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
        "try:\n"
        "    from keras.utils import nothing\n"
        "except ImportError as error:\n"
        "    print(str(error).split(' (')[0])\n"
    )
    assert _good(_run(tmp_path, text)).splitlines() == [
        "(1, 2)",
        "False",
        "SourceFileLoader",
        "True",
        "module 'keras.utils' has no attribute 'nothing'",
        "cannot import name 'nothing' from 'keras.utils'",
    ]


def test_model_to_gpu_says_what_it_would_do(tmp_path):
    text = (
        "import keras\n"
        "from keras.utils import model_to_gpu\n"
        "model_to_gpu(keras.layers.Dense(4, name='wide'), gpu_id=1)\n"
    )
    done = _run(tmp_path, text)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "UnsupportedError" in last
    assert "model_to_gpu(wide, gpu_id=1)" in last
    assert "DataParallel(model)" in last


@pytest.mark.parametrize(
    "form",
    [
        "from keras.backend.tensorflow_backend import _get_available_gpus",
        "import keras.backend.tensorflow_backend as b; "
        "_get_available_gpus = b._get_available_gpus",
        "from keras import backend as K; "
        "_get_available_gpus = K.tensorflow_backend._get_available_gpus",
    ],
)
@on_both
def test_available_gpus_are_the_simulated_devices(backend, form, tmp_path):
    text = f"{form}\nprint(_get_available_gpus())\n"
    options = ["--simulate", "2"]
    two = _good(_run(tmp_path, text, options=options, KERAS_BACKEND=backend))
    assert two == "['/device:GPU:0', '/device:GPU:1']\n"


@on_both
def test_a_lone_cpu_is_no_available_gpu(backend, tmp_path):
    text = (
        "from keras.backend.tensorflow_backend import _get_available_gpus\n"
        "print(_get_available_gpus())\n"
    )
    changes = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    found = _good(_run(tmp_path, text, KERAS_BACKEND=backend, **changes))
    assert found == "[]\n"


@pytest.mark.parametrize("name", ["set_session(None)", "get_session()"])
def test_sessions_say_what_took_their_place(name, tmp_path):
    text = f"from keras.backend import tensorflow_backend as b\nb.{name}\n"
    done = _run(tmp_path, text)
    assert done.returncode == 1
    assert "UnsupportedError" in done.stderr
    assert "TF_FORCE_GPU_ALLOW_GROWTH=true" in done.stderr


def test_the_old_backend_still_has_what_keras_has(tmp_path):
    text = (
        "import keras, keras.backend.tensorflow_backend as K\n"
        "print(K.epsilon() == keras.backend.epsilon(), K.floatx())\n"
        "K.tf\n"
    )
    done = _run(tmp_path, text)
    assert done.stdout == "True float32\n"
    assert done.stderr.splitlines()[-1].startswith("To fix: `import tensorflow as tf`")


@NEEDS_TENSORFLOW
@on_both
def test_tf_keras_has_the_old_names_too(backend, tmp_path):
    text = (
        "import tensorflow as tf\n"
        "a = tf.keras.utils.multi_gpu_model\n"
        "from tensorflow.keras.utils import multi_gpu_model as b\n"
        "from tensorflow.keras.utils.multi_gpu_utils import multi_gpu_model as c\n"
        "from tensorflow.python.keras.utils import multi_gpu_model as d\n"
        "from tensorflow.python.keras.utils.multi_gpu_utils import (\n"
        "    multi_gpu_model as e)\n"
        "f = tf.keras.utils.multi_gpu_model\n"
        "import keras, keras_unison\n"
        "one = keras_unison.multi_gpu_model\n"
        "print([found is one for found in (a, b, c, d, e, f)])\n"
        "print(tf.keras.utils.model_to_gpu is keras.utils.model_to_gpu)\n"
        "print(tf.keras.utils.DataParallel is keras_unison.DataParallel)\n"
        "print(tf.keras.backend.tensorflow_backend._get_available_gpus())\n"
        "print(keras.config.backend())\n"
        "tf.ConfigProto\n"
    )
    done = _run(tmp_path, text, KERAS_BACKEND=backend, CUDA_VISIBLE_DEVICES="")
    assert done.stdout.splitlines() == [
        str([True] * 6),
        "True",
        "True",
        "[]",
        backend,
    ], done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("To fix: delete the session lines")


@NEEDS_TENSORFLOW
def test_the_line_works_after_tensorflow_was_imported(tmp_path):
    text = (
        "import tensorflow as tf\n"
        "import tensorflow.keras.utils\n"
        f"{LINE}"
        "from tensorflow.keras.utils import multi_gpu_model\n"
        "import keras_unison\n"
        "print(multi_gpu_model is keras_unison.multi_gpu_model)\n"
        "print(tf.keras.utils.multi_gpu_model is multi_gpu_model)\n"
    )
    (tmp_path / "plain.py").write_text(text)
    plain = subprocess.run(
        [sys.executable, str(tmp_path / "plain.py")],
        env=os.environ | {"KERAS_BACKEND": "jax", "KERAS_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert _good(plain) == "True\nTrue\n"


def test_the_line_ends_tracebacks_with_the_fix_and_keeps_the_hook_before(tmp_path):
    text = (
        "import sys\n"
        "before = sys.excepthook\n"
        "def own(kind, error, traceback):\n"
        "    print('own hook')\n"
        "    before(kind, error, traceback)\n"
        "sys.excepthook = own\n"
        f"{LINE}"
        "num_gpus\n"
    )
    (tmp_path / "plain.py").write_text(text)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "plain.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "own hook\n")
    lines = done.stderr.splitlines()
    assert lines[-2] == "NameError: name 'num_gpus' is not defined"
    assert lines[-1].startswith("To fix: ")
    # The line inside a script that the command runs adds no second one.
    both = _run(tmp_path, f"{LINE}num_gpus\n")
    assert both.stderr.count("To fix: ") == 1


@pytest.mark.skipif(
    importlib.util.find_spec("IPython") is None, reason="IPython is not installed"
)
def test_a_cell_of_a_notebook_ends_with_the_fix(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor"],
        input=f"{LINE}num_gpus\n1 + 1\n1 / 0\n",
        env=os.environ | {"IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    shown = done.stdout + done.stderr
    assert "num_gpus" in shown
    assert done.stderr.count("To fix: ") == 1
