"""DataParallel: one model, its steps divided over several devices."""

from typing import Any, Literal, TypeVar

from keras_unison.engines import engine
from keras_unison.engines.conflicts import refuse_other_strategies
from keras_unison.errors import ModelError, UnsupportedError
from keras_unison.hardware.selection import DeviceChoice, choose_devices

Model = TypeVar("Model")


def DataParallel(  # noqa: N802 - the name that users know it by
    model: Model,
    devices: DeviceChoice = None,
    *,
    sync_batch_norm: bool = True,
    exact_draws: bool = True,
    shard: Literal["optimizer", "parameters"] | None = None,
    data: Literal["global", "sharded"] = "global",
) -> Model:
    """Makes a Keras model train, evaluate and predict on several devices.

    The model is changed in place and returned: it stays the object that you
    hold, that callbacks receive and that `save` writes as a plain Keras file.
    Each batch is divided by rows over the devices; the loss, metrics, gradients
    and update are those of the whole batch, so that the numbers are those of
    one device for every batch size.

    Wrapping again with other devices moves the model; with one device it is
    plain Keras again.

    Args:
        model: A `keras.Model`: Sequential, functional or subclassed, built or
            not, compiled or not.
        devices: None for all devices, a number of devices, or a list of ids or
            names as `keras_unison.devices()` gives them.
        sync_batch_norm: BatchNormalization uses the statistics of the whole
            batch. False is not built.
        exact_draws: Dropout and augmentation draw what one device draws. On
            TensorFlow each device draws for the whole batch and keeps its rows;
            False lets it draw for its own rows only, by a seed of its own. On
            JAX each device makes its own part of the draws of one device, so
            that False gives the same draws at the same cost.
        shard: None lets the engine choose: on JAX large optimizer slots are
            divided over the devices, on TensorFlow each device owns a part of the
            weights and their slots. `"optimizer"` and `"parameters"` are not built.
        data: `"global"`: each batch is the global batch. `"sharded"` is not
            built.

    Returns:
        The same model.

    Raises:
        DeviceError: The devices do not exist; also a ValueError.
        ModelError: `model` is no Keras model; also a ValueError.
        PlacementError: A keras.distribution or tf.distribute strategy is
            active.
        UnsupportedError: The backend or an option is not built.

    Example:
    >>> import keras, numpy as np
    >>> import keras_unison as ku
    >>> ku.simulate(2)
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    >>> model = ku.DataParallel(model, devices=2)
    >>> model.compile("sgd", "mse")
    >>> history = model.fit(np.ones((11, 8)), np.ones((11, 1)), verbose=0)
    >>> model.predict(np.ones((3, 8)), verbose=0).shape
    (3, 1)
    """
    _check_options(sync_batch_norm, shard, data)
    check_model(model)
    refuse_other_strategies()
    active = engine()
    positions = choose_devices(devices)
    if positions == [0]:
        active.release(model)
    else:
        active.prepare(model, positions, exact_draws)
    return model


def check_model(model: Any) -> None:
    """Refuses what is no Keras model.

    Raises:
        ModelError: `model` is something else; says what to do.
    """
    import keras

    if isinstance(model, keras.Model):
        return
    module = type(model).__module__
    if module.split(".")[0] == "tf_keras" or module.startswith(
        "tensorflow.python.keras"
    ):
        raise ModelError(
            f"The model is a {module.split('.')[0]} model (Keras 2), and Keras Unison "
            "distributes Keras 3 models. Import `keras` instead of `tf_keras`, and "
            "unset TF_USE_LEGACY_KERAS."
        )
    what = f"the class {model.__name__}" if isinstance(model, type) else repr(model)
    raise ModelError(
        f"A keras.Model is needed. Received: {what} of type {type(model).__name__}. "
        "For instance: DataParallel(keras.Sequential([...]), devices=2)"
    )


def _check_options(sync_batch_norm: bool, shard: str | None, data: str) -> None:
    if not sync_batch_norm:
        raise UnsupportedError(
            "sync_batch_norm=False is not built. Leave it at True: statistics are "
            "those of the whole batch, as on one device."
        )
    if shard in ("optimizer", "parameters"):
        raise UnsupportedError(
            f"shard={shard!r} is not built. Leave it at None: large optimizer slots "
            "are divided over the devices already."
        )
    if shard is not None:
        raise ValueError(
            "`shard` must be None, 'optimizer' or 'parameters'. "
            f"Received: shard={shard!r}"
        )
    if data == "sharded":
        raise UnsupportedError(
            "data='sharded' is not built. Leave it at 'global': each batch is the "
            "global batch, and its rows are divided over the devices."
        )
    if data != "global":
        raise ValueError(
            f"`data` must be 'global' or 'sharded'. Received: data={data!r}"
        )
