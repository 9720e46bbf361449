"""A layer call of a step, divided over the devices."""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from keras_unison import _keras
from keras_unison.engines.division.chance import chances
from keras_unison.engines.division.gathered import call_within
from keras_unison.engines.division.plan import Plan
from keras_unison.engines.division.replica import CannotMeet, Replica, within
from keras_unison.engines.division.scope import ReplicaScope
from keras_unison.engines.layer_calls import handling
from keras_unison.engines.tensorflow.batch import (
    as_tensors,
    bounds_of,
    count_rows,
    cut,
    first_batch,
    has_rows,
    join,
)
from keras_unison.engines.tensorflow.call import Call
from keras_unison.engines.tensorflow.compiled import compiled
from keras_unison.engines.tensorflow.parts import remember
from keras_unison.engines.tensorflow.replicas import Replicas
from keras_unison.engines.tensorflow.shared import read_by, shared_values
from keras_unison.errors import ModelError

_sites = itertools.count(1)

Original = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a replica computed.

    Attributes:
        outputs: Its part of the outputs.
        updates: The variables that it changed, with their new values.
        losses: The losses that its layers added.
        whole: Of each loss, whether it was computed from all rows.
    """

    outputs: Any
    updates: list[tuple[Any, Any]]
    losses: list[Any]
    whole: list[bool]


def batch_arguments(layer: Any, args: Any, kwargs: Any) -> Any:
    """The arguments of a layer call on a batch, as tensors; None for another call."""
    if not isinstance(layer, keras.layers.Layer):
        return None
    leaves = tree.flatten((args, kwargs))
    if any(isinstance(leaf, keras.KerasTensor) for leaf in leaves):
        return None
    # In eager mode a step may get NumPy's arrays.
    arguments = as_tensors((args, kwargs))
    return None if first_batch(arguments) is None else arguments


def call_whole(original: Original, layer: Any, args: Any, kwargs: Any) -> Any:
    """The call as one device makes it."""
    with handling(None), within(None):
        return original(layer, *args, **kwargs)


def call_divided(
    original: Original,
    layer: Any,
    arguments: Any,
    *,
    replicas: Replicas,
    plan: Plan,
    jit: bool = False,
    noted: dict[Any, list[Any]] | None = None,
    looks: bool = False,
) -> Any:
    """The call in parts: each device computes its rows.

    Args:
        original: Keras's own call.
        layer: The layer.
        arguments: Its arguments, for all rows, and those by name.
        replicas: Where it is divided.
        plan: How the call is divided.
        jit: Whether XLA compiles each replica's part.
        noted: In a trial, where added losses are noted: by place, one per replica.
        looks: Whether lengths of first axes are noted too.

    Raises:
        CannotMeet: A layer needs sums over replicas where there can be none.
    """
    placement = replicas.placement
    first = first_batch(arguments)
    rows = count_rows(first)
    call = Call(
        site=next(_sites),
        placement=placement,
        plan=plan,
        exact_draws=replicas.exact_draws,
        rows=rows,
        bounds=bounds_of(rows, placement.size),
        fixed=first.shape[0],
        graph=tf.compat.v1.get_default_graph(),
        compiled=jit,
        noted=noted,
        looks=looks,
    )
    values = shared_values(layer)
    same_chances = chances()
    results = []
    try:
        for index in range(placement.size):
            same_chances()
            results.append(_run(call, index, original, layer, values, arguments, first))
    except CannotMeet:
        same_chances()
        raise
    _require_the_same_sums(call, layer)
    for variable, value in results[0].updates:
        variable.assign(value)
    _keras.replace_losses(layer, list(_losses(call, results)))
    parts = [tree.flatten(result.outputs) for result in results]
    joined = []
    for number, each in enumerate(zip(*parts, strict=True)):
        joined.append(join(call, each, number))
        if joined[-1] is not each[0]:
            remember(joined[-1], each, call)
    return tree.pack_sequence_as(results[0].outputs, joined)


def _require_the_same_sums(call: Call, layer: Any) -> None:
    """A replica that waits for a sum which another never makes would wait for ever."""
    counts = [replica.sums for replica in call.replicas]
    if len(set(counts)) > 1:
        raise ModelError(
            f"The layer {layer.name!r} ({type(layer).__name__}) did not call the same "
            f"layers in each of its {len(counts)} parts: replicas met {counts} times. "
            "Its `call` may depend on state that each call changes. Choose by "
            "`keras.ops.cond`."
        )


def _run(
    call: Call,
    index: int,
    original: Original,
    layer: Any,
    shared: list[tuple[Any, Any]],
    arguments: Any,
    first: Any,
) -> Result:
    """One replica's part."""
    replica = Replica(index=index, call=call)
    call.replicas.append(replica)
    args, kwargs = tree.map_structure(
        lambda leaf: cut(call, leaf, replica) if has_rows(leaf, first) else leaf,
        arguments,
    )
    with tf.device(call.device(replica)):
        values = [
            (variable, read_by(replica, variable, value)) for variable, value in shared
        ]
        run = functools.partial(_compute, replica, original, layer)
        if call.compiled:
            run = functools.partial(compiled, run)
        return run(values, args, kwargs)


def _compute(
    replica: Replica,
    original: Original,
    layer: Any,
    values: list[tuple[Any, Any]],
    args: Any,
    kwargs: Any,
) -> Result:
    handler = functools.partial(call_within, replica)
    with ReplicaScope(values) as scope, within(replica), handling(handler):
        replica.scope = scope
        replica.path.append((layer, 0))
        outputs = original(layer, *args, **kwargs)
        # Gradients of sums keep the replica, and would keep the layer by it.
        replica.path.clear()
        return Result(
            outputs=outputs,
            updates=scope.updates(),
            losses=[tf.reduce_sum(loss) for loss in scope.losses],
            whole=[id(loss) in scope.whole_losses for loss in scope.losses],
        )


def _losses(call: Call, results: list[Result]) -> Any:
    """The losses that the layers added, as for all rows.

    One that was computed from all rows is the same in each replica. One of the own
    rows is a mean over them, as Keras's activity regularizers are, or a sum.
    """
    for number, whole in enumerate(results[0].whole):
        each = [result.losses[number] for result in results]
        if call.noted is not None:
            call.noted["loss", number] = each
        if whole:
            yield tf.add_n(each) / len(each)
            continue
        if number in call.plan.summed_losses:
            yield tf.add_n(each)
            continue
        shares = [_share(call, index, loss) for index, loss in enumerate(each)]
        yield tf.add_n(shares)


def _share(call: Call, index: int, loss: Any) -> Any:
    own = tf.cast(call.own_rows(index), loss.dtype)
    # The mean over no rows is no number.
    loss = tf.where(own > 0, loss, tf.zeros_like(loss))
    return loss * own / tf.cast(call.rows, loss.dtype)
