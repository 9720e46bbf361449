"""A model's state on its way into a loop and back to its variables."""

from typing import Any

import jax

from keras_unison import _keras
from keras_unison.engines.jax.placement import Placement
from keras_unison.engines.jax.replicas import replicas_of


def place_state(model: Any, state: Any) -> Any:
    """Puts the state that a loop begins with on the model's devices."""
    replicas = replicas_of(model)
    # Keras has emptied the variables: until the new arrays are there, and until a
    # step has returned a state of its own, a failure must find the old ones.
    replicas.state = state
    _keras.publish_state(model, state)
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


def keep_layouts(state: Any, placement: Placement) -> Any:
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
