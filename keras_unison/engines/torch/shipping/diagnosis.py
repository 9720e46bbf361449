"""What it is in a model that cannot be sent, and whether a copy can do without."""

import functools
import io
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras

from keras_unison._keras import torch as internals
from keras_unison.engines.torch.shipping.origins import Origins
from keras_unison.engines.torch.shipping.pickler import LeftOut, ModelPickler
from keras_unison.engines.upgrade import user_class
from keras_unison.errors import ModelError

# A preprocessor works on data before a step, in the user's process.
_PREPROCESSORS = ("preprocessor", "tokenizer")

_KINDS = (
    (keras.Model, "model"),
    (keras.layers.Layer, "layer"),
    (keras.metrics.Metric, "metric"),
    (keras.losses.Loss, "loss"),
    (keras.optimizers.Optimizer, "optimizer"),
    (keras.Variable, "variable"),
)
_NAMES = (
    (io.IOBase, "an open file"),
    (types.GeneratorType, "a generator"),
    ((type(threading.Lock()), type(threading.RLock())), "a lock"),
    (threading.Thread, "a thread"),
    (threading.local, "values of a thread"),
)


@dataclass(slots=True)
class Diagnosis:
    """Looks for what cannot be sent.

    Attributes:
        origins: Modules whose code goes along.
        left_out: Attributes that were left out already.
    """

    origins: Origins
    left_out: LeftOut

    def leave_out(self, owner: Any, error: Exception) -> None:
        """Leaves out what a copy can do without of an object that could not be sent.

        Args:
            owner: The object.
            error: What was raised.

        Raises:
            ModelError: The copy needs it.
        """
        try:
            found = self._attributes(owner)
        except Exception as failure:  # noqa: BLE001
            raise _error(owner, _name(owner), owner, failure) from failure
        failing = [(n, v) for n, v in found.items() if self._why_not(v) is not None]
        for name, value in failing:
            tried = (id(owner), name) in self.left_out
            if tried or not _dispensable(owner, name, value):
                raise self._explained(value, owner, f"{_name(owner)}.{name}", error)
            self.left_out.add((id(owner), name))
        if not failing:
            cls = user_class(owner)
            raise self._explained(cls, owner, cls.__name__, error)

    def _attributes(self, owner: Any) -> dict[str, Any]:
        state = self._pickler().state_of(owner)
        parts = state if isinstance(state, tuple) else (state,)
        return {
            str(name): value
            for part in parts
            if isinstance(part, dict)
            for name, value in part.items()
        }

    def _pickler(self) -> ModelPickler:
        return ModelPickler(io.BytesIO(), self.origins, self.left_out)

    def _why_not(self, value: Any) -> Exception | None:
        try:
            self._pickler().dump(value)
        except Exception as error:  # noqa: BLE001
            return error
        return None

    def _explained(
        self, value: Any, owner: Any, path: str, error: Exception
    ) -> ModelError:
        """The error that names the innermost thing which cannot be sent."""
        seen = {id(value)}
        found = error
        inner: tuple[str, Any] | None = (path, value)
        while inner is not None:
            path, value = inner
            if isinstance(value, internals.saveable_class()):
                # Its attributes are looked at by themselves: it is its class.
                owner, value = value, user_class(value)
                path = value.__name__
            found = self._why_not(value) or found
            inner = next(
                (
                    (path + step, part)
                    for step, part in _parts(value)
                    if id(part) not in seen
                    and not seen.add(id(part))  # type: ignore[func-returns-value]
                    and self._why_not(part) is not None
                ),
                None,
            )
        return _error(owner, path, value, found)


def _dispensable(owner: Any, name: str, value: Any) -> bool:
    """Whether a copy computes steps without an attribute."""
    names = (name.lower(), type(owner).__name__.lower())
    if any(word in text for word in _PREPROCESSORS for text in names):
        return True
    values = value if isinstance(value, (list, tuple)) else [value]
    return all(isinstance(each, keras.callbacks.Callback) for each in values)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value consists of, and how one gets there."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{number}]", part) for number, part in enumerate(value))
    if isinstance(value, types.MethodType):
        yield from (("", value.__func__), ("", value.__self__))
    if isinstance(value, functools.partial):
        yield from (("", value.func), ("", value.args), ("", value.keywords))
    if isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    if isinstance(value, (staticmethod, classmethod)):
        yield "", value.__func__
    if isinstance(value, property):
        yield from (("", part) for part in (value.fget, value.fset, value.fdel) if part)
    attributes = getattr(value, "__dict__", {})
    if not isinstance(value, internals.saveable_class()):
        yield from ((f".{name}", part) for name, part in dict(attributes).items())
    if isinstance(value, type):
        yield from (("", base) for base in value.__bases__)
    else:
        yield f" (its class {type(value).__name__})", type(value)


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        try:
            yield f" (its variable {name!r})", cell.cell_contents
        except ValueError:
            continue  # Not set yet.
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield f" (its global {name!r})", function.__globals__[name]
    for part in (function.__defaults__, function.__kwdefaults__):
        yield " (its defaults)", part


def _global_names(code: types.CodeType) -> set[str]:
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*(_global_names(part) for part in inner))


def _error(owner: Any, path: str, value: Any, error: Exception) -> ModelError:
    cls = user_class(owner)
    kind = next((text for base, text in _KINDS if isinstance(owner, base)), "object")
    what = next(
        (text for base, text in _NAMES if isinstance(value, base)),
        f"an object of the class {type(value).__name__}",
    )
    return ModelError(
        f"The {kind} {_name(owner)!r} ({cls.__name__}) holds {what} in `{path}`, which "
        f"cannot be sent to helper processes ({type(error).__name__}: {error}). Each "
        "of them computes with a copy of the model. Remove it before training, make "
        f"it where it is used, or leave it out in `{cls.__name__}.__getstate__`."
    )


def _name(owner: Any) -> str:
    return str(getattr(owner, "name", None) or user_class(owner).__name__)
