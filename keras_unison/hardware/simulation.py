"""Simulated devices: several virtual devices on the CPU."""

import importlib
import logging
import operator
import os
import sys
from typing import SupportsIndex

from keras_unison._backend import backend_module
from keras_unison.errors import DeviceError
from keras_unison.keras_config import chosen_backend

logger = logging.getLogger("keras_unison")

VARIABLE = "KERAS_UNISON_SIMULATE"


def simulate(n: SupportsIndex) -> None:
    """Makes the active backend see `n` virtual CPU devices and nothing else.

    Everything that runs on several devices then runs on these, on any machine:
    for trying things out, and for tests. The devices share the machine's cores,
    so they are no faster than one. Present GPUs are hidden, which a warning of
    the logger `keras_unison` says.

    The environment variable `KERAS_UNISON_SIMULATE=n`, read when keras_unison is
    imported, and `keras-unison run --simulate n` do the same.

    Args:
        n: How many devices, at least 1.

    Raises:
        DeviceError: `n` is no whole number, or below 1.
        SimulationError: The backend has already started, so that its devices
            can no longer change.
        UnsupportedError: The active backend has no virtual devices.

    Example:
    >>> import keras_unison as ku
    >>> ku.simulate(2)
    >>> [device.name for device in ku.devices()]
    ['cpu:0', 'cpu:1']
    """
    count = _count(n)
    backend_module("hardware.backends").simulate(count)
    _say_if_gpus_are_hidden(count)


def simulate_from_environment() -> None:
    """Does what `KERAS_UNISON_SIMULATE` asks for, if it is set."""
    asked = os.environ.get(VARIABLE, "")
    if not asked:
        return
    if not asked.isdigit():
        raise DeviceError(
            f"{VARIABLE} must be a whole number of devices. Received: {asked!r}. "
            f"For instance: {VARIABLE}=2"
        )
    if "keras" not in sys.modules and chosen_backend().backend == "jax":
        # Environment variables are enough for a JAX that is yet to be imported,
        # so that neither Keras nor JAX has to be: the command line stays quick.
        count = _count(int(asked))
        importlib.import_module("keras_unison.hardware.backends.jax").simulate(count)
        _say_if_gpus_are_hidden(count)
        return
    simulate(int(asked))


def _count(n: SupportsIndex) -> int:
    try:
        if isinstance(n, bool):
            raise TypeError
        count = operator.index(n)
    except TypeError:
        count = 0
    if count < 1:
        raise DeviceError(
            "simulate(n) takes a whole number of devices, at least 1. "
            f"Received: n={n!r}. For instance: keras_unison.simulate(2)"
        )
    return count


def _say_if_gpus_are_hidden(count: int) -> None:
    if _gpus_present():
        logger.warning(
            "simulating %d CPU devices; the GPUs of this machine are not used", count
        )


def _gpus_present() -> bool:
    """Whether the driver shows a GPU, asked without starting a backend."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return False
    return os.path.exists("/dev/nvidia0") or os.path.exists("/dev/kfd")
