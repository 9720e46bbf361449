"""Where weights live: each device owns about its share of them.

A step reads every weight on every device, sums its gradient where the weight lives
and updates it there, with the optimizer's slots beside it: the traffic of an
all-reduce, and an update that is divided instead of repeated (Rajbhandari et al.,
2020, https://arxiv.org/abs/1910.02054).
"""

from typing import Any

import keras

from keras_unison import _keras
from keras_unison.engines.tensorflow.placement import Placement
from keras_unison.hardware.backends.tensorflow import list_devices


def spread(layer: Any, placement: Placement) -> None:
    """Gives each device about the same number of the layer's bytes."""
    load = dict.fromkeys(placement.devices, 0)
    owners: dict[int, str] = {}
    for variable in sorted(_movable(layer), key=_bytes, reverse=True):
        owner = min(load, key=lambda device: load[device])
        load[owner] += _bytes(variable)
        owners[id(variable)] = owner
        _move(variable, owner)
    _move_slots(getattr(layer, "optimizer", None), owners)


def bring_home(layer: Any) -> None:
    """Puts all weights on the first device again."""
    home = list_devices()[0].description
    owners = {id(variable): home for variable in _movable(layer)}
    for variable in _movable(layer):
        _move(variable, home)
    _move_slots(getattr(layer, "optimizer", None), owners)


def _movable(layer: Any) -> list[Any]:
    return [
        variable
        for variable in layer.weights
        if keras.backend.is_float_dtype(variable.dtype)
        and _keras.tensorflow_variable(variable) is not None
    ]


def _bytes(variable: Any) -> int:
    value = _keras.tensorflow_variable(variable)
    return int(value.shape.num_elements() * value.dtype.size)


def _move(variable: Any, device: str) -> None:
    value = _keras.tensorflow_variable(variable)
    if not value.device.endswith(device):
        _keras.move_variable(variable, device)


def _move_slots(optimizer: Any, owners: dict[int, str]) -> None:
    for variable, slot in _keras.slots_of(optimizer):
        if id(variable) in owners:
            _move(slot, owners[id(variable)])
