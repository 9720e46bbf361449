"""Trials of a layer call, with the replicas in threads of this process."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import keras
import torch
from keras import tree

from keras_unison import _keras
from keras_unison.engines.division.draws import other_draws
from keras_unison.engines.division.plan import Plan
from keras_unison.engines.division.scope import ReplicaScope
from keras_unison.engines.division.trial import Trial, Undividable, Values, tolerance_of
from keras_unison.engines.torch.batch import first_batch
from keras_unison.engines.torch.calls import Original, call_divided, call_whole
from keras_unison.engines.torch.random_states import States, bring_back, states
from keras_unison.engines.torch.samples import arrays_of, random_rows
from keras_unison.engines.torch.threads import run_in_threads


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadedRuns:
    """Makes a layer call for trials.

    Attributes:
        original: Keras's own call.
        layer: The layer.
        arguments: Its arguments for a batch, and those by name.
        size: Number of replicas.
        exact_draws: Whether replicas make the draws of one device.
        variables: Variables beside those of the layer that it may use.
        before: The states of random numbers from which each call starts.
    """

    original: Original
    layer: Any
    arguments: Any
    size: int
    exact_draws: bool
    variables: Iterable[Any] = ()
    before: States = field(default_factory=states)

    def random_rows(self, rows: int, positive: bool) -> Any:
        """Arguments of the call with so many random rows, above 0 if `positive`."""
        return random_rows(self.arguments, first_batch(self.arguments), rows, positive)

    def whole(self, trial: Trial) -> list[Values]:
        """What the whole call computes, for each of the trial's draws."""
        _refuse_modules(self.layer)
        return [self._whole(trial, draw) for draw in range(trial.draws)]

    def divided(self, trial: Trial, plan: Plan, looks: bool) -> list[Values]:
        """What the call in parts computes, for each of the trial's draws."""
        return [self._divided(trial, plan, looks, draw) for draw in range(trial.draws)]

    def _whole(self, trial: Trial, draw: int) -> Values:
        self._start(draw)
        call = _collected(
            trial, draw, lambda: call_whole(self.original, self.layer, *_again(trial))
        )
        return _values(call, {})

    def _divided(self, trial: Trial, plan: Plan, looks: bool, draw: int) -> Values:
        self._start(draw)
        noted: dict[Any, list[Any]] = {}

        def part(group: Any) -> Any:
            return _collected(
                trial,
                draw,
                lambda: call_divided(
                    self.original,
                    self.layer,
                    _again(trial),
                    group=group,
                    plan=plan,
                    exact_draws=self.exact_draws,
                    variables=self.variables,
                    noted=noted,
                    looks=looks,
                ),
            )

        return _values(run_in_threads(self.size, part)[0], noted)

    def _start(self, draw: int) -> None:
        bring_back(self.before)
        if draw:
            torch.manual_seed(torch.initial_seed() + draw)


def _again(trial: Trial) -> Any:
    """The trial's arguments, which a layer may change in place."""

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        found = leaf.clone()
        _keras.copy_mask(leaf, found)
        return found

    return tree.map_structure(copied, trial.arguments)


def _collected(trial: Trial, draw: int, call: Callable[[], Any]) -> Any:
    """A call that changes nothing: its outputs, losses and updates."""
    with torch.no_grad(), ReplicaScope(trial.weights) as scope, other_draws(draw):
        outputs = {
            number: leaf
            for number, leaf in enumerate(tree.flatten(call()))
            if isinstance(leaf, torch.Tensor)
        }
        return outputs, [loss.sum() for loss in scope.losses], scope.updates()


def _values(call: Any, noted: dict[Any, list[Any]]) -> Values:
    outputs, losses, updates = call
    parts = {place[1]: noted.pop(place) for place in list(noted) if place[0] == "loss"}
    return Values(
        outputs=dict(zip(outputs, arrays_of(outputs.values()), strict=True)),
        losses=arrays_of(losses),
        updates=dict(
            zip(
                (id(variable) for variable, _ in updates),
                arrays_of(value for _, value in updates),
                strict=True,
            )
        ),
        tolerance=tolerance_of(
            str(o.dtype).removeprefix("torch.") for o in outputs.values()
        ),
        parts={number: arrays_of(each) for number, each in parts.items()},
        lengths=copy.copy(noted),
    )


def _refuse_modules(layer: Any) -> None:
    """A torch module uses its own parameters, whose gradients are not summed."""
    for inner in _keras.operations_of(layer):
        if isinstance(inner, keras.layers.TorchModuleWrapper):
            raise Undividable(
                f"its layer {inner.name!r} is a torch.nn.Module, which keeps weights "
                "and state of its own"
            )
