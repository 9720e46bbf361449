"""Making a model run on several devices, and plain again."""

from typing import Any

import keras

from keras_unison import _keras
from keras_unison.engines.jax.placement import Twins, placement_on
from keras_unison.engines.jax.replicas import (
    Replicas,
    drop_replicas,
    find_replicas,
    set_replicas,
)
from keras_unison.engines.jax.trainer import JaxDataParallel
from keras_unison.engines.upgrade import downgrade, upgrade
from keras_unison.errors import UnsupportedError


def prepare(model: Any, positions: list[int], exact_draws: bool) -> None:
    """Makes `model` run its steps on the devices at `positions`.

    XLA divides the draws of one device: there is nothing to gain without them.
    """
    if keras.config.is_nnx_enabled():
        raise UnsupportedError(
            "Models in Keras's NNX mode cannot be divided: NNX owns their state. "
            "Unset KERAS_NNX_ENABLED, or call keras.config.disable_nnx() if your "
            "Keras has it, before the model is made."
        )
    present = find_replicas(model)
    if present is not None and present.placement.positions == tuple(positions):
        return
    placement = placement_on(positions)
    set_replicas(model, Replicas(placement=placement, twins=Twins(placement=placement)))
    upgrade(model, JaxDataParallel)
    _keras.forget_functions(model)


def release(model: Any) -> None:
    """Makes `model` a plain Keras model again."""
    if find_replicas(model) is None:
        return
    drop_replicas(model)
    downgrade(model, JaxDataParallel)
    _keras.forget_functions(model)


def positions(model: Any) -> list[int] | None:
    """Positions of the model's devices; None for a plain model."""
    found = find_replicas(model)
    return None if found is None else list(found.placement.positions)
