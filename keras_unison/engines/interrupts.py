"""Ctrl-C waits until the result of a running step is kept.

A step gives its old state away to the backend and gets a new one. Python
raises KeyboardInterrupt right after the call returns and before its result is
stored, so that an interrupt in a step would lose both. Between steps it is
raised at once, and so is a second one in the same step. Where it is swallowed
there, as NumPy does while it converts an array, the next step raises it again.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class _Gate:
    """Whether a step runs, and the interrupt that came meanwhile or was raised."""

    in_step = False
    waiting: tuple[int, FrameType | None] | None = None
    raised: BaseException | None = None
    installed: Any = None
    previous: Any = None


_gate = _Gate()


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Within this context an interrupt is held back while a step runs."""
    previous = signal.getsignal(signal.SIGINT)
    if (
        threading.current_thread() is not threading.main_thread()
        or _gate.installed is not None
        or not callable(previous)
    ):
        yield
        return
    _gate.installed, _gate.previous = _handle, previous
    _gate.waiting = _gate.raised = None
    signal.signal(signal.SIGINT, _handle)
    try:
        yield
    finally:
        _gate.installed = None
        # A callback may have put its own handler in place: leave that alone.
        if signal.getsignal(signal.SIGINT) is _handle:
            signal.signal(signal.SIGINT, previous)


def step_begins() -> None:
    """Holds interrupts back from here on; raises one that was swallowed."""
    raised, _gate.raised = _gate.raised, None
    if raised is not None:
        raise raised
    _gate.in_step = threading.current_thread() is threading.main_thread()


def step_ends() -> None:
    """Raises the interrupt that waited, if one did."""
    _gate.in_step = False
    if _gate.waiting is not None:
        arguments, _gate.waiting = _gate.waiting, None
        _gate.previous(*arguments)


def _handle(number: int, frame: FrameType | None) -> None:
    if _gate.in_step and _gate.waiting is None:
        _gate.waiting = (number, frame)
        return
    _gate.in_step, _gate.waiting = False, None
    try:
        _gate.previous(number, frame)
    except BaseException as error:
        _gate.raised = error
        raise
