"""Carries the compile information of a Keras 2 file over to a Keras 3 model."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_unison.legacy.importer.file import Keras2File
from keras_unison.legacy.importer.optimizer import make_optimizer, restore_state

_RENAMED = {
    "cosine": "cosine_similarity",
    "cosine_proximity": "cosine_similarity",
    "logcosh": "log_cosh",
    "kullback_leibler_divergence": "kl_divergence",
}
_CHOSEN_BY_KERAS = ("accuracy", "acc", "crossentropy", "ce")


def restore_training(
    model: Any,
    file: Keras2File,
    output_names: Sequence[str],
    trainable: Sequence[Any],
) -> list[str]:
    """Compile a model as the file says, with the state of its optimizer.

    Args:
        model: The rebuilt model, with its weights.
        file: The file, already read.
        output_names: Names that the losses and metrics of the file refer to.
        trainable: The trainable variables in the order of Keras 2.

    Returns:
        A description of each part that could not be carried over.
    """
    config = file.training_config
    if config is None:
        return []
    lost: list[str] = []
    optimizer = make_optimizer(config.get("optimizer_config"), file.tf_keras, lost)
    if optimizer is None:
        return [*lost, "the compilation, which needs an optimizer"]
    outputs = _Outputs(output_names, lost)
    metrics = config.get("metrics")
    weighted = config.get("weighted_metrics")
    model.compile(
        optimizer=optimizer,
        loss=outputs.losses(config.get("loss")),
        loss_weights=outputs.weights(config.get("loss_weights")),
        metrics=outputs.metrics(metrics),
        weighted_metrics=outputs.metrics(weighted),
    )
    if config.get("sample_weight_mode"):
        lost.append(f"sample_weight_mode={config['sample_weight_mode']!r}")
    restore_state(optimizer, model, file.optimizer_weights, trainable, lost)
    return lost


class _Outputs:
    """Spreads what Keras 2 said about outputs into one entry per output."""

    def __init__(self, names: Sequence[str], lost: list[str]) -> None:
        self._names = names
        self._lost = lost

    def losses(self, saved: Any) -> Any:
        found = [self._found(_loss, "loss", one) for one in self._spread(saved)]
        return self._single(found)

    def weights(self, saved: Any) -> Any:
        if saved is None:
            return None
        weights = self._spread(saved, default=1.0)
        return [float(weight) for weight in weights]

    def metrics(self, saved: Any) -> Any:
        if not saved:
            return None
        if isinstance(saved, dict) or any(isinstance(one, list) for one in saved):
            entries = self._spread(saved)
        else:
            entries = [saved] * len(self._names)
        found = [self._metrics_of_output(entry) for entry in entries]
        return self._single(found)

    def _metrics_of_output(self, entry: Any) -> list[Any]:
        entries = entry if isinstance(entry, list) else [entry]
        found = [self._found(_metric, "metric", one) for one in entries]
        return [one for one in found if one is not None]

    def _spread(self, saved: Any, default: Any = None) -> list[Any]:
        if isinstance(saved, dict) and not _is_object(saved):
            unknown = sorted(saved.keys() - set(self._names))
            self._lost += [f"what was said about output {name!r}" for name in unknown]
            return [saved.get(name, default) for name in self._names]
        if isinstance(saved, list):
            return list(saved)
        return [saved] * len(self._names)

    def _single(self, found: list[Any]) -> Any:
        if len(self._names) == 1 and len(found) == 1:
            return found[0]
        return found

    def _found(self, find: Callable[[Any], Any], kind: str, saved: Any) -> Any:
        if saved is None:
            return None
        try:
            return find(saved)
        except (TypeError, ValueError):
            name = saved["class_name"] if _is_object(saved) else saved
            text = f"{kind} {name!r}"
            if text not in self._lost:
                self._lost.append(text)
            return None


def _loss(saved: Any) -> Any:
    if _is_object(saved):
        return _from_config(keras.losses, keras.losses.Loss, saved)
    return _by_name(keras.losses.get, saved)


def _metric(saved: Any) -> Any:
    if saved in _CHOSEN_BY_KERAS:
        return saved
    if _is_object(saved):
        return _from_config(keras.metrics, keras.metrics.Metric, saved)
    return _by_name(keras.metrics.get, saved)


def _by_name(get: Callable[[str], Any], saved: str) -> Any:
    own = keras.saving.get_registered_object(saved)
    if own is not None:
        return own
    name = _RENAMED.get(saved, saved)
    get(name)  # raises a ValueError where Keras 3 knows no such name
    return name


def _from_config(module: Any, base: Any, saved: dict[str, Any]) -> Any:
    name = saved["class_name"]
    cls: Any = keras.saving.get_registered_object(name) or getattr(module, name, None)
    if not _is_subclass(cls, base):
        raise ValueError(f"no class {name!r}")
    config = dict(saved["config"])
    if config.get("reduction") == "auto":
        config["reduction"] = "sum_over_batch_size"
    return cls.from_config(config)


def _is_subclass(cls: Any, base: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, base)


def _is_object(saved: Any) -> bool:
    return isinstance(saved, dict) and {"class_name", "config"} <= saved.keys()
