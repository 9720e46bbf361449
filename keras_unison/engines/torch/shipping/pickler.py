"""Pickling of a model's objects, one after the other."""

import importlib
import io
import sys
import types
import weakref
from collections import deque
from typing import Any

import cloudpickle
import keras
import torch
from torch.nn.utils.parametrize import is_parametrized

from keras_unison._keras import torch as internals
from keras_unison.engines.torch.shipping import restore
from keras_unison.engines.torch.shipping.origins import Origins
from keras_unison.engines.torch.shipping.tensors import Storages, plain

LeftOut = set[tuple[int, str]]

_IN_MEMORY = (io.BytesIO, io.StringIO)


class ModelPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles objects of Keras as their class and attributes.

    Keras's own way saves a model to a file, which other processes cannot load when
    its classes are from a script, and which loses what is not in a configuration.

    The attributes of an object are not pickled where it is met, but wait in a queue:
    the objects of a model refer to each other in chains as long as the model is deep.

    Attributes:
        variables: Keras's variables in the order met.
        objects: Layers, metrics, optimizers and the like in the order met.
        others: What the graphs of functional models consist of.
        storages: The memory of tensors.
        waiting: Objects whose attributes are to be pickled.
    """

    def __init__(self, file: Any, origins: Origins, left_out: LeftOut) -> None:
        super().__init__(file, protocol=5)
        self.variables: list[Any] = []
        self.objects: list[Any] = []
        self.others: list[Any] = []
        self.storages = Storages()
        self.waiting: deque[Any] = deque()
        self._origins = origins
        self._left_out = left_out
        self._functions: dict[Any, Any] = {}

    def reducer_override(self, obj: Any) -> Any:
        """How an object is pickled, where cloudpickle's way is not the right one."""
        if isinstance(obj, type):
            return self._class(obj)
        if isinstance(obj, types.FunctionType):
            return self._function(obj)
        if isinstance(obj, keras.Variable):
            return self._later(obj, self.variables)
        if isinstance(obj, internals.saveable_class()):
            return self._later(obj, self.objects)
        if isinstance(obj, internals.graph_classes()):
            return self._later(obj, self.others)
        if isinstance(obj, torch.Tensor):
            return self._tensor(obj)
        if isinstance(obj, internals.tracked_classes()):
            base = internals.builtin_of(obj)
            return _filled(
                restore.bare, type(obj), (base(obj), vars(obj)), restore.fill_tracked
            )
        if isinstance(obj, types.ModuleType):
            self._origins.look_at(obj.__name__)
            return _module(obj)
        return _other(obj)

    def state_of(self, obj: Any) -> Any:
        """The attributes of an object that go along."""
        state = obj.__getstate__()
        attributes, *slots = state if isinstance(state, tuple) else (state,)
        if not isinstance(attributes, dict):
            return state
        attributes = dict(attributes)
        if isinstance(obj, internals.saveable_class()):
            internals.without_a_loop(attributes)
        for name, value in list(attributes.items()):
            if name.startswith("_unison"):
                del attributes[name]
            elif (id(obj), name) in self._left_out:
                attributes[name] = None
            elif isinstance(value, types.FunctionType):
                attributes[name] = getattr(value, "_unison_original", value)
        return (attributes, *slots) if slots else attributes

    def _later(self, obj: Any, met: list[Any]) -> Any:
        met.append(obj)
        self.waiting.append(obj)
        functional = internals.is_functional(type(obj))
        return (restore.make, (type(obj), functional))

    def _class(self, obj: type) -> Any:
        if obj.__dict__.get("_unison_user_class"):
            # Extended in place: a helper gets a plain model.
            return (restore.same, (obj._unison_user_class,))  # type: ignore[attr-defined]
        self._origins.look_at(getattr(obj, "__module__", None))
        return super().reducer_override(obj)

    def _function(self, obj: types.FunctionType) -> Any:
        self._origins.look_at(obj.__module__)
        if internals.is_predicate(obj):
            # Each layer has a few of its own, all alike.
            first = self._functions.setdefault(obj.__code__, obj)
            if first is not obj:
                return (restore.same, (first,))
        return super().reducer_override(obj)

    def _tensor(self, obj: torch.Tensor) -> Any:
        if not plain(obj):
            return NotImplemented
        data = obj.detach()
        number = self.storages.number(data)
        parameter = isinstance(obj, torch.nn.Parameter)
        reduced: Any = (
            restore.parameter if parameter else restore.tensor,
            (
                number,
                obj.dtype,
                data.storage_offset() * obj.element_size(),
                tuple(obj.shape),
                obj.stride(),
                obj.requires_grad and obj.is_leaf,
            ),
        )
        state = _state_of_tensor(obj)
        return (*reduced, state, None, None, restore.fill_tensor) if state else reduced


def _state_of_tensor(obj: torch.Tensor) -> Any:
    if not obj.is_leaf:
        return None
    later = getattr(obj, "_post_accumulate_grad_hooks", None)
    hooks = list((obj._backward_hooks or {}).values())
    state = (obj.grad, dict(vars(obj)), hooks, list((later or {}).values()))
    return state if state[0] is not None or any(state[1:]) else None


def _filled(function: Any, cls: Any, state: Any, fill: Any) -> Any:
    return (function, (cls,), state, None, None, fill)


def _other(obj: Any) -> Any:
    """How objects are pickled that are neither Keras's nor tensors."""
    if isinstance(obj, internals.left_out_classes()):
        return (restore.nothing, ())
    if isinstance(obj, internals.dynamic_backend_class()):
        return (internals.dynamic_backend, (internals.name_of_dynamic(obj),))
    if isinstance(obj, internals.lazy_class()):
        name = internals.name_of_lazy_module(obj)
        return (internals.lazy_module, (name,)) if name else NotImplemented
    if type(obj) is weakref.ReferenceType:
        return (restore.weak, (obj(),))
    if isinstance(obj, torch.Generator):
        return (restore.generator, (str(obj.device), obj.get_state()))
    if isinstance(obj, torch.nn.Module) and is_parametrized(obj):
        # Its class refuses to be pickled, as it is made for the object.
        return _filled(restore.make, type(obj), vars(obj), restore.fill_module)
    if isinstance(obj, io.IOBase) and not isinstance(obj, _IN_MEMORY):
        return _file(obj)
    return NotImplemented


def _file(obj: Any) -> Any:
    """The output of a process; no other file, of which cloudpickle sends the text."""
    for name in ("stdout", "stderr"):
        if obj is getattr(sys, name):
            return (restore.attribute, (sys, (name,)))
    raise TypeError(f"cannot pickle {type(obj).__name__!r} object")


def _module(obj: types.ModuleType) -> Any:
    """Modules of a class of their own, such as `torch.ops`, by their names."""
    if type(obj) is types.ModuleType:
        return NotImplemented
    if sys.modules.get(obj.__name__) is obj:
        return (importlib.import_module, (obj.__name__,))
    root, *names = obj.__name__.split(".")
    if root in sys.modules and names:
        return (restore.attribute, (sys.modules[root], tuple(names)))
    return NotImplemented
