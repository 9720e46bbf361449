"""Calls of layers, and what Keras keeps beside tensors and layers."""

import functools
from collections.abc import Callable
from typing import Any

from keras_unison._keras.hooks import replace_once


def hook_calls(
    call: Callable[[Callable[..., Any], Any, Any, Any], Any],
) -> None:
    """Lets `call(original, operation, args, kwargs)` make the calls of operations.

    Operations are layers and the nodes of functional models that are none. Keras
    has no hook around their calls, and a special method is looked up on the class,
    so that the classes themselves have to change. Done once, when the first step
    runs on several devices.
    """
    import keras
    from keras.src.ops.operation import Operation

    layer_class = keras.layers.Layer

    def of_layer(original: Callable[..., Any]) -> Callable[..., Any]:
        def layer_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return call(original, self, args, kwargs)

        return layer_call

    def of_other(original: Callable[..., Any]) -> Callable[..., Any]:
        def operation_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(self, layer_class):
                # The end of a layer's own call.
                return original(self, *args, **kwargs)
            return call(original, self, args, kwargs)

        return operation_call

    replace_once(layer_class, "__call__", of_layer)
    replace_once(Operation, "__call__", of_other)


def get_mask(tensor: Any) -> Any:
    """The Keras mask of a tensor, which Keras keeps beside the tensor."""
    from keras.src.backend.common import masking

    return masking.get_keras_mask(tensor)


def set_mask(tensor: Any, mask: Any) -> None:
    """Gives a tensor a Keras mask."""
    from keras.src.backend.common import masking

    masking.set_keras_mask(tensor, mask)


def copy_mask(source: Any, target: Any) -> None:
    """Gives `target` the Keras mask of `source`.

    Keras keeps masks beside the tensor object; a tensor that was moved or
    constrained is another object and would lose it.
    """
    mask = get_mask(source)
    if mask is not None:
        set_mask(target, mask)


def get_logits(tensor: Any) -> Any:
    """What an activation was computed from, which Keras keeps for crossentropies."""
    return getattr(tensor, "_keras_logits", None)


def set_logits(tensor: Any, logits: Any) -> None:
    """Tells Keras what a tensor was computed from."""
    tensor._keras_logits = logits


def hook_batch_moments(
    moments: Callable[[Callable[..., Any], Any, Any, Any], Any],
) -> None:
    """Lets `moments(original, layer, inputs, mask)` take batch statistics, once.

    BatchNormalization has no public hook between its statistics and what it does
    with them: moving averages, renormalization, the normalized output.
    """
    import keras

    def taken(original: Callable[..., Any]) -> Callable[..., Any]:
        def _moments(self: Any, inputs: Any, mask: Any) -> Any:
            return moments(original, self, inputs, mask)

        return _moments

    replace_once(keras.layers.BatchNormalization, "_moments", taken)


def batch_axes(layer: Any) -> list[int]:
    """The axes over which a BatchNormalization takes its statistics."""
    return list(layer._reduction_axes)


def hook_values(values: Callable[..., Any]) -> None:
    """Lets `values(function, y_true, y_pred, **options)` compute losses, once.

    Keras's losses and metrics that wrap a function reduce what it returns; there is
    no public hook between the two.
    """
    from keras.src.losses.losses import LossFunctionWrapper
    from keras.src.metrics.reduction_metrics import MeanMetricWrapper

    def with_values_of(attribute: str) -> Callable[..., Any]:
        def made(original: Callable[..., Any]) -> Callable[..., Any]:
            def method(self: Any, *args: Any, **kwargs: Any) -> Any:
                function = getattr(self, attribute)
                setattr(self, attribute, functools.partial(values, function))
                try:
                    return original(self, *args, **kwargs)
                finally:
                    setattr(self, attribute, function)

            return method

        return made

    replace_once(LossFunctionWrapper, "call", with_values_of("fn"))
    replace_once(MeanMetricWrapper, "update_state", with_values_of("_fn"))


def hook_random(
    draws: dict[str, Callable[..., Any]],
    seed: Callable[[Callable[..., Any], Any], Any],
) -> None:
    """Lets `draws[name](original, ...)` make the draws of keras.random, once.

    Layers and keras.random look these functions up in the backend's module at each
    call; `seed(original, seed)` stands in for what makes a tensor of a seed.
    """
    from keras.src import backend

    for name, draw in {**draws, "draw_seed": seed}.items():
        # Gets the original, and returns `draw` with it as the first argument.
        replace_once(backend.random, name, functools.partial(functools.partial, draw))


def operations_of(layer: Any) -> list[Any]:
    """The layer, its layers at any depth, and the other nodes of its graphs."""
    if not hasattr(layer, "_flatten_layers"):
        return [layer]
    found: dict[int, Any] = {}
    for inner in layer._flatten_layers():
        found[id(inner)] = inner
        for operation in getattr(inner, "_operations", ()):
            found.setdefault(id(operation), operation)
    return list(found.values())


def build_by_call(call: Callable[..., Any], layer: Any, arguments: Any) -> None:
    """Builds a layer and its layers by a call on symbolic tensors.

    A layer that is built by its first call cannot make variables inside of a
    replica. Keras builds models so in its own trainer on JAX.
    """
    import keras
    from keras import tree

    def symbolic(leaf: Any) -> Any:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            return leaf
        if hasattr(leaf, "_value") or leaf.shape.rank is None:
            return leaf
        dtype = keras.backend.standardize_dtype(leaf.dtype)
        tensor = keras.KerasTensor(tuple(leaf.shape), dtype=dtype)
        copy_mask_spec(leaf, tensor)
        return tensor

    def copy_mask_spec(source: Any, target: Any) -> None:
        mask = get_mask(source)
        if mask is not None:
            set_mask(target, symbolic(mask))

    args, kwargs = tree.map_structure(symbolic, arguments)
    call(layer, *args, **kwargs)


def computed_in(layer: Any) -> dict[int, str]:
    """The type that each trainable weight is cast to, by identity of the weight."""
    return {
        id(variable): inner.compute_dtype
        for inner in layer._flatten_layers()
        for variable in inner._trainable_variables
        if variable._autocast
    }


def is_built(layer: Any) -> bool:
    """Whether a layer and all its layers are built."""
    return all(inner.built for inner in layer._flatten_layers())


def replace_losses(layer: Any, losses: list[Any]) -> None:
    """Makes these the losses that the last call of a layer added."""
    layer._clear_losses()
    for loss in losses:
        layer.add_loss(loss)
