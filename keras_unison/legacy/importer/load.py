"""Brings models and weights that Keras 2 saved into Keras 3.

The files are read by h5py alone. Python functions that Keras 2 stored in them
as byte code are never run: the slices of `multi_gpu_model` are recognised by
their arguments and left out.
"""

import os
import warnings
from typing import Any

import keras

from keras_unison.errors import LegacyFileError, UnisonWarning
from keras_unison.legacy.importer.architecture import Architecture
from keras_unison.legacy.importer.file import read_keras2_file
from keras_unison.legacy.importer.layers import computed_otherwise
from keras_unison.legacy.importer.replicas import find_template
from keras_unison.legacy.importer.training import restore_training
from keras_unison.legacy.importer.weights import keras2_order, load_weights


def load_keras2_model(
    path: str | os.PathLike[str], *, compile: bool = True
) -> keras.Model:
    """Load a model that Keras 2 saved, from one or several GPUs, as a plain model.

    A model that `multi_gpu_model` made comes back as the single-device model
    that it wrapped. What a file says about training but Keras 3 cannot do the
    same way is named in one `UnisonWarning`.

    Args:
        path: The `.h5` file that Keras 2 wrote with `model.save`.
        compile: Whether to compile the model as the file says, with the loss, the
            metrics, and the optimizer including its state.

    Returns:
        A plain Keras 3 model with the saved weights.

    Raises:
        LegacyFileError: if the file is not of Keras 2, holds weights only, or its
            architecture cannot be rebuilt without running code from the file.
        FileNotFoundError: if there is no such file.

    Example:
        >>> model = keras_unison.load_keras2_model("trained_on_4_gpus.h5")
        >>> model.save("model.keras")
    """
    file = read_keras2_file(path)
    if file.model_config is None:
        raise LegacyFileError(
            f"{file.path!r} holds weights only, no architecture. Build the model in "
            f"Python and use `keras_unison.load_keras2_weights(model, {file.path!r})`."
        )
    template = find_template(file.model_config)
    architecture = Architecture(template, file.tf_keras)
    model = architecture.model
    load_weights(model, file, architecture.children)
    lost: list[str] = []
    if compile:
        trainable, _ = keras2_order(model, architecture.children)
        lost = restore_training(model, file, template.output_names, trainable)
    if lost or architecture.substituted:
        text = _warning(file.path, model, lost, sorted(architecture.substituted))
        warnings.warn(text, UnisonWarning, stacklevel=2)
    return model


def load_keras2_weights(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Load weights that Keras 2 saved, from one or several GPUs, into a model.

    Args:
        model: A built Keras 3 model of the architecture that was saved. For a file
            of a model that `multi_gpu_model` made, this is the model it wrapped.
        path: The `.h5` file that Keras 2 wrote with `model.save_weights` or
            `model.save`.

    Raises:
        LegacyFileError: if the file is not of Keras 2, or does not fit the model.
            The model is then unchanged.
        FileNotFoundError: if there is no such file.

    Example:
        >>> model = build_model()
        >>> keras_unison.load_keras2_weights(model, "trained_on_4_gpus.h5")
    """
    file = read_keras2_file(path)
    load_weights(model, file, _layers)
    otherwise = sorted(computed_otherwise(model))
    if otherwise:
        warnings.warn(
            f"The weights of {file.path!r} are loaded, but predictions may differ: "
            f"Keras 2 and Keras 3 compute {' and '.join(otherwise)} differently. For "
            "hard_sigmoid, build the layers with `keras_unison.legacy."
            "importer.activations.keras2_hard_sigmoid` as their activation instead.",
            UnisonWarning,
            stacklevel=2,
        )


def _layers(model: Any) -> list[Any]:
    return list(model.layers)


def _warning(path: str, model: Any, lost: list[str], substituted: list[str]) -> str:
    parts = [f"{path!r} is loaded, with equal predictions."]
    if lost:
        optimizer = "model.optimizer" if model.compiled else "..."
        parts.append(
            f"Not carried over: {', '.join(lost)}. To train on, compile again with "
            "what is missing: "
            f"`model.compile(optimizer={optimizer}, loss=..., metrics=...)`."
        )
    if substituted:
        parts.append(
            f"Keras 3 computes {', '.join(substituted)} otherwise, so the model uses "
            "a function of keras_unison in its place. Where you load a file saved from "
            "this model, have keras_unison installed and run "
            "`import keras_unison.legacy.importer.activations` first."
        )
    return " ".join(parts)
