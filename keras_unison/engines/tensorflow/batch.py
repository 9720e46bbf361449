"""The rows of a batch: cut for the replicas, joined again, gathered in one."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

from keras_unison._keras import get_logits, get_mask, set_logits, set_mask
from keras_unison.batches.rows import bounds
from keras_unison.engines.tensorflow.placement import Placement
from keras_unison.engines.tensorflow.plan import Plan
from keras_unison.engines.tensorflow.replicas import Replica
from keras_unison.engines.tensorflow.sums import CannotMeet, sum_over_replicas

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
_ACTIVATIONS = {"Sigmoid": tf.sigmoid, "Softmax": tf.nn.softmax}
_FROM_OUTSIDE = ("Placeholder", "IteratorGetNext", "OptionalGetValue")
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
    """One layer call that is divided.

    Attributes:
        site: A number that no other call has.
        placement: The devices.
        plan: How it is divided.
        exact_draws: Whether replicas make the draws of one device.
        rows: Rows of the batch, a scalar.
        bounds: Where each replica's rows begin, and where the last ones end.
        fixed: Rows of the batch, where they are known while tracing.
        graph: The graph in which it is made.
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
    noted: dict[Any, list[Any]] | None = None
    looks: bool = False
    replicas: list[Replica] = field(default_factory=list)

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


def as_tensors(tree_of_arguments: Any) -> Any:
    """The arguments of a call with NumPy's arrays as tensors."""
    return tree.map_structure(
        lambda leaf: (
            tf.convert_to_tensor(leaf)
            if isinstance(leaf, np.ndarray) and leaf.ndim
            else leaf
        ),
        tree_of_arguments,
    )


def first_batch(arguments: Any) -> Any:
    """The first tensor with an axis of rows; None if there is none."""
    for leaf in tree.flatten(arguments):
        if isinstance(leaf, TENSORS) and leaf.shape.rank:
            return leaf
    return None


def has_rows(leaf: Any, first: Any) -> bool:
    """Whether the first axis of a leaf is that of `first`."""
    return (
        isinstance(leaf, TENSORS)
        and bool(leaf.shape.rank)
        and leaf.shape[0] == first.shape[0]
    )


def count_rows(first: Any) -> Any:
    """Rows of a batch, a scalar of type int32."""
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int32)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    return tf.shape(first)[0]


def bounds_of(rows: Any, replicas: int) -> list[Any]:
    """Where each replica's rows begin, and where the last ones end.

    Their values are hidden from tracing: what is cut by them has an unknown number
    of rows, so that no other axis of the same length can be taken for rows.
    """
    return [
        tf.compat.v1.placeholder_with_default(bound, [])
        for bound in bounds(rows, replicas)
    ]


def cut(call: Call, leaf: Any, replica: Replica) -> Any:
    """A replica's rows of a leaf, and of its mask, on the replica's device.

    They are cut where the leaf is, so that no device gets the rows of others.
    """
    begin, end = call.bounds[replica.index], call.bounds[replica.index + 1]
    if isinstance(leaf, tf.SparseTensor):
        return _cut_sparse(leaf, begin, end)
    if isinstance(leaf, tf.RaggedTensor):
        return leaf[begin:end]
    part = _moved_part(leaf, begin, end, replica.device)
    own = call.own_fixed(replica.index) if call.plan.fixed_rows else None
    part.set_shape([own, *leaf.shape[1:]])
    mask = get_mask(leaf)
    if mask is not None:
        set_mask(part, _moved_part(mask, begin, end, replica.device))
    return part


def _moved_part(leaf: Any, begin: Any, end: Any, device: str) -> Any:
    # What comes into a function from outside has no device yet: it is on the host.
    from_outside = not leaf.device and leaf.op.type in _FROM_OUTSIDE
    with tf.device("CPU:0" if from_outside else leaf.device):
        part = leaf[begin:end]
    with tf.device(device):
        return tf.identity(part)


def _cut_sparse(leaf: Any, begin: Any, end: Any) -> Any:
    begin, end = tf.cast(begin, tf.int64), tf.cast(end, tf.int64)
    rows = leaf.indices[:, 0]
    kept = tf.logical_and(rows >= begin, rows < end)
    indices = tf.boolean_mask(leaf.indices, kept)
    first = tf.concat([[begin], tf.zeros([leaf.shape.rank - 1], tf.int64)], 0)
    shape = tf.concat([[end - begin], leaf.dense_shape[1:]], 0)
    part = tf.SparseTensor(indices - first, tf.boolean_mask(leaf.values, kept), shape)
    part.set_shape([None, *leaf.shape[1:]])
    return part


def join(call: Call, parts: tuple[Any, ...], number: int) -> Any:
    """The parts of one output, one after the other, and their masks.

    What has no axis of rows is the same in all replicas.
    """
    first = parts[0]
    if not isinstance(first, TENSORS):
        return first
    with tf.device(call.placement.devices[0]):
        times = call.plan.times.get(number, 1)
        if first.shape.rank == 0 or times == 0:
            return _one_of(parts)
        if isinstance(first, tf.SparseTensor):
            return tf.sparse.concat(0, list(parts))
        if isinstance(first, tf.RaggedTensor):
            return tf.concat(parts, 0)
        return _join_tensors(call, parts, times)


def _one_of(parts: tuple[Any, ...]) -> Any:
    """What all replicas computed alike, with a gradient that goes to all alike.

    Each may have met the others on the way, which it does in the gradient again.
    """
    first = parts[0]
    if not isinstance(first, tf.Tensor) or not first.dtype.is_floating:
        return first
    apart = [part - tf.stop_gradient(part) for part in parts]
    return tf.stop_gradient(first) + tf.add_n(apart) / len(parts)


def _join_tensors(call: Call, parts: tuple[Any, ...], times: int) -> Any:
    first = parts[0]
    activation = _activation_of(parts)
    if activation is None:
        whole = tf.concat(parts, 0)
    else:
        whole = activation(tf.concat([part.op.inputs[0] for part in parts], 0))
    _keep_shape(call, whole, first, times)
    if get_mask(first) is not None:
        set_mask(whole, tf.concat([get_mask(part) for part in parts], 0))
    if get_logits(first) is not None:
        set_logits(whole, tf.concat([get_logits(part) for part in parts], 0))
    return whole


def _activation_of(parts: tuple[Any, ...]) -> Any:
    """The activation that all parts come out of, for Keras's crossentropies.

    They look for it behind the outputs, and compute from what went into it.
    """
    if tf.executing_eagerly() or get_logits(parts[0]) is not None:
        return None
    kinds = {part.op.type for part in parts}
    return _ACTIVATIONS.get(kinds.pop()) if len(kinds) == 1 else None


def _keep_shape(call: Call, whole: Any, part: Any, times: int) -> None:
    """Tells the joined output its shape, as far as one device would know it."""
    if part.shape.rank is not None:
        rows = None if call.fixed is None else call.fixed * times
        whole.set_shape([rows, *part.shape[1:]])


def gather(replica: Replica, part: Any, multiple: int) -> Any:
    """All rows of a tensor, in a replica that has its own part of them."""
    if not isinstance(part, tf.Tensor):
        raise CannotMeet
    whole = gather_values(replica, part, multiple)
    mask = get_mask(part)
    if mask is not None:
        set_mask(whole, gather_values(replica, mask, multiple))
    return whole


def gather_values(replica: Replica, part: Any, multiple: int) -> Any:
    """`gather` without the mask."""
    call = replica.call
    dtype = part.dtype
    summed_as = _SUMMED_AS.get(dtype, dtype)
    if summed_as not in _SUMMED:
        raise CannotMeet
    padded = pad(replica, tf.cast(part, summed_as), multiple)
    (whole,) = sum_over_replicas(replica, [padded])
    rows = call.fixed * multiple if call.fixed is not None else None
    whole.set_shape([rows, *part.shape[1:]])
    return tf.cast(whole, dtype)


def pad(replica: Replica, part: Any, multiple: Any, value: int = 0) -> Any:
    """A replica's rows at their place in the whole batch, `value` in the others.

    Args:
        replica: The replica.
        part: Its rows of a tensor.
        multiple: How many times the rows of the batch there are.
        value: What stands in the rows of the other replicas.
    """
    call = replica.call
    before = call.bounds[replica.index] * multiple
    after = (call.rows - call.bounds[replica.index + 1]) * multiple
    return tf.pad(
        part,
        [[before, after], *[[0, 0]] * (part.shape.rank - 1)],
        constant_values=tf.cast(value, part.dtype),
    )


def own_part(replica: Replica, whole: Any, multiple: Any) -> Any:
    """A replica's rows of what was computed from all rows, and of its mask."""
    call = replica.call
    begin = call.bounds[replica.index] * multiple
    end = call.bounds[replica.index + 1] * multiple
    part = whole[begin:end]
    if isinstance(part, tf.Tensor):
        own = call.own_fixed(replica.index) if call.plan.fixed_rows else None
        # A number of times may be known only in the step.
        known = own is not None and isinstance(multiple, int)
        part.set_shape([own * multiple if known else None, *whole.shape[1:]])
        mask = get_mask(whole)
        if mask is not None:
            set_mask(part, mask[begin:end])
    return part
