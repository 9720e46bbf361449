"""Steps on TensorFlow: on which devices they ran, and with how many rows.

TensorFlow keeps the graphs that it executed, cut by device. The rows of a batch are
no part of a graph, so that each call of a Keras layer reports them as it runs.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras import tree
from tensorflow.python.eager import context

from tests.equivalence.programs import Program, Seen

STEPS = ("train_step", "test_step", "predict_step")
# Calls of these say nothing: they only pass on to others.
_OUTER = ("InputLayer", "Layer", "Wrapper", "Lambda", "Pipeline")

Rows = dict[str, dict[str, set[int]]]


@contextmanager
def programs(names: tuple[str, ...] = ()) -> Iterator[Seen]:
    """Collects the steps that run within this context.

    Args:
        names: For JAX only: how the names of programs begin that count as steps.
    """
    seen = Seen()
    rows: Rows = {}
    context.enable_run_metadata()
    try:
        with _reporting(rows):
            yield seen
        executed = _executed(context.export_run_metadata())
    finally:
        context.disable_run_metadata()
    for name, by_device in rows.items():
        missing = set(by_device) - executed
        assert not missing, f"nothing ran on {missing}: {executed}"
        lengths = frozenset().union(*by_device.values())
        seen.programs.append(
            Program(
                name=f"jit_{name}",
                partitions=len(by_device),
                lengths=lengths,
                parameters=(),
            )
        )


def _executed(metadata: Any) -> set[str]:
    """The devices in the graphs that were executed."""
    graphs = list(metadata.partition_graphs)
    for function in metadata.function_graphs:
        graphs += function.partition_graphs
    return {_short(node.device) for graph in graphs for node in graph.node}


def _short(device: str) -> str:
    return device.rpartition("device:")[2]


@contextmanager
def _reporting(rows: Rows) -> Iterator[None]:
    """Within this context Keras's layers report the rows that they are called on."""
    originals = []
    for name in dir(keras.layers):
        cls = getattr(keras.layers, name)
        if name not in _OUTER and isinstance(cls, type) and "call" in vars(cls):
            originals.append((cls, cls.call))
            cls.call = _reported(cls.call, rows)
    try:
        yield
    finally:
        for cls, call in originals:
            cls.call = call


def _reported(call: Callable[..., Any], rows: Rows) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in tree.flatten((args, kwargs)) if isinstance(t, tf.Tensor)]
        if tensors and tensors[0].shape.rank and not _is_shape_inference():
            _report(tensors[0], _step(), rows)
        return call(self, *args, **kwargs)

    return wrapped


def _is_shape_inference() -> bool:
    graph = tf.compat.v1.get_default_graph()
    return "scratch_graph" in getattr(graph, "name", "")


def _step() -> str | None:
    """The step that is being traced or run; None for the check before it."""
    found = "step"
    frame: Any = sys._getframe()
    while frame is not None:
        name = frame.f_code.co_name
        if name == "find_plan":
            return None
        if name in STEPS and found == "step":
            found = name
        frame = frame.f_back
    return found


def _report(tensor: Any, step: str | None, rows: Rows) -> None:
    if step is None:
        return
    device = _short(tensor.device) or "CPU:0"

    def note(length: Any) -> None:
        rows.setdefault(step, {}).setdefault(device, set()).add(int(length))

    tf.py_function(note, [tf.shape(tensor)[0]], [])
