"""multi_gpu_model: the function of Keras 2, on today's Keras."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

from keras_unison._keras import explain_missing_attributes, let_callbacks_take_model
from keras_unison.data_parallel import DataParallel, check_model
from keras_unison.engines.upgrade import upgrade
from keras_unison.errors import DeviceError, UnsupportedError
from keras_unison.hardware.device import Device
from keras_unison.hardware.selection import choose_devices, devices, whole_number
from keras_unison.legacy.replicas import first_of_equal_replicas


def multi_gpu_model(
    model: Any,
    gpus: None | SupportsIndex | Iterable[SupportsIndex | str] = None,
    cpu_merge: bool = True,
    cpu_relocation: bool = False,
) -> Any:
    """Makes a model data parallel on several GPUs, as in Keras 2.

    The result is the model itself, not a model around it: one handle trains,
    saves and loads, and every saved file is a plain one. Code that reaches for
    the inner model by `get_layer(model.name)` gets the model.

    Args:
        model: A `keras.Model`, or a list of replicas with equal architectures,
            of which the first one's weights count.
        gpus: A number of GPUs, at least 2, or a list of at least two ids.
            None, 0 and an empty list mean all GPUs. Simulated devices count as
            GPUs.
        cpu_merge: Without effect: outputs are not merged on one device.
        cpu_relocation: Without effect: weights keep their values in any case.

    Returns:
        The same model.

    Raises:
        DeviceError: Fewer than two GPUs, or GPUs that do not exist; also a
            ValueError, as in Keras 2.
        ModelError: The replicas differ, or `model` is no Keras model; also a
            ValueError.

    Example:
    >>> import keras
    >>> import keras_unison as ku
    >>> ku.simulate(2)
    >>> model = keras.Sequential([keras.Input((100,)), keras.layers.Dense(10)])
    >>> try:
    ...     parallel = ku.multi_gpu_model(model, gpus=2)
    ... except ValueError:
    ...     parallel = model
    >>> parallel is model
    True
    """
    if isinstance(model, list | tuple):
        model = first_of_equal_replicas(model)
    check_model(model)
    DataParallel(model, devices=_chosen(gpus))
    upgrade(model, NestedLayoutNames)
    explain_missing_attributes(_explain)
    let_callbacks_take_model()
    return model


def _chosen(gpus: Any) -> Any:
    available = devices()
    if _is_falsy(gpus):
        # KERAS_UNISON_DEVICES limits what "all" means here too.
        usable = [
            position
            for position in choose_devices(None)
            if _counts_as_gpu(available[position])
        ]
        return _at_least_two(usable, f"gpus={len(usable)}", "gpus", available)
    if isinstance(gpus, Sequence) and not isinstance(gpus, str):
        _at_least_two(gpus, f"gpus={list(gpus)}", "len(gpus)", available)
    count = 1 if gpus is True else whole_number(gpus)
    if count is not None and count < 2:
        return _at_least_two([], f"gpus={gpus}", "gpus", available)
    chosen = choose_devices(gpus, argument="gpus")
    return _at_least_two(chosen, f"gpus={gpus!r}", "len(gpus)", available)


def _counts_as_gpu(device: Device) -> bool:
    return device.kind != "cpu" or device.simulated


def _is_falsy(gpus: Any) -> bool:
    # An array of several ids has no truth value, one of no dimension no length.
    if whole_number(gpus) is None and hasattr(gpus, "__len__"):
        return len(gpus) == 0
    return not gpus


def _at_least_two(
    chosen: Sequence[Any], received: str, what: str, available: list[Device]
) -> Any:
    if len(chosen) >= 2:
        return chosen
    names = ", ".join(device.name for device in available)
    raise DeviceError(
        "For multi-gpu usage to be effective, call `multi_gpu_model` with "
        f"`{what} >= 2`. Received: `{received}`. This machine has: {names}. To "
        "simulate more on the CPU: `keras-unison run --simulate 2 script.py`."
    )


# What Keras 2 called a model without a name: scripts have it written out.
_COUNTED_NAME = re.compile(r"(?:model|sequential)_\d+")


class NestedLayoutNames:
    """Names by which old code reached the model inside the parallel one."""

    def get_layer(self, name: str | None = None, index: int | None = None) -> Any:
        """The layer of that name; the model itself by its own name."""
        names = [layer.name for layer in self.layers]  # type: ignore[attr-defined]
        if name is not None and name not in names:
            own = self.name  # type: ignore[attr-defined]
            if name == own:
                return self
            if _COUNTED_NAME.fullmatch(name):
                raise ValueError(
                    f"No such layer: {name}. Existing layers are: {names}. In Keras 2 "
                    "such a name was that of the model inside multi_gpu_model's "
                    f"result; today the result is the model itself, named {own!r}. "
                    "Use it directly: `parallel.save(...)`."
                )
        return super().get_layer(name=name, index=index)  # type: ignore[misc]

    @property
    def callback_model(self) -> Any:
        """The model that callbacks get, which is always this one."""
        return self

    @callback_model.setter
    def callback_model(self, model: Any) -> None:
        if model is not self:
            raise UnsupportedError(
                "callback_model can only be the model that multi_gpu_model returned, "
                f"which is the model that you gave it. Received: {model!r}. Callbacks "
                "get it without being told: leave the line out."
            )


# What old code called on `parallel.layers[-2]`, the model inside the parallel one.
_OF_A_MODEL = (
    "save",
    "save_weights",
    "load_weights",
    "summary",
    "layers",
    "get_layer",
    "predict",
    "evaluate",
    "fit",
    "compile",
)


def _explain(layer: Any, name: str) -> str | None:
    if name not in _OF_A_MODEL:
        return None
    return (
        f"'{type(layer).__name__}' object has no attribute '{name}'. In Keras 2 "
        "`layers[-2]` of multi_gpu_model's result was the model inside it; today the "
        f"result is the model itself. Use it directly: `parallel.{name}`."
    )
