"""What the engine knows of each model that it runs."""

import weakref
from dataclasses import dataclass, field
from typing import Any

from keras_unison.engines.division.plan import Plan
from keras_unison.engines.records import Once, Records
from keras_unison.engines.tensorflow.placement import Placement


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
