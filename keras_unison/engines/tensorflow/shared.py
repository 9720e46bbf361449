"""Values of weights that all replicas share."""

from typing import Any

import tensorflow as tf

from keras_unison import _keras
from keras_unison.engines.division.replica import Replica
from keras_unison.engines.tensorflow.differentiable import differentiable


def shared_values(layer: Any) -> list[tuple[Any, Any]]:
    """The layer's variables with their values, to be read by every replica.

    Where a layer computes in 16 bits one device rounds the gradient of the whole
    batch once, and it overflows once. So does the sum of the replicas' gradients.
    """
    cast_to = _keras.computed_in(layer)
    return [
        (variable, _shared(variable, cast_to.get(id(variable))))
        for variable in layer.variables
    ]


def _shared(variable: Any, cast_to: str | None) -> Any:
    value = tf.convert_to_tensor(variable.value)
    if cast_to not in ("float16", "bfloat16") or cast_to == value.dtype.name:
        return value
    return _with_rounded_gradient(value, cast_to)


def _with_rounded_gradient(value: Any, dtype: str) -> Any:
    def identity(inner: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return tf.cast(tf.cast(upstream, dtype), value.dtype)

        return tf.identity(inner), gradient

    return differentiable(identity, value)


def read_by(replica: Replica, variable: Any, value: Any) -> Any:
    """A shared value as a replica reads it; its gradient goes to the weight's device.

    There the replicas' gradients are added, and the weight is updated.
    """
    held = _keras.tensorflow_variable(variable)
    home = replica.call.placement.devices[0]
    if not variable.trainable or held.device.endswith(home):
        # On the first device they are added anyway.
        return tf.identity(value)

    def identity(inner: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            with tf.device(held.device):
                return tf.identity(upstream)

        return tf.identity(inner), gradient

    return differentiable(identity, value)
