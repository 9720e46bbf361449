"""A list of replicas in place of one model, as the Keras 2 articles wrote it."""

from collections.abc import Sequence
from typing import Any

from keras_unison.data_parallel import check_model
from keras_unison.errors import ModelError


def first_of_equal_replicas(replicas: Sequence[Any]) -> Any:
    """The first of several models that are the same but for names and weights.

    Raises:
        ModelError: There is none, or their architectures differ.
    """
    if not replicas:
        raise ModelError(
            "A list of replicas needs at least one model. Received: []. For "
            "instance: multi_gpu_model([create_model(), create_model()])"
        )
    for replica in replicas:
        check_model(replica)
    first = _architecture(replicas[0])
    for number, replica in enumerate(replicas[1:], start=1):
        if _architecture(replica) != first:
            raise ModelError(
                "The replicas must have the same architecture. Received: replica "
                f"{number} ({replica.name}) differs from replica 0 "
                f"({replicas[0].name}). Make all by the same function, or pass one "
                "model: multi_gpu_model(model, gpus=2)"
            )
    return replicas[0]


def _architecture(model: Any) -> Any:
    """What makes two models the same, without the names Keras counts up."""
    import keras

    shapes = [tuple(weight.shape) for weight in model.weights]
    try:
        config = keras.saving.serialize_keras_object(model)
    except NotImplementedError:
        # A subclassed model without get_config.
        return type(model), shapes
    config.pop("compile_config", None)
    names = {name: f"#{number}" for number, name in enumerate(_names(config))}
    return _renamed(config, names), shapes


def _names(config: Any) -> list[str]:
    found: list[str] = []
    if isinstance(config, dict):
        if isinstance(config.get("name"), str):
            found.append(config["name"])
        config = list(config.values())
    if isinstance(config, list | tuple):
        for value in config:
            found += [name for name in _names(value) if name not in found]
    return found


def _renamed(config: Any, names: dict[str, str]) -> Any:
    if isinstance(config, dict):
        return {key: _renamed(value, names) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [_renamed(value, names) for value in config]
    return names.get(config, config) if isinstance(config, str) else config
