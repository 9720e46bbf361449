"""What a copy of a model in another process needs of Keras's internals.

A copy is made of the attributes of the model's objects, as the pickling of Keras
saves a model to a file, which loses what its configuration does not say.
"""

import functools
import re
import types
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

# The trainer's compiled functions, which each process makes for itself.
_FUNCTIONS = ("train_function", "test_function", "predict_function")
# What `add_loss` has collected in the last call, with the graphs of its tensors. The
# next call of a model begins without.
_COLLECTED = {"_losses": list, "_losses_override": list, "_loss_ids": set}
# `Function._nodes` names the calls of operations by such texts.
_NODE_KEY = re.compile(r"(\d+)(_ib-\d+)")


@functools.cache
def saveable_class() -> type:
    """The base of models, layers, metrics, losses and optimizers.

    It is the one thing that they have in common, and not public.
    """
    from keras.src.saving.keras_saveable import KerasSaveable

    found: type = KerasSaveable
    return found


@functools.cache
def graph_classes() -> tuple[type, ...]:
    """What a functional model's graph consists of, beside operations.

    Each refers to the next, so that a copy would recurse as deep as the model is.
    """
    import keras
    from keras.src.ops.node import Node

    return (Node, keras.KerasTensor)


@functools.cache
def tracked_classes() -> tuple[type, ...]:
    """Lists, dictionaries and sets whose elements Keras tracks.

    Their methods need attributes that an object which is being restored lacks.
    """
    from keras.src.utils import tracking

    names = ("TrackedList", "TrackedDict", "TrackedOrderedDict", "TrackedSet")
    return tuple(getattr(tracking, name) for name in names if hasattr(tracking, name))


def builtin_of(tracked: Any) -> Any:
    """The list, dictionary or set without the tracking."""
    for base in (list, set, OrderedDict, dict):
        if isinstance(tracked, base):
            return base
    return type(tracked)


def is_predicate(function: types.FunctionType) -> bool:
    """Whether a function of Keras may stand for all that are made by the same code.

    Each layer's tracker has a few of its own, which tell layers, metrics and
    variables apart.
    """
    return (
        (function.__module__ or "").startswith("keras.src.")
        and function.__name__ == "<lambda>"
        and function.__closure__ is None
        and function.__defaults__ is None
        and not function.__dict__
    )


@functools.cache
def left_out_classes() -> tuple[type, ...]:
    """What belongs to a loop over data and to the user's process.

    The iterator of `validation_data` is an attribute of the model while `fit` runs,
    and would take the data set along.
    """
    import keras
    from keras.src.trainers.epoch_iterator import EpochIterator

    return (EpochIterator, keras.callbacks.CallbackList)


@functools.cache
def lazy_class() -> type:
    """Modules that Keras imports when they are used.

    Its `__getattr__` recurses in an object that is being restored.
    """
    from keras.src.utils.module_utils import LazyModule

    found: type = LazyModule
    return found


@functools.cache
def name_of_lazy_module(module: Any) -> str | None:
    """The name of a lazy module among Keras's; None if it is not one of them."""
    from keras.src.utils import module_utils

    names = [name for name, value in vars(module_utils).items() if value is module]
    return names[0] if names else None


def lazy_module(name: str) -> Any:
    """Keras's lazy module of that name."""
    from keras.src.utils import module_utils

    return getattr(module_utils, name)


@functools.cache
def dynamic_backend_class() -> type:
    """What image augmentation layers compute with.

    Its `__getattr__` recurses in an object that is being restored.
    """
    from keras.src.utils.backend_utils import DynamicBackend

    found: type = DynamicBackend
    return found


def name_of_dynamic(backend: Any) -> str:
    """The name of the backend that an augmentation layer computes with."""
    found: str = backend.name
    return found


def dynamic_backend(name: str) -> Any:
    """The backend of that name for augmentation layers."""
    return dynamic_backend_class()(name)


def is_functional(cls: type) -> bool:
    """Whether a class of models has become one of functional models."""
    from keras.src.models.functional import Functional

    return issubclass(cls, Functional)


def make_functional(cls: type) -> None:
    """Does to a class what its first functional model does.

    Keras changes the bases of a subclass of `keras.Model` when a model of it is made
    of inputs and outputs. An imported class has not seen one.
    """
    from keras.src.models.model import inject_functional_model_class

    if not is_functional(cls):
        inject_functional_model_class(cls)


def without_a_loop(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a Keras object, without those of a loop that runs.

    Args:
        state: All attributes; changed in place.
    """
    import keras

    for name in _FUNCTIONS:
        if name in state:
            state[name] = None
    if isinstance(state.get("history"), keras.callbacks.Callback):
        del state["history"]
    for name, empty in _COLLECTED.items():
        if state.get(name):
            state[name] = empty()
    return state


def identity_tables(owner: Any) -> Iterator[Any]:
    """Dictionaries and sets of a Keras object that may be keyed by `id()`.

    Keras knows an optimizer's variables and what it tracks by their identity, which
    is another in each process.
    """
    from keras.src.utils.tracking import Tracker

    for value in list(vars(owner).values()):
        if isinstance(value, Tracker):
            yield from value.stored_ids.values()
        elif isinstance(value, (dict, set)):
            yield value


def rename_node(key: Any, identities: dict[int, int]) -> Any:
    """A text that names the call of an operation, with the operation's new identity."""
    found = _NODE_KEY.fullmatch(key) if isinstance(key, str) else None
    if found is None or int(found[1]) not in identities:
        return key
    return f"{identities[int(found[1])]}{found[2]}"
