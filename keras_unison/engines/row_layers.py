"""Which operations are known to compute each row by itself.

Known by class and configuration, and only where there is no doubt. Everything
else is found by comparing a divided call with a whole one before the first step.
"""

import functools
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_unison._keras import operations_of
from keras_unison.engines.layer_calls import handling
from keras_unison.engines.upgrade import user_class

_LAYERS_NAMES = """
    InputLayer Functional Sequential Dense EinsumDense Embedding Masking
    Identity Activation ReLU LeakyReLU ELU PReLU Softmax Flatten Reshape Permute
    RepeatVector Conv1D Conv2D Conv3D DepthwiseConv1D DepthwiseConv2D
    SeparableConv1D SeparableConv2D Conv1DTranspose Conv2DTranspose
    Conv3DTranspose MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D
    AveragePooling2D AveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D
    GlobalMaxPooling3D GlobalAveragePooling1D GlobalAveragePooling2D
    GlobalAveragePooling3D Cropping1D Cropping2D Cropping3D UpSampling1D
    UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D Add
    Average Maximum Minimum Multiply Subtract Concatenate Dropout
    SpatialDropout1D SpatialDropout2D SpatialDropout3D GaussianNoise
    GaussianDropout ActivityRegularization BatchNormalization LayerNormalization
    GroupNormalization RMSNormalization SimpleRNN GRU LSTM SimpleRNNCell GRUCell
    LSTMCell RNN StackedRNNCells Bidirectional ConvLSTM1D ConvLSTM2D ConvLSTM3D
    ConvLSTMCell MultiHeadAttention GroupQueryAttention Attention
    AdditiveAttention Rescaling Normalization CenterCrop Resizing
"""
_LAYERS = frozenset(_LAYERS_NAMES.split())
_OPERATIONS_NAMES = """
    Add Subtract Multiply Divide TrueDivide Negative Absolute Square Sqrt Exp
    Log Maximum Minimum Cast Relu Relu6 Sigmoid Tanh Silu Gelu Elu Softplus
    LeakyRelu
"""
_OPERATIONS = frozenset(_OPERATIONS_NAMES.split())
# The functions that a layer may be given; Keras's own compute each row by itself.
_FUNCTIONS = ("activation", "recurrent_activation")
_REGULARIZERS = ("L1", "L2", "L1L2")

# Equalization counts brightness over all images of a batch, and the others use it.
_COUNTING = ("Equalization", "RandAugment", "AugMix")


def operations_in(layer: Any) -> list[Any]:
    """The layer, its layers at any depth, and the other nodes of its graphs."""
    return [
        operation
        for operation in operations_of(layer)
        if type(operation).__name__ != "InputLayer"
    ]


def is_known(operation: Any) -> bool:
    """Whether this operation, without those inside it, computes rows by themselves."""
    cls = user_class(operation)
    if cls.__module__.split(".")[0] != "keras":
        return False
    if not isinstance(operation, keras.layers.Layer):
        return cls.__name__ in _OPERATIONS
    return (
        cls.__name__ in _LAYERS
        and _functions_are_known(operation)
        and _axes_leave_rows(operation)
        and _adds_by_rows(operation)
    )


def keeps_rows_between_batches(operation: Any) -> bool:
    """Whether a layer's state has an entry for each row of the batch."""
    return bool(getattr(operation, "stateful", False))


def counts_over_rows(operation: Any) -> bool:
    """Whether it is a layer of Keras that in some draws mixes rows."""
    cls = user_class(operation)
    return cls.__module__.split(".")[0] == "keras" and cls.__name__ in _COUNTING


def _functions_are_known(layer: Any) -> bool:
    functions = [getattr(layer, name, None) for name in _FUNCTIONS]
    return all(
        function is None or _module(function).split(".")[0] == "keras"
        for function in functions
    )


def _module(function: Any) -> str:
    return str(getattr(function, "__module__", None) or type(function).__module__)


def _axes_leave_rows(layer: Any) -> bool:
    axes = getattr(layer, "axis", None)
    numbers = axes if isinstance(axes, Iterable) else [axes]
    if any(axis == 0 for axis in numbers):
        return False
    # A negative axis may be the first one: the rank tells only in the call.
    deep = any(axis is not None and axis < -1 for axis in numbers)
    equation = getattr(layer, "equation", None)
    return not deep and (equation is None or _keeps_first(equation))


def _keeps_first(equation: str) -> bool:
    operands, _, result = equation.replace(" ", "").partition("->")
    inputs, _, weights = operands.partition(",")
    first = inputs[:1]
    return first not in weights and (result[:1] == first or first == ".")


def _adds_by_rows(layer: Any) -> bool:
    regularizer = getattr(layer, "activity_regularizer", None)
    if regularizer is None:
        return True
    cls = type(regularizer)
    ours = cls.__module__.split(".")[0] == "keras" and cls.__name__ in _REGULARIZERS
    return ours and _losses_are_means()


@functools.cache
def _losses_are_means() -> bool:
    """Whether Keras divides what an activity regularizer adds by the rows.

    Older releases add the sum, which has to be found out of each loss.
    """
    layer = keras.layers.Activation(
        "linear", activity_regularizer=keras.regularizers.L1(1.0), name="two_rows"
    )
    with handling(None):
        layer(np.ones((2, 1), "float32"))
    return float(layer.losses[0]) < 1.5
