"""How a step runs on several devices: one engine per backend.

`engine()` returns the active backend's package; `protocol.Engine` says what
each offers, and each uses the same file names.
"""

from typing import cast

from keras_unison._backend import active_backend, backend_module
from keras_unison.engines.protocol import Engine
from keras_unison.errors import UnsupportedError

BUILT = ("jax", "tensorflow")


def engine() -> Engine:
    """The engine of the active Keras backend.

    Raises:
        UnsupportedError: There is none for this backend.
    """
    name = active_backend()
    if name not in BUILT:
        raise UnsupportedError(
            f"Training on several devices is not built for the {name} backend; it "
            f"runs on {', '.join(BUILT)}. Start the script with "
            f"`KERAS_BACKEND={BUILT[0]}`, or write it to keras.json by "
            f"`keras-unison backend {BUILT[0]}`."
        )
    return cast(Engine, backend_module("engines"))
