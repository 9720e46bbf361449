"""One layer call that is divided, as its replicas know it."""

from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from keras_unison._keras import get_mask, set_mask
from keras_unison.batches.rows import bounds
from keras_unison.engines.division.plan import Plan
from keras_unison.engines.division.replica import CannotMeet, Replica
from keras_unison.engines.tensorflow.placement import Placement
from keras_unison.engines.tensorflow.sums import sum_over_replicas

TENSORS = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)
# The type in which values of another are summed; summing with zeros is exact.
_SUMMED_AS = {
    tf.bool: tf.int32,
    tf.int8: tf.int32,
    tf.int16: tf.int32,
    tf.uint8: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
_SUMMED = {
    tf.float32,
    tf.float64,
    tf.float16,
    tf.bfloat16,
    tf.int32,
    tf.int64,
}


@dataclass(slots=True, kw_only=True)
class Call:
    """One layer call that is divided; see `division.replica.Call`.

    Attributes:
        site: A number that no other call has.
        placement: The devices.
        plan: How it is divided.
        exact_draws: Whether replicas make the draws of one device.
        rows: Rows of the batch, a scalar.
        bounds: Where each replica's rows begin, and where the last ones end.
        fixed: Rows of the batch, where they are known while tracing.
        graph: The graph in which it is made.
        compiled: Whether XLA compiles each part, which leaves no sums with others.
        noted: In a trial, what is noted of replicas: by place, one per replica.
        looks: Whether lengths of first axes are noted too.
        replicas: Its parts.
    """

    site: int
    placement: Placement
    plan: Plan
    exact_draws: bool
    rows: Any
    bounds: list[Any]
    fixed: int | None
    graph: Any
    compiled: bool = False
    noted: dict[Any, list[Any]] | None = None
    looks: bool = False
    replicas: list[Replica] = field(default_factory=list)

    def device(self, replica: Replica) -> str:
        """TensorFlow's name of a replica's device."""
        return self.placement.devices[replica.index]

    def own_rows(self, index: int) -> Any:
        """How many rows a replica has, a scalar."""
        return self.bounds[index + 1] - self.bounds[index]

    def own_fixed(self, index: int) -> int | None:
        """How many rows a replica has, where they are known while tracing."""
        if self.fixed is None:
            return None
        ends = bounds(self.fixed, self.placement.size)
        own: int = ends[index + 1] - ends[index]
        return own

    def has_axes(self, leaf: Any) -> bool:
        """Whether this is a tensor with a first axis."""
        return isinstance(leaf, TENSORS) and bool(leaf.shape.rank)

    def length(self, leaf: Any) -> Any:
        """The length of the first axis of a tensor, a scalar of type int32."""
        if isinstance(leaf, tf.RaggedTensor):
            return tf.cast(leaf.nrows(), tf.int32)
        if isinstance(leaf, tf.SparseTensor):
            return tf.cast(leaf.dense_shape[0], tf.int32)
        return tf.shape(leaf)[0]

    def may_have_rows(self, length: Any) -> bool:
        """Whether a length of a shape can be one of rows.

        Replicas do not know how many rows they have, unless a layer needs it.
        """
        return not isinstance(length, int) or self.plan.fixed_rows

    def has_value(self, length: Any) -> bool:
        """Whether a length has a value outside: in a loop it has none."""
        return not isinstance(length, tf.Tensor) or length.graph is self.graph

    def shape(self, tensor: Any) -> list[Any]:
        """The lengths of all axes of a tensor, those that are not known as scalars."""
        known: list[Any] = tensor.shape.as_list()
        if None not in known:
            return known
        found = tf.shape(tensor)
        return [found[axis] if n is None else n for axis, n in enumerate(known)]

    def gather(self, replica: Replica, part: Any, times: int) -> Any:
        """All rows of a tensor, and of its mask, in a replica that has a part."""
        if not isinstance(part, tf.Tensor):
            raise CannotMeet
        whole = self.gather_values(replica, part, times)
        mask = get_mask(part)
        if mask is not None:
            set_mask(whole, self.gather_values(replica, mask, times))
        return whole

    def gather_values(self, replica: Replica, part: Any, times: int) -> Any:
        """`gather` without the mask."""
        dtype = part.dtype
        summed_as = _SUMMED_AS.get(dtype, dtype)
        if summed_as not in _SUMMED:
            raise CannotMeet
        padded = self._pad(replica, tf.cast(part, summed_as), times)
        (whole,) = self.sum(replica, [padded])
        rows = self.fixed * times if self.fixed is not None else None
        whole.set_shape([rows, *part.shape[1:]])
        return tf.cast(whole, dtype)

    def own_part(self, replica: Replica, whole: Any, times: Any) -> Any:
        """A replica's rows of what was computed from all rows, and of its mask."""
        begin = self.bounds[replica.index] * times
        end = self.bounds[replica.index + 1] * times
        part = whole[begin:end]
        if isinstance(part, tf.Tensor):
            own = self.own_fixed(replica.index) if self.plan.fixed_rows else None
            # A number of times may be known only in the step.
            known = own is not None and isinstance(times, int)
            part.set_shape([own * times if known else None, *whole.shape[1:]])
            mask = get_mask(whole)
            if mask is not None:
                set_mask(part, mask[begin:end])
        return part

    def widened(self, replica: Replica, part: Any, times: Any) -> Any:
        """Parameters of a distribution for the whole batch, of which the own are drawn.

        Those of other replicas' rows are 1, which is allowed for all of them: what
        TensorFlow draws for one row does not depend on the parameters of others.
        """
        return self._pad(replica, part, times, value=1)

    def sum(self, replica: Replica, tensors: list[Any]) -> list[Any]:
        """The sum of each tensor over all replicas."""
        return sum_over_replicas(replica, tensors)

    def _pad(self, replica: Replica, part: Any, times: Any, value: int = 0) -> Any:
        """A replica's rows at their place in the whole batch, `value` in the others."""
        before = self.bounds[replica.index] * times
        after = (self.rows - self.bounds[replica.index + 1]) * times
        return tf.pad(
            part,
            [[before, after], *[[0, 0]] * (part.shape.rank - 1)],
            constant_values=tf.cast(value, part.dtype),
        )
