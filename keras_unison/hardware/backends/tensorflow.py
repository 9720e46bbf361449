"""Devices of TensorFlow."""

from keras_unison.errors import SimulationError
from keras_unison.hardware.device import Device


def list_devices() -> list[Device]:
    """The logical devices of TensorFlow: its GPUs, or else its CPUs."""
    import tensorflow as tf

    gpus = tf.config.list_logical_devices("GPU")
    found = gpus or tf.config.list_logical_devices("CPU")
    kind = "gpu" if gpus else "cpu"
    return [
        Device(
            name=f"{kind}:{index}",
            kind=kind,
            description=device.name,
            simulated=kind == "cpu" and len(found) > 1,
        )
        for index, device in enumerate(found)
    ]


def simulate(n: int) -> None:
    """Split TensorFlow's CPU into `n` logical devices and hide its GPUs."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_visible_devices([], "GPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * n
        )
    except RuntimeError as error:
        there = tf.config.list_logical_devices()
        kinds = {device.device_type for device in there}
        if len(there) == n and kinds == {"CPU"}:
            return
        raise SimulationError(
            f"simulate({n}) comes too late: TensorFlow has already started, with "
            f"{[device.name for device in there]}. Call keras_unison.simulate "
            "before the first tensor or model is made, or start the script by "
            f"`KERAS_UNISON_SIMULATE={n} python script.py` or "
            f"`keras-unison run --simulate {n} script.py`."
        ) from error
