"""Python's and NumPy's random numbers while calls are traced.

A layer may choose by them what it computes, as AugMix does: once, when it is traced.
A call in parts traces the layer several times, which all have to choose the same.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def chances() -> Callable[[], None]:
    """Returns a function that brings both generators back to their states of now."""
    python, numpy = random.getstate(), np.random.get_state()

    def bring_back() -> None:
        random.setstate(python)
        np.random.set_state(numpy)

    return bring_back


@contextmanager
def chances_kept() -> Iterator[Callable[[], bool]]:
    """Whatever is drawn within this context is drawn once more after it.

    Gives a function that tells, after the context, whether anything was drawn.
    """
    before, bring_back = _states(), chances()
    after = before
    try:
        yield lambda: after != before
    finally:
        after = _states()
        bring_back()


def _states() -> Any:
    state: Any = np.random.get_state()
    return random.getstate(), [np.asarray(part).tolist() for part in state]
