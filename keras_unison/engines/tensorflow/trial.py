"""A layer call on a few rows, made whole and in parts, and compared."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

from keras_unison.batches.rows import bounds
from keras_unison.engines.tensorflow.batch import TENSORS
from keras_unison.engines.tensorflow.calls import Original, call_divided, call_whole
from keras_unison.engines.tensorflow.chance import chances
from keras_unison.engines.tensorflow.differentiable import (
    forget_gradients,
    noting_gradients,
)
from keras_unison.engines.tensorflow.draws import other_draws
from keras_unison.engines.tensorflow.places import multiples
from keras_unison.engines.tensorflow.plan import Plan
from keras_unison.engines.tensorflow.replicas import Replicas
from keras_unison.engines.tensorflow.samples import floats_of, is_finite
from keras_unison.engines.tensorflow.scope import ReplicaScope
from keras_unison.engines.tensorflow.sums import CannotMeet

# Difference, relative to the largest value, from which two calls are not the same.
_TOLERANCE = 1e-4
_TOLERANCES = {"float16": 1e-2, "bfloat16": 5e-2}

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


class Undividable(Exception):
    """A layer call that cannot be divided; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What a call computed, as arrays.

    Attributes:
        outputs: Its outputs that are tensors, by number.
        losses: The losses that its layers added.
        updates: New values of the variables it changed, by identity.
        tolerance: How exact the outputs can be.
        parts: Of each added loss, what each replica added.
        lengths: Of first axes, by place, one for each replica.
    """

    outputs: dict[int, Any]
    losses: list[Any]
    updates: dict[int, Any]
    tolerance: float
    parts: dict[int, list[Any]]
    lengths: dict[Any, list[Any]]

    def is_finite(self) -> bool:
        """Whether all of it is numbers."""
        return is_finite([*self.outputs.values(), *self.losses, *self.updates.values()])


@dataclass(slots=True, kw_only=True)
class Trial:
    """A call on a few rows.

    Attributes:
        original: Keras's own call.
        layer: The layer.
        arguments: Its arguments.
        rows: How many rows these have.
        replicas: Where it is divided.
        weights: Weights that have other values here.
        fixed_rows: Whether replicas are told the number of their rows.
        expected: What the whole call computed, for each of several draws.
        draws: How many times the call is made, each with other draws.
        multiples: What is known of first axes.
        summed_losses: Losses that are sums over rows.
        same_chances: Lets the next call choose as the first one did.
    """

    original: Original
    layer: Any
    arguments: Any
    rows: int
    replicas: Replicas
    weights: list[tuple[Any, Any]]
    fixed_rows: bool = False
    expected: list[Values] = field(default_factory=list)
    draws: int = 1
    multiples: dict[Any, int] = field(default_factory=dict)
    summed_losses: frozenset[int] = frozenset()
    same_chances: Callable[[], None] = field(default_factory=chances)

    def run_whole(self) -> Values:
        """Makes the whole call, whose results the divided one must have."""
        self.expected = self._run(
            lambda: call_whole(self.original, self.layer, *self.arguments), {}
        )
        return self.expected[0]

    def draw_again(self, draws: int) -> None:
        """Makes the whole call for so many draws; those in parts will follow."""
        self.draws = draws
        self.run_whole()

    def look(self, gathered: tuple[Any, ...]) -> list[Values]:
        """Makes the call in parts to learn of first axes.

        What it draws is not what one device draws.
        """
        found = self._run_divided(gathered, looks=True)
        ends = bounds(self.rows, self.replicas.placement.size)
        own = [end - begin for begin, end in itertools.pairwise(ends)]
        self.multiples = multiples(found[0].lengths, own)
        return found

    def differs(self, gathered: tuple[Any, ...]) -> bool:
        """Whether the call in parts computes something else."""
        try:
            return not self.agrees(self._run_divided(gathered))
        except CannotMeet:
            return True

    def agrees(self, found: list[Values]) -> bool:
        """Whether calls in parts computed the same, which tells sums from means."""
        pairs = list(zip(self.expected, found, strict=True))
        if not all(_same(*pair) for pair in pairs):
            return False
        self.summed_losses = frozenset(
            number
            for number in range(len(found[0].losses))
            if not all(_close(a.losses[number], b.losses[number]) for a, b in pairs)
        )
        return all(
            _close(a.losses[number], np.sum(b.parts[number]))
            for a, b in pairs
            for number in self.summed_losses
        )

    def _run_divided(
        self, gathered: tuple[Any, ...], looks: bool = False
    ) -> list[Values]:
        noted: dict[Any, list[Any]] = {}
        # Losses are joined as means: their parts tell whether they are sums.
        self.summed_losses = frozenset()
        return self._run(
            lambda: call_divided(
                self.original,
                self.layer,
                self.arguments,
                replicas=self.replicas,
                plan=self.plan(gathered),
                noted=noted,
                looks=looks,
            ),
            noted,
        )

    def plan(self, gathered: tuple[Any, ...]) -> Plan:
        """The plan in which these operations run on all rows."""
        lengths = {
            number: output.shape[0]
            for number, output in self.expected[0].outputs.items()
            if output.ndim
        }
        return Plan(
            gathered=gathered,
            multiples=self.multiples,
            fixed_rows=self.fixed_rows,
            times={
                number: 0 if length % self.rows else length // self.rows
                for number, length in lengths.items()
            },
            summed_losses=self.summed_losses,
        )

    def _run(
        self, call: Callable[[], Any], noted: dict[Any, list[Any]]
    ) -> list[Values]:
        """Traces a call that changes nothing, and runs it for each of the draws."""
        kept: list[Any] = []
        # Each call chooses what the first one chose.
        self.same_chances()

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def traced(draw: Any) -> Any:
            with ReplicaScope(self.weights) as scope, other_draws(draw):
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
            _values(kept[-1], concrete(tf.constant(draw))) for draw in range(self.draws)
        ]


def _values(names: Any, results: Any) -> Values:
    numbers, changed, places = names
    outputs, losses, updates, noted = results
    kinds = {output.dtype.name for output in outputs}
    lengths = dict(zip(places, map(floats_of, noted), strict=True))
    return Values(
        outputs=dict(zip(numbers, floats_of(outputs), strict=True)),
        losses=floats_of(losses),
        updates=dict(zip(changed, floats_of(updates), strict=True)),
        tolerance=max([_TOLERANCES.get(kind, _TOLERANCE) for kind in kinds] or [0]),
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


def _same(one: Values, other: Values) -> bool:
    """Whether two calls computed the same, but for the values of added losses."""
    if set(one.outputs) != set(other.outputs) or set(one.updates) != set(other.updates):
        return False
    if len(one.losses) != len(other.losses):
        return False
    pairs = [(value, other.outputs[key]) for key, value in one.outputs.items()]
    pairs += [(value, other.updates[key]) for key, value in one.updates.items()]
    return all(_close(a, b, one.tolerance or _TOLERANCE) for a, b in pairs)


def _close(a: Any, b: Any, tolerance: float = _TOLERANCE) -> bool:
    if a.shape != b.shape:
        return False
    if not np.issubdtype(a.dtype, np.number) or a.size == 0:
        return bool((a == b).all())
    finite = a[np.isfinite(a)]
    largest = np.abs(finite).max() if finite.size else 0.0
    return bool(
        np.allclose(a, b, rtol=0, atol=tolerance * largest + 1e-7, equal_nan=True)
    )
