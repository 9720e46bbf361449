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
    return _numbered(config, {}), shapes


# Where the config of a model holds names of layers.
_NAMES = ("name", "keras_history", "input_layers", "output_layers")


def _numbered(config: Any, numbers: dict[str, str], in_names: bool = False) -> Any:
    """The config with each name of a layer replaced by its number of appearance."""
    if isinstance(config, dict):
        if "DTypePolicy" in str(config.get("class_name")):
            # Its name is what it says: float32 or mixed_float16.
            return config
        return {
            key: _numbered(value, numbers, in_names or key in _NAMES)
            for key, value in config.items()
            if key != "compile_config"
        }
    if isinstance(config, list | tuple):
        return [_numbered(value, numbers, in_names) for value in config]
    if in_names and isinstance(config, str):
        return numbers.setdefault(config, f"#{len(numbers)}")
    return config
