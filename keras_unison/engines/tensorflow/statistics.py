"""BatchNormalization inside a replica: the statistics of the whole batch."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_unison import _keras
from keras_unison.engines.tensorflow.replicas import Replica, current_replica
from keras_unison.engines.tensorflow.sums import sum_over_replicas


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
    count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(inputs), axes)), inputs.dtype)
    total, count = sum_over_replicas(replica, [tf.reduce_sum(inputs, axes), count])
    mean = total / count
    apart = tf.square(inputs - _spread(tf.stop_gradient(mean), inputs, axes))
    (squares,) = sum_over_replicas(replica, [tf.reduce_sum(apart, axes)])
    return mean, squares / count


def _of_unmasked(
    replica: Replica, inputs: Any, axes: list[int], mask: Any
) -> tuple[Any, Any]:
    # Keras adds its epsilon to the count here.
    kept = tf.broadcast_to(tf.cast(mask, tf.bool)[..., None], tf.shape(inputs))
    zero = tf.zeros([], inputs.dtype)
    total = tf.reduce_sum(tf.where(kept, inputs, zero), axes)
    count = tf.reduce_sum(tf.cast(kept, inputs.dtype), axes)
    total, count = sum_over_replicas(replica, [total, count])
    count += keras.backend.epsilon()
    mean = total / count
    apart = tf.where(kept, inputs - _spread(mean, inputs, axes), zero)
    (squares,) = sum_over_replicas(replica, [tf.reduce_sum(tf.square(apart), axes)])
    return mean, squares / count


def _spread(values: Any, inputs: Any, axes: list[int]) -> Any:
    """One value per channel, in the shape that fits the inputs."""
    shape = [1 if axis in axes else -1 for axis in range(inputs.shape.rank)]
    return tf.reshape(values, shape)
