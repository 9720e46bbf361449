"""Trials of a layer call: traced apart from the step, and run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from keras import tree

from keras_unison.engines.division.draws import other_draws
from keras_unison.engines.division.plan import Plan
from keras_unison.engines.division.scope import ReplicaScope
from keras_unison.engines.division.trial import (
    Trial,
    Undividable,
    Values,
    tolerance_of,
)
from keras_unison.engines.tensorflow.batch import first_batch
from keras_unison.engines.tensorflow.call import TENSORS
from keras_unison.engines.tensorflow.calls import Original, call_divided, call_whole
from keras_unison.engines.tensorflow.differentiable import (
    forget_gradients,
    noting_gradients,
)
from keras_unison.engines.tensorflow.replicas import Replicas
from keras_unison.engines.tensorflow.samples import floats_of, random_rows

_DRAWS = (
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "ParameterizedTruncatedNormal",
    "RandomShuffle",
    "RandomGamma",
    "RandomPoissonV2",
    "Multinomial",
)
_SUM = "CollectiveReduceV2"
# Stateful operations that TensorFlow does not run in the order of the program.
_UNORDERED = {
    _SUM,
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VariableShape",
    "CudnnRNNV3",
    "CudnnRNNBackpropV3",
}
# Run in that order, which does no harm before the first sum of a part.
_EARLY = {"LookupTableFindV2", "LookupTableSizeV2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRuns:
    """Makes a layer call for trials, in functions that are traced for each.

    Attributes:
        original: Keras's own call.
        layer: The layer.
        arguments: Its arguments for a batch, and those by name.
        replicas: Where it is divided.
    """

    original: Original
    layer: Any
    arguments: Any
    replicas: Replicas

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.replicas.placement.size

    def random_rows(self, rows: int, positive: bool) -> Any:
        """Arguments of the call with so many random rows, above 0 if `positive`."""
        return random_rows(self.arguments, first_batch(self.arguments), rows, positive)

    def whole(self, trial: Trial) -> list[Values]:
        """What the whole call computes, for each of the trial's draws."""
        return _run(
            trial, lambda: call_whole(self.original, self.layer, *trial.arguments), {}
        )

    def divided(self, trial: Trial, plan: Plan, looks: bool) -> list[Values]:
        """What the call in parts computes, for each of the trial's draws."""
        noted: dict[Any, list[Any]] = {}
        return _run(
            trial,
            lambda: call_divided(
                self.original,
                self.layer,
                trial.arguments,
                replicas=self.replicas,
                plan=plan,
                noted=noted,
                looks=looks,
            ),
            noted,
        )


def _run(
    trial: Trial, call: Callable[[], Any], noted: dict[Any, list[Any]]
) -> list[Values]:
    """Traces a call that changes nothing, and runs it for each of the draws."""
    kept: list[Any] = []
    # Each call chooses what the first one chose.
    trial.same_chances()

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def traced(draw: Any) -> Any:
        with ReplicaScope(trial.weights) as scope, other_draws(draw):
            outputs = {
                number: _dense(leaf)
                for number, leaf in enumerate(tree.flatten(call()))
                if isinstance(leaf, TENSORS)
            }
            losses = [tf.reduce_sum(loss) for loss in scope.losses]
            updates = scope.updates()
        changed = [id(variable) for variable, _ in updates]
        kept.append((list(outputs), changed, list(noted)))
        values = [value for _, value in updates]
        return list(outputs.values()), losses, values, list(noted.values())

    gradients: list[str] = []
    with noting_gradients(gradients):
        concrete = traced.get_concrete_function(tf.TensorSpec([], tf.int32))
    # Nobody asks for them.
    forget_gradients(gradients)
    _refuse_side_effects(concrete.graph)
    return [
        _values(kept[-1], concrete(tf.constant(draw))) for draw in range(trial.draws)
    ]


def _values(names: Any, results: Any) -> Values:
    numbers, changed, places = names
    outputs, losses, updates, noted = results
    lengths = dict(zip(places, map(floats_of, noted), strict=True))
    return Values(
        outputs=dict(zip(numbers, floats_of(outputs), strict=True)),
        losses=floats_of(losses),
        updates=dict(zip(changed, floats_of(updates), strict=True)),
        tolerance=tolerance_of(output.dtype.name for output in outputs),
        parts={p[1]: lengths.pop(p) for p in list(lengths) if p[0] == "loss"},
        lengths=lengths,
    )


def _dense(leaf: Any) -> Any:
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.to_tensor()
    return tf.sparse.to_dense(leaf) if isinstance(leaf, tf.SparseTensor) else leaf


def _refuse_side_effects(graph: Any) -> None:
    kinds = {node.op for node in _nodes(graph.as_graph_def())}
    if any(kind.startswith(("Assign", "ResourceScatter")) for kind in kinds):
        raise Undividable("it assigns a tf.Variable, once in each part")
    if kinds & set(_DRAWS):
        raise Undividable("it draws by tf.random, which no part can repeat")
    stateful = {op for op in graph.get_operations() if op.op_def.is_stateful}
    late = _after_sums(graph)
    ordered = {op.type for op in stateful if op.type not in _EARLY or op in late}
    if _SUM in ordered and ordered - _UNORDERED:
        raise Undividable(
            f"it holds {', '.join(sorted(ordered - _UNORDERED))}: TensorFlow runs such "
            "operations of all parts one after the other, so that none of them could "
            "wait for a sum over all parts"
        )


def _after_sums(graph: Any) -> set[Any]:
    """The operations that wait for a sum over all parts."""
    found: set[Any] = set()
    for operation in graph.get_operations():
        before = [*(t.op for t in operation.inputs), *operation.control_inputs]
        if operation.type == _SUM or not found.isdisjoint(before):
            found.add(operation)
    return found


def _nodes(graph: Any) -> list[Any]:
    nodes = list(graph.node)
    for function in graph.library.function:
        nodes += function.node_def
    return nodes
