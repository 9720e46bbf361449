"""Devices of JAX."""

import os
import sys

from keras_unison.errors import SimulationError
from keras_unison.hardware.device import Device

# XLA's CPU runtime runs all virtual devices in one pool of as many threads as
# cores. A collective of one device waits inside that pool while the operation
# it waits for, on another device, needs threads of it: with few cores the
# process stands still and XLA aborts it. A larger pool is the cure, and XLA
# reads its size from NPROC when the backend starts.
_THREADS_PER_DEVICE = 4


def list_devices() -> list[Device]:
    """The devices of JAX's default platform that this process can address."""
    import jax

    found = jax.local_devices()
    simulated = found[0].platform == "cpu" and len(found) > 1
    return [
        Device(
            name=f"{device.platform}:{index}",
            kind=device.platform,
            description=str(device.device_kind),
            memory_bytes=_memory(device),
            simulated=simulated,
        )
        for index, device in enumerate(found)
    ]


def _memory(device: object) -> int | None:
    stats = device.memory_stats()  # type: ignore[attr-defined]
    return stats.get("bytes_limit") if stats else None


def simulate(n: int) -> None:
    """Make JAX start with `n` virtual CPU devices and no others."""
    pool = max(n * _THREADS_PER_DEVICE, os.cpu_count() or 1, _threads_set())
    if "jax" not in sys.modules:
        os.environ.update(
            JAX_NUM_CPU_DEVICES=str(n), JAX_PLATFORMS="cpu", NPROC=str(pool)
        )
        return
    import jax

    try:
        # Refused by JAX once a backend runs, which is the only public way to
        # learn that it does.
        jax.config.update("jax_num_cpu_devices", n)
    except RuntimeError as error:
        if _already_simulated(n):
            return
        raise SimulationError(
            f"simulate({n}) comes too late: JAX has already started, with "
            f"{len(jax.local_devices())} {jax.default_backend()} device(s). "
            "Call keras_unison.simulate before the first array or model is made, "
            f"or start the script by `KERAS_UNISON_SIMULATE={n} python script.py` "
            f"or `keras-unison run --simulate {n} script.py`."
        ) from error
    jax.config.update("jax_platforms", "cpu")
    os.environ["NPROC"] = str(pool)


def _threads_set() -> int:
    value = os.environ.get("NPROC", "")
    return int(value) if value.isdigit() else 0


def _already_simulated(n: int) -> bool:
    import jax

    return jax.default_backend() == "cpu" and len(jax.local_devices()) == n
