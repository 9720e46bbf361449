"""BatchNormalization inside a replica: the statistics of the whole batch."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_unison import _keras
from keras_unison.engines.division.replica import Replica, current_replica


def hook_statistics() -> None:
    """Lets replicas take mean and variance over all of them."""
    _keras.hook_batch_moments(_moments)


def _moments(
    original: Callable[..., Any], layer: Any, inputs: Any, mask: Any
) -> tuple[Any, Any]:
    replica = current_replica()
    if replica is None:
        found: tuple[Any, Any] = original(layer, inputs, mask)
        return found
    axes = _keras.batch_axes(layer)
    if mask is None:
        return _of_all(replica, inputs, axes)
    return _of_unmasked(replica, inputs, axes, mask)


def _of_all(replica: Replica, inputs: Any, axes: list[int]) -> tuple[Any, Any]:
    call = replica.call
    lengths = call.shape(inputs)
    count = ops.cast(1, inputs.dtype)
    for axis in axes:
        count = count * ops.cast(lengths[axis], inputs.dtype)
    total, count = call.sum(replica, [ops.sum(inputs, axes), count])
    mean = total / count
    apart = ops.square(inputs - _spread(ops.stop_gradient(mean), inputs, axes))
    (squares,) = call.sum(replica, [ops.sum(apart, axes)])
    return mean, squares / count


def _of_unmasked(
    replica: Replica, inputs: Any, axes: list[int], mask: Any
) -> tuple[Any, Any]:
    # Keras adds its epsilon to the count here.
    call = replica.call
    kept = ops.broadcast_to(ops.cast(mask, "bool")[..., None], ops.shape(inputs))
    zero = ops.zeros([], inputs.dtype)
    total = ops.sum(ops.where(kept, inputs, zero), axes)
    count = ops.sum(ops.cast(kept, inputs.dtype), axes)
    total, count = call.sum(replica, [total, count])
    count = count + keras.backend.epsilon()
    mean = total / count
    apart = ops.where(kept, inputs - _spread(mean, inputs, axes), zero)
    (squares,) = call.sum(replica, [ops.sum(ops.square(apart), axes)])
    return mean, squares / count


def _spread(values: Any, inputs: Any, axes: list[int]) -> Any:
    """One value per channel, in the shape that fits the inputs."""
    rank = len(inputs.shape)
    return ops.reshape(values, [1 if axis in axes else -1 for axis in range(rank)])
