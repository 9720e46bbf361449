"""Keras's trainer on JAX."""

from collections.abc import Callable, Iterator
from typing import Any

# The order of the parts of a training state, as `_get_jax_state` returns them.
STATE_PARTS = (
    "trainable_variables",
    "non_trainable_variables",
    "optimizer_variables",
    "metrics_variables",
)


# A training step has four parts, a test step no optimizer, prediction two.
_PARTS_BY_LENGTH = {
    4: STATE_PARTS,
    3: (STATE_PARTS[0], STATE_PARTS[1], STATE_PARTS[3]),
    2: STATE_PARTS[:2],
}


def jax_trainer_hooks(
    *,
    wrap_step: Callable[[Any, Callable[..., Any]], Callable[..., Any]],
    place_state: Callable[[Any, Any], Any],
    bring_home: Callable[[Any], None],
    place_source: Callable[[Any, Any], None],
) -> type:
    """A mixin that calls back where Keras's JAX trainer passes state and data.

    Keras compiles a step per model and carries all variables through it as a
    state. State and data can only be placed where they enter that step, and
    the trainer has no public hook there.

    Args:
        wrap_step: Gets the model and the compiled step `(state, data)`.
        place_state: Gets the model and the state that a loop begins with.
        bring_home: Called before the state goes back to the variables.
        place_source: Gets the model and the iterator of batches.
    """

    class JaxTrainerHooks:
        def _make_function(
            self, step_function: Callable[..., Any], *args: Any, **kwargs: Any
        ) -> Any:
            # Called with the jitted step, by all three make_*_function.
            return super()._make_function(  # type: ignore[misc]
                wrap_step(self, step_function), *args, **kwargs
            )

        def _get_jax_state(self, **kwargs: Any) -> Any:
            # Called at each epoch's start and after each sync.
            return place_state(self, super()._get_jax_state(**kwargs))  # type: ignore[misc]

        def jax_state_sync(self) -> None:
            if not is_synced(self):
                bring_home(self)
            super().jax_state_sync()  # type: ignore[misc]

        def _symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
            # The one call of fit and evaluate that passes their iterator.
            super()._symbolic_build(iterator=iterator, data_batch=data_batch)  # type: ignore[misc]
            if iterator is not None:
                place_source(self, iterator)

    return JaxTrainerHooks


def state_dict(state: Any) -> dict[str, Any]:
    """A step's state as the trainer stores it, by the names of its parts."""
    return dict(zip(_PARTS_BY_LENGTH[len(state)], state, strict=True))


def publish_state(model: Any, state: Any) -> None:
    """Makes `state` the one that the trainer's next sync writes to variables.

    Keras does so after each step; an interrupted step has to do it itself.
    """
    model._jax_state = state_dict(state)
    model._jax_state_synced = False


def is_synced(model: Any) -> bool:
    """Whether the variables hold the newest state."""
    return model._jax_state_synced or not getattr(model, "_jax_state", None)


def pending_state(model: Any) -> dict[str, Any]:
    """The state that the next sync writes, by the names of its parts."""
    found: dict[str, Any] = model._jax_state
    return found


def set_pending_state(model: Any, parts: dict[str, Any]) -> None:
    """Replaces the state that the next sync writes."""
    model._jax_state = parts


def forget_pending_state(model: Any) -> None:
    """Ends the loop that the state belongs to, as Keras does at its end."""
    model._jax_state = None


def replace_source(
    iterator: Any, wrap: Callable[[Iterator[Any]], Iterator[Any]]
) -> None:
    """Lets `wrap` stand between an epoch's data and the training loop.

    On accelerators Keras copies each batch to the first device before the step
    divides it, which is one transfer too many; only the iterator's own method
    can be replaced, per object.
    """
    adapter = iterator.data_adapter
    iterator._get_iterator = lambda: wrap(adapter.get_jax_iterator())
