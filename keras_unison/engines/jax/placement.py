"""Where arrays live: the mesh of a model's devices, and its first device."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# An optimizer slot is divided over the devices from this size on (elements).
# Below it the gather of the updated weight costs more than a whole update.
MIN_DIVIDED_SLOT = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The devices of one model and the layouts on them.

    Attributes:
        positions: The devices' positions in `jax.local_devices()`.
        mesh: One axis, `batch`, over these devices.
        whole: Layout of an array that every device holds in full.
        rows: Layout of an array whose first axis is divided.
    """

    positions: tuple[int, ...]
    mesh: Mesh
    whole: NamedSharding
    rows: NamedSharding

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.positions)

    @property
    def platform(self) -> str:
        """What JAX calls the kind of these devices."""
        return str(self.mesh.devices.flat[0].platform)

    def slot(self, shape: tuple[int, ...]) -> NamedSharding:
        """Layout of an optimizer's variable of this shape.

        Each device updates its part of a large slot, and the weights that come
        out are gathered: the update is divided instead of repeated (Xu et al.,
        2020, https://arxiv.org/abs/2004.13336).
        """
        elements = 1
        for length in shape:
            elements *= length
        if elements < MIN_DIVIDED_SLOT:
            return self.whole
        for axis, length in enumerate(shape):
            if length % self.size == 0:
                spec = PartitionSpec(*[None] * axis, "batch")
                return NamedSharding(self.mesh, spec)
        return self.whole

    def home(self, array: Any) -> Any:
        """The whole array on the first device; no copy where that holds it."""
        if array.sharding.is_fully_replicated:
            return array.addressable_data(0)
        return jax.device_put(array, self.mesh.devices.flat[0])


def placement_on(positions: Sequence[int]) -> Placement:
    """The placement of a model on the devices at `positions`."""
    found = jax.local_devices()
    mesh = Mesh([found[position] for position in positions], ("batch",))
    return Placement(
        positions=tuple(positions),
        mesh=mesh,
        whole=NamedSharding(mesh, PartitionSpec()),
        rows=NamedSharding(mesh, PartitionSpec("batch")),
    )


@dataclass(slots=True, kw_only=True)
class Twins:
    """Arrays on the first device and the same arrays on the mesh.

    What a step returns goes home to the variables; the next step takes the
    array on the mesh again instead of copying it to all devices anew.
    """

    placement: Placement
    _pairs: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def bring_home(self, arrays: list[Any]) -> list[Any]:
        """The arrays on the first device, remembering where they came from."""
        homes = []
        for array in arrays:
            home = self.placement.home(array)
            self._pairs[id(home)] = (home, array)
            homes.append(home)
        return homes

    def place(self, arrays: list[Any], layouts: list[NamedSharding]) -> list[Any]:
        """The arrays on the mesh; moves only those that are not there yet."""
        placed = [self._pairs.get(id(array), (None, array))[1] for array in arrays]
        moving = [
            index
            for index, (array, layout) in enumerate(zip(placed, layouts, strict=True))
            if getattr(array, "sharding", None) != layout
        ]
        moved = jax.device_put(
            [placed[index] for index in moving], [layouts[index] for index in moving]
        )
        for index, array in zip(moving, moved, strict=True):
            placed[index] = array
        return placed

    def forget(self) -> None:
        """Drops all pairs: the arrays on the mesh are about to be given away."""
        self._pairs = {}
