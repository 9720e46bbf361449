"""A batch on its way into a compiled step."""

from typing import Any

import jax
from jax.experimental import sparse

from keras_unison._keras import copy_mask
from keras_unison.batches.rows import Division, count_rows, divide
from keras_unison.engines.jax.placement import Placement


@jax.tree_util.register_pytree_node_class
class Batch:
    """A batch together with how it is divided.

    The division is part of the tree's structure, so that JAX compiles one
    program for each.
    """

    def __init__(self, data: Any, division: Division) -> None:
        self.data = data
        self.division = division

    def tree_flatten(self) -> tuple[tuple[Any], Division]:
        """The data is the one child; the division is fixed at compilation."""
        return (self.data,), self.division

    @classmethod
    def tree_unflatten(cls, division: Division, children: tuple[Any]) -> "Batch":
        """Builds the batch again from `tree_flatten`."""
        return cls(children[0], division)


def with_rows(tree: Any, rows: int, other: int) -> Any:
    """The shapes of a tree of arrays with another number of rows."""

    def reshaped(leaf: Any) -> Any:
        shape = shape_of(leaf)
        if not shape or shape[0] != rows:
            return leaf
        return jax.ShapeDtypeStruct((other, *shape[1:]), leaf.dtype)

    return jax.tree_util.tree_map(reshaped, tree)


def is_sparse(leaf: Any) -> bool:
    """Whether a leaf is a sparse array, whose rows JAX cannot divide."""
    return isinstance(leaf, sparse.JAXSparse)


def flatten(data: Any) -> tuple[list[Any], Any]:
    """Leaves and structure of a batch; a sparse array is one leaf."""
    leaves, structure = jax.tree_util.tree_flatten(data, is_leaf=is_sparse)
    return leaves, structure


def shape_of(leaf: Any) -> tuple[int, ...] | None:
    """Shape of a leaf; None for what is no array."""
    shape = getattr(leaf, "shape", None)
    return None if shape is None else tuple(shape)


def division_of(leaves: list[Any], placement: Placement) -> tuple[Division, int]:
    """How a batch can be divided as far as its arrays tell, and its rows."""
    rows = count_rows([shape_of(leaf) for leaf in leaves])
    if rows is None or any(map(is_sparse, leaves)):
        return Division.WHOLE, rows or 0
    return divide(rows, placement.size), rows


def place(leaves: list[Any], placement: Placement, division: Division) -> list[Any]:
    """Moves the leaves of a batch to the devices.

    An array is cut here where its rows divide evenly. JAX places no array
    unevenly from outside: other batches enter whole, and the compiled step
    cuts them.
    """
    shapes = [shape_of(leaf) for leaf in leaves]
    rows = count_rows(shapes)
    layouts = [
        placement.rows
        if division is Division.EVEN and shape and shape[0] == rows
        else placement.whole
        for shape in shapes
    ]
    moving = [index for index, shape in enumerate(shapes) if shape is not None]
    moved = jax.device_put(
        [leaves[index] for index in moving], [layouts[index] for index in moving]
    )
    placed = list(leaves)
    for index, array in zip(moving, moved, strict=True):
        placed[index] = array
    return placed


def constrain(
    data: Any, placement: Placement, allowed: Division
) -> tuple[Any, Division, int]:
    """Cuts traced arrays by rows, inside a compiled step.

    Arrays whose first axis is not the rows stay as they are, and so does
    everything outside of tracing: uneven parts exist only in a compiled
    program.

    Args:
        data: Any tree with arrays in it.
        placement: The devices.
        allowed: WHOLE cuts nothing, EVEN only what divides, UNEVEN anything.

    Returns:
        The tree, how it was cut, and its rows.
    """
    leaves, structure = flatten(data)
    rows = next((leaf.shape[0] for leaf in leaves if _is_traced(leaf)), 0)
    division = divide(rows, placement.size) if rows else Division.WHOLE
    if division not in (allowed, Division.EVEN) or allowed is Division.WHOLE:
        return data, Division.WHOLE, rows
    cut = [
        _cut(leaf, placement) if _is_traced(leaf) and leaf.shape[0] == rows else leaf
        for leaf in leaves
    ]
    return jax.tree_util.tree_unflatten(structure, cut), division, rows


def _is_traced(leaf: Any) -> bool:
    return isinstance(leaf, jax.core.Tracer) and leaf.ndim > 0


def _cut(array: Any, placement: Placement) -> Any:
    result = jax.lax.with_sharding_constraint(array, placement.rows)
    copy_mask(array, result)
    return result
