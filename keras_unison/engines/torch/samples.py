"""A few random rows of torch's tensors, and results as arrays."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import torch
from keras import ops, tree

from keras_unison._keras import get_mask, set_mask
from keras_unison.engines.division.samples import random_numbers
from keras_unison.engines.torch.batch import has_rows


def random_rows(arguments: Any, first: Any, rows: int, positive: bool) -> Any:
    """Arguments of the same kinds and shapes, with so many random rows.

    Args:
        arguments: The arguments of a call.
        first: That of them which has the batch's rows.
        rows: How many.
        positive: Draw numbers above 0 only.
    """
    draw = np.random.default_rng(0)

    def sample(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        shape = list(leaf.shape)
        if has_rows(leaf, first):
            shape[0] = rows
        dtype = keras.backend.standardize_dtype(leaf.dtype)
        found = ops.convert_to_tensor(
            np.asarray(random_numbers(draw, dtype, shape, positive)), dtype
        )
        mask = get_mask(leaf)
        if mask is not None:
            set_mask(found, sample(mask))
        return found

    return tree.map_structure(sample, arguments)


def arrays_of(values: Iterable[Any]) -> list[Any]:
    """Tensors as arrays of NumPy; 16-bit numbers as 32-bit ones."""
    found = []
    for value in values:
        if value.dtype in (torch.bfloat16, torch.float16):
            value = value.float()
        found.append(value.detach().cpu().numpy())
    return found
