"""Train any Keras 3 model on all your devices, with the numbers of one device.

Names are resolved when they are first used, so that importing the package
imports no backend: `keras-unison --help` answers at once.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from keras_unison._versions import __version__

if TYPE_CHECKING:
    from keras_unison.data_parallel import DataParallel
    from keras_unison.errors import (
        BatchError,
        ConfigError,
        DeviceError,
        HelperError,
        LegacyFileError,
        ModelError,
        PlacementError,
        SimulationError,
        UnisonError,
        UnisonWarning,
        UnsupportedError,
    )
    from keras_unison.global_view.step import step
    from keras_unison.hardware.device import Device
    from keras_unison.hardware.selection import devices
    from keras_unison.hardware.simulation import simulate
    from keras_unison.legacy.importer.load import (
        load_keras2_model,
        load_keras2_weights,
    )
    from keras_unison.legacy.multi_gpu import multi_gpu_model
    from keras_unison.strategy import MirroredStrategy

_HOME = {
    "DataParallel": "data_parallel",
    "Device": "hardware.device",
    "devices": "hardware.selection",
    "simulate": "hardware.simulation",
    "load_keras2_model": "legacy.importer.load",
    "load_keras2_weights": "legacy.importer.load",
    "multi_gpu_model": "legacy.multi_gpu",
    "step": "global_view.step",
    "MirroredStrategy": "strategy",
    "BatchError": "errors",
    "ConfigError": "errors",
    "DeviceError": "errors",
    "HelperError": "errors",
    "LegacyFileError": "errors",
    "ModelError": "errors",
    "PlacementError": "errors",
    "SimulationError": "errors",
    "UnisonError": "errors",
    "UnisonWarning": "errors",
    "UnsupportedError": "errors",
}

__all__ = [
    "BatchError",
    "ConfigError",
    "DataParallel",
    "Device",
    "DeviceError",
    "HelperError",
    "LegacyFileError",
    "MirroredStrategy",
    "ModelError",
    "PlacementError",
    "SimulationError",
    "UnisonError",
    "UnisonWarning",
    "UnsupportedError",
    "__version__",
    "devices",
    "load_keras2_model",
    "load_keras2_weights",
    "multi_gpu_model",
    "simulate",
    "step",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'keras_unison' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"keras_unison.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if os.environ.get("KERAS_UNISON_SIMULATE"):
    from keras_unison.hardware.simulation import simulate_from_environment

    simulate_from_environment()
