"""What a model's class gains: Keras's trainer with its steps divided."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from keras_unison import _keras
from keras_unison.engines.interrupts import interrupts_wait
from keras_unison.engines.jax.batch import Batch, constrain
from keras_unison.engines.jax.loop import Step, place_source, wrap_step
from keras_unison.engines.jax.placement import Placement
from keras_unison.engines.jax.replicas import replicas_of
from keras_unison.engines.jax.state import bring_home, keep_layouts, place_state
from keras_unison.engines.layer_calls import cutting
from keras_unison.engines.methods import guard_methods


@contextmanager
def _loop(
    model: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[None]:
    """Around a method that runs steps: nothing is lost when it fails."""
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
        return outputs, keep_layouts((state[0], non_trainable), placement)[1]


def _state_step(model: Any, step: Step, state: Any, data: Any) -> tuple[Any, Any]:
    if not isinstance(data, Batch):
        return step(state, data)
    placement = replicas_of(model).placement
    logs, state = _call_divided(step, state, data, placement)
    return logs, keep_layouts(state, placement)


def _call_divided(
    step: Step, state: Any, batch: Batch, placement: Placement
) -> tuple[Any, Any]:
    def cut(layer: Any, args: Any, kwargs: Any) -> Any:
        return constrain((args, kwargs), placement, batch.division)[0]

    with cutting(cut):
        return step(state, constrain(batch.data, placement, batch.division)[0])


_Hooks = _keras.jax_trainer_hooks(
    wrap_step=wrap_step,
    place_state=place_state,
    bring_home=bring_home,
    place_source=place_source,
)


class JaxDataParallel(_Steps, _Hooks):  # type: ignore[misc, valid-type]
    """In front of a model's class: its loops run on all of its devices."""


guard_methods(JaxDataParallel, _loop)
