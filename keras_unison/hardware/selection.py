"""Which devices there are, and choosing among them."""

import operator
import os
from collections.abc import Iterable
from typing import Any, SupportsIndex

from keras_unison._backend import backend_module
from keras_unison.errors import DeviceError
from keras_unison.hardware.device import Device

VARIABLE = "KERAS_UNISON_DEVICES"

DeviceChoice = None | SupportsIndex | str | Iterable[SupportsIndex | str]


def devices() -> list[Device]:
    """Lists the devices that the active Keras backend sees.

    Accelerators hide the CPU, as they do in Keras; `CUDA_VISIBLE_DEVICES`
    limits the list and renumbers it.

    Returns:
        One `Device` each: name, kind and memory in bytes where known.

    Example:
    >>> import keras_unison as ku
    >>> for device in ku.devices():
    ...     print(device.name, device.kind)
    cpu:0 cpu
    """
    found: list[Device] = backend_module("hardware.backends").list_devices()
    return found


def choose_devices(choice: DeviceChoice, *, argument: str = "devices") -> list[int]:
    """Checks a user's choice of devices against those that exist.

    Args:
        choice: None for all (or those that `KERAS_UNISON_DEVICES` names), a
            number of devices, ids, or names.
        argument: Name of the user's argument, for the error's text.

    Returns:
        Positions in `devices()`, in the order of the user's choice.

    Raises:
        DeviceError: Too many, too few, negative, duplicate or unknown devices.
    """
    available = devices()
    if choice is None and os.environ.get(VARIABLE):
        choice, argument = parse_devices(os.environ[VARIABLE]), VARIABLE
    if choice is None:
        return list(range(len(available)))
    if isinstance(choice, str):
        return _positions([choice], choice, available, argument)
    count = whole_number(choice)
    if count is not None:
        return _first(count, available, argument)
    if isinstance(choice, bool) or not isinstance(choice, Iterable):
        raise _error(
            f"takes None, a number, ids or names of devices. Received: "
            f"{argument}={choice!r}",
            available,
            argument,
        )
    return _positions(list(choice), choice, available, argument)


def parse_devices(text: str) -> int | list[int | str]:
    """A choice of devices written as text, as on the command line.

    Args:
        text: One whole number is a count; anything else is a list of ids and
            names, separated by commas.

    Raises:
        DeviceError: An item is empty.
    """
    if text.strip().isdigit():
        return int(text)
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise DeviceError(
            "Devices are written as a number of devices (2), ids (0,2) or names "
            f"(gpu:0,gpu:1). Received: {text!r}."
        )
    return [int(item) if item.isdigit() else item for item in items]


def whole_number(value: Any) -> int | None:
    """The value as an int if it is a whole number of any type, else None."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _first(count: int, available: list[Device], argument: str) -> list[int]:
    if count < 1:
        raise _error(
            f"must be at least 1. Received: {argument}={count}", available, argument
        )
    if count > len(available):
        raise _error(
            f"asks for {count} devices. Received: {argument}={count}",
            available,
            argument,
            needed=count,
        )
    return list(range(count))


def _positions(
    items: list[Any], choice: Any, available: list[Device], argument: str
) -> list[int]:
    if not items:
        raise _error(
            f"names no device. Received: {argument}={choice!r}", available, argument
        )
    chosen = [_position(item, choice, available, argument) for item in items]
    if len(set(chosen)) < len(chosen):
        raise _error(
            f"names a device twice. Received: {argument}={choice!r}",
            available,
            argument,
        )
    return chosen


def _position(item: Any, choice: Any, available: list[Device], argument: str) -> int:
    if isinstance(item, str):
        wanted = _plain_name(item)
        for position, device in enumerate(available):
            if device.name == wanted:
                return position
        index = wanted.rpartition(":")[2]
        needed = int(index) + 1 if index.isdigit() else None
        raise _error(
            f"names {item!r}, which does not exist. Received: {argument}={choice!r}",
            available,
            argument,
            needed=needed,
        )
    number = whole_number(item)
    if number is None:
        raise _error(
            f"takes ids (whole numbers) or names. Received: {argument}={choice!r}",
            available,
            argument,
        )
    if not 0 <= number < len(available):
        raise _error(
            f"names device {number}, which does not exist. "
            f"Received: {argument}={choice!r}",
            available,
            argument,
            needed=number + 1,
        )
    return number


def _plain_name(name: str) -> str:
    """`"/device:GPU:1"`, `"GPU:1"` and `"cuda:1"` all mean `"gpu:1"`."""
    short = name.strip().lower().removeprefix("/").removeprefix("device:")
    return "gpu:" + short[5:] if short.startswith("cuda:") else short


def _error(
    what: str, available: list[Device], argument: str, needed: int | None = None
) -> DeviceError:
    names = ", ".join(device.name for device in available)
    simulated = max(needed or 2, 2)
    return DeviceError(
        f"`{argument}` {what}. This machine has {len(available)} device(s) for the "
        f"active backend: {names}. To simulate more on the CPU: "
        f"`keras-unison run --simulate {simulated} script.py`, or "
        f"`keras_unison.simulate({simulated})` before the first model is made."
    )
