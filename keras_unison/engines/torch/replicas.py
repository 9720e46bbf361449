"""What the engine knows of each model that it runs."""

import weakref
from dataclasses import dataclass, field
from typing import Any

from keras_unison.engines.division.plan import Plan
from keras_unison.engines.records import Once, Records


@dataclass(slots=True, kw_only=True)
class Replicas:
    """A model's devices, and what was found out about its layer calls.

    A helper process has one of each model that it got, too.

    Attributes:
        positions: Positions of the devices in `keras_unison.devices()`.
        exact_draws: Whether replicas make the draws of one device.
        plans: How each layer's calls are divided, by the kinds of its arguments.
        once: What a warning was given for.
        controller: The user's side of the steps; None in a helper process.
    """

    positions: tuple[int, ...]
    exact_draws: bool = True
    plans: "weakref.WeakKeyDictionary[Any, dict[Any, Plan]]" = field(
        default_factory=weakref.WeakKeyDictionary
    )
    once: Once = field(default_factory=Once)
    controller: Any = None

    @property
    def size(self) -> int:
        """Number of replicas."""
        return len(self.positions)


_records: Records[Replicas] = Records()
set_replicas = _records.put
replicas_of = _records.of
find_replicas = _records.find
drop_replicas = _records.drop
newest_replicas = _records.newest
