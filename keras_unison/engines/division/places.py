"""First axes inside a replica: which are rows, or rows times something.

A layer may fold other axes into the rows, or work on tensors without rows. The
check before the first step sees the length of each first axis in replicas with
different numbers of rows, which tells them apart. A place is where in a replica
an axis was met: the operation being called, which of its calls, and which tensor.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from keras_unison.engines.division.replica import Replica


def look(replica: Replica, place: Any, length: Any) -> None:
    """Notes the length of a first axis, where the call looks at them."""
    call = replica.call
    if call.noted is not None and call.looks and call.has_value(length):
        call.noted.setdefault(place, []).append(length)


def multiples(
    lengths: Mapping[Any, Sequence[int]], own: Sequence[int]
) -> dict[Any, int]:
    """How many times the own rows each axis is, from its length in each replica."""
    return {place: _multiple(found, own) for place, found in lengths.items()}


def _multiple(found: Sequence[int], own: Sequence[int]) -> int:
    if len(found) != len(own):
        return 0
    times = found[0] // own[0] if own[0] else 0
    same = all(length == times * rows for length, rows in zip(found, own, strict=True))
    return times if same else 0
