"""What a model's class gains: Keras's trainer with its steps divided."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import jax
import keras

from keras_unison import _keras
from keras_unison.batches.rows import Division
from keras_unison.engines.conflicts import refuse_other_strategies
from keras_unison.engines.interrupts import interrupts_wait, step_begins, step_ends
from keras_unison.engines.jax.batch import (
    Batch,
    constrain,
    division_of,
    flatten,
    is_sparse,
    place,
    shape_of,
    with_rows,
)
from keras_unison.engines.jax.obstacles import obstacle
from keras_unison.engines.jax.placement import Placement
from keras_unison.engines.jax.replicas import Replicas, replicas_of
from keras_unison.engines.layer_calls import cutting

Step = Callable[[Any, Any], tuple[Any, Any]]

_METHODS = (
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "test_on_batch",
    "predict_on_batch",
)


# --- state ------------------------------------------------------------------


def place_state(model: Any, state: Any) -> Any:
    """Puts the state that a loop begins with on the model's devices."""
    replicas = replicas_of(model)
    parts = _keras.state_dict(state)
    arrays = [array for part in parts.values() for array in part]
    layouts = [
        layout
        for name, part in parts.items()
        for layout in _layouts(name, part, replicas.placement)
    ]
    placed = iter(replicas.twins.place(arrays, layouts))
    replicas.twins.forget()
    replicas.state = tuple([next(placed) for _ in part] for part in parts.values())
    # The step may fail before it returns a state of its own.
    _keras.publish_state(model, replicas.state)
    return replicas.state


def bring_home(model: Any) -> None:
    """Puts the newest state on the first device, for the model's variables."""
    twins = replicas_of(model).twins
    parts = _keras.pending_state(model)
    _keras.set_pending_state(
        model, {name: twins.bring_home(part) for name, part in parts.items()}
    )


def _layouts(name: str, part: list[Any], placement: Placement) -> list[Any]:
    if name == "optimizer_variables":
        return [placement.slot(array.shape) for array in part]
    return [placement.whole] * len(part)


def _keep_layouts(state: Any, placement: Placement) -> Any:
    """Fixes the layout of a step's new state to that of its old one.

    Left to itself XLA may choose another, which would compile the step again.
    """
    parts = _keras.state_dict(state)
    return tuple(
        [
            jax.lax.with_sharding_constraint(array, layout)
            for array, layout in zip(part, _layouts(name, part, placement), strict=True)
        ]
        for name, part in parts.items()
    )


# --- data -------------------------------------------------------------------


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
        found = obstacle(
            step.trace(state, batch).jaxpr,
            rows,
            division,
            lambda: step.trace(state, other).jaxpr,
        )
        reason = found and f"contains {found}"
    else:
        reason = "runs eagerly" if division is Division.UNEVEN else None
    if reason is None:
        return division
    replicas.warn_once(
        f"A step that {reason} cannot be divided over {placement.size} devices for "
        f"a batch of {rows} rows: every device computes the whole batch.",
        "Results are right.",
    )
    return Division.WHOLE


# --- the mixin --------------------------------------------------------------


@contextmanager
def _loop(model: Any) -> Iterator[None]:
    """Around a method that runs steps: nothing is lost when it fails."""
    refuse_other_strategies()
    replicas = replicas_of(model)
    with interrupts_wait():
        try:
            yield
        except BaseException:
            if replicas.state is not None and not _keras.is_synced(model):
                model.jax_state_sync()
            _keras.forget_pending_state(model)
            raise
        finally:
            replicas.state = None


class _Steps:
    """Keras's steps, on a batch that knows how it is divided."""

    def train_step(self, state: Any, data: Any) -> tuple[Any, Any]:
        return _state_step(self, super().train_step, state, data)  # type: ignore[misc]

    def test_step(self, state: Any, data: Any) -> tuple[Any, Any]:
        return _state_step(self, super().test_step, state, data)  # type: ignore[misc]

    def predict_step(self, state: Any, data: Any) -> tuple[Any, Any]:
        step = super().predict_step  # type: ignore[misc]
        if not isinstance(data, Batch):
            return cast(tuple[Any, Any], step(state, data))
        placement = replicas_of(self).placement
        outputs, non_trainable = _call_divided(step, state, data, placement)
        return outputs, _keep_layouts((state[0], non_trainable), placement)[1]


def _state_step(model: Any, step: Step, state: Any, data: Any) -> tuple[Any, Any]:
    if not isinstance(data, Batch):
        return step(state, data)
    placement = replicas_of(model).placement
    logs, state = _call_divided(step, state, data, placement)
    return logs, _keep_layouts(state, placement)


def _call_divided(
    step: Step, state: Any, batch: Batch, placement: Placement
) -> tuple[Any, Any]:
    def cut(layer: Any, args: Any, kwargs: Any) -> Any:
        return constrain((args, kwargs), placement, batch.division)[0]

    with cutting(cut):
        return step(state, constrain(batch.data, placement, batch.division)[0])


def _guarded(name: str) -> Callable[..., Any]:
    original = getattr(keras.Model, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _loop(self):
            return getattr(super(JaxDataParallel, self), name)(*args, **kwargs)

    return method


_Hooks = _keras.jax_trainer_hooks(
    wrap_step=wrap_step,
    place_state=place_state,
    bring_home=bring_home,
    place_source=place_source,
)


class JaxDataParallel(_Steps, _Hooks):  # type: ignore[misc, valid-type]
    """In front of a model's class: its loops run on all of its devices."""


for _name in _METHODS:
    setattr(JaxDataParallel, _name, _guarded(_name))
