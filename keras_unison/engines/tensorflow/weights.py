"""Where weights live: each device owns about its share of them.

A step reads every weight on every device, sums its gradient where the weight lives
and updates it there, with the optimizer's slots beside it: the traffic of an
all-reduce, and an update that is divided instead of repeated (Rajbhandari et al.,
2020, https://arxiv.org/abs/1910.02054).
"""

import weakref
from typing import Any

import keras

from keras_unison import _keras
from keras_unison.engines.tensorflow.placement import Placement
from keras_unison.hardware.backends.tensorflow import list_devices

# The newest move of a weight that a model's traced functions know of.
_traced_after: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()


def spread(layer: Any, placement: Placement, anew: bool = False) -> None:
    """Gives each device about the same number of the layer's bytes.

    Args:
        layer: The layer, or model with its optimizer.
        placement: The devices.
        anew: Move what is on one of these devices already. Otherwise it stays:
            another model may have placed it there and be training.
    """
    load = dict.fromkeys(placement.devices, 0)
    waiting: list[Any] = []
    for variable in _movable(layer):
        device = None if anew else _place_of(variable, placement)
        if device is None:
            waiting.append(variable)
        else:
            load[device] += _bytes(variable)
    owners = []
    for variable in sorted(waiting, key=_bytes, reverse=True):
        owner = min(load, key=lambda device: load[device])
        load[owner] += _bytes(variable)
        owners.append((variable, owner))
    _settle(layer, owners)


def trace_anew_where_moved(model: Any) -> None:
    """Forgets the functions that a model has traced before its weights were moved."""
    newest = _newest_move(model)
    if newest > _traced_after.get(model, 0):
        _keras.forget_functions(model)
        _traced_after[model] = newest


def keep_what_is_traced(model: Any) -> None:
    """Says that what a model has traced uses its weights where they are."""
    _traced_after[model] = _newest_move(model)


def _newest_move(model: Any) -> int:
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.weights, *getattr(optimizer, "variables", ())]
    return max(map(_keras.last_move, variables), default=0)


def bring_home(layer: Any) -> None:
    """Puts all weights on the first device again."""
    home = list_devices()[0].description
    _settle(layer, [(variable, home) for variable in _movable(layer)])


def _settle(layer: Any, owners: list[tuple[Any, str]]) -> None:
    """Moves weights, and the optimizer's slots for them, to these devices."""
    for variable, owner in owners:
        _move(variable, owner)
    owner_of = {id(variable): owner for variable, owner in owners}
    for variable, slot in _keras.slots_of(getattr(layer, "optimizer", None)):
        if id(variable) in owner_of:
            _move(slot, owner_of[id(variable)])


def _place_of(variable: Any, placement: Placement) -> str | None:
    """The device of the placement that a variable was moved to, if it was."""
    if not _keras.last_move(variable):
        return None
    there = _keras.tensorflow_variable(variable).device
    return next((d for d in placement.devices if there.endswith(d)), None)


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
