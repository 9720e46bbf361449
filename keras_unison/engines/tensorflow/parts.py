"""The parts of which a joined output consists, while the step goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_unison.engines.tensorflow.call import Call

# Operations that a joined output may have gone through and still have its parts.
_SAME_ROWS = ("Cast", "Identity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A joined output.

    Attributes:
        whole: The joined tensor; kept, so that its identity is not used again.
        parts: What each device computed.
        call: The layer call that it comes from.
    """

    whole: Any
    parts: tuple[Any, ...]
    call: Call


_known: ContextVar[dict[int, Parts] | None] = ContextVar(
    "keras_unison_parts", default=None
)


@contextmanager
def remembering_parts() -> Iterator[None]:
    """Within this context the parts of joined outputs are remembered."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def remembers_parts() -> bool:
    """Whether a step with divided calls is going on."""
    return _known.get() is not None


def remember(whole: Any, parts: tuple[Any, ...], call: Call) -> None:
    """Remembers the parts of a joined output."""
    known = _known.get()
    if known is not None and isinstance(whole, tf.Tensor):
        known[id(whole)] = Parts(whole=whole, parts=parts, call=call)


def parts_of(tensor: Any) -> Parts | None:
    """The parts of a tensor that is a joined output, perhaps of another type."""
    known = _known.get()
    if not known or not isinstance(tensor, tf.Tensor) or tf.executing_eagerly():
        return None
    whole = tensor
    while id(whole) not in known:
        if whole.op.type not in _SAME_ROWS or not whole.op.inputs:
            return None
        whole = whole.op.inputs[0]
    return known[id(whole)]
