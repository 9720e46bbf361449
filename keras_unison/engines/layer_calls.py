"""The layer calls of a step, where its work is divided.

In a step everything outside a layer call sees the global batch. The outermost
call of a layer (the model, or a sub-model of a custom `train_step`) is where
the work is divided. The handler that does so decides what the calls inside meet.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from keras_unison._keras import hook_calls

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Cut = Callable[[Any, tuple[Any, ...], dict[str, Any]], Arguments]
Handler = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]

_handler: ContextVar[Handler | None] = ContextVar("keras_unison_handler", default=None)


@contextmanager
def handling(handler: Handler | None) -> Iterator[None]:
    """Within this context `handler(original, operation, args, kwargs)` makes calls.

    An operation is a layer, or a node of a functional model that is none. With
    None they are made as Keras does.
    """
    hook_calls(_call)
    token = _handler.set(handler)
    try:
        yield
    finally:
        _handler.reset(token)


@contextmanager
def cutting(cut: Cut) -> Iterator[None]:
    """Within this context `cut(layer, args, kwargs)` cuts an outermost call."""

    def handler(
        original: Callable[..., Any], layer: Any, args: Any, kwargs: Any
    ) -> Any:
        with handling(None):
            args, kwargs = cut(layer, args, kwargs)
            return original(layer, *args, **kwargs)

    with handling(handler):
        yield


def _call(original: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
    handler = _handler.get()
    if handler is None:
        return original(layer, *args, **kwargs)
    return handler(original, layer, args, kwargs)
