"""Keras's own losses and metrics of large outputs, computed where the outputs are.

A loss is a value for each row (or token, or pixel), reduced over all of them. Where
the outputs are large, each device computes the values of its own rows, and only
these are joined; the reduction, with weights and masks, stays that of the batch.
TensorFlow drops the joined outputs from the step where nothing else needs them.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_unison import _keras
from keras_unison.engines.tensorflow.parts import parts_of

# Numbers per row from which it is worth while.
_LARGE = 1024
# Length to reckon with where an axis is not known.
_LENGTH = 64

_FUNCTIONS_NAMES = """
    mean_squared_error mean_absolute_error mean_absolute_percentage_error
    mean_squared_logarithmic_error huber log_cosh poisson kl_divergence hinge
    squared_hinge categorical_hinge binary_crossentropy
    binary_focal_crossentropy categorical_crossentropy
    categorical_focal_crossentropy sparse_categorical_crossentropy accuracy
    binary_accuracy categorical_accuracy sparse_categorical_accuracy
    top_k_categorical_accuracy sparse_top_k_categorical_accuracy
"""
_FUNCTIONS = frozenset(_FUNCTIONS_NAMES.split())


def hook_losses() -> None:
    """Lets Keras's losses and metrics compute their values in parts."""
    _keras.hook_values(_values)


def _values(
    function: Callable[..., Any], y_true: Any, y_pred: Any, **options: Any
) -> Any:
    """`function(y_true, y_pred, **options)`, a value for each row."""
    parts = parts_of(y_pred) if _is_row_wise(function, options) else None
    if parts is None or not _fits(y_true, y_pred):
        return function(y_true, y_pred, **options)
    found = []
    begin = 0
    for device, predicted in zip(
        parts.call.placement.devices, parts.parts, strict=True
    ):
        with tf.device(device):
            end = begin + tf.shape(predicted)[0]
            own = tf.cast(predicted, y_pred.dtype)
            found.append(function(y_true[begin:end], own, **options))
            begin = end
    with tf.device(parts.call.placement.devices[0]):
        joined = tf.concat(found, 0)
    joined.set_shape([y_pred.shape[0], *found[0].shape[1:]])
    return joined


def _is_row_wise(function: Any, options: dict[str, Any]) -> bool:
    return (
        getattr(function, "__module__", "").split(".")[0] == "keras"
        and getattr(function, "__name__", None) in _FUNCTIONS
        and options.get("axis", -1) == -1
    )


def _fits(y_true: Any, y_pred: Any) -> bool:
    numbers = 1
    for length in y_pred.shape[1:]:
        numbers *= _LENGTH if length is None else length
    return (
        numbers >= _LARGE
        and isinstance(y_true, tf.Tensor)
        and y_true.shape.rank in (y_pred.shape.rank - 1, y_pred.shape.rank)
        and y_true.shape[0] == y_pred.shape[0]
    )
