"""From the error about a removed name to the one line that fixes it.

Each row of the table is an error class, a pattern of its text, and the fix.
The texts are those of Keras, TensorFlow and Python; the tests raise each one by
the call that an old script makes.
"""

import re
from dataclasses import dataclass

# A name that a module lacks: by `from module import name`, or by `module.name`.
_MISSING = (ImportError, AttributeError)

_SESSIONS = (
    "delete the session lines; for GPU memory on demand start the script with "
    "TF_FORCE_GPU_ALLOW_GROWTH=true (JAX: XLA_PYTHON_CLIENT_PREALLOCATE=false)"
)


@dataclass(frozen=True, slots=True)
class Hint:
    """One error of old scripts and its fix.

    Attributes:
        error: Class of the exception, or several.
        pattern: What its text contains, as a regular expression.
        fix: The fix; may refer to groups of the pattern.
    """

    error: type[BaseException] | tuple[type[BaseException], ...]
    pattern: str
    fix: str


def _no_attribute(names: str) -> str:
    return rf"object has no attribute '({names})'"


def _no_name(names: str, module: str) -> str:
    """Both forms of asking a module for a name that it does not have."""
    return (
        rf"cannot import name '(?:{names})' from '(?:\w+\.)*{module}'"
        rf"|module '(?:\w+\.)*{module}' has no attribute '(?:{names})'"
    )


def _no_module(names: str) -> str:
    return rf"No module named '(?:tensorflow\.)?({names})(?:\.[\w.]+)?'"


def _not_taken(names: str) -> str:
    return rf"unexpected keyword argument '({names})'"


def _not_recognized(what: str, names: str) -> str:
    return rf"Unrecognized keyword arguments passed to {what}: \{{.*'({names})':"


HINTS: tuple[Hint, ...] = (
    # Modules that moved.
    Hint(
        _MISSING,
        _no_module(r"keras\.utils\.np_utils") + "|" + _no_name("np_utils", "utils"),
        "`from keras.utils import to_categorical, normalize`",
    ),
    Hint(
        ImportError,
        _no_module(r"keras\.utils\.(?:generic_utils|vis_utils|data_utils|layer_utils)"),
        "import the name from `keras.utils`, for instance "
        "`from keras.utils import plot_model`",
    ),
    Hint(
        ImportError,
        _no_module(r"keras\.engine"),
        "`from keras.models import Model` and `from keras.layers import Layer, Input, "
        "InputSpec`",
    ),
    Hint(
        ImportError,
        _no_module(
            r"keras\.layers\.(?:core|merge|convolutional|convolutional_recurrent"
            r"|normalization|recurrent|pooling|embeddings|noise|wrappers|local"
            r"|advanced_activations)"
        ),
        "import the layer from `keras.layers`, for instance "
        "`from keras.layers import Dense`",
    ),
    Hint(
        _MISSING,
        _no_module(r"keras\.legacy\.interfaces")
        + "|"
        + _no_name("interfaces", r"keras\.legacy"),
        "delete this import and the `@interfaces...` lines; Keras 3 has no old "
        "argument names to translate",
    ),
    Hint(
        _MISSING,
        _no_name("ImageDataGenerator", r"preprocessing\.image"),
        "`keras.utils.image_dataset_from_directory(...)` and augmentation layers such "
        "as `keras.layers.RandomFlip`; or, where TensorFlow is installed, `from "
        "tensorflow.keras.preprocessing.image import ImageDataGenerator`",
    ),
    Hint(
        _MISSING,
        _no_name("CuDNNLSTM|CuDNNGRU", r"keras\.layers"),
        "`keras.layers.LSTM` and `keras.layers.GRU`, which use cuDNN by themselves",
    ),
    Hint(
        ImportError,
        r"^No module named 'tensorflow'$",
        "`pip install 'keras-unison[tensorflow]'`; or, where only Keras asks for it, "
        "`keras-unison backend jax`",
    ),
    # Methods and attributes of models.
    Hint(
        AttributeError,
        _no_attribute("fit_generator"),
        "`model.fit(generator, ...)`: fit takes generators",
    ),
    Hint(
        AttributeError,
        _no_attribute("predict_generator"),
        "`model.predict(generator, ...)`: predict takes generators",
    ),
    Hint(
        AttributeError,
        _no_attribute("evaluate_generator"),
        "`model.evaluate(generator, ...)`: evaluate takes generators",
    ),
    Hint(
        AttributeError,
        _no_attribute("predict_classes"),
        "`model.predict(x).argmax(axis=-1)`, or `(model.predict(x) > 0.5)` for one "
        "sigmoid output",
    ),
    Hint(AttributeError, _no_attribute("predict_proba"), "`model.predict(x)`"),
    Hint(
        AttributeError,
        _no_attribute("to_yaml"),
        "`model.to_json()` and `keras.models.model_from_json(text)`",
    ),
    Hint(
        AttributeError,
        _no_attribute("lr"),
        "`model.optimizer.learning_rate`",
    ),
    Hint(
        AttributeError,
        r"'(?!Sequential|Functional|Model)\w+' " + _no_attribute("save|save_weights"),
        r"`parallel.\1(...)`: the model that multi_gpu_model returns is the model "
        "itself, not a wrapper around `layers[-2]`",
    ),
    Hint(
        AttributeError,
        r"property 'model' of '\w+' object has no setter",
        "delete the line that sets `self.model`: callbacks already get the user's own "
        "model",
    ),
    Hint(
        # NotImplementedError, or the RuntimeError that fit makes of it.
        RuntimeError,
        r"does not have a `call\(\)` method",
        "use the model that multi_gpu_model returns itself, without copying its "
        "`__dict__` into a class of your own; its `save` writes the plain model",
    ),
    # Arguments.
    Hint(
        ValueError,
        r"Argument\(s\) not recognized: \{.*'lr':",
        "`learning_rate=` in place of `lr=`",
    ),
    Hint(
        TypeError,
        _not_taken("nb_epoch"),
        "`epochs=` in place of `nb_epoch=`",
    ),
    Hint(
        TypeError,
        _not_taken("workers|use_multiprocessing|max_queue_size"),
        r"give `\1=` to the data set: `super().__init__(workers=4)` in a "
        "`keras.utils.PyDataset`; other data needs no such argument",
    ),
    Hint(
        TypeError,
        _not_taken("sample_weight_mode"),
        "delete `sample_weight_mode=`: the shape of `sample_weight` decides",
    ),
    Hint(
        ValueError,
        _not_recognized("Model", "input|output"),
        "`Model(inputs=..., outputs=...)`",
    ),
    Hint(
        TypeError,
        r"__init__\(\) missing 1 required positional argument: 'units'",
        "`units=` in place of `output_dim=`",
    ),
    Hint(
        ValueError,
        _not_recognized(r"(?!Embedding)\w+", "output_dim"),
        "`units=` in place of `output_dim=`",
    ),
    Hint(
        ValueError,
        _not_recognized(r"\w+", "batch_input_shape"),
        "`keras.Input(batch_shape=...)` as the first layer in place of "
        "`batch_input_shape=`",
    ),
    Hint(
        ValueError,
        _not_recognized(r"\w+", "border_mode|subsample|nb_filter|nb_row|nb_col"),
        "`filters=`, `kernel_size=`, `strides=`, `padding=` in place of Keras 1's "
        r"`nb_filter=`, `nb_row=`, `nb_col=`, `subsample=`, `border_mode=`",
    ),
    # Files and callbacks.
    Hint(
        ValueError,
        r"using `save_weights_only=True` in `ModelCheckpoint`.*`\.weights\.h5`",
        "a file name such as `checkpoint.weights.h5`",
    ),
    Hint(
        ValueError,
        r"filepath provided must end in `\.keras`",
        "a file name such as `checkpoint.keras`",
    ),
    Hint(
        ValueError,
        r"filename must end in `\.weights\.h5`",
        "a file name such as `model.weights.h5`",
    ),
    Hint(
        TypeError,
        r"ModelCheckpoint.*" + _not_taken("period"),
        '`save_freq="epoch"` (each epoch) or `save_freq=number_of_batches` in place of '
        "`period=`",
    ),
    Hint(
        TypeError,
        r"TensorBoard.*" + _not_taken("write_grads"),
        "delete `write_grads=`; `histogram_freq=1` draws the weights",
    ),
    # Sessions, the backend, and the second article's missing line.
    Hint(
        _MISSING,
        _no_name("get_session|set_session", r"keras\.backend"),
        _SESSIONS,
    ),
    Hint(
        _MISSING,
        _no_name("tf", r"keras\.backend"),
        "`import tensorflow as tf`, or `keras.ops`, which runs on every backend",
    ),
    Hint(
        AttributeError,
        r"module 'tensorflow' has no attribute '(?:ConfigProto|Session|GPUOptions)'",
        _SESSIONS,
    ),
    Hint(
        NameError,
        r"name 'num_gpus' is not defined",
        "`import keras_unison; num_gpus = len(keras_unison.devices())` above this line",
    ),
)


def hint_for(error: BaseException) -> str | None:
    """Names the fix for an error that old scripts meet.

    Args:
        error: Any exception.

    Returns:
        One line, or None where the error is not about a removed name.

    Example:
    >>> hint_for(NameError("name 'num_gpus' is not defined"))
    'To fix: `import keras_unison; num_gpus = len(keras_unison.devices())` above...'
    """
    for row in HINTS:
        match = _match(row, error)
        if match is not None:
            return f"To fix: {match.expand(row.fix)}"
    return None


def _match(row: Hint, error: BaseException) -> re.Match[str] | None:
    if not isinstance(error, row.error):
        return None
    return re.search(row.pattern, str(error), re.DOTALL)


def add_hint(error: BaseException) -> None:
    """Lets the traceback of an exception end with the fix, if there is one."""
    hint = hint_for(error)
    if hint is not None and hint not in getattr(error, "__notes__", ()):
        error.add_note(hint)
