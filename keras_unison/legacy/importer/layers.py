"""Says in the words of Keras 3 what a layer of Keras 2 was made with."""

import re
from collections.abc import Iterator
from typing import Any

import keras

from keras_unison.errors import LegacyFileError
from keras_unison.legacy.importer.activations import keras2_hard_sigmoid

REBUILD = (
    "Rebuild the architecture in Python and load its weights with "
    "`keras_unison.load_keras2_weights(model, path)`."
)
_UNSET_OPTIONS = ("noise_shape", "time_major", "fused", "renorm", "virtual_batch_size")
_ACTIVATIONS = ("activation", "recurrent_activation")
_WRAPPED = ("layer", "forward_layer", "backward_layer", "cell")
_RENAMED = {"LeakyReLU": {"alpha": "negative_slope"}}


def layer_class(class_name: str, layer_name: str) -> Any:
    """Find the class of a layer, the user's own ones first."""
    cls = keras.saving.get_registered_object(class_name)
    if cls is None:
        # tf.keras 1 numbered some classes, such as BatchNormalizationV1.
        cls = getattr(keras.layers, re.sub(r"V[12]$", "", class_name), None)
    if isinstance(cls, type) and issubclass(cls, keras.layers.Layer):
        return cls
    raise LegacyFileError(
        f"Layer {layer_name!r} of the file is of class {class_name!r}, which Keras 3 "
        "does not have. If it is your own, load inside "
        f"`with keras.saving.custom_object_scope({{{class_name!r}: {class_name}}}):`. "
        f"Otherwise: {REBUILD[0].lower()}{REBUILD[1:]}"
    )


def refuse_code(config: Any, layer_name: str) -> None:
    """Refuse what could run code: Lambda, its byte code, and named modules."""
    for value in _dictionaries(config):
        if value.get("class_name") in ("Lambda", "__lambda__"):
            raise LegacyFileError(
                f"Layer {layer_name!r} of the saved model is a Lambda with a Python "
                "function of its own, stored as byte code. It is never run: it could "
                f"do anything, and fits only the Python that wrote it. {REBUILD}"
            )
        if "class_name" in value and "module" in value:
            raise LegacyFileError(
                f"Layer {layer_name!r} of the file names a Python module to import, "
                f"which Keras 2 never does. {REBUILD}"
            )


def _dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _dictionaries(item)
    elif isinstance(value, list):
        for item in value:
            yield from _dictionaries(item)


def translate(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a layer, renamed and cleared for Keras 3."""
    renamed = _RENAMED.get(entry["class_name"], {})
    config = {renamed.get(key, key): value for key, value in entry["config"].items()}
    config.pop("batch_input_shape", None)
    config.pop("input_length", None)  # told by the shape of the input
    for key in _UNSET_OPTIONS:
        if not config.get(key):
            config.pop(key, None)
    for key, value in config.items():
        if key.endswith("_initializer") and isinstance(value, dict):
            config[key] = _without_dtype(value)
    if "name" in config:
        config["name"] = layer_name(config["name"])
    axis = config.get("axis")
    if isinstance(axis, list) and len(axis) == 1:
        config["axis"] = axis[0]
    return config


def _without_dtype(initializer: dict[str, Any]) -> dict[str, Any]:
    # Only tf.keras wrote it; in Keras 3 the layer alone decides on it.
    config = {k: v for k, v in initializer["config"].items() if k != "dtype"}
    return {**initializer, "config": config}


def substitute(config: dict[str, Any]) -> set[str]:
    """Put our functions for those that Keras 3 computes otherwise, in place.

    Args:
        config: The translated configuration of a layer.

    Returns:
        The names of the functions that were replaced.
    """
    found = [
        key
        for key, value in config.items()
        if key.endswith("activation") and value == "hard_sigmoid"
    ]
    for key in found:
        config[key] = keras2_hard_sigmoid
    return {"hard_sigmoid"} if found else set()


def refuse_bilinear(entry: dict[str, Any], layer_name: str) -> None:
    """Refuse a layer that no layer of Keras 3 computes alike."""
    if entry["config"].get("interpolation") == "bilinear":
        raise LegacyFileError(
            f"Layer {layer_name!r} of the file enlarges images bilinearly, for which "
            "Keras 2 and Keras 3 read other points: all predictions would differ. "
            f"{REBUILD}"
        )


def computed_otherwise(layer: Any) -> set[str]:
    """Name what a layer of Keras 3 does otherwise than its namesake in Keras 2."""
    found = set()
    activations = [getattr(layer, name, None) for name in _ACTIVATIONS]
    if any(one is keras.activations.hard_sigmoid for one in activations):
        found.add("hard_sigmoid")
    if getattr(layer, "interpolation", None) == "bilinear":
        found.add("bilinear interpolation")
    inner = [getattr(layer, name, None) for name in _WRAPPED] + list(
        getattr(layer, "layers", [])
    )
    for one in inner:
        if one is not None:
            found |= computed_otherwise(one)
    return found


def layer_name(name: str) -> str:
    """Return the name that a layer gets."""
    return name.replace("/", "_")  # Keras 3 allows no slash in a name
