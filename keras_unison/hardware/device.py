"""One device, as every backend describes it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that the active backend sees.

    Attributes:
        name: The name to pass as `devices=`, for instance `"gpu:1"`. Numbers
            count within `CUDA_VISIBLE_DEVICES`.
        kind: `"cpu"`, `"gpu"` or `"tpu"`.
        description: What the backend calls the hardware.
        memory_bytes: Memory of the device in bytes; None where the backend
            does not know it (CPU devices share the machine's memory).
        simulated: True for a virtual CPU device made by `simulate`.
    """

    name: str
    kind: str
    description: str
    memory_bytes: int | None = None
    simulated: bool = False
