"""Each hint, on the error that the real call of an old script raises."""

import keras
import numpy as np
import pytest

from keras_unison.legacy import hints

X = np.ones((4, 4), "float32")
Y = np.ones((4, 1), "float32")


def _model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


class _SetsModel(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model = None


class _Transplant(keras.Model):
    def __init__(self, parallel):
        super().__init__()
        self.__dict__.update(parallel.__dict__)


def _fit_transplant():
    model = _Transplant(_model())
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)


def _old_functional():
    inputs = keras.Input((4,))
    keras.Model(input=inputs, output=keras.layers.Dense(1)(inputs))


def _layer_before_last():
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(1)]
    ).layers[-2]


# The line of an old script, and what the fix must name.
LINES = [
    ("from keras.utils import np_utils", "to_categorical"),
    ("import keras.utils.np_utils", "to_categorical"),
    ("from keras.utils.generic_utils import Progbar", "keras.utils"),
    ("from keras.utils.vis_utils import plot_model", "plot_model"),
    ("from keras.engine.topology import Layer", "keras.layers import Layer"),
    ("from keras.engine.training import Model", "keras.models import Model"),
    ("import keras.engine", "keras.models import Model"),
    ("from keras.layers.core import Dense", "from keras.layers import"),
    ("from keras.layers.merge import add", "from keras.layers import"),
    ("from keras.layers.convolutional import Conv2D", "from keras.layers import"),
    ("from keras.layers.normalization import X", "from keras.layers import"),
    ("from keras.layers.recurrent import LSTM", "from keras.layers import"),
    ("import keras.legacy.interfaces", "delete this import"),
    ("from keras.legacy import interfaces", "delete this import"),
    (
        "from keras.preprocessing.image import ImageDataGenerator",
        "image_dataset_from_directory",
    ),
    ("from keras.layers import CuDNNLSTM", "keras.layers.LSTM"),
    ("keras.layers.CuDNNGRU", "keras.layers.GRU"),
    ("_model().fit_generator", "model.fit("),
    ("_model().predict_generator", "model.predict("),
    ("_model().evaluate_generator", "model.evaluate("),
    ("_model().predict_classes", "argmax(axis=-1)"),
    ("_model().predict_proba", "model.predict(x)"),
    ("_model().to_yaml", "to_json"),
    ("_model().optimizer.lr", "optimizer.learning_rate"),
    ("_layer_before_last().save('m.keras')", "parallel.save(...)"),
    ("_layer_before_last().save_weights('w')", "parallel.save_weights(...)"),
    (
        "_model().fit(X, Y, callbacks=[_SetsModel()], verbose=0)",
        "already get the user's own model",
    ),
    ("_fit_transplant()", "use the model that multi_gpu_model returns"),
    ("keras.optimizers.SGD(lr=0.1)", "learning_rate="),
    ("_model().fit(X, Y, nb_epoch=1)", "epochs="),
    ("_model().fit(X, Y, workers=4)", "PyDataset"),
    ("_model().fit(X, Y, use_multiprocessing=True)", "PyDataset"),
    ("_model().predict(X, max_queue_size=1)", "PyDataset"),
    ("_model().compile('sgd', 'mse', sample_weight_mode='temporal')", "delete"),
    ("_old_functional()", "inputs=..., outputs=..."),
    ("keras.layers.Dense(output_dim=3)", "units="),
    ("keras.layers.Dense(3, output_dim=3)", "units="),
    ("keras.layers.LSTM(4, batch_input_shape=(8, 5, 3))", "batch_shape="),
    ("keras.layers.Conv2D(8, 3, border_mode='same')", "padding="),
    ("keras.callbacks.ModelCheckpoint('w.hdf5')", "checkpoint.keras"),
    (
        "keras.callbacks.ModelCheckpoint('w.h5', save_weights_only=True)",
        "checkpoint.weights.h5",
    ),
    ("keras.callbacks.ModelCheckpoint('w.keras', period=3)", "save_freq="),
    ("_model().save_weights('w.h5')", "model.weights.h5"),
    ("keras.callbacks.TensorBoard('logs', write_grads=True)", "histogram_freq"),
    ("keras.backend.get_session()", "TF_FORCE_GPU_ALLOW_GROWTH"),
    ("from keras.backend import set_session", "TF_FORCE_GPU_ALLOW_GROWTH"),
    ("keras.backend.tf", "keras.ops"),
    ("num_gpus * 2", "num_gpus = len(keras_unison.devices())"),
]

# Raised by TensorFlow or by its absence; a process of their own runs these in
# tests/process/test_old_names.py.
FROM_TENSORFLOW = [
    (
        AttributeError("module 'tensorflow' has no attribute 'ConfigProto'"),
        "TF_FORCE_GPU_ALLOW_GROWTH",
    ),
    (ModuleNotFoundError("No module named 'tensorflow'"), "keras-unison backend"),
]


def _raised_by(line):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        exec(line, dict(globals()))
    return caught.value


@pytest.fixture(autouse=True)
def _callbacks_as_keras_has_them(monkeypatch):
    """`multi_gpu_model`, called by another test, gives their model a setter."""
    found = vars(keras.callbacks.Callback)["model"]
    plain = property(found.fget)
    plain.__set_name__(keras.callbacks.Callback, "model")
    monkeypatch.setattr(keras.callbacks.Callback, "model", plain)


@pytest.mark.parametrize(("line", "fix"), LINES)
def test_the_error_of_an_old_line_names_its_fix(line, fix):
    hint = hints.hint_for(_raised_by(line))
    assert hint is not None
    assert fix in hint
    assert "\n" not in hint


@pytest.mark.parametrize(("error", "fix"), FROM_TENSORFLOW)
def test_errors_of_tensorflow_name_their_fix(error, fix):
    assert fix in hints.hint_for(error)


def test_every_row_is_reached_by_some_line():
    errors = [_raised_by(line) for line, _ in LINES]
    errors += [error for error, _ in FROM_TENSORFLOW]
    reached = {hints.hint_for(error) for error in errors}
    for row in hints.HINTS:
        start = "To fix: " + row.fix.split("\\")[0]
        assert any(hint and hint.startswith(start) for hint in reached), row


@pytest.mark.parametrize(
    "error",
    [
        ValueError("nothing to do with names"),
        AttributeError("'Sequential' object has no attribute 'save_everything'"),
        ModuleNotFoundError("No module named 'keras_tuner'"),
        ModuleNotFoundError("No module named 'keras.layers.corean'"),
        ModuleNotFoundError("No module named 'mykeras.engine'"),
        NameError("name 'num_gpu' is not defined"),
        # The text of one row under another class of error.
        ValueError("name 'num_gpus' is not defined"),
    ],
)
def test_other_errors_get_no_hint(error):
    assert hints.hint_for(error) is None


def test_the_hint_becomes_the_last_note_once():
    error = NameError("name 'num_gpus' is not defined")
    hints.add_hint(error)
    hints.add_hint(error)
    assert error.__notes__ == [hints.hint_for(error)]


def test_the_names_that_the_fixes_use_exist():
    from keras.layers import GRU, LSTM, InputSpec, RandomFlip  # noqa: F401
    from keras.utils import (  # noqa: F401
        PyDataset,
        image_dataset_from_directory,
        normalize,
        plot_model,
        to_categorical,
    )

    model = _model()
    assert float(model.optimizer.learning_rate) > 0
    assert keras.models.model_from_json(model.to_json()).name == model.name
    assert keras.ops.add(1, 1) == 2
