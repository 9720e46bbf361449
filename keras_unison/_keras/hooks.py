"""Putting something of ours in the place of a function or method, once."""

import functools
from collections.abc import Callable
from typing import Any

_ORIGINAL = "_unison_original"


def replace_once(
    owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Puts `make(original)` in the place of `owner.name`, unless it is there.

    Args:
        owner: A class, a module or an object.
        name: The function or method that is called there.
        make: Gets the original; returns what is called instead.
    """
    original = getattr(owner, name)
    if hasattr(original, _ORIGINAL):
        return
    replacement = functools.wraps(original)(make(original))
    setattr(replacement, _ORIGINAL, original)
    setattr(owner, name, replacement)
