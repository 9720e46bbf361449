"""A user's own training step with its work divided."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from keras_unison.batches.rows import Division, divide
from keras_unison.engines.interrupts import interrupts_wait, step_begins, step_ends
from keras_unison.engines.jax.batch import constrain, flatten, shape_of, with_rows
from keras_unison.engines.jax.obstacles import obstacle
from keras_unison.engines.jax.placement import Placement, Twins
from keras_unison.engines.jax.replicas import find_replicas, newest_replicas
from keras_unison.engines.layer_calls import cutting
from keras_unison.errors import ModelError, UnisonWarning

_ARRAYS = (jax.Array, np.ndarray)


def divided_step(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its arrays on the devices of the newest parallel model.

    Arrays of NumPy are a batch and enter cut by rows where these divide; arrays
    of JAX may be state and enter whole. Inside, the arguments of each outermost
    layer call are cut. Which arrays are divided changes no result, since the
    program means the same under every layout.
    """
    record = _Step(function=function)

    def run(*args: Any, **kwargs: Any) -> Any:
        newest = newest_replicas()
        record.move_to(None if newest is None else newest.placement)
        if record.twins is None:
            return function(*args, **kwargs)
        leaves, structure = flatten((args, kwargs))
        division = record.division(leaves, structure)
        placed = _place(leaves, record.twins, division)
        record.twins.forget()
        arguments = jax.tree_util.tree_unflatten(structure, placed)
        with interrupts_wait():
            step_begins()
            try:
                result = record.call(arguments, division)
                return _bring_home(result, record.twins)
            finally:
                step_ends()

    return run


@dataclass(slots=True, kw_only=True)
class _Step:
    """A user's step, and what is known of it.

    Attributes:
        function: The step as the user wrote it.
        twins: What its last call returned; None while no model is parallel.
        divisions: How it can be divided, per structure and shapes.
    """

    function: Any
    twins: Twins | None = None
    divisions: dict[Any, Division] = field(default_factory=dict)

    def move_to(self, placement: Placement | None) -> None:
        """Follows the newest parallel model to other devices."""
        if placement == (self.twins and self.twins.placement):
            return
        self.twins = None if placement is None else Twins(placement=placement)
        self.divisions = {}
        self._forget_traces()

    def call(self, arguments: Any, division: Division) -> Any:
        """Calls the function; layer calls are cut as far as `division` allows."""
        with cutting(_Cutter(placement=self._placement, allowed=division)):
            return self.function(*arguments[0], **arguments[1])

    def division(self, leaves: list[Any], structure: Any) -> Division:
        """How the step can be divided for arrays of these shapes.

        Traces a compiled step, which its next call reuses.
        """
        key = (structure, tuple(shape_of(leaf) for leaf in leaves))
        if key not in self.divisions:
            self.divisions[key] = self._find_division(leaves, structure)
        return self.divisions[key]

    def _find_division(self, leaves: list[Any], structure: Any) -> Division:
        if not hasattr(self.function, "trace"):
            return Division.EVEN
        # Placed as for the call, so that the call finds this trace again.
        placed = _place(leaves, self._placed, Division.UNEVEN)
        arguments = jax.tree_util.tree_unflatten(structure, placed)
        cutter = _Cutter(placement=self._placement, allowed=Division.UNEVEN)
        jaxpr = self._trace(arguments, cutter)
        if not cutter.rows:
            return Division.EVEN
        rows = cutter.rows
        other = with_rows(arguments, rows, rows + self._placement.size)
        used = Division.UNEVEN if cutter.uneven else Division.EVEN
        found = obstacle(jaxpr, rows, used, lambda: self._trace(other, cutter))
        if found is None:
            return Division.UNEVEN
        self._forget_traces()
        if Division.WHOLE not in self.divisions.values():
            warnings.warn(
                f"A step that contains {found} cannot be divided over "
                f"{self._placement.size} devices for a batch of {rows} rows: every "
                "device computes the whole batch. Results are right.",
                UnisonWarning,
                stacklevel=2,
            )
        return Division.WHOLE

    def _trace(self, arguments: Any, cutter: "_Cutter") -> Any:
        with cutting(cutter):
            return self.function.trace(*arguments[0], **arguments[1]).jaxpr

    def _forget_traces(self) -> None:
        # JAX finds a trace by the shapes of its arguments; how layer calls were
        # cut in it is not part of the key.
        if hasattr(self.function, "clear_cache"):
            self.function.clear_cache()

    @property
    def _placed(self) -> Twins:
        if self.twins is None:
            raise RuntimeError("no model is parallel")
        return self.twins

    @property
    def _placement(self) -> Placement:
        return self._placed.placement


@dataclass(slots=True, kw_only=True)
class _Cutter:
    """Cuts the arguments of layer calls, and notes what it met.

    Attributes:
        placement: The devices.
        allowed: How arguments may be cut.
        rows: Rows of the first call that was cut.
        uneven: Whether a call was cut unevenly.
    """

    placement: Placement
    allowed: Division
    rows: int = 0
    uneven: bool = False

    def __call__(
        self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        found = find_replicas(layer)
        if found is not None and found.placement != self.placement:
            raise ModelError(
                "step(fn) runs on the devices of the model that was made parallel "
                f"last, at positions {list(self.placement.positions)}, and calls "
                f"{layer.name!r}, which is on {list(found.placement.positions)}. Give "
                "them the same devices by DataParallel(model, devices=...)."
            )
        cut, division, rows = constrain((args, kwargs), self.placement, self.allowed)
        if division is not Division.WHOLE:
            self.rows = self.rows or rows
            self.uneven = self.uneven or division is Division.UNEVEN
        return cut


def _place(leaves: list[Any], twins: Twins, division: Division) -> list[Any]:
    arrays = [i for i, leaf in enumerate(leaves) if isinstance(leaf, _ARRAYS)]
    layouts = [_layout(leaves[i], twins.placement, division) for i in arrays]
    placed = list(leaves)
    moved = twins.place([leaves[i] for i in arrays], layouts)
    for i, array in zip(arrays, moved, strict=True):
        placed[i] = array
    return placed


def _layout(array: Any, placement: Placement, division: Division) -> Any:
    rows = array.shape[0] if array.ndim else None
    divides = rows and divide(rows, placement.size) is Division.EVEN
    if isinstance(array, np.ndarray) and divides and division is not Division.WHOLE:
        return placement.rows
    return placement.whole


def _bring_home(result: Any, twins: Twins) -> Any:
    leaves, structure = flatten(result)
    arrays = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    homes = twins.bring_home([leaves[i] for i in arrays])
    for i, home in zip(arrays, homes, strict=True):
        leaves[i] = home
    return jax.tree_util.tree_unflatten(structure, leaves)
