"""Sums over replicas, inside a layer that is computed in parts.

Each replica's part of the graph runs by itself; where they need a sum over all
rows they meet in a collective of TensorFlow's runtime. The gradient of a sum is
the sum of the gradients.
"""

import itertools
from typing import Any

import tensorflow as tf

from keras_unison.engines.division.replica import CannotMeet, Replica
from keras_unison.engines.tensorflow.differentiable import differentiable

# How long a replica waits for the others before the step fails.
TIMEOUT_SECONDS = 300.0

_numbers = itertools.count(1)
# The number under which replicas meet, by site: the same in all replicas, and
# never used again, since TensorFlow expects the same shape under it for ever.
_keys: dict[Any, int] = {}


def sum_over_replicas(replica: Replica, tensors: list[Any]) -> list[Any]:
    """The sum of each tensor over all replicas.

    Args:
        replica: The replica that brings these tensors.
        tensors: Of one dtype. Every replica brings tensors of the same shapes.

    Raises:
        CannotMeet: In eager mode and in what XLA compiles.
    """
    if replica.call.compiled or tf.executing_eagerly():
        raise CannotMeet
    site = (replica.call.site, replica.sums)
    replica.sums += 1
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    total = _sum(replica, tf.concat(flat, 0) if len(flat) > 1 else flat[0], site)
    sizes = [tf.size(tensor) for tensor in tensors]
    parts = tf.split(total, sizes) if len(sizes) > 1 else [total]
    found = []
    for part, tensor in zip(parts, tensors, strict=True):
        part = tf.reshape(part, tf.shape(tensor))
        part.set_shape(tensor.shape)
        found.append(part)
    return found


def _sum(replica: Replica, tensor: Any, site: Any) -> Any:
    def summed(value: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return _sum(replica, upstream, (*site, "gradient"))

        return _collective(replica, value, site), gradient

    return differentiable(summed, tensor)


def _collective(replica: Replica, value: Any, site: Any) -> Any:
    placement = replica.call.placement
    key = tf.constant(_key(site))
    if not value.shape.is_fully_defined():
        # Another length needs another number: a hash of both, not negative.
        key = tf.bitwise.bitwise_and(
            key * 1_000_003 + tf.size(value) * 7919, tf.int32.max
        )
    with tf.device(placement.devices[replica.index]):
        return tf.raw_ops.CollectiveReduceV2(
            input=value,
            group_size=placement.size,
            group_key=placement.group,
            instance_key=key,
            ordering_token=[placement.tokens[replica.index].handle],
            merge_op="Add",
            final_op="Id",
            communication_hint="auto",
            timeout_seconds=TIMEOUT_SECONDS,
        )


def _key(site: Any) -> int:
    if site not in _keys:
        _keys[site] = next(_numbers)
    return _keys[site]
