"""What a model's class gains: Keras's trainer with its steps divided."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras

from keras_unison.engines.conflicts import refuse_other_strategies
from keras_unison.engines.tensorflow.replicas import replicas_of
from keras_unison.engines.tensorflow.steps import dividing

_METHODS = (
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "test_on_batch",
    "predict_on_batch",
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
        with dividing(replicas_of(self), jit=_compiles(self)):
            return super().train_step(data)  # type: ignore[misc]

    def test_step(self, data: Any) -> Any:
        """Keras's or the user's step, its layer calls divided."""
        with dividing(replicas_of(self), jit=_compiles(self)):
            return super().test_step(data)  # type: ignore[misc]

    def predict_step(self, data: Any) -> Any:
        """Keras's or the user's step, its layer calls divided."""
        with dividing(replicas_of(self), jit=_compiles(self)):
            return super().predict_step(data)  # type: ignore[misc]

    @property
    def jit_compile(self) -> Any:
        """Whether XLA compiles: the replicas' parts, never the whole step."""
        return False if _making.get() else super().jit_compile  # type: ignore[misc]

    @jit_compile.setter
    def jit_compile(self, value: Any) -> None:
        keras.Model.jit_compile.fset(self, value)


def _compiles(model: Any) -> bool:
    return bool(model.jit_compile) and not model.run_eagerly


def _guarded(name: str) -> Callable[..., Any]:
    original = getattr(keras.Model, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_other_strategies()
        return getattr(super(TensorFlowDataParallel, self), name)(*args, **kwargs)

    return method


def _making_its_function(name: str) -> Callable[..., Any]:
    original = getattr(keras.Model, name)

    @functools.wraps(original)
    def method(self: Any, force: bool = False) -> Any:
        with _making_functions():
            return getattr(super(TensorFlowDataParallel, self), name)(force)

    return method


for _name in _METHODS:
    setattr(TensorFlowDataParallel, _name, _guarded(_name))
for _name in ("make_train_function", "make_test_function", "make_predict_function"):
    setattr(TensorFlowDataParallel, _name, _making_its_function(_name))
