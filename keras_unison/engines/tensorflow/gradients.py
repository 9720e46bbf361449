"""Gradients are computed on the devices of what they are computed from.

TensorFlow makes the operations of a gradient where `tape.gradient` is called, which
is no replica's place: all of them would run on the first device.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_unison import _keras
from keras_unison.engines.tensorflow.parts import remembers_parts

_SCOPE = "gradient_tape/"


def hook_gradients() -> None:
    """Lets the gradients of divided steps be placed, once."""

    def placed(original: Callable[..., Any]) -> Callable[..., Any]:
        def gradient(self: Any, *args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly() or not remembers_parts():
                return original(self, *args, **kwargs)
            with tf.compat.v1.device(_place):
                return original(self, *args, **kwargs)

        return gradient

    _keras.replace_once(tf.GradientTape, "gradient", placed)


def _place(operation: Any) -> str:
    """The device for an operation of a gradient; none where there are several."""
    if operation.device:
        return str(operation.device)
    inputs = [tensor for tensor in operation.inputs if tensor.device]
    # The forward pass says whose part it is; what comes from the joined outputs
    # lies on the first device.
    forward = [t for t in inputs if not t.op.name.startswith(_SCOPE)]
    for tensors in (forward, inputs):
        devices = {tensor.device for tensor in tensors}
        if len(devices) == 1:
            return str(devices.pop())
    return ""
