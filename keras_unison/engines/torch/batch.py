"""The rows of a batch: cut for the own replica, and joined again."""

from typing import Any

import numpy as np
import torch
from keras import ops, tree

from keras_unison._keras import get_logits, get_mask, set_logits, set_mask
from keras_unison.engines.torch.call import Call
from keras_unison.engines.torch.functions import cut, join, one_of


def as_tensors(arguments: Any) -> Any:
    """The arguments of a call with NumPy's arrays as tensors."""
    return tree.map_structure(
        lambda leaf: (
            ops.convert_to_tensor(leaf)
            if isinstance(leaf, np.ndarray) and leaf.ndim
            else leaf
        ),
        arguments,
    )


def first_batch(arguments: Any) -> Any:
    """The first tensor with an axis of rows; None if there is none."""
    for leaf in tree.flatten(arguments):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return leaf
    return None


def has_rows(leaf: Any, first: Any) -> bool:
    """Whether the first axis of a leaf is that of `first`."""
    return (
        isinstance(leaf, torch.Tensor)
        and leaf.ndim > 0
        and leaf.shape[0] == first.shape[0]
    )


def cut_leaf(call: Call, leaf: Any) -> Any:
    """The own rows of a leaf, and of its mask."""
    lengths = call.lengths()
    part = cut(leaf, call.group, lengths)
    mask = get_mask(leaf)
    if mask is not None:
        set_mask(part, cut(mask, call.group, lengths))
    return part


def join_leaf(call: Call, part: Any, number: int) -> Any:
    """All rows of an output, of which this replica has computed its own.

    What has no axis of rows is the same in all replicas.
    """
    if not isinstance(part, torch.Tensor):
        return part
    times = call.plan.times.get(number, 1)
    if part.ndim == 0 or times == 0:
        return one_of(part, call.group)
    lengths = call.lengths(times)
    whole = join(part, call.group, lengths)
    mask, logits = get_mask(part), get_logits(part)
    if mask is not None:
        set_mask(whole, join(mask, call.group, lengths))
    if logits is not None:
        set_logits(whole, join(logits, call.group, lengths))
    return whole
