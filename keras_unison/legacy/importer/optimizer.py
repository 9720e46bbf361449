"""Makes the Keras 3 optimizer that a Keras 2 file describes, with its state."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from keras_unison.legacy.importer.file import SavedWeight


@dataclass(frozen=True)
class _Optimizer:
    """What an optimizer keeps of Keras 2: arguments, and slots in saved order."""

    arguments: tuple[str, ...]
    slots: tuple[str, ...]
    fixed: dict[str, Any] = field(default_factory=dict)


_OPTIMIZERS = {
    "SGD": _Optimizer(("momentum", "nesterov"), ("momentum",)),
    "RMSprop": _Optimizer(
        ("rho", "momentum", "epsilon", "centered"),
        ("velocity", "momentum", "average_gradient"),
    ),
    # Keras 2 starts the sum of squares at zero, Keras 3 at 0.1.
    "Adagrad": _Optimizer(
        ("epsilon", "initial_accumulator_value"),
        ("accumulator",),
        {"initial_accumulator_value": 0.0},
    ),
    "Adadelta": _Optimizer(
        ("rho", "epsilon"), ("accumulated_grad", "accumulated_delta_var")
    ),
    "Adam": _Optimizer(
        ("beta_1", "beta_2", "epsilon", "amsgrad"),
        ("momentum", "velocity", "velocity_hat"),
    ),
    "Adamax": _Optimizer(("beta_1", "beta_2", "epsilon"), ("momentum", "norm")),
    "Nadam": _Optimizer(("beta_1", "beta_2", "epsilon"), ("momentum", "velocity")),
}
_HANDLED = ("learning_rate", "lr", "decay", "name", "clipnorm", "clipvalue")


def make_optimizer(saved: Any, tf_keras: bool, lost: list[str]) -> Any | None:
    """Make the optimizer of a training configuration, without state.

    Args:
        saved: `class_name` and `config` of the optimizer.
        tf_keras: Whether the Keras inside TensorFlow wrote the file.
        lost: Receives a description of each part that has no counterpart.

    Returns:
        The Keras 3 optimizer, or None if Keras 3 has none of this class.
    """
    saved = saved or {}
    class_name = saved.get("class_name")
    known = _OPTIMIZERS.get(class_name)
    if known is None:
        lost.append(f"optimizer {class_name!r}")
        return None
    config = {k: v for k, v in saved["config"].items() if v is not None}
    if class_name == "Nadam" and "decay" in config:
        # tf.keras named the schedule of the momenta so, no decay of the rate.
        config["schedule_decay"] = config.pop("decay")
    arguments = dict(known.fixed)
    arguments.update({k: config[k] for k in known.arguments if k in config})
    arguments.update(_clipping(config, tf_keras, lost))
    for name in config.keys() - set(known.arguments) - set(_HANDLED):
        lost.append(f"optimizer argument {name}={config[name]!r}")
    return getattr(keras.optimizers, class_name)(
        learning_rate=_learning_rate(config), **arguments
    )


def restore_state(
    optimizer: Any,
    model: Any,
    saved: Sequence[SavedWeight],
    trainable: Sequence[Any],
    lost: list[str],
) -> None:
    """Give an optimizer the iterations and slots of the file.

    Args:
        optimizer: A Keras 3 optimizer that is not built yet.
        model: The model that it trains.
        saved: The arrays of the optimizer, in the order of the file.
        trainable: The trainable variables in the order of Keras 2.
        lost: Receives a description if the state does not fit.
    """
    if not saved:
        return
    optimizer.build(model.trainable_variables)
    scalars = _leading_scalars(saved)
    arrays = [weight.value for weight in saved[len(scalars) :]]
    slots = _slots(optimizer, model, trainable)
    problem = _misfit(slots, arrays, len(trainable))
    if problem:
        lost.append(f"the state of the optimizer ({problem})")
        return
    if scalars:
        optimizer.iterations.assign(int(scalars[0]))
    else:
        lost.append("the optimizer's count of iterations, which the file has not")
    for variable, value in zip(slots, arrays, strict=False):
        variable.assign(value)
    _restore_product(optimizer, scalars, lost)


def _learning_rate(config: dict[str, Any]) -> Any:
    rate = config.get("learning_rate", config.get("lr"))
    if isinstance(rate, dict):
        given = {k: v for k, v in rate["config"].items() if v is not None}
        return keras.optimizers.schedules.deserialize({**rate, "config": given})
    if config.get("decay"):
        return keras.optimizers.schedules.InverseTimeDecay(
            rate, decay_steps=1, decay_rate=config["decay"]
        )
    return rate


def _clipping(
    config: dict[str, Any], tf_keras: bool, lost: list[str]
) -> dict[str, Any]:
    if "clipnorm" not in config:
        return {k: config[k] for k in ("clipvalue",) if k in config}
    if "clipvalue" in config:
        lost.append(f"optimizer argument clipvalue={config['clipvalue']!r}")
    # Keras 2 clips by the norm of all gradients together, tf.keras one by one.
    return {"clipnorm" if tf_keras else "global_clipnorm": config["clipnorm"]}


def _leading_scalars(saved: Sequence[SavedWeight]) -> list[Any]:
    """Take the iterations, and the product of the momenta that Nadam keeps."""
    known = ("iter", "m_schedule", "momentum_cache")
    return [
        weight.value
        for weight in saved[:2]
        if weight.value.shape == () and weight.name.split("/")[-1].startswith(known)
    ]


def _slots(optimizer: Any, model: Any, trainable: Sequence[Any]) -> list[Any]:
    """List the slots of Keras 3 in the order of Keras 2: by kind, then variable."""
    position = {id(v): i for i, v in enumerate(model.trainable_variables)}
    order = [position[id(v)] for v in trainable]
    slots = []
    for kind in _OPTIMIZERS[type(optimizer).__name__].slots:
        found = [v for v in optimizer.variables if v.name.endswith(f"_{kind}")]
        slots += [found[i] for i in order] if found else []
    return slots


def _misfit(slots: list[Any], arrays: list[np.ndarray[Any, Any]], count: int) -> str:
    # Arrays beyond the slots are placeholders, or momenta that a rate of 0 ignores.
    if len(arrays) < len(slots) or (count and len(arrays) % count):
        return f"{len(arrays)} arrays in the file for {count} trainable weights"
    for variable, value in zip(slots, arrays, strict=False):
        if tuple(variable.shape) != value.shape:
            return f"shape {value.shape} in the file for {variable.path}"
    return ""


def _restore_product(optimizer: Any, scalars: list[Any], lost: list[str]) -> None:
    if not isinstance(optimizer, keras.optimizers.Nadam):
        return
    known = ("iteration", "learning_rate")
    products = [
        v for v in optimizer.variables if tuple(v.shape) == () and v.name not in known
    ]
    if len(products) == 1 and len(scalars) == 2:
        products[0].assign(scalars[1])
    else:
        lost.append("Nadam's product of momenta")
