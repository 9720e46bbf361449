"""A replica: one device's part of a layer call that is divided."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from keras_unison.engines.division.plan import Plan


class CannotMeet(Exception):
    """Replicas cannot exchange this here, because one does not wait for another."""


class Call(Protocol):
    """A layer call that is divided, as its replicas know it.

    A number of rows is a whole number where the backend runs the step as it is
    written, and a tensor where it traces it.

    Attributes:
        plan: How it is divided.
        exact_draws: Whether replicas make the draws of one device.
        rows: Rows of the batch.
        noted: In a trial, what is noted of replicas: by place, one per replica.
        looks: Whether lengths of first axes are noted too.
    """

    plan: Plan
    exact_draws: bool
    rows: Any
    noted: dict[Any, list[Any]] | None
    looks: bool

    def own_rows(self, index: int) -> Any:
        """How many rows a replica has."""

    def own_fixed(self, index: int) -> int | None:
        """How many rows a replica has, where the backend knows it beforehand."""

    def has_axes(self, leaf: Any) -> bool:
        """Whether this is a tensor with a first axis."""

    def length(self, leaf: Any) -> Any:
        """The length of the first axis of a tensor."""

    def may_have_rows(self, length: Any) -> bool:
        """Whether a length of a shape that a layer asks for can be one of rows."""

    def has_value(self, length: Any) -> bool:
        """Whether this length can be noted."""

    def shape(self, tensor: Any) -> list[Any]:
        """The lengths of all axes of a tensor."""

    def gather(self, replica: "Replica", part: Any, times: int) -> Any:
        """All rows of a tensor and of its mask; CannotMeet where that is impossible."""

    def gather_values(self, replica: "Replica", part: Any, times: int) -> Any:
        """`gather` without the mask."""

    def own_part(self, replica: "Replica", whole: Any, times: Any) -> Any:
        """A replica's rows of what was computed from all rows, and of its mask."""

    def widened(self, replica: "Replica", part: Any, times: Any) -> Any:
        """Parameters of a distribution for all rows, of which the own are drawn."""

    def sum(self, replica: "Replica", tensors: list[Any]) -> list[Any]:
        """The sum of each tensor over all replicas."""


@dataclass(slots=True, kw_only=True)
class Replica:
    """One device's part of a layer call that is divided.

    Attributes:
        index: Which of the devices.
        call: What it shares with the others.
        sums: How many sums it has made with the others.
        calls: How many calls each operation has had in it, by identity.
        path: The operations being called, innermost last, with the call's number.
        draws: How many draws each call has made.
        scope: Where the changes of variables and the losses go.
    """

    index: int
    call: Any
    sums: int = 0
    calls: dict[int, int] = field(default_factory=dict)
    path: list[tuple[Any, int]] = field(default_factory=list)
    draws: dict[Any, int] = field(default_factory=dict)
    scope: Any = None


_current: ContextVar[Replica | None] = ContextVar("keras_unison_replica", default=None)


def current_replica() -> Replica | None:
    """The replica whose part is being computed; None outside, and on all rows."""
    return _current.get()


@contextmanager
def within(replica: Replica | None) -> Iterator[None]:
    """Within this context `current_replica()` is this one."""
    token = _current.set(replica)
    try:
        yield
    finally:
        _current.reset(token)
