"""How a batch is divided by rows, decided from its shapes alone."""

import enum
from collections.abc import Sequence
from typing import Any

from keras_unison.errors import BatchError

Shape = tuple[int | None, ...]


class Division(enum.Enum):
    """How the rows of one batch lie on the devices."""

    EVEN = "the same number of rows on each device"
    UNEVEN = "the last devices have fewer rows"
    WHOLE = "every device computes all rows"


def count_rows(shapes: Sequence[Shape | None]) -> int | None:
    """The rows of a batch: the first axis of its first array.

    Args:
        shapes: The shape of each leaf of the batch; None for what is no array.

    Returns:
        The number of rows; None for a batch without arrays.

    Raises:
        BatchError: The batch has no rows, or is ragged.
    """
    if any(shape and None in shape for shape in shapes):
        raise BatchError(
            "The batch holds a ragged tensor, whose rows have no common shape. "
            f"Received arrays of shapes {[shape for shape in shapes if shape]}. "
            "Pad it first, for instance by `ragged.to_tensor()`."
        )
    rows = next((shape[0] for shape in shapes if shape), None)
    if rows == 0:
        raise BatchError(
            "The batch has no rows, so that there is nothing to compute. Received "
            f"arrays of shapes {[shape for shape in shapes if shape is not None]}. "
            "Check the dataset: it must not yield empty batches."
        )
    return rows


def divide(rows: int | None, devices: int) -> Division:
    """How `rows` rows can be divided over `devices` devices."""
    if rows is None or rows < devices:
        return Division.WHOLE
    return Division.UNEVEN if rows % devices else Division.EVEN


def bounds(rows: Any, devices: int) -> list[Any]:
    """Where each device's rows begin, and where the last ones end.

    Args:
        rows: How many rows there are: a number, or a tensor of one.
        devices: Number of devices.
    """
    return [rows * index // devices for index in range(devices + 1)]
