"""Reads the HDF5 files of Keras 2 with h5py, without running anything in them."""

import json
import os
import zipfile
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from keras_unison.errors import LegacyFileError


@dataclass(frozen=True)
class SavedWeight:
    """One array of the file, with the name that Keras 2 gave it."""

    name: str
    value: np.ndarray[Any, Any]


@dataclass(frozen=True)
class LayerGroup:
    """The weights that Keras 2 stored for one layer of the saved model."""

    name: str
    weights: tuple[SavedWeight, ...]


@dataclass(frozen=True)
class Keras2File:
    """All that is of use in a file of Keras 2, read into memory."""

    path: str
    version: str
    layers: tuple[LayerGroup, ...]
    model_config: dict[str, Any] | None
    training_config: dict[str, Any] | None
    optimizer_weights: tuple[SavedWeight, ...]

    @property
    def tf_keras(self) -> bool:
        """Whether the Keras inside TensorFlow wrote the file, alone since 2.4."""
        standalone = ("2.0", "2.1", "2.2", "2.3")
        return self.version.endswith("-tf") or not self.version.startswith(standalone)


def read_keras2_file(path: str | os.PathLike[str]) -> Keras2File:
    """Read a whole-model or weights file that Keras 2 wrote.

    Args:
        path: The file, from `model.save` or `model.save_weights` of Keras 2.

    Returns:
        The weights, and the configurations where the file holds them.

    Raises:
        LegacyFileError: if the file is not one that Keras 2 wrote.
        FileNotFoundError: if there is no such file.
    """
    path = os.fspath(path)
    _check_container(path)
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise LegacyFileError(
            f"{path!r} is a damaged HDF5 file: {error}. Copy it again from where "
            "it was saved."
        ) from error
    with file:
        root = _weights_root(file, path)
        version = _check_version(root, path)
        return Keras2File(
            path=path,
            version=version,
            layers=_layer_groups(root, path),
            model_config=_json_attribute(file, "model_config", path),
            training_config=_json_attribute(file, "training_config", path),
            optimizer_weights=_optimizer_weights(file, path),
        )


def _check_container(path: str) -> None:
    with open(path, "rb"):  # a missing file keeps Python's own error
        pass
    if zipfile.is_zipfile(path):
        raise LegacyFileError(
            f"{path!r} is no Keras 2 file but a zip archive, as Keras 3 writes for "
            f"`.keras`. Load it with `keras.models.load_model({path!r})`."
        )
    if not h5py.is_hdf5(path):
        raise LegacyFileError(
            f"{path!r} is no HDF5 file, so Keras 2 did not write it with "
            "`model.save` or `model.save_weights`. Give the path of the `.h5` file."
        )


def _weights_root(file: h5py.File, path: str) -> h5py.Group:
    root = file.get("model_weights", file)
    if isinstance(root, h5py.Group) and (
        "layer_names" in root.attrs or "layer_names0" in root.attrs
    ):
        return root
    raise LegacyFileError(
        f"{path!r} is an HDF5 file without the list of layers that Keras 2 stores. "
        f"If Keras 3 wrote it, use `model.load_weights({path!r})`."
    )


def _check_version(root: h5py.Group, path: str) -> str:
    version = _text(root.attrs.get("keras_version", "1"))
    if version.startswith("2"):
        _check_backend(root, path)
        return version
    if version.startswith("1"):
        raise LegacyFileError(
            f"{path!r} was written by Keras 1, whose layers differ. Load and save it "
            "again with Keras 2 first."
        )
    raise LegacyFileError(
        f"{path!r} was written by Keras {version}, not by Keras 2. Load it with "
        f"`keras.models.load_model({path!r})`."
    )


def _check_backend(root: h5py.Group, path: str) -> None:
    # Theano flips convolution kernels; multi_gpu_model never ran on it.
    if _text(root.attrs.get("backend", "tensorflow")) == "theano":
        raise LegacyFileError(
            f"{path!r} was written by Keras 2 on Theano, which stores convolution "
            "kernels flipped. Load and save it again with Keras 2 on TensorFlow first."
        )


def _layer_groups(root: h5py.Group, path: str) -> tuple[LayerGroup, ...]:
    groups = []
    for name in _names(root, "layer_names"):
        group = root.get(name)
        if not isinstance(group, h5py.Group):
            raise LegacyFileError(
                f"{path!r} lists layer {name!r} but holds no group of this name: the "
                "file is incomplete. Copy it again from where it was saved."
            )
        groups.append(LayerGroup(name, _weights(group, path)))
    return tuple(group for group in groups if group.weights)


def _optimizer_weights(file: h5py.File, path: str) -> tuple[SavedWeight, ...]:
    group = file.get("optimizer_weights")
    return _weights(group, path) if isinstance(group, h5py.Group) else ()


def _weights(group: h5py.Group, path: str) -> tuple[SavedWeight, ...]:
    return tuple(
        SavedWeight(name, _array(group, name, path))
        for name in _names(group, "weight_names")
    )


def _array(group: h5py.Group, name: str, path: str) -> np.ndarray[Any, Any]:
    item = group.get(name)
    # A link or a virtual data set could read any other file of the machine.
    if (
        not isinstance(item, h5py.Dataset)
        or item.file.filename != path
        or item.external
        or item.is_virtual
    ):
        raise LegacyFileError(
            f"{path!r} lists weight {name!r} in {group.name!r} but holds no array of "
            "this name itself. Copy the file again from where it was saved."
        )
    return np.asarray(item)


def _names(group: h5py.Group, attribute: str) -> list[str]:
    """Read a list of names, which Keras 2 cut in numbered parts where it was long."""
    if attribute in group.attrs:
        return [_text(name) for name in group.attrs[attribute]]
    names: list[str] = []
    part = 0
    while f"{attribute}{part}" in group.attrs:
        names += [_text(name) for name in group.attrs[f"{attribute}{part}"]]
        part += 1
    return names


def _json_attribute(file: h5py.File, name: str, path: str) -> dict[str, Any] | None:
    if name not in file.attrs:
        return None
    try:
        value = json.loads(_text(file.attrs[name]))
    except ValueError as error:
        raise LegacyFileError(
            f"The attribute {name!r} of {path!r} is no valid JSON: {error}. Rebuild "
            "the architecture and use `load_keras2_weights(model, path)`."
        ) from error
    return value if isinstance(value, dict) else None


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
