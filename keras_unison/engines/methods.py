"""The methods of a model that run steps."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras

from keras_unison.engines.conflicts import refuse_other_strategies

_METHODS = (
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "test_on_batch",
    "predict_on_batch",
)

Around = Callable[
    [Any, str, tuple[Any, ...], dict[str, Any]], AbstractContextManager[None]
]


def guard_methods(mixin: type, around: Around) -> None:
    """Gives a mixin these methods: the model's own, each within a context.

    They are refused under a strategy that places variables and data too.

    Args:
        mixin: It stands in front of the model's class.
        around: Gets the model, the method's name, and its arguments.
    """
    for name in _METHODS:
        setattr(mixin, name, _guarded(mixin, name, around))


def _guarded(mixin: type, name: str, around: Around) -> Callable[..., Any]:
    @functools.wraps(getattr(keras.Model, name))
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_other_strategies()
        with around(self, name, args, kwargs):
            return getattr(super(mixin, self), name)(*args, **kwargs)

    return method
