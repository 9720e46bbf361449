"""The compiled steps of a loop: their batches placed, their new state kept."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from keras_unison import _keras
from keras_unison.batches.rows import Division
from keras_unison.engines.interrupts import step_begins, step_ends
from keras_unison.engines.jax.batch import (
    Batch,
    division_of,
    flatten,
    is_sparse,
    place,
    shape_of,
    with_rows,
)
from keras_unison.engines.jax.obstacles import obstacle, undivided
from keras_unison.engines.jax.placement import Placement
from keras_unison.engines.jax.replicas import Replicas, replicas_of

Step = Callable[[Any, Any], tuple[Any, Any]]


def place_source(model: Any, iterator: Any) -> None:
    """Sends batches straight to their devices, one ahead, on accelerators."""
    placement = replicas_of(model).placement
    if placement.platform != "cpu":
        _keras.replace_source(
            iterator, functools.partial(_one_ahead, placement=placement)
        )


def _one_ahead(batches: Iterator[Any], placement: Placement) -> Iterator[Any]:
    waiting: list[Any] = []
    for batch in batches:
        leaves, structure = flatten(batch)
        division, _ = division_of(leaves, placement)
        waiting.append(_batch(leaves, structure, placement, division).data)
        if len(waiting) > 1:
            yield waiting.pop(0)
    yield from waiting


def wrap_step(model: Any, step: Step) -> Step:
    """The compiled step, with its batch placed and its new state kept."""
    replicas = replicas_of(model)
    divisions: dict[Any, Division] = {}

    def run(state: Any, data: Any) -> tuple[Any, Any]:
        leaves, structure = flatten(data)
        key = (structure, tuple(map(_signature, leaves)))
        if key not in divisions:
            divisions[key] = _division(replicas, step, state, leaves, structure)
        batch = _batch(leaves, structure, replicas.placement, divisions[key])
        return _run_kept(model, replicas, step, state, batch)

    return run


def _batch(
    leaves: list[Any], structure: Any, placement: Placement, division: Division
) -> Batch:
    placed = place(leaves, placement, division)
    return Batch(jax.tree_util.tree_unflatten(structure, placed), division)


def _signature(leaf: Any) -> Any:
    return shape_of(leaf), getattr(leaf, "dtype", None)


def _run_kept(
    model: Any, replicas: Replicas, step: Step, state: Any, batch: Batch
) -> tuple[Any, Any]:
    replicas.state = state
    step_begins()
    try:
        result = step(state, batch)
        replicas.state = result[1]
        if model.steps_per_execution > 1:
            # Keras stores a state after the last of them only.
            _keras.publish_state(model, replicas.state)
    except BaseException:
        step_ends()
        raise
    try:
        step_ends()
    except BaseException:
        _keras.publish_state(model, replicas.state)
        raise
    return result


def _say_what_is_not_divided(replicas: Replicas, operation: str | None) -> None:
    if operation is not None:
        replicas.once.warn(
            operation,
            f"XLA does not divide {operation}: every device computes it whole, and "
            "the other layers in parts. Results are right.",
        )


def _division(
    replicas: Replicas, step: Any, state: Any, leaves: list[Any], structure: Any
) -> Division:
    """How this step is divided for batches of these shapes.

    Traces the step, which its first call reuses.
    """
    placement = replicas.placement
    division, rows = division_of(leaves, placement)
    if any(map(is_sparse, leaves)):
        reason: str | None = "takes sparse arrays"
    elif division is Division.WHOLE:
        return division
    elif hasattr(step, "trace"):
        batch = _batch(leaves, structure, placement, division)
        other = with_rows(batch, rows, rows + placement.size)
        jaxpr = step.trace(state, batch).jaxpr
        found = obstacle(jaxpr, rows, division, lambda: step.trace(state, other).jaxpr)
        reason = found and f"contains {found}"
        _say_what_is_not_divided(replicas, undivided(jaxpr))
    else:
        reason = "runs eagerly" if division is Division.UNEVEN else None
    if reason is None:
        return division
    replicas.once.warn(
        reason,
        f"A step that {reason} cannot be divided over {placement.size} devices for "
        f"a batch of {rows} rows: every device computes the whole batch. Results are "
        "right.",
    )
    return Division.WHOLE
