"""A replica's part of a layer call, compiled by XLA."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf
from keras import tree

from keras_unison._keras import get_mask, set_mask
from keras_unison.engines.division.replica import CannotMeet

# Their gradients need lists of tensors, which XLA keeps for itself.
_LOOPS = ("While", "StatelessWhile")


def compiled(
    compute: Callable[..., Any], values: list[tuple[Any, Any]], args: Any, kwargs: Any
) -> Any:
    """`compute(values, args, kwargs)` with its tensors computed by XLA.

    What a traced function returns are tensors; the rest of the result, which
    variables changed and how the outputs are nested, is kept from its trace.

    Raises:
        CannotMeet: It holds what XLA cannot compile as a part of a step.
    """
    variables = [variable for variable, _ in values]
    leaves = tree.flatten((args, kwargs))
    tensors = [n for n, leaf in enumerate(leaves) if isinstance(leaf, tf.Tensor)]
    kept: list[Any] = []

    @tf.function(jit_compile=True, autograph=False)  # type: ignore[untyped-decorator]
    def traced(held: list[Any], moved: list[Any], masks: list[Any]) -> Any:
        inner = list(leaves)
        for number, tensor, mask in zip(tensors, moved, masks, strict=True):
            inner[number] = _masked(tensor, mask)
        again = tree.pack_sequence_as((args, kwargs), inner)
        result = compute(list(zip(variables, held, strict=True)), *again)
        kept.append(result)
        outputs = tree.flatten(result.outputs)
        values = [value for _, value in result.updates]
        return outputs, [get_mask(o) for o in outputs], values, result.losses

    moved = [leaves[number] for number in tensors]
    inputs = ([value for _, value in values], moved, list(map(get_mask, moved)))
    graph = traced.get_concrete_function(*inputs).graph
    if any(operation.type in _LOOPS for operation in graph.get_operations()):
        raise CannotMeet
    outputs, masks, updates, losses = traced(*inputs)
    result = kept[-1]
    changed = [variable for variable, _ in result.updates]
    outputs = [_masked(o, mask) for o, mask in zip(outputs, masks, strict=True)]
    return replace(
        result,
        outputs=tree.pack_sequence_as(result.outputs, outputs),
        updates=list(zip(changed, updates, strict=True)),
        losses=losses,
    )


def _masked(tensor: Any, mask: Any) -> Any:
    if mask is not None:
        set_mask(tensor, mask)
    return tensor
