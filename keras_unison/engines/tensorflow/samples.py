"""A few random rows of TensorFlow's kinds of tensors, and results as arrays."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

from keras_unison.engines.division.samples import LENGTH, random_numbers
from keras_unison.engines.tensorflow.batch import has_rows
from keras_unison.engines.tensorflow.call import TENSORS


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
    shape = [LENGTH if n is None else n for n in leaf.shape]
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
    return tf.cast(random_numbers(draw, dtype.name, shape, positive), dtype)


def floats_of(values: Iterable[Any]) -> list[Any]:
    """Tensors as arrays of NumPy; 16-bit numbers as 32-bit ones."""
    found = []
    for value in values:
        if value.dtype in (tf.bfloat16, tf.float16):
            value = tf.cast(value, tf.float32)
        found.append(value.numpy())
    return found
