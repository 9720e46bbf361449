"""A layer call of a step, of which this process computes its replica's part."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import keras
import torch
from keras import tree

from keras_unison import _keras
from keras_unison.engines.division.gathered import call_within
from keras_unison.engines.division.plan import Plan
from keras_unison.engines.division.replica import Replica, within
from keras_unison.engines.division.scope import ReplicaScope
from keras_unison.engines.layer_calls import handling
from keras_unison.engines.torch.batch import (
    as_tensors,
    cut_leaf,
    first_batch,
    has_rows,
    join_leaf,
)
from keras_unison.engines.torch.call import Call
from keras_unison.engines.torch.functions import rounded_gradient, share, total

Original = Callable[..., Any]

_ROUNDED = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def batch_arguments(layer: Any, args: Any, kwargs: Any) -> Any:
    """The arguments of a layer call on a batch, as tensors; None for another call."""
    if not isinstance(layer, keras.layers.Layer):
        return None
    leaves = tree.flatten((args, kwargs))
    if any(isinstance(leaf, keras.KerasTensor) for leaf in leaves):
        return None
    arguments = as_tensors((args, kwargs))
    first = first_batch(arguments)
    return None if first is None or first.is_meta else arguments


def call_whole(original: Original, layer: Any, args: Any, kwargs: Any) -> Any:
    """The call as one device makes it."""
    with handling(None), within(None):
        return original(layer, *args, **kwargs)


def call_divided(
    original: Original,
    layer: Any,
    arguments: Any,
    *,
    group: Any,
    plan: Plan,
    exact_draws: bool,
    variables: Iterable[Any] = (),
    noted: dict[Any, list[Any]] | None = None,
    looks: bool = False,
) -> Any:
    """The call in parts: each replica computes its rows, and all get all outputs.

    Args:
        original: Keras's own call.
        layer: The layer.
        arguments: Its arguments, for all rows, and those by name.
        group: The way to the other replicas, which make the same call.
        plan: How the call is divided.
        exact_draws: Whether replicas make the draws of one device.
        variables: Variables beside those of the layer that it may use.
        noted: In a trial, where added losses are noted: by place, one per replica.
        looks: Whether lengths of first axes are noted too.
    """
    first = first_batch(arguments)
    call = Call(
        group=group,
        plan=plan,
        exact_draws=exact_draws,
        rows=int(first.shape[0]),
        noted=noted,
        looks=looks,
    )
    replica = Replica(index=group.rank, call=call)
    args, kwargs = tree.map_structure(
        lambda leaf: cut_leaf(call, leaf) if has_rows(leaf, first) else leaf,
        arguments,
    )
    handler = functools.partial(call_within, replica)
    values = _values(layer, variables, group)
    with ReplicaScope(values) as scope, within(replica), handling(handler):
        replica.scope = scope
        replica.path.append((layer, 0))
        outputs = original(layer, *args, **kwargs)
        updates = scope.updates()
        losses = [loss.sum() for loss in scope.losses]
        whole = [id(loss) in scope.whole_losses for loss in scope.losses]
    for variable, value in updates:
        variable.assign(value)
    _keras.replace_losses(layer, _losses(call, replica, losses, whole))
    leaves = [
        join_leaf(call, leaf, number)
        for number, leaf in enumerate(tree.flatten(outputs))
    ]
    return tree.pack_sequence_as(outputs, leaves)


def _values(layer: Any, variables: Iterable[Any], group: Any) -> list[tuple[Any, Any]]:
    """What replicas use in the place of variables: the gradients of all are summed."""
    known = {id(v): v for v in (*layer.variables, *variables)}
    here = [(variable, variable.value) for variable in known.values()]
    if not torch.is_grad_enabled():
        return here
    shared = [(v, value) for v, value in here if value.requires_grad]
    cast_to = _keras.computed_in(layer)
    rounded = [
        rounded_gradient(value, _ROUNDED[kind])
        if (kind := cast_to.get(id(v))) in _ROUNDED and kind != v.dtype
        else value
        for v, value in shared
    ]
    aliases = share(rounded, group)
    others = [(v, value) for v, value in here if not value.requires_grad]
    return [*((v, a) for (v, _), a in zip(shared, aliases, strict=True)), *others]


def _losses(
    call: Call, replica: Replica, losses: list[Any], whole: list[bool]
) -> list[Any]:
    """The losses that the layers added, as for all rows.

    One that was computed from all rows is the same in each replica. One of the own
    rows is a mean over them, as Keras's activity regularizers are, or a sum.
    """
    if not losses:
        return []
    shares = []
    own = call.own_rows(replica.index)
    for number, loss in enumerate(losses):
        if call.noted is not None:
            call.noted.setdefault(("loss", number), []).append(loss)
        if whole[number]:
            shares.append(loss / call.group.size)
        elif number in call.plan.summed_losses:
            shares.append(loss)
        else:
            shares.append(loss * (own / call.rows))
    return total(shares, call.group)
