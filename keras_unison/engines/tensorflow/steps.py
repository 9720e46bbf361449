"""A step in progress: each of its layer calls is divided by its plan."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from keras import tree

from keras_unison import _keras
from keras_unison.engines.division.chance import chances_kept
from keras_unison.engines.division.check import find_plan, warn_whole
from keras_unison.engines.division.plan import Plan
from keras_unison.engines.division.replica import CannotMeet, current_replica
from keras_unison.engines.layer_calls import handling
from keras_unison.engines.tensorflow.batch import first_batch
from keras_unison.engines.tensorflow.calls import (
    Original,
    batch_arguments,
    call_divided,
    call_whole,
)
from keras_unison.engines.tensorflow.differentiable import noting_gradients
from keras_unison.engines.tensorflow.parts import remembering_parts
from keras_unison.engines.tensorflow.replicas import (
    Replicas,
    find_replicas,
    newest_replicas,
)
from keras_unison.engines.tensorflow.runs import TracedRuns
from keras_unison.engines.tensorflow.weights import spread


def divided_step(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its layer calls on the devices of parallel models.

    A layer that is no parallel model itself runs on the devices of the newest one.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        replicas = newest_replicas()
        if replicas is None:
            return function(*args, **kwargs)
        with dividing(replicas):
            return function(*args, **kwargs)

    return run


@contextmanager
def dividing(replicas: Replicas, jit: bool = False) -> Iterator[None]:
    """Within this context layer calls are divided, as in a step of a model."""
    if current_replica() is not None:
        # A step inside of a layer call: its rows are divided already.
        yield
        return
    with (
        remembering_parts(),
        noting_gradients(replicas.gradients),
        handling(functools.partial(_call, replicas, jit)),
    ):
        yield


def _call(
    replicas: Replicas,
    jit: bool,
    original: Original,
    layer: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """One outermost layer call."""
    replicas = find_replicas(layer) or replicas
    arguments = batch_arguments(layer, args, kwargs)
    if arguments is None:
        return call_whole(original, layer, args, kwargs)
    if layer not in replicas.asked_to_build and not _keras.is_built(layer):
        replicas.asked_to_build.add(layer)
        # Outside of the function that is being traced, which would give variables
        # their values only after it.
        with handling(None), tf.init_scope():
            _keras.build_by_call(original, layer, arguments)
        spread(layer, replicas.placement)
    plan = _plan(replicas, original, layer, arguments)
    if plan.divided:
        try:
            return _divided(replicas, plan, jit, original, layer, arguments)
        except CannotMeet:
            pass
        warn_whole(layer, _why_not(), replicas.placement.size, replicas.once)
    return call_whole(original, layer, args, kwargs)


def _divided(
    replicas: Replicas,
    plan: Plan,
    jit: bool,
    original: Original,
    layer: Any,
    arguments: Any,
) -> Any:
    divided = functools.partial(
        call_divided, original, layer, arguments, replicas=replicas, plan=plan
    )
    if not jit:
        return divided()
    try:
        return divided(jit=True)
    except CannotMeet:
        replicas.once.warn(
            f"{id(layer)} jit",
            f"The layer {layer.name!r} is not compiled by XLA, which cannot compile a "
            "part of a step with a loop in it (a recurrent layer), or with sums over "
            "replicas (BatchNormalization, or a layer that mixes rows). Results are "
            "right. Pass jit_compile=False to `compile` to say so yourself.",
        )
        return divided()


def _why_not() -> str:
    if tf.executing_eagerly():
        return (
            "replicas exchange sums inside of it, for BatchNormalization or a layer "
            "that mixes rows, and in eager mode they run one after the other"
        )
    return "it mixes rows of strings, or of ragged or sparse tensors"


def _plan(replicas: Replicas, original: Original, layer: Any, arguments: Any) -> Plan:
    plans = replicas.plans.setdefault(layer, {})
    key = _signature(arguments)
    if key in plans:
        return plans[key]
    runs = TracedRuns(
        original=original, layer=layer, arguments=arguments, replicas=replicas
    )
    rows = first_batch(arguments).shape[0]
    # Trials run outside of the function that is being traced.
    with chances_kept() as chosen, tf.init_scope():
        plan = find_plan(layer, arguments, runs, rows=rows, once=replicas.once)
    # What Python's random numbers chose holds for this trace only.
    if not chosen():
        plans[key] = plan
    return plan


def _signature(arguments: Any) -> Any:
    """What a plan depends on: all of the arguments but values and lengths."""

    def describe(leaf: Any) -> Any:
        shape = getattr(leaf, "shape", None)
        if shape is None:
            return repr(leaf)
        rank = getattr(shape, "rank", len(shape))
        return type(leaf).__name__, str(leaf.dtype), rank

    names = tuple(sorted(arguments[1]))
    return names, tuple(map(describe, tree.flatten(arguments)))
