"""Which steps XLA cannot divide.

XLA's partitioner is right about nearly every operation, and wrong about two.
Taking or adding entries of each row at unsigned places, as the gradient of a
sort does, aborts the whole process where the rows do not divide evenly. The
maximum over a window that slides over rows comes out wrong however they divide.
A step that holds one is computed whole.
`tests/process/test_row_operations.py` runs what is allowed here.
"""

from collections.abc import Callable, Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr

from keras_unison.batches.rows import Division


def obstacle(
    jaxpr: Any, rows: int, division: Division, retrace: Callable[[], Any]
) -> str | None:
    """Names the operation that forbids dividing a step, if there is one.

    Args:
        jaxpr: The traced step.
        rows: Rows of its batch.
        division: How the batch would be divided.
        retrace: Returns the step traced for another number of rows: the axes
            that change their length are those of the rows.
    """
    windows = []
    for equation in _equations(jaxpr):
        if division is Division.UNEVEN and _has_unsigned_places(equation):
            return "the gradient of a sort or the like"
        if _may_slide_over_rows(equation, rows):
            windows.append(equation)
    if windows and _axes_change(windows, retrace):
        return "a window that slides over rows"
    return None


def undivided(jaxpr: Any) -> str | None:
    """Names an operation that every device computes whole, if there is one."""
    for equation in _equations(jaxpr):
        groups = equation.params.get("feature_group_count", 1)
        if groups > 1:
            axis = equation.params["dimension_numbers"].lhs_spec[1]
            if groups < equation.invars[0].aval.shape[axis]:
                return "a convolution in groups"
    return None


def _has_unsigned_places(equation: Any) -> bool:
    numbers = equation.params.get("dimension_numbers")
    batched = getattr(numbers, "operand_batching_dims", ())
    return bool(batched) and equation.invars[1].aval.dtype.kind == "u"


def _may_slide_over_rows(equation: Any, rows: int) -> bool:
    if equation.primitive.name == "reduce_window_sum":
        return False
    window = equation.params.get("window_dimensions", ())
    shape = equation.invars[0].aval.shape if window else ()
    return any(
        size > 1 and (axis == 0 or length % rows == 0)
        for axis, (size, length) in enumerate(zip(window, shape, strict=True))
    )


def _axes_change(windows: list[Any], retrace: Callable[[], Any]) -> bool:
    try:
        other = retrace()
    except (TypeError, ValueError):
        # The model takes no other number of rows, so that nothing tells the
        # rows from other axes of the same length.
        return True
    found = [
        equation
        for equation in _equations(other)
        if "window_dimensions" in equation.params
    ]
    return not all(_fixed(window, found) for window in windows)


def _fixed(window: Any, others: list[Any]) -> bool:
    """Whether the other trace has this window over axes of the same length."""
    sizes = window.params["window_dimensions"]
    shape = window.invars[0].aval.shape
    slides = [axis for axis, size in enumerate(sizes) if size > 1]
    return any(
        other.primitive is window.primitive
        and other.params["window_dimensions"] == sizes
        and all(other.invars[0].aval.shape[axis] == shape[axis] for axis in slides)
        for other in others
    )


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in _jaxprs(value):
                yield from _equations(inner)


def _jaxprs(value: Any) -> Iterator[Any]:
    if isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _jaxprs(item)
