"""The one place where the code depends on which Keras backend is active.

Each folder that differs per backend holds one module or package per backend
with the same names; `backend_module` returns that of the active one.
"""

import importlib
from types import ModuleType

from keras_unison.errors import UnsupportedError

BACKENDS = ("tensorflow", "jax", "torch")


def active_backend() -> str:
    """The name of the backend that Keras runs on.

    Raises:
        UnsupportedError: Keras runs on a backend that cannot train.
    """
    import keras

    name: str = keras.backend.backend()
    if name not in BACKENDS:
        raise UnsupportedError(
            f"The Keras backend {name!r} cannot train models. Choose one of "
            f"{', '.join(BACKENDS)}, for instance by `keras-unison backend jax`."
        )
    return name


def backend_module(folder: str) -> ModuleType:
    """The active backend's module in a folder of keras_unison.

    Args:
        folder: A package below `keras_unison`, for instance `"engines"`.
    """
    return importlib.import_module(f"keras_unison.{folder}.{active_backend()}")
