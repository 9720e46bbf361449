"""Functions with gradients of their own, which TensorFlow forgets with the model.

TensorFlow registers the gradient of each call under a new name, for ever, and the
gradient holds the graph that it was traced in. So these names are noted for the
model whose step is being traced, and taken out of the registry when it is gone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from keras_unison import _keras

_noted: ContextVar[list[str] | None] = ContextVar("keras_unison_names", default=None)


def differentiable(function: Callable[[Any], Any], value: Any) -> Any:
    """`function(value)`, which returns a result and the function of its gradient."""
    with _newest_noted():
        return tf.custom_gradient(function)(value)


def hook_all_reduce() -> None:
    """Lets the gradient of TensorFlow's own all-reduce be forgotten too, once.

    Keras's optimizers call it for each update, on one device as well.
    """

    def noted(original: Callable[..., Any]) -> Callable[..., Any]:
        def all_reduce(self: Any, *args: Any, **kwargs: Any) -> Any:
            with _newest_noted():
                return original(self, *args, **kwargs)

        return all_reduce

    _keras.replace_once(tf.distribute.ReplicaContext, "all_reduce", noted)


@contextmanager
def _newest_noted() -> Iterator[None]:
    """Notes the one gradient that is registered within this context."""
    names = registered_gradients()
    before = next(reversed(names), None)
    yield
    noted, newest = _noted.get(), next(reversed(names), None)
    # In eager mode nothing is registered.
    if noted is not None and newest is not None and newest != before:
        noted.append(newest)


@contextmanager
def noting_gradients(names: list[str]) -> Iterator[None]:
    """Within this context the names of gradients are added to a list."""
    token = _noted.set(names)
    try:
        yield
    finally:
        _noted.reset(token)


def forget_gradients(names: list[str]) -> None:
    """Takes gradients out of TensorFlow's registry."""
    registered = registered_gradients()
    for name in names:
        registered.pop(name, None)
    names.clear()


def registered_gradients() -> dict[str, Any]:
    """TensorFlow's registry of gradients, by name."""
    # TensorFlow has no public way to take a gradient out again.
    from tensorflow.python.framework import ops

    registered: dict[str, Any] = ops.gradient_registry._registry
    return registered
