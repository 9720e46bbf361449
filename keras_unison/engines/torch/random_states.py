"""The random numbers of Python, NumPy and torch that a step may use."""

import random
from typing import Any

import numpy as np
import torch

States = tuple[Any, ...]


def states() -> States:
    """The states of all generators that are not Keras's own."""
    found = [random.getstate(), np.random.get_state(), torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found.append(torch.cuda.get_rng_state())
    return tuple(found)


def bring_back(kept: States) -> None:
    """Brings the generators back to these states."""
    random.setstate(kept[0])
    np.random.set_state(kept[1])
    torch.set_rng_state(kept[2])
    if len(kept) > 3:
        torch.cuda.set_rng_state(kept[3])


def marks(kept: States) -> list[Any]:
    """What tells each of the states from another."""
    python, numpy, *others = kept
    whole = (numpy[1].tobytes(), *numpy[2:])
    return [python, whole, *(bytes(state.numpy()) for state in others)]
