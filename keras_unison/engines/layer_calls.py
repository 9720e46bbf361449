"""The layer calls of a step, where its work is divided.

In a step everything outside a layer call sees the global batch. The outermost
call of a layer (the model, or a sub-model of a custom `train_step`) is where
the inputs are cut by rows; calls inside it see what it passes on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from keras_unison._keras import hook_layer_call

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Cut = Callable[[Any, tuple[Any, ...], dict[str, Any]], Arguments]

_cut: ContextVar[Cut | None] = ContextVar("keras_unison_cut", default=None)


@contextmanager
def cutting(cut: Cut) -> Iterator[None]:
    """Within this context `cut(layer, args, kwargs)` cuts an outermost call."""
    hook_layer_call(_call)
    token = _cut.set(cut)
    try:
        yield
    finally:
        _cut.reset(token)


def _call(original: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
    cut = _cut.get()
    if cut is None:
        return original(layer, *args, **kwargs)
    token = _cut.set(None)
    try:
        args, kwargs = cut(layer, args, kwargs)
        return original(layer, *args, **kwargs)
    finally:
        _cut.reset(token)
