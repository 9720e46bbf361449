"""A few random rows like those of a batch, for trying a layer call on."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops, tree

# Length of an axis that is not known.
LENGTH = 32
# How far weights that are all the same, such as zeros, are moved: a gate that is
# closed at first would hide what lies behind it.
_NOISE = 0.1


def how_many(layer: Any, arguments: Any, replicas: int) -> int:
    """A number of rows that divides unevenly and divides no other length."""
    lengths = {LENGTH}
    for leaf in [*tree.flatten(arguments), *layer.variables]:
        lengths.update(n for n in getattr(leaf, "shape", None) or () if n)
    rows = 2 * replicas + 1
    while not _is_prime(rows) or any(length % rows == 0 for length in lengths):
        rows += 2
    return rows


def _is_prime(number: int) -> bool:
    return all(number % factor for factor in range(2, number))


def random_numbers(draw: Any, dtype: str, shape: list[int], positive: bool) -> Any:
    """An array of random numbers for a tensor of this type, as NumPy draws them."""
    if keras.backend.is_float_dtype(dtype) or dtype.startswith("complex"):
        return draw.uniform(0.1, 1.0, shape) if positive else draw.normal(size=shape)
    return draw.integers(0, 2, shape)


def moved_weights(variables: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Trainable weights whose entries are all the same, with other values."""
    draw = np.random.default_rng(1)
    moved = []
    for variable in variables:
        if not variable.trainable or not keras.backend.is_float_dtype(variable.dtype):
            continue
        value = ops.convert_to_numpy(ops.cast(variable.value, "float32"))
        if value.size == 0 or value.min() != value.max():
            continue
        fan_in = value.shape[0] if value.ndim > 1 else 1
        noise = draw.normal(size=value.shape) * _NOISE / fan_in**0.5
        moved.append((variable, ops.cast(value + noise, variable.dtype)))
    return moved


def is_finite(values: Iterable[Any]) -> bool:
    """Whether no value is infinite or no number."""
    return all(
        bool(np.isfinite(value).all())
        for value in values
        if np.issubdtype(value.dtype, np.floating)
    )
