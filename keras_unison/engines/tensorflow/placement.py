"""Where a model runs: its devices, and what their sums need to find each other."""

import functools
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_unison.hardware.backends.tensorflow import list_devices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """The devices of one model.

    Attributes:
        positions: Their positions in `keras_unison.devices()`.
        devices: TensorFlow's names of them.
        group: The number under which their sums find each other.
        tokens: One variable on each device. TensorFlow runs what touches the same
            variable in order, so that each device meets the others in the order of
            the program, and one device's sums do not wait for another's.
    """

    positions: tuple[int, ...]
    devices: tuple[str, ...]
    group: int
    tokens: tuple[Any, ...]

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.positions)


@functools.cache
def placement_on(positions: tuple[int, ...]) -> Placement:
    """The placement of a model on the devices at `positions`; one for each."""
    found = list_devices()
    devices = tuple(found[position].description for position in positions)
    return Placement(
        positions=positions,
        devices=devices,
        group=7000 + placement_on.cache_info().currsize,
        tokens=tuple(map(_token, devices)),
    )


def _token(device: str) -> Any:
    with tf.init_scope(), tf.device(device):
        return tf.Variable(0.0, trainable=False)
