"""Finding the operations that have to run on all rows."""

from collections.abc import Callable, Sequence
from typing import Any

Differs = Callable[[tuple[Any, ...]], bool]


def smallest(
    inner: Sequence[Any], every: Sequence[Any], differs: Differs
) -> tuple[Any, ...] | None:
    """A set of operations that is enough, and none of which is too much.

    Args:
        inner: Operations that may mix rows and have none such inside them.
        every: All operations that may mix rows, but for the whole itself.
        differs: Whether the divided call still differs when these are gathered.

    Returns:
        The operations; None where gathering all of them is not enough.
    """
    for enough in (tuple(inner), tuple(every)):
        if enough and not differs(enough):
            return _without(enough, enough, differs)
    return None


def _without(
    kept: tuple[Any, ...], doubted: tuple[Any, ...], differs: Differs
) -> tuple[Any, ...]:
    """Drops those of `doubted` that are not needed, half by half."""
    rest = tuple(k for k in kept if not any(k is d for d in doubted))
    if not differs(rest):
        return rest
    if len(doubted) == 1:
        return kept
    middle = len(doubted) // 2
    for half in (doubted[:middle], doubted[middle:]):
        kept = _without(kept, half, differs)
    return kept
