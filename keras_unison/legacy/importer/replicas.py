"""Finds the plain model inside the graph that `multi_gpu_model` of Keras 2 built."""

from dataclasses import dataclass
from typing import Any

CONTAINERS = ("Model", "Functional", "Sequential")
"""Class names of models that hold other layers."""


@dataclass(frozen=True)
class Template:
    """The configuration of the plain model, and what was known only outside it."""

    config: dict[str, Any]
    output_names: tuple[str, ...]
    inputs: tuple[dict[str, Any], ...]


def find_template(config: dict[str, Any]) -> Template:
    """Take the replicas away from the configuration of a saved model.

    Args:
        config: `class_name` and `config` of the saved model.

    Returns:
        The template with the inputs of the outermost model, and with its output
        names, by which Keras 2 stored losses and metrics. A plain model is its own
        template.
    """
    names = _output_names(config)
    inputs = _inputs(config)
    inner = _replicated(config)
    while inner is not None:
        config = inner
        inner = _replicated(config)
    return Template(config, names, inputs)


def references(nodes: Any) -> list[Any]:
    """List `[layer, node, tensor, ...]` references, of which one may stand alone."""
    return [nodes] if nodes and isinstance(nodes[0], str) else list(nodes)


def _replicated(config: dict[str, Any]) -> dict[str, Any] | None:
    """Return the nested model if `config` is only slices, one model, and joins."""
    if config["class_name"] not in ("Model", "Functional"):
        return None
    entries = config["config"]["layers"]
    slices = {entry["name"] for entry in entries if _is_slice(entry)}
    others = [
        entry
        for entry in entries
        if entry["class_name"] != "InputLayer" and entry["name"] not in slices
    ]
    models = [entry for entry in others if entry["class_name"] in CONTAINERS]
    joins = [entry for entry in others if _is_join(entry)]
    if not slices or len(models) != 1 or len(joins) + 1 != len(others):
        return None
    fed_by = {ref[0] for node in models[0]["inbound_nodes"] for ref in references(node)}
    return models[0] if fed_by == slices else None


def _is_slice(entry: dict[str, Any]) -> bool:
    if entry["class_name"] != "Lambda":
        return False
    return set(entry["config"].get("arguments") or {}) == {"i", "parts"}


def _is_join(entry: dict[str, Any]) -> bool:
    return bool(
        entry["class_name"] == "Concatenate" and entry["config"].get("axis") == 0
    )


def _inputs(config: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    inner = config["config"]
    entries = inner if isinstance(inner, list) else inner.get("layers", [])
    return tuple(e["config"] for e in entries if e["class_name"] == "InputLayer")


def _output_names(config: dict[str, Any]) -> tuple[str, ...]:
    inner = config["config"]
    if isinstance(inner, dict) and "output_layers" in inner:
        return tuple(ref[0] for ref in references(inner["output_layers"]))
    layers = inner if isinstance(inner, list) else inner.get("layers", [])
    names = [e["config"]["name"] for e in layers[-1:] if "name" in e["config"]]
    return tuple(names) or ("",)
