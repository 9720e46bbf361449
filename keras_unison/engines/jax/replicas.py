"""What the engine knows of each model that it runs."""

from dataclasses import dataclass, field
from typing import Any

from keras_unison.engines.jax.placement import Placement, Twins
from keras_unison.engines.records import Once, Records


@dataclass(slots=True, kw_only=True)
class Replicas:
    """A model's devices, and its state while a loop runs.

    Attributes:
        placement: Where the model runs.
        twins: Its arrays on the first device and on the mesh.
        state: The newest complete state while a loop runs, else None.
        once: What a warning was given for.
    """

    placement: Placement
    twins: Twins
    state: Any = None
    once: Once = field(default_factory=Once)


_records: Records[Replicas] = Records()
set_replicas = _records.put
replicas_of = _records.of
find_replicas = _records.find
drop_replicas = _records.drop
newest_replicas = _records.newest
