"""One layer call that is divided, as a replica knows it."""

from dataclasses import dataclass
from typing import Any

import torch

from keras_unison._keras import get_mask, set_mask
from keras_unison.batches.rows import bounds
from keras_unison.engines.division.plan import Plan
from keras_unison.engines.division.replica import Replica
from keras_unison.engines.torch.functions import gather_within, sum_within


@dataclass(slots=True, kw_only=True)
class Call:
    """One layer call that is divided; see `division.replica.Call`.

    Attributes:
        group: The way to the other replicas.
        plan: How it is divided.
        exact_draws: Whether replicas make the draws of one device.
        rows: Rows of the batch.
        noted: In a trial, what is noted of replicas: by place, one per replica.
        looks: Whether lengths of first axes are noted too.
    """

    group: Any
    plan: Plan
    exact_draws: bool
    rows: int
    noted: dict[Any, list[Any]] | None = None
    looks: bool = False

    def lengths(self, times: int = 1) -> list[int]:
        """How many rows, or rows times something, each replica has."""
        ends = bounds(self.rows, self.group.size)
        return [times * (b - a) for a, b in zip(ends, ends[1:], strict=False)]

    def own_rows(self, index: int) -> int:
        """How many rows a replica has."""
        return self.lengths()[index]

    def own_fixed(self, index: int) -> int:
        """How many rows a replica has."""
        return self.lengths()[index]

    def has_axes(self, leaf: Any) -> bool:
        """Whether this is a tensor with a first axis."""
        return isinstance(leaf, torch.Tensor) and leaf.ndim > 0

    def length(self, leaf: Any) -> int:
        """The length of the first axis of a tensor."""
        return int(leaf.shape[0])

    def may_have_rows(self, length: Any) -> bool:
        """Whether a length can be one of rows: nothing tells them apart here."""
        return True

    def has_value(self, length: Any) -> bool:
        """Whether a length can be noted."""
        return True

    def shape(self, tensor: Any) -> list[int]:
        """The lengths of all axes of a tensor."""
        return list(tensor.shape)

    def gather(self, replica: Replica, part: Any, times: int) -> Any:
        """All rows of a tensor and of its mask, in a replica that has a part."""
        whole = self.gather_values(replica, part, times)
        mask = get_mask(part)
        if mask is not None:
            set_mask(whole, self.gather_values(replica, mask, times))
        return whole

    def gather_values(self, replica: Replica, part: Any, times: int) -> Any:
        """`gather` without the mask."""
        replica.sums += 1
        return gather_within(part, self.group, self.lengths(times))

    def own_part(self, replica: Replica, whole: Any, times: int) -> Any:
        """A replica's rows of what was computed from all rows, and of its mask."""
        lengths = self.lengths(times)
        begin = sum(lengths[: replica.index])
        part = whole[begin : begin + lengths[replica.index]]
        mask = get_mask(whole)
        if mask is not None:
            set_mask(part, mask[begin : begin + lengths[replica.index]])
        return part

    def widened(self, replica: Replica, part: Any, times: int) -> Any:
        """Parameters of a distribution for the whole batch.

        What torch draws for one row may depend on how many numbers it took for the
        rows before, so that each replica needs all parameters as they are.
        """
        return self.gather_values(replica, part, times)

    def sum(self, replica: Replica, tensors: list[Any]) -> list[Any]:
        """The sum of each tensor over all replicas."""
        replica.sums += 1
        return sum_within(tensors, self.group)
