"""Steps on TensorFlow: on which devices they ran, and with how many rows.

TensorFlow keeps the graphs that it executed, cut by device. The rows of a batch are
no part of a graph, so that each call of a Keras layer reports them as it runs.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree
from tensorflow.python.eager import context

from keras_unison.engines.division.replica import current_replica
from keras_unison.engines.tensorflow import calls
from tests.equivalence.programs import Program, Seen

STEPS = ("train_step", "test_step", "predict_step")
# Calls of these say nothing: they only pass on to others.
_OUTER = {"Layer", "Wrapper", "Lambda", "Pipeline", "Functional", "Sequential", "Model"}
# Below these a layer is only tried, or runs on all rows because it mixes them.
_NOT_COUNTED = ("find_plan", "build_by_call", "compute_output_spec", "_on_all_rows")


@dataclass(slots=True)
class _Trace:
    """A step as it was traced, or a model's step in eager mode.

    Attributes:
        name: Which step.
        owner: What it belongs to; kept, so that no identity is used again.
        rows: By device, the rows that layers were called on.
    """

    name: str
    owner: Any
    rows: dict[str, set[int]] = field(default_factory=dict)


Traces = dict[Any, _Trace]


@contextmanager
def programs(names: tuple[str, ...] = ()) -> Iterator[Seen]:
    """Collects the steps that run within this context.

    Args:
        names: For JAX only: how the names of programs begin that count as steps.
    """
    seen = Seen()
    traces: Traces = {}
    context.enable_run_metadata()
    # What other tests have run stays in it until it is taken out.
    context.export_run_metadata()
    try:
        with _reporting(traces):
            yield seen
        executed = _executed(context.export_run_metadata())
    finally:
        context.disable_run_metadata()
    for trace in traces.values():
        missing = set(trace.rows) - executed
        in_graph = hasattr(trace.owner, "as_graph_def")
        assert not missing or not in_graph, f"nothing ran on {missing}"
        seen.programs.append(
            Program(
                name=f"jit_{trace.name}",
                partitions=len(trace.rows),
                lengths=frozenset().union(*trace.rows.values()),
                parameters=(),
            )
        )
        # TensorFlow keeps what notes the rows, for ever: not the graph with it.
        trace.owner = None


def _executed(metadata: Any) -> set[str]:
    """The devices in the graphs that were executed."""
    graphs = list(metadata.partition_graphs)
    for function in metadata.function_graphs:
        graphs += function.partition_graphs
    return {_short(node.device) for graph in graphs for node in graph.node}


def _short(device: str) -> str:
    return device.rpartition("device:")[2]


@contextmanager
def _reporting(traces: Traces) -> Iterator[None]:
    """Within this context Keras's layers report the rows that they are called on."""
    found = [getattr(keras.layers, name) for name in dir(keras.layers)]
    classes = {
        base
        for cls in found
        if isinstance(cls, type)
        for base in cls.__mro__
        if "call" in vars(base) and issubclass(base, keras.layers.Layer)
    }
    originals = [(cls, cls.call) for cls in classes if cls.__name__ not in _OUTER]
    compiled = calls.compiled
    try:
        for cls, call in originals:
            cls.call = _reported(call, traces)
        calls.compiled = functools.partial(_reported_outside, compiled, traces)
        yield
    finally:
        calls.compiled = compiled
        for cls, call in originals:
            cls.call = call


def _reported_outside(
    compiled: Any, traces: Traces, compute: Any, values: Any, args: Any, kwargs: Any
) -> Any:
    """XLA compiles no reports: one is made of what goes into its part."""
    leaves = tree.flatten((args, kwargs))
    trace = _trace(traces)
    first = next(i for i, leaf in enumerate(leaves) if isinstance(leaf, tf.Tensor))
    if trace is not None:
        leaves[first] = _report(leaves[first], trace)
    args, kwargs = tree.pack_sequence_as((args, kwargs), leaves)
    return compiled(compute, values, args, kwargs)


def _reported(call: Callable[..., Any], traces: Traces) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica = current_replica()
        if replica is not None and replica.call.compiled:
            return call(self, *args, **kwargs)
        leaves = tree.flatten((args, kwargs))
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, tf.Tensor) and leaf.shape.rank:
                trace = _trace(traces)
                if trace is not None:
                    leaves[number] = _report(leaf, trace)
                    args, kwargs = tree.pack_sequence_as((args, kwargs), leaves)
                break
        return call(self, *args, **kwargs)

    return wrapped


def _trace(traces: Traces) -> _Trace | None:
    """The step that is being traced or run; None where layers are only tried."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None and getattr(graph, "outer_graph", None) is not None:
        if "scratch_graph" in graph.name or not hasattr(graph.outer_graph, "name"):
            break
        if not graph.outer_graph.building_function:
            break
        graph = graph.outer_graph
    if graph is not None and "scratch_graph" in getattr(graph, "name", ""):
        return None
    name, model = "step", None
    frame: Any = sys._getframe()
    while frame is not None:
        code = frame.f_code.co_name
        if code in _NOT_COUNTED:
            return None
        if code in STEPS and model is None:
            name, model = code, frame.f_locals.get("self")
        frame = frame.f_back
    owner = graph if graph is not None else model
    return traces.setdefault((name, id(owner)), _Trace(name, owner))


def _report(tensor: Any, trace: _Trace) -> Any:
    """The tensor, whose rows are noted when it is computed.

    What notes them is no stateful operation: TensorFlow would put those of all
    replicas in one order, in which none could wait for a later one.
    """
    device = _short(tensor.device) or "CPU:0"

    def note(value: Any) -> Any:
        trace.rows.setdefault(device, set()).add(len(value))
        return np.int32(0)

    noted = tf.numpy_function(note, [tensor], tf.int32, stateful=False)
    noted.set_shape([])
    # An operation without side effects runs for its value only, which is 0.
    with tf.device(tensor.device):
        if tensor.dtype == tf.bool:
            same = tf.logical_or(tensor, noted > 0)
        elif tensor.dtype == tf.string:
            same = tf.where(noted > 0, "", tensor)
        else:
            same = tensor + tf.cast(noted, tensor.dtype)
    mask = getattr(tensor, "_keras_mask", None)
    if mask is not None:
        same._keras_mask = mask
    return same
