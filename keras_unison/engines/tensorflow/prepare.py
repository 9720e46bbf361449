"""Making a model run on several devices, and plain again."""

import weakref
from typing import Any

import tensorflow as tf

from keras_unison import _keras
from keras_unison.engines.division.draws import hook_draws
from keras_unison.engines.division.statistics import hook_statistics
from keras_unison.engines.tensorflow.differentiable import (
    forget_gradients,
    hook_all_reduce,
)
from keras_unison.engines.tensorflow.gradients import hook_gradients
from keras_unison.engines.tensorflow.placement import placement_on
from keras_unison.engines.tensorflow.replicas import (
    Replicas,
    drop_replicas,
    find_replicas,
    set_replicas,
)
from keras_unison.engines.tensorflow.row_losses import hook_losses
from keras_unison.engines.tensorflow.trainer import TensorFlowDataParallel
from keras_unison.engines.tensorflow.weights import (
    bring_home,
    spread,
    trace_anew_where_moved,
)
from keras_unison.engines.upgrade import downgrade, upgrade
from keras_unison.errors import PlacementError


def prepare(model: Any, positions: list[int], exact_draws: bool) -> None:
    """Makes `model` run its steps on the devices at `positions`."""
    _refuse_distributed(model)
    placement = placement_on(tuple(positions))
    present = find_replicas(model)
    wanted = (placement, exact_draws)
    if present is not None and (present.placement, present.exact_draws) == wanted:
        return
    hook_draws()
    hook_gradients()
    hook_all_reduce()
    hook_statistics()
    hook_losses()
    _keras.hook_functions(trace_anew_where_moved)
    _keras.hook_slots()
    _keras.hook_updates()
    replicas = Replicas(placement=placement, exact_draws=exact_draws)
    set_replicas(model, replicas)
    weakref.finalize(model, forget_gradients, replicas.gradients)
    upgrade(model, TensorFlowDataParallel)
    spread(model, placement, anew=present is not None)
    _keras.forget_functions(model)


def release(model: Any) -> None:
    """Makes `model` a plain Keras model again."""
    if find_replicas(model) is None:
        return
    drop_replicas(model)
    downgrade(model, TensorFlowDataParallel)
    bring_home(model)
    _keras.forget_functions(model)


def positions(model: Any) -> list[int] | None:
    """Positions of the model's devices; None for a plain model."""
    found = find_replicas(model)
    return None if found is None else list(found.placement.positions)


def _refuse_distributed(model: Any) -> None:
    strategy = model.distribute_strategy
    if (
        strategy.num_replicas_in_sync > 1
        or strategy is not tf.distribute.get_strategy()
    ):
        raise PlacementError(
            f"The model was made under tf.distribute.{type(strategy).__name__}, which "
            "places its variables and data; Keras Unison does that too, and only one "
            "of them can. Make the model outside of the strategy's `scope()`, or "
            "leave it to the strategy."
        )
