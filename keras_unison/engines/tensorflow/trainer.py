"""What a model's class gains: Keras's trainer with its steps divided."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
from keras import tree

from keras_unison import _keras
from keras_unison.batches.rows import count_rows
from keras_unison.engines.methods import guard_methods
from keras_unison.engines.tensorflow.replicas import replicas_of
from keras_unison.engines.tensorflow.steps import dividing
from keras_unison.engines.tensorflow.weights import (
    keep_what_is_traced,
    spread,
    trace_anew_where_moved,
)

_making: ContextVar[bool] = ContextVar("keras_unison_making", default=False)


@contextmanager
def _making_functions() -> Iterator[None]:
    token = _making.set(True)
    try:
        yield
    finally:
        _making.reset(token)


class TensorFlowDataParallel:
    """In front of a model's class: its steps run on all of its devices."""

    def train_step(self, data: Any) -> Any:
        """Keras's or the user's step, its layer calls divided."""
        with _dividing(self):
            return super().train_step(data)  # type: ignore[misc]

    def test_step(self, data: Any) -> Any:
        """Keras's or the user's step, its layer calls divided."""
        with _dividing(self):
            return super().test_step(data)  # type: ignore[misc]

    def predict_step(self, data: Any) -> Any:
        """Keras's or the user's step, its layer calls divided."""
        with _dividing(self):
            return super().predict_step(data)  # type: ignore[misc]

    @property
    def jit_compile(self) -> Any:
        """Whether XLA compiles: the replicas' parts, never the whole step."""
        return False if _making.get() else super().jit_compile  # type: ignore[misc]

    @jit_compile.setter
    def jit_compile(self, value: Any) -> None:
        keras.Model.jit_compile.fset(self, value)


@contextmanager
def _dividing(model: Any) -> Iterator[None]:
    with dividing(replicas_of(model), jit=_compiles(model)):
        yield
    # Layers that this step has built were moved before they were used.
    keep_what_is_traced(model)


def _compiles(model: Any) -> bool:
    return bool(model.jit_compile) and not model.run_eagerly


@contextmanager
def _loop(
    model: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[None]:
    """Around a method that runs steps: where it fails, it can be called again."""
    if name.endswith("_on_batch"):
        _refuse_no_rows(args[0] if args else kwargs.get("x"))
    try:
        yield
    except BaseException:
        if not getattr(getattr(model, "optimizer", None), "built", True):
            # A function whose first trace has failed can make no variables.
            _keras.forget_functions(model)
        raise


def _refuse_no_rows(x: Any) -> None:
    shapes = [getattr(leaf, "shape", None) for leaf in tree.flatten(x)]
    count_rows([None if shape is None else tuple(shape[:1]) for shape in shapes])


def _making_its_function(name: str) -> Callable[..., Any]:
    original = getattr(keras.Model, name)

    @functools.wraps(original)
    def method(self: Any, force: bool = False) -> Any:
        trace_anew_where_moved(self)
        if force or getattr(self, _keras.FUNCTION_MAKERS[name]) is None:
            # Layers may have changed, and there may be weights made after wrapping.
            replicas_of(self).plans.clear()
            spread(self, replicas_of(self).placement)
        with _making_functions():
            return getattr(super(TensorFlowDataParallel, self), name)(force)

    return method


guard_methods(TensorFlowDataParallel, _loop)
for _name in _keras.FUNCTION_MAKERS:
    setattr(TensorFlowDataParallel, _name, _making_its_function(_name))
