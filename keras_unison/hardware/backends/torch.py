"""Devices of PyTorch."""

from keras_unison.errors import UnsupportedError
from keras_unison.hardware.device import Device


def list_devices() -> list[Device]:
    """The CUDA devices of PyTorch, or else the one CPU."""
    import torch

    if not torch.cuda.is_available():
        return [Device(name="cpu:0", kind="cpu", description="cpu")]
    properties = [
        torch.cuda.get_device_properties(index)
        for index in range(torch.cuda.device_count())
    ]
    return [
        Device(
            name=f"gpu:{index}",
            kind="gpu",
            description=found.name,
            memory_bytes=found.total_memory,
        )
        for index, found in enumerate(properties)
    ]


def simulate(n: int) -> None:
    """PyTorch has no virtual devices inside one process."""
    raise UnsupportedError(
        f"simulate({n}) is not built for the torch backend yet. Choose another "
        "backend, for instance by `KERAS_BACKEND=jax`."
    )
