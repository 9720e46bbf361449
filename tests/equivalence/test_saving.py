"""What a parallel model writes is what a plain Keras model writes.

Files are read back in a fresh process where keras_unison cannot be imported.
"""

import copy
import json
import os
import pickle
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import keras_unison as ku
from tests.equivalence.harness import check, data, dense_model

ROWS = 82
BATCH = 48
DIVIDED = [48, 34]
X, Y = data(ROWS)


def adam_model(**compiled: Any) -> Any:
    return dense_model(optimizer=keras.optimizers.Adam(0.01), **compiled)


def fitted(model: Any) -> Any:
    return model.fit(X, Y, batch_size=BATCH, shuffle=False, epochs=2, verbose=0)


def predicted(model: Any) -> Any:
    return model.predict(X, batch_size=BATCH, verbose=0)


# --- files, in a process without this package -------------------------------

READER = """
import json, os, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "keras_unison":
            raise ImportError("keras_unison is not installed here")

sys.meta_path.insert(0, Block())
import keras
import numpy as np

directory = sys.argv[1]
data = np.load(os.path.join(directory, "data.npz"))
x, y = data["x"], data["y"]
found, kinds = {}, {}
for name in sorted(os.listdir(directory)):
    path = os.path.join(directory, name)
    if name.endswith(".weights.h5"):
        model = keras.models.load_model(path.replace(".weights.h5", ".keras"))
        model.set_weights([0 * weight for weight in model.get_weights()])
        model.load_weights(path)
    elif name.endswith((".keras", ".h5")):
        model = keras.models.load_model(path)
    else:
        continue
    kinds[name] = [type(model).__module__, type(model).__name__]
    found[name + " predict"] = model.predict(x, batch_size=48, verbose=0)
    if name == "model.h5":
        continue  # Keras does not go on training from this format on JAX.
    for number, variable in enumerate(model.optimizer.variables):
        found[f"{name} optimizer {number}"] = np.array(variable.value)
    history = model.fit(x, y, batch_size=48, shuffle=False, verbose=0)
    found[name + " loss"] = history.history["loss"]
    for number, weight in enumerate(model.get_weights()):
        found[f"{name} weight {number}"] = weight
assert "keras_unison" not in sys.modules
try:
    import keras_unison
except ImportError:
    pass
else:
    raise SystemExit("keras_unison could be imported")
np.savez(os.path.join(directory, "found.npz"), **found)
print(json.dumps(kinds))
"""


def read_elsewhere(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a process without keras_unison finds in the files of a directory."""
    np.savez(directory / "data.npz", x=X, y=Y)
    kept = ("PYTHONPATH", "KERAS_UNISON_SIMULATE", "KERAS_UNISON_DEVICES", "XLA_FLAGS")
    environment = {k: v for k, v in os.environ.items() if k not in kept}
    done = subprocess.run(
        [sys.executable, "-c", READER, str(directory)],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), dict(
        np.load(directory / "found.npz")
    )


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_files_of_a_parallel_model_are_plain_ones(tmp_path: Path, devices: int) -> None:
    """Both ways of saving and both formats, with the optimizer's state."""
    runs = iter(["plain", "parallel"])

    def use(model: Any) -> Any:
        directory = tmp_path / next(runs)
        directory.mkdir()
        first = fitted(model)
        for name in ("model.keras", "model.h5"):
            model.save(directory / name)
        model.save_weights(directory / "model.weights.h5")
        kinds, found = read_elsewhere(directory)
        assert set(kinds) == {"model.keras", "model.h5", "model.weights.h5"}
        assert all(name == "Sequential" for _, name in kinds.values())
        assert all(module.startswith("keras.") for module, _ in kinds.values())
        begun = predicted(model)
        for name in kinds:
            np.testing.assert_allclose(found[f"{name} predict"], begun, atol=1e-5)
        return first, found, fitted(model)

    check(adam_model, use, devices=devices, rows=DIVIDED)


def test_what_stands_in_a_file_is_the_same(tmp_path: Path, devices: int) -> None:
    """The description of the model and the names in it, word by word."""
    described: list[Any] = []

    def use(model: Any) -> Any:
        fitted(model)
        model.save(tmp_path / "model.keras")
        with zipfile.ZipFile(tmp_path / "model.keras") as archive:
            described.append(
                [
                    sorted(archive.namelist()),
                    without_counts(archive.read("config.json").decode()),
                    json.loads(archive.read("metadata.json"))["keras_version"],
                ]
            )

    check(adam_model, use, devices=devices, rows=DIVIDED)
    assert described[0] == described[1]


def without_counts(text: str) -> str:
    """A configuration without the names and numbers that Keras gives anew."""
    text = re.sub(r'"shared_object_id": \d+', "", text)
    return re.sub(r'"(sequential|adam|input_layer)(_\d+)?"', r'"\1"', text)


# --- classes of the user ----------------------------------------------------


@keras.saving.register_keras_serializable(package="shop")
class Registered(keras.Model):
    """A class of the user, with a configuration."""

    def __init__(self, units: int = 13, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.hidden = layers.Dense(units, activation="tanh")
        self.out = layers.Dense(5, activation="softmax")

    def build(self, shape):
        self.hidden.build(shape)
        self.out.build((None, self.units))
        self.built = True

    def call(self, x):
        return self.out(self.hidden(x))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def registered_model() -> Any:
    model = Registered(13)
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    return model


def functional_model() -> Any:
    inputs = keras.Input((8,))
    x = layers.Dense(13, activation="tanh")(inputs)
    x = layers.BatchNormalization()(x)
    model = keras.Model(inputs, layers.Dense(5, activation="softmax")(x))
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    return model


def test_a_registered_class_keeps_its_name(tmp_path: Path, devices: int) -> None:
    def use(model: Any) -> Any:
        first = fitted(model)
        path = tmp_path / "model.keras"
        model.save(path)
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
        assert config["registered_name"] == "shop>Registered"
        assert config["class_name"] == "Registered"
        again = keras.models.load_model(path)
        assert type(again) is Registered
        return first, predicted(again), fitted(again), again.get_weights()

    check(registered_model, use, devices=devices, rows=DIVIDED)


def saved_and_loaded(model: Any, path: Path) -> Any:
    model.save(path / "model.keras")
    return keras.models.load_model(path / "model.keras")


def from_config(model: Any, path: Path) -> Any:
    again = model.__class__.from_config(model.get_config())
    again.build((None, 8))
    again.set_weights(model.get_weights())
    again.compile_from_config(model.get_compile_config())
    return again


def from_config_of_type(model: Any, path: Path) -> Any:
    again = type(model).from_config(model.get_config())
    again.build((None, 8))
    again.set_weights(model.get_weights())
    again.compile_from_config(model.get_compile_config())
    return again


def cloned(model: Any, path: Path) -> Any:
    again = keras.models.clone_model(model)
    again.build((None, 8))
    again.set_weights(model.get_weights())
    again.compile_from_config(model.get_compile_config())
    return again


def serialized(model: Any, path: Path) -> Any:
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(model)
    )
    again.set_weights(model.get_weights())
    return again


COPIES: dict[str, Callable[[Any, Path], Any]] = {
    "saved_and_loaded": saved_and_loaded,
    "clone_model": cloned,
    "deepcopy": lambda model, path: copy.deepcopy(model),
    "pickle": lambda model, path: pickle.loads(pickle.dumps(model)),
    "from_config": from_config,
    "from_config_of_type": from_config_of_type,
    "serialize_keras_object": serialized,
}
KINDS: dict[str, tuple[Callable[[], Any], type]] = {
    "sequential": (adam_model, keras.Sequential),
    "functional": (functional_model, type(functional_model())),
    "registered": (registered_model, Registered),
}
PAIRS = [
    (kind, name)
    for kind in KINDS
    for name in COPIES
    if not (kind == "registered" and name == "clone_model")  # Keras clones no such.
]


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_copies_are_plain_models(kind, name, tmp_path, devices) -> None:
    build, cls = KINDS[kind]

    def use(model: Any) -> Any:
        fitted(model)
        again = COPIES[name](model, tmp_path)
        assert type(again) is cls
        assert again is not model
        return predicted(again), fitted(again), again.get_weights(), fitted(model)

    check(build, use, devices=devices, rows=DIVIDED)


def test_a_copy_can_be_made_parallel_again(tmp_path: Path, devices: int) -> None:
    def use(model: Any) -> Any:
        parallel = type(model) is not keras.Sequential
        fitted(model)
        again = saved_and_loaded(model, tmp_path)
        if parallel:
            ku.DataParallel(again, devices)
        return fitted(again), again.get_weights(), predicted(model)

    check(adam_model, use, devices=devices, rows=DIVIDED)


def test_a_checkpoint_goes_on_with_another_number_of_devices(
    tmp_path: Path, devices: int
) -> None:
    """Saved by one number of devices and loaded by the other."""
    runs = iter(["plain", "parallel"])
    other = {2: 3, 3: 2}[devices]

    def use(model: Any) -> Any:
        parallel = next(runs) == "parallel"
        fitted(model)
        model.save(tmp_path / "model.keras")
        model.save_weights(tmp_path / "model.weights.h5")
        again = keras.models.load_model(tmp_path / "model.keras")
        fresh = adam_model()
        if parallel:
            ku.DataParallel(again, other)
            ku.DataParallel(fresh, other)
        fresh.load_weights(tmp_path / "model.weights.h5")
        return (
            fitted(again),
            again.get_weights(),
            [variable.value for variable in again.optimizer.variables],
            predicted(fresh),
            fitted(fresh),
            fresh.get_weights(),
        )

    seen = check(adam_model, use, devices=devices, rows=DIVIDED)
    assert {program.partitions for program in seen.programs} == {devices, other}


# --- the rest of a model's life ---------------------------------------------


def test_summary_layers_and_weights_are_those_of_the_plain_model(devices: int) -> None:
    shown: list[Any] = []

    def use(model: Any) -> Any:
        lines: list[str] = []
        model.summary(print_fn=lines.append, line_length=90)
        shown.append("\n".join(lines).replace(model.name, "model"))
        return fitted(model)

    before: list[Any] = []

    def build() -> Any:
        model = functional_model()
        before[:] = [list(model.layers), list(model.variables), list(model.metrics)]
        before.append((model.name, model.input_shape, model.output_shape))
        return model

    def use_and_look(model: Any) -> Any:
        result = use(model)
        for old, new in zip(
            before[:2], [model.layers, model.variables[: len(before[1])]], strict=True
        ):
            assert len(old) == len(new)
            assert all(a is b for a, b in zip(old, new, strict=True))
        assert (model.name, model.input_shape, model.output_shape) == before[3]
        return result

    check(build, use_and_look, devices=devices, rows=DIVIDED)
    assert _without_layer_numbers(shown[0]) == _without_layer_numbers(shown[1])


def _without_layer_numbers(text: str) -> list[str]:
    """Keras counts the names of layers up, and cuts or fills the columns."""
    return [line.split("(")[-1].strip() for line in text.splitlines() if "(" in line]


def test_quantized_models_predict_as_unwrapped_ones(devices: int) -> None:
    def use(model: Any) -> Any:
        first = fitted(model)
        model.quantize("int8")
        return first, predicted(model)

    check(dense_model, use, devices=devices, rows=DIVIDED)


@pytest.mark.filterwarnings("ignore")
def test_exported_models_predict_as_unwrapped_ones(
    tmp_path: Path, devices: int
) -> None:
    import tensorflow as tf

    runs = iter(["plain", "parallel"])

    def use(model: Any) -> Any:
        directory = str(tmp_path / next(runs))
        fitted(model)
        model.export(directory, verbose=False)
        loaded = tf.saved_model.load(directory)
        served = loaded.serve(tf.constant(X)).numpy()
        np.testing.assert_allclose(served, predicted(model), atol=1e-5)
        return served, fitted(model)

    check(dense_model, use, devices=devices, rows=DIVIDED)


def test_lora_after_a_parallel_fit(devices: int) -> None:
    def use(model: Any) -> Any:
        first = fitted(model)
        model.layers[0].enable_lora(2)
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        return first, fitted(model)

    check(dense_model, use, devices=devices, rows=DIVIDED)


# --- KerasTuner -------------------------------------------------------------


def test_keras_tuner_builds_parallel_models(tmp_path: Path, devices: int) -> None:
    keras_tuner = pytest.importorskip("keras_tuner")
    runs = iter(["plain", "parallel"])

    def use(model: Any) -> Any:
        name = next(runs)

        def build(hyper: Any) -> Any:
            keras.utils.set_random_seed(3)
            rate = hyper.Choice("rate", [0.1, 0.3])
            made = dense_model(optimizer=keras.optimizers.SGD(rate))
            return ku.DataParallel(made, devices) if name == "parallel" else made

        tuner = keras_tuner.GridSearch(
            build,
            objective="val_loss",
            max_trials=2,
            directory=tmp_path,
            project_name=name,
        )
        tuner.search(
            X,
            Y,
            validation_data=data(70),
            batch_size=BATCH,
            shuffle=False,
            epochs=2,
            verbose=0,
        )
        trials = tuner.oracle.get_best_trials(2)
        best = tuner.get_best_models()[0]
        return (
            [trial.score for trial in trials],
            [trial.hyperparameters.get("rate") for trial in trials],
            best.get_weights(),
            predicted(best),
        )

    check(dense_model, use, devices=devices, rows=[48, 34])
