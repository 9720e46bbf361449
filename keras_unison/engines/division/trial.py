"""A layer call on a few rows, made whole and in parts, and compared."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from keras_unison.batches.rows import bounds
from keras_unison.engines.division.chance import chances
from keras_unison.engines.division.places import multiples
from keras_unison.engines.division.plan import Plan
from keras_unison.engines.division.replica import CannotMeet
from keras_unison.engines.division.samples import is_finite

# Difference, relative to the largest value, from which two calls are not the same.
_TOLERANCE = 1e-4
_TOLERANCES = {"float16": 1e-2, "bfloat16": 5e-2}


class Undividable(Exception):
    """A layer call that cannot be divided; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What a call computed, as arrays.

    Attributes:
        outputs: Its outputs that are tensors, by number.
        losses: The losses that its layers added.
        updates: New values of the variables it changed, by identity.
        tolerance: How exact the outputs can be.
        parts: Of each added loss, what each replica added.
        lengths: Of first axes, by place, one for each replica.
    """

    outputs: dict[int, Any]
    losses: list[Any]
    updates: dict[int, Any]
    tolerance: float
    parts: dict[int, list[Any]]
    lengths: dict[Any, list[Any]]

    def is_finite(self) -> bool:
        """Whether all of it is numbers."""
        return is_finite([*self.outputs.values(), *self.losses, *self.updates.values()])


class Runs(Protocol):
    """Makes a layer call for a trial, without changing anything."""

    @property
    def size(self) -> int:
        """Number of devices."""

    def random_rows(self, rows: int, positive: bool) -> Any:
        """Arguments of the call with so many random rows, above 0 if `positive`."""

    def whole(self, trial: "Trial") -> list[Values]:
        """What the whole call computes, for each of the trial's draws."""

    def divided(self, trial: "Trial", plan: Plan, looks: bool) -> list[Values]:
        """What the call in parts computes, for each of the trial's draws."""


@dataclass(slots=True, kw_only=True)
class Trial:
    """A call on a few rows.

    Attributes:
        layer: The layer.
        arguments: Its arguments.
        rows: How many rows these have.
        runs: Makes the call.
        weights: Weights that have other values here.
        fixed_rows: Whether replicas are told the number of their rows.
        expected: What the whole call computed, for each of several draws.
        draws: How many times the call is made, each with other draws.
        multiples: What is known of first axes.
        summed_losses: Losses that are sums over rows.
        same_chances: Lets the next call choose as the first one did.
    """

    layer: Any
    arguments: Any
    rows: int
    runs: Runs
    weights: list[tuple[Any, Any]]
    fixed_rows: bool = False
    expected: list[Values] = field(default_factory=list)
    draws: int = 1
    multiples: dict[Any, int] = field(default_factory=dict)
    summed_losses: frozenset[int] = frozenset()
    same_chances: Callable[[], None] = field(default_factory=chances)

    def run_whole(self) -> Values:
        """Makes the whole call, whose results the divided one must have."""
        self.expected = self.runs.whole(self)
        return self.expected[0]

    def draw_again(self, draws: int) -> None:
        """Makes the whole call for so many draws; those in parts will follow."""
        self.draws = draws
        self.run_whole()

    def look(self, gathered: tuple[Any, ...]) -> list[Values]:
        """Makes the call in parts to learn of first axes.

        What it draws is not what one device draws.
        """
        found = self._run_divided(gathered, looks=True)
        ends = bounds(self.rows, self.runs.size)
        own = [end - begin for begin, end in itertools.pairwise(ends)]
        self.multiples = multiples(found[0].lengths, own)
        return found

    def differs(self, gathered: tuple[Any, ...]) -> bool:
        """Whether the call in parts computes something else."""
        try:
            return not self.agrees(self._run_divided(gathered))
        except CannotMeet:
            return True

    def agrees(self, found: list[Values]) -> bool:
        """Whether calls in parts computed the same, which tells sums from means."""
        pairs = list(zip(self.expected, found, strict=True))
        if not all(_same(*pair) for pair in pairs):
            return False
        self.summed_losses = frozenset(
            number
            for number in range(len(found[0].losses))
            if not all(_close(a.losses[number], b.losses[number]) for a, b in pairs)
        )
        return all(
            _close(a.losses[number], np.sum(b.parts[number]))
            for a, b in pairs
            for number in self.summed_losses
        )

    def _run_divided(
        self, gathered: tuple[Any, ...], looks: bool = False
    ) -> list[Values]:
        # Losses are joined as means: their parts tell whether they are sums.
        self.summed_losses = frozenset()
        return self.runs.divided(self, self.plan(gathered), looks)

    def plan(self, gathered: tuple[Any, ...]) -> Plan:
        """The plan in which these operations run on all rows."""
        lengths = {
            number: output.shape[0]
            for number, output in self.expected[0].outputs.items()
            if output.ndim
        }
        return Plan(
            gathered=gathered,
            multiples=self.multiples,
            fixed_rows=self.fixed_rows,
            times={
                number: 0 if length % self.rows else length // self.rows
                for number, length in lengths.items()
            },
            summed_losses=self.summed_losses,
        )


def tolerance_of(kinds: Iterable[str]) -> float:
    """How exact outputs of these types can be."""
    return max([_TOLERANCES.get(kind, _TOLERANCE) for kind in kinds] or [0])


def _same(one: Values, other: Values) -> bool:
    """Whether two calls computed the same, but for the values of added losses."""
    if set(one.outputs) != set(other.outputs) or set(one.updates) != set(other.updates):
        return False
    if len(one.losses) != len(other.losses):
        return False
    pairs = [(value, other.outputs[key]) for key, value in one.outputs.items()]
    pairs += [(value, other.updates[key]) for key, value in one.updates.items()]
    return all(_close(a, b, one.tolerance or _TOLERANCE) for a, b in pairs)


def _close(a: Any, b: Any, tolerance: float = _TOLERANCE) -> bool:
    if a.shape != b.shape:
        return False
    if not np.issubdtype(a.dtype, np.number) or a.size == 0:
        return bool((a == b).all())
    finite = a[np.isfinite(a)]
    largest = np.abs(finite).max() if finite.size else 0.0
    return bool(
        np.allclose(a, b, rtol=0, atol=tolerance * largest + 1e-7, equal_nan=True)
    )
