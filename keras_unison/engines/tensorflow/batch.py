"""The rows of a batch: cut for the replicas, and joined again."""

from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

from keras_unison._keras import get_logits, get_mask, set_logits, set_mask
from keras_unison.batches.rows import bounds
from keras_unison.engines.division.replica import Replica
from keras_unison.engines.tensorflow.call import TENSORS, Call

_ACTIVATIONS = {"Sigmoid": tf.sigmoid, "Softmax": tf.nn.softmax}
_FROM_OUTSIDE = ("Placeholder", "IteratorGetNext", "OptionalGetValue")


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
    part = _moved_part(leaf, begin, end, call.device(replica))
    own = call.own_fixed(replica.index) if call.plan.fixed_rows else None
    part.set_shape([own, *leaf.shape[1:]])
    mask = get_mask(leaf)
    if mask is not None:
        set_mask(part, _moved_part(mask, begin, end, call.device(replica)))
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
