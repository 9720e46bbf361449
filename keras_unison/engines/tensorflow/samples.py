"""A few random rows like those of a batch, for trying a layer call on."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

from keras_unison.engines.tensorflow.batch import TENSORS, has_rows

# Length of an axis that is not known.
_LENGTH = 32
# How far weights that are all the same, such as zeros, are moved: a gate that is
# closed at first would hide what lies behind it.
_NOISE = 0.1


def how_many(layer: Any, arguments: Any, replicas: int) -> int:
    """A number of rows that divides unevenly and divides no other length."""
    lengths = {_LENGTH}
    for leaf in [*tree.flatten(arguments), *layer.variables]:
        lengths.update(n for n in getattr(leaf, "shape", None) or () if n)
    rows = 2 * replicas + 1
    while not _is_prime(rows) or any(length % rows == 0 for length in lengths):
        rows += 2
    return rows


def _is_prime(number: int) -> bool:
    return all(number % factor for factor in range(2, number))


def random_rows(arguments: Any, first: Any, rows: int, positive: bool) -> Any:
    """Arguments of the same kinds and shapes, with so many random rows.

    Args:
        arguments: The arguments of a call.
        first: That of them which has the batch's rows.
        rows: How many.
        positive: Draw numbers above 0 only.

    Raises:
        ValueError: There is an argument of a kind that is not drawn.
    """
    draw = np.random.default_rng(0)

    def sample(leaf: Any) -> Any:
        if not isinstance(leaf, TENSORS):
            return leaf
        count = rows if has_rows(leaf, first) else None
        return _sample(draw, leaf, count, positive)

    return tree.map_structure(sample, arguments)


def _sample(draw: Any, leaf: Any, rows: int | None, positive: bool) -> Any:
    if leaf.shape.rank is None:
        raise ValueError("an argument has no known number of axes")
    shape = [_LENGTH if n is None else n for n in leaf.shape]
    if rows is not None:
        shape[0] = rows
    if isinstance(leaf, tf.RaggedTensor):
        if leaf.ragged_rank != 1 or rows is None:
            raise ValueError("an argument is ragged along several axes")
        lengths = draw.integers(1, 5, rows)
        values = _values(draw, leaf.dtype, [int(lengths.sum()), *shape[2:]], positive)
        return tf.RaggedTensor.from_row_lengths(values, lengths)
    values = _values(draw, leaf.dtype, shape, positive)
    if isinstance(leaf, tf.SparseTensor):
        return tf.sparse.from_dense(values)
    return values


def _values(draw: Any, dtype: Any, shape: list[int], positive: bool) -> Any:
    if dtype == tf.string:
        return tf.constant(draw.choice(["a", "b"], size=shape))
    if dtype.is_floating or dtype.is_complex:
        values = draw.uniform(0.1, 1.0, shape) if positive else draw.normal(size=shape)
        return tf.cast(values, dtype)
    return tf.cast(draw.integers(0, 2, shape), dtype)


def moved_weights(variables: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Trainable weights whose entries are all the same, with other values."""
    draw = np.random.default_rng(1)
    moved = []
    for variable in variables:
        value = tf.convert_to_tensor(variable.value)
        if not variable.trainable or not value.dtype.is_floating:
            continue
        if tf.size(value) == 0 or tf.reduce_min(value) != tf.reduce_max(value):
            continue
        fan_in = value.shape[0] if value.shape.rank > 1 else 1
        noise = draw.normal(size=value.shape) * _NOISE / fan_in**0.5
        moved.append((variable, value + tf.cast(noise, value.dtype)))
    return moved


def is_finite(values: Iterable[Any]) -> bool:
    """Whether no value is infinite or no number."""
    return all(
        bool(np.isfinite(value).all())
        for value in values
        if np.issubdtype(value.dtype, np.floating)
    )


def floats_of(values: Iterable[Any]) -> list[Any]:
    """Tensors as arrays of NumPy; 16-bit numbers as 32-bit ones."""
    found = []
    for value in values:
        if value.dtype in (tf.bfloat16, tf.float16):
            value = tf.cast(value, tf.float32)
        found.append(value.numpy())
    return found
