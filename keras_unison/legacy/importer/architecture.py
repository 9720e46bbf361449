"""Rebuilds a Keras 2 model as a Keras 3 model from its configuration."""

from typing import Any

import keras

from keras_unison.errors import LegacyFileError
from keras_unison.legacy.importer.layers import (
    REBUILD,
    layer_class,
    layer_name,
    refuse_bilinear,
    refuse_code,
    substitute,
    translate,
)
from keras_unison.legacy.importer.replicas import CONTAINERS, Template, references

_INNER_LAYERS = ("layer", "backward_layer", "cell", "cells")


class Architecture:
    """A rebuilt model, with the layers of each (nested) model in the saved order.

    Keras 3 may sort the layers of a graph otherwise than Keras 2 did, and the
    order of the saved weights follows that of Keras 2.
    """

    def __init__(self, template: Template, tf_keras: bool) -> None:
        """Build the model of a template that Keras 2, or tf.keras, wrote."""
        self.substituted: set[str] = set()
        self._tf_keras = tf_keras
        self._children: dict[int, list[Any]] = {}
        config = template.config
        if config["class_name"] == "Sequential":
            known = _first_input(config) or next(iter(template.inputs), None)
            self.model = self._build_sequential(config, known)
            _check_built(self.model)
        else:
            self.model = self._build_model(config)

    def children(self, model: Any) -> list[Any]:
        """Return the layers of a model in the order of Keras 2."""
        return self._children[id(model)]

    def _build_model(self, entry: dict[str, Any]) -> Any:
        if entry["class_name"] not in CONTAINERS or not _layers(entry):
            raise LegacyFileError(
                f"The saved model is of class {entry['class_name']!r}, of which the "
                f"file holds no architecture. {REBUILD}"
            )
        if entry["class_name"] == "Sequential":
            return self._build_sequential(entry, _first_input(entry))
        return self._build_functional(entry)

    def _build_sequential(
        self, entry: dict[str, Any], known_input: dict[str, Any] | None
    ) -> Any:
        layers = [
            self._build_layer(layer)
            for layer in _layers(entry)
            if layer["class_name"] != "InputLayer"
        ]
        model = keras.Sequential(name=_model_name(entry))
        if known_input is not None:
            model.add(_input(known_input))
        for layer in layers:
            with _Explained(layer.name):
                model.add(layer)
        self._children[id(model)] = layers
        return model

    def _build_functional(self, entry: dict[str, Any]) -> Any:
        graph = _Graph()
        layers = []
        for saved in _layers(entry):
            if saved["class_name"] == "InputLayer":
                graph.tensors[saved["name"], 0] = [_input(saved["config"])]
                continue
            layer = self._build_layer(saved)
            layers.append(layer)
            graph.add(saved, layer)
        graph.connect()
        inputs = graph.find(entry["config"]["input_layers"])
        outputs = graph.find(entry["config"]["output_layers"])
        name = _model_name(entry)
        with _Explained(name):
            model = keras.Model(_single(inputs), _single(outputs), name=name)
        self._children[id(model)] = layers
        return model

    def _build_layer(self, entry: dict[str, Any]) -> Any:
        if entry["class_name"] in CONTAINERS:
            return self._build_model(entry)
        name = entry["config"].get("name", entry["class_name"])
        refuse_code(entry, name)
        if not self._tf_keras:
            refuse_bilinear(entry, name)
        cls = layer_class(entry["class_name"], name)
        config = translate(entry)
        self.substituted |= substitute(config)
        nested = [key for key in _INNER_LAYERS if config.get(key)]
        for key in nested:
            config[key] = self._build_inner(config[key])
        trainable = config.pop("trainable", True)
        with _Explained(name):
            layer = cls(**config) if nested else cls.from_config(config)
        if not trainable:  # not every Keras 3 layer takes this as an argument
            layer.trainable = False
        return layer

    def _build_inner(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._build_layer(entry) for entry in value]
        return self._build_layer(value)


class _Graph:
    """The calls of a functional model, made as soon as their inputs exist."""

    def __init__(self) -> None:
        self.tensors: dict[tuple[str, int], list[Any]] = {}
        self._calls: list[tuple[str, int, Any, list[Any]]] = []

    def add(self, entry: dict[str, Any], layer: Any) -> None:
        # Node 0 of a nested model is the one that the model itself was made of.
        first = 1 if entry["class_name"] in CONTAINERS else 0
        for index, node in enumerate(entry["inbound_nodes"], start=first):
            self._calls.append((entry["name"], index, layer, references(node)))

    def connect(self) -> None:
        waiting = self._calls
        while waiting:
            later = []
            for name, index, layer, node in waiting:
                if any((ref[0], ref[1]) not in self.tensors for ref in node):
                    later.append((name, index, layer, node))
                    continue
                with _Explained(name):
                    output = _call(layer, self.find(node), _arguments(node))
                self.tensors[name, index] = _as_list(output)
            if len(later) == len(waiting):
                raise LegacyFileError(
                    f"The inputs of layer {later[0][0]!r} are missing from the saved "
                    f"architecture. {REBUILD}"
                )
            waiting = later

    def find(self, nodes: Any) -> list[Any]:
        return [self.tensors[ref[0], ref[1]][ref[2]] for ref in references(nodes)]


class _Explained:
    """Turns an error of Keras about one layer into one that says what to do."""

    def __init__(self, layer_name: str | None) -> None:
        self._layer_name = layer_name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (TypeError, ValueError)) and not isinstance(
            error, LegacyFileError
        ):
            raise LegacyFileError(
                f"Layer {self._layer_name!r} of the file cannot be built in Keras 3: "
                f"{error} {REBUILD}"
            ) from error


def _call(layer: Any, inputs: list[Any], arguments: dict[str, Any]) -> Any:
    if len(inputs) == 1:
        return layer(inputs[0], **arguments)
    if isinstance(layer, (keras.layers.RNN, keras.layers.Bidirectional)):
        return layer(inputs[0], initial_state=inputs[1:], **arguments)
    return layer(inputs, **arguments)


def _arguments(node: list[Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for ref in node:
        arguments.update(ref[3] if len(ref) > 3 else {})
    return {key: value for key, value in arguments.items() if value is not None}


def _input(config: dict[str, Any]) -> Any:
    return keras.Input(
        batch_shape=tuple(config["batch_input_shape"]),
        dtype=config.get("dtype"),
        sparse=bool(config.get("sparse")),
        name=layer_name(config["name"]),
    )


def _first_input(entry: dict[str, Any]) -> dict[str, Any] | None:
    """Find what a Sequential takes, which Keras 2 mostly noted in its first layer."""
    first = _layers(entry)[0]
    config = first["config"]
    if first["class_name"] == "InputLayer":
        return dict(config)
    if isinstance(config, dict) and "batch_input_shape" in config:
        return {**config, "name": f"{config['name']}_input", "sparse": False}
    if first["class_name"] == "Sequential":
        return _first_input(first)
    if first["class_name"] in CONTAINERS:
        name = references(config["input_layers"])[0][0]
        return next(dict(e["config"]) for e in _layers(first) if e["name"] == name)
    outer = entry["config"]
    shape = outer.get("build_input_shape") if isinstance(outer, dict) else None
    if shape is None:
        return None  # told by the call of the model, or by the graph around it
    return {"batch_input_shape": shape, "name": f"{config['name']}_input"}


def _check_built(model: Any) -> None:
    if not model.built:
        raise LegacyFileError(
            f"The Sequential model {model.name!r} was saved without its input shape. "
            f"{REBUILD}"
        )


def _layers(entry: dict[str, Any]) -> list[dict[str, Any]]:
    # Until 2.2.2 the configuration of a Sequential was the bare list of layers.
    config = entry["config"]
    layers = config if isinstance(config, list) else config.get("layers", [])
    return list(layers)


def _model_name(entry: dict[str, Any]) -> str | None:
    config = entry["config"]
    name = config.get("name") if isinstance(config, dict) else entry.get("name")
    return None if name is None else layer_name(name)


def _single(tensors: list[Any]) -> Any:
    return tensors[0] if len(tensors) == 1 else tensors


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
