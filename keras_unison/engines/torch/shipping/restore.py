"""What the bytes of a shipped model are put together with.

Pickle finds these functions by their names.
"""

import math
import weakref
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from keras_unison._keras import torch as internals


@dataclass(slots=True)
class Arrival:
    """A model that is being put together.

    Attributes:
        storages: The memory of tensors, and where it begins in the original's.
    """

    storages: list[tuple[torch.Tensor, int]]


arrival: ContextVar[Arrival] = ContextVar("keras_unison_arrival")


def make(cls: Any, functional: bool = False) -> Any:
    """An object without its attributes.

    Args:
        cls: Its class.
        functional: Whether the class is one of functional models.
    """
    if functional:
        internals.make_functional(cls)
    return object.__new__(cls)


def fill(found: Any, state: Any) -> None:
    """Gives an object its attributes."""
    setstate = getattr(type(found), "__setstate__", None)
    if setstate not in (None, torch.nn.Module.__setstate__):
        setstate(found, state)
        return
    slots: dict[str, Any] = {}
    if isinstance(state, tuple):
        state, slots = state
    if state:
        vars(found).update(state)
    for name, value in slots.items():
        object.__setattr__(found, name, value)


def fill_module(found: Any, attributes: dict[str, Any]) -> None:
    """Gives a torch module its attributes."""
    vars(found).update(attributes)


def bare(cls: Any) -> Any:
    """An object of a class that derives from a built-in container."""
    return cls.__new__(cls)


def fill_tracked(found: Any, state: Any) -> None:
    """Gives one of Keras's containers its elements and attributes."""
    elements, attributes = state
    base = internals.builtin_of(found)
    (base.extend if base is list else base.update)(found, elements)
    vars(found).update(attributes)


def same(found: Any) -> Any:
    """The object itself."""
    return found


def nothing() -> None:
    """What was left out."""


def attribute(owner: Any, names: Iterable[str]) -> Any:
    """The attribute that a path of names leads to."""
    for name in names:
        owner = getattr(owner, name)
    return owner


def weak(found: Any) -> Any:
    """A weak reference, or one to an object that is gone."""
    return _gone if found is None else weakref.ref(found)


def _gone() -> None:
    """A weak reference to an object that is gone."""


def tensor(
    storage: int, dtype: Any, offset: int, shape: Any, stride: Any, requires: bool
) -> torch.Tensor:
    """A tensor over memory that came along.

    Args:
        storage: The number of the memory.
        dtype: The tensor's dtype.
        offset: Where it begins in the original's memory, in bytes.
        shape: Its shape.
        stride: Its strides.
        requires: Whether gradients are computed for it.
    """
    memory, begin = arrival.get().storages[storage]
    found = torch.empty(0, dtype=dtype, device=memory.device)
    position = (offset - begin) // found.element_size() if math.prod(shape) else 0
    found.set_(memory.untyped_storage(), position, shape, stride)
    return found.requires_grad_(requires)


def parameter(
    storage: int, dtype: Any, offset: int, shape: Any, stride: Any, requires: bool
) -> torch.nn.Parameter:
    """A parameter over memory that came along; the arguments are those of `tensor`."""
    data = tensor(storage, dtype, offset, shape, stride, False)
    return torch.nn.Parameter(data, requires_grad=requires)


def fill_tensor(found: torch.Tensor, state: Any) -> None:
    """Gives a tensor its gradient, attributes and hooks."""
    gradient, attributes, hooks, later = state
    found.grad = gradient
    vars(found).update(attributes)
    if not (hooks or later):
        return
    # A weight may have been frozen after it got its hooks.
    requires = found.requires_grad
    found.requires_grad_(True)
    for hook in hooks:
        found.register_hook(hook)
    for hook in later:
        found.register_post_accumulate_grad_hook(hook)
    found.requires_grad_(requires)


def generator(device: str, state: torch.Tensor) -> torch.Generator:
    """A generator of random numbers in this state."""
    found = torch.Generator(device)
    found.set_state(state)
    return found
