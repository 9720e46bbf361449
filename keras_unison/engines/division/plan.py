"""How one layer call is divided."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a layer call is divided over the devices.

    Attributes:
        divided: False computes all of it on the first device.
        gathered: Operations that run on all rows in every replica.
        multiples: For first axes that were seen before the first step, how many
            times the rows of the batch they are; 0 for an axis that is none of
            rows. By place: see `places.py`.
        fixed_rows: Replicas are told the number of their rows while they are
            traced, because the layer asks for it.
        times: How many times the rows of the batch an output has, by its number; 0
            for one without an axis of rows. What is not there has them once.
        summed_losses: Losses that its layers add, by number, which are sums over
            rows; others are means.
    """

    divided: bool = True
    gathered: tuple[Any, ...] = ()
    multiples: Mapping[Any, int] = field(default_factory=dict)
    fixed_rows: bool = False
    times: Mapping[int, int] = field(default_factory=dict)
    summed_losses: frozenset[int] = frozenset()

    def gathers(self, operation: Any) -> bool:
        """Whether this operation runs on all rows."""
        return any(operation is other for other in self.gathered)


WHOLE = Plan(divided=False)
