"""What each of TensorFlow's devices holds of a model, and what it ran."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def executed_graphs() -> Iterator[list[Any]]:
    """The graphs that run for the first time in this context, cut by device.

    They are in the list when the context ends.
    """
    from tensorflow.python.eager import context

    graphs: list[Any] = []
    context.enable_run_metadata()
    # What ran since an earlier context of this kind is kept too.
    context.export_run_metadata()
    try:
        yield graphs
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    graphs += metadata.partition_graphs
    for function in metadata.function_graphs:
        graphs += function.partition_graphs


def nodes_of(graphs: Iterable[Any]) -> Iterator[Any]:
    """The operations of these graphs, and of the functions that they call."""
    for graph in graphs:
        yield from graph.node
        for function in graph.library.function:
            yield from function.node_def


def short(device: str) -> str:
    """The end of a device's name, for instance `CPU:1`."""
    return device.rpartition("device:")[2]


def device_of(variable: Any) -> str:
    """The device that a Keras variable lies on, for instance `CPU:1`."""
    return short(variable.value.device)


def bytes_by_device(variables: Iterable[Any]) -> dict[str, int]:
    """How many bytes of these variables each device holds."""
    held: dict[str, int] = {}
    for variable in variables:
        value = variable.value
        size = int(value.shape.num_elements()) * value.dtype.size
        held[device_of(variable)] = held.get(device_of(variable), 0) + size
    return held


def slots_of(optimizer: Any, weights: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Each of these weights with each variable that the optimizer keeps for it.

    Keras names such a variable after the weight.
    """
    for weight in weights:
        name = weight.path.replace("/", "_") + "_"
        for slot in optimizer.variables:
            if slot.path.rpartition("/")[2].startswith(name):
                yield weight, slot
