"""Activations that Keras 3 computes otherwise than Keras 2 under the same name."""

from typing import Any

import keras


def keras2_hard_sigmoid(x: Any) -> Any:
    """Compute the hard sigmoid of Keras 2, `0.2 * x + 0.5` cut to 0 and 1.

    The slope of Keras 3 is 1/6. Until Keras 2.2 this was the recurrent activation
    of each LSTM and GRU that did not ask for another.

    Args:
        x: A tensor.

    Returns:
        A tensor of the same shape.
    """
    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)


keras.saving.register_keras_serializable(package="keras_unison")(keras2_hard_sigmoid)
