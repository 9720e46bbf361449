"""What the engine knows of each model that it runs, and of a step in progress."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from keras_unison.engines.records import Once, Records
from keras_unison.engines.tensorflow.placement import Placement
from keras_unison.engines.tensorflow.plan import Plan


@dataclass(slots=True, kw_only=True)
class Replicas:
    """A model's devices, and what was found out about its layer calls.

    Attributes:
        placement: Where the model runs.
        exact_draws: Whether replicas make the draws of one device.
        plans: How each layer's calls are divided, by the kinds of its arguments.
        once: What a warning was given for.
        asked_to_build: Layers that were called to be built.
        gradients: Names of gradients that TensorFlow keeps for the model's steps.
    """

    placement: Placement
    exact_draws: bool = True
    plans: "weakref.WeakKeyDictionary[Any, dict[Any, Plan]]" = field(
        default_factory=weakref.WeakKeyDictionary
    )
    once: Once = field(default_factory=Once)
    asked_to_build: "weakref.WeakSet[Any]" = field(default_factory=weakref.WeakSet)
    gradients: list[str] = field(default_factory=list)


_records: Records[Replicas] = Records()
set_replicas = _records.put
replicas_of = _records.of
find_replicas = _records.find
drop_replicas = _records.drop
newest_replicas = _records.newest


@dataclass(slots=True, kw_only=True)
class Replica:
    """One device's part of a layer call that is divided.

    Attributes:
        index: Which of the devices.
        device: TensorFlow's name of it.
        call: What it shares with the others.
        compiled: Whether XLA compiles it, which leaves no sums with others.
        sums: How many sums it has made with the others.
        calls: How many calls each operation has had in it, by identity.
        path: The operations being called, innermost last: identity and number.
        draws: How many draws each call has made.
        scope: Where the changes of variables and the losses go.
    """

    index: int
    device: str
    call: Any
    compiled: bool = False
    sums: int = 0
    calls: dict[int, int] = field(default_factory=dict)
    path: list[tuple[int, int]] = field(default_factory=list)
    draws: dict[Any, int] = field(default_factory=dict)
    scope: Any = None


_current: ContextVar[Replica | None] = ContextVar("keras_unison_replica", default=None)


def current_replica() -> Replica | None:
    """The replica whose part is being computed; None outside, and on all rows."""
    return _current.get()


@contextmanager
def within(replica: Replica | None) -> Iterator[None]:
    """Within this context `current_replica()` is this one."""
    token = _current.set(replica)
    try:
        yield
    finally:
        _current.reset(token)
