"""What the engine knows of each model that it runs."""

import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any

from keras_unison.engines.jax.placement import Placement, Twins
from keras_unison.errors import UnisonWarning


@dataclass(slots=True, kw_only=True)
class Replicas:
    """A model's devices, and its state while a loop runs.

    Attributes:
        placement: Where the model runs.
        twins: Its arrays on the first device and on the mesh.
        state: The newest complete state while a loop runs, else None.
        warned: Reasons that a warning was given for.
    """

    placement: Placement
    twins: Twins
    state: Any = None
    warned: set[str] = field(default_factory=set)

    def warn_once(self, reason: str, text: str) -> None:
        """Gives one `UnisonWarning` per reason and model."""
        if reason not in self.warned:
            self.warned.add(reason)
            warnings.warn(text, UnisonWarning, stacklevel=2)


# Kept here and not on the models: what Keras saves, it finds by walking the
# attributes of the model.
_replicas: "weakref.WeakKeyDictionary[Any, Replicas]" = weakref.WeakKeyDictionary()


def set_replicas(model: Any, placement: Placement) -> None:
    """Places `model` anew; it becomes the newest."""
    _replicas.pop(model, None)
    _replicas[model] = Replicas(placement=placement, twins=Twins(placement=placement))


def replicas_of(model: Any) -> Replicas:
    """The record of a model that the engine runs."""
    return _replicas[model]


def find_replicas(model: Any) -> Replicas | None:
    """The record of a model; None for a plain one."""
    return _replicas.get(model)


def drop_replicas(model: Any) -> None:
    """Forgets a model."""
    _replicas.pop(model, None)


def newest_placement() -> Placement | None:
    """Where the model runs that was placed last; None if there is none."""
    found = list(_replicas.values())
    return found[-1].placement if found else None
