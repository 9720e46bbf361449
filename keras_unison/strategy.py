"""MirroredStrategy: models of a scope become data parallel."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from keras_unison._keras import models_seen
from keras_unison.data_parallel import DataParallel
from keras_unison.errors import UnsupportedError
from keras_unison.hardware.selection import DeviceChoice, choose_devices


class MirroredStrategy:
    """Makes the models built or compiled in its scope data parallel.

    The counterpart of `tf.distribute.MirroredStrategy` for every backend: one
    replica per device, with the numbers of one device. A model belongs to the
    strategy once it is built or compiled in `scope()`, and may be fitted inside
    or outside of it.

    Args:
        devices: None for all devices, a number of devices, or ids or names.

    Raises:
        DeviceError: The devices do not exist; also a ValueError.

    Example:
    >>> import keras
    >>> import keras_unison as ku
    >>> ku.simulate(2)
    >>> strategy = ku.MirroredStrategy()
    >>> strategy.num_replicas_in_sync
    2
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    """

    def __init__(self, devices: DeviceChoice = None) -> None:
        self._positions = choose_devices(devices)

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of devices that share each batch."""
        return len(self._positions)

    @contextmanager
    def scope(self) -> Iterator["MirroredStrategy"]:
        """Within this context each model built or compiled becomes parallel."""
        with models_seen(self._adopt):
            yield self

    def _adopt(self, model: Any) -> None:
        DataParallel(model, devices=self._positions)

    def run(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not supported: there is no function that runs once per replica.

        Raises:
            UnsupportedError: Always; names what to use.
        """
        raise UnsupportedError(
            "MirroredStrategy.run(fn) does not exist here: a step is written once, "
            "for the global batch, and its layer calls are divided. Decorate your "
            "step with `keras_unison.step` and call it with the global batch."
        )

    def experimental_distribute_dataset(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not supported: batches are divided where they enter a step.

        Raises:
            UnsupportedError: Always; names what to use.
        """
        raise UnsupportedError(
            "MirroredStrategy.experimental_distribute_dataset(dataset) does not "
            "exist here: pass the dataset of global batches to `model.fit`, or its "
            "batches to a step decorated with `keras_unison.step`."
        )
