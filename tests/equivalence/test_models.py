"""Every kind of model trains, evaluates and predicts as on one device.

Batches of 48 and 34 rows: the second divides by 2 and not by 3. No axis of the
models has a length of these batches or of their parts.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_unison as ku
from tests.equivalence.harness import check, data, dense_model

ROWS = 82
BATCH = 48
DIVIDED = [48, 34]

GENERATOR = np.random.default_rng(11)
X8 = GENERATOR.normal(size=(ROWS, 8)).astype("float32")
X6 = GENERATOR.normal(size=(ROWS, 6)).astype("float32")
SERIES = GENERATOR.normal(size=(ROWS, 7, 6)).astype("float32")
LABELS = GENERATOR.integers(0, 5, size=ROWS)
TARGET = GENERATOR.normal(size=(ROWS, 3)).astype("float32")


def trained(x: Any, y: Any) -> Callable[[Any], Any]:
    """What a user sees of a short training on these data."""

    def use(model: Any) -> Any:
        return (
            model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0),
            model.predict(x, batch_size=BATCH, verbose=0),
        )

    return use


def compiled(model: Any, **settings: Any) -> Any:
    """The model with SGD, and cross-entropy unless told otherwise."""
    settings.setdefault("loss", "sparse_categorical_crossentropy")
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), **settings)
    return model


# --- Sequential and functional ----------------------------------------------


def unbuilt_sequential() -> Any:
    return compiled(
        keras.Sequential(
            [layers.Dense(13, activation="relu"), layers.Dense(5, activation="softmax")]
        ),
        metrics=["accuracy"],
    )


def functional() -> Any:
    inputs = keras.Input((8,))
    x = layers.Dense(13, activation="relu")(inputs)
    y = layers.Dense(13, activation="tanh")(x)
    x = layers.Add()([x, y]) * 0.5
    outputs = layers.Dense(5, activation="softmax")(ops.concatenate([x, y], axis=-1))
    return compiled(keras.Model(inputs, outputs), metrics=["accuracy"])


def class_of_functional() -> Any:
    """A subclass that hands its graph to the functional constructor."""

    class Net(keras.Model):
        def __init__(self, units: int) -> None:
            inputs = keras.Input((8,))
            hidden = layers.Dense(units, activation="relu")(inputs)
            super().__init__(inputs, layers.Dense(5, activation="softmax")(hidden))

    return compiled(Net(13), metrics=["accuracy"])


def nested_outer() -> Any:
    inner = keras.Sequential(
        [keras.Input((13,)), layers.Dense(14, activation="relu"), layers.Dense(7)],
        name="inner",
    )
    inputs = keras.Input((8,))
    x = layers.Dense(13, activation="tanh")(inputs)
    x = inner(x)
    outputs = layers.Dense(5, activation="softmax")(x)
    return compiled(keras.Model(inputs, outputs), metrics=["accuracy"])


def shared_layers() -> Any:
    inputs = keras.Input((8,))
    shared = layers.Dense(8, activation="tanh", name="shared")
    x = shared(shared(shared(inputs)))
    return compiled(keras.Model(inputs, layers.Dense(5, activation="softmax")(x)))


def frozen_layers() -> Any:
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(13, activation="relu", trainable=False),
            layers.BatchNormalization(trainable=False),
            layers.Dense(5, activation="softmax"),
        ]
    )
    return compiled(model)


def recurrent() -> Any:
    return compiled(
        keras.Sequential(
            [
                keras.Input((7, 6)),
                layers.Masking(),
                layers.LSTM(10),
                layers.Dense(5, activation="softmax"),
            ]
        )
    )


SINGLE = {
    "sequential": (dense_model, X8),
    "unbuilt_sequential": (unbuilt_sequential, X8),
    "functional": (functional, X8),
    "class_of_functional": (class_of_functional, X8),
    "nested_outer": (nested_outer, X8),
    "shared_layers": (shared_layers, X8),
    "frozen_layers": (frozen_layers, X8),
    "recurrent_with_mask": (recurrent, np.where(SERIES > -0.2, SERIES, 0)),
}


@pytest.mark.parametrize("name", SINGLE)
def test_sequential_and_functional_models(name: str, devices: int) -> None:
    build, x = SINGLE[name]
    check(build, trained(x, LABELS), devices=devices, rows=DIVIDED, all_steps=True)


def test_an_inner_model_wrapped_alone(devices: int) -> None:
    """The outer model stays plain; the inner one is divided by itself."""
    kinds = []

    def use(model: Any) -> Any:
        inner = model.get_layer("inner")
        inner.compile("sgd", "mse")
        hidden = np.tile(X8, (1, 2))[:, :13]
        first = model.fit(X8, LABELS, batch_size=BATCH, shuffle=False, verbose=0)
        kinds.append(type(model))
        return (
            first,
            inner.fit(hidden, X8[:, :7], batch_size=BATCH, shuffle=False, verbose=0),
            inner.predict(hidden, batch_size=BATCH, verbose=0),
            model.evaluate(X8, LABELS, batch_size=BATCH, verbose=0),
            model.fit(X8, LABELS, batch_size=BATCH, shuffle=False, verbose=0),
        )

    def wrap_inner(model: Any, count: int) -> Any:
        ku.DataParallel(model.get_layer("inner"), count)
        return model

    check(
        nested_outer,
        use,
        devices=devices,
        rows=DIVIDED,
        all_steps=True,
        wrap=wrap_inner,
    )
    assert kinds[0] is kinds[1]


def test_inner_and_outer_models_both_wrapped(devices: int) -> None:
    def use(model: Any) -> Any:
        inner = model.get_layer("inner")
        hidden = np.tile(X8, (1, 2))[:, :13]
        return (
            trained(X8, LABELS)(model),
            inner.predict(hidden, batch_size=BATCH, verbose=0),
            trained(X8, LABELS)(model),
        )

    def wrap_both(model: Any, count: int) -> Any:
        ku.DataParallel(model.get_layer("inner"), count)
        return ku.DataParallel(model, count)

    check(
        nested_outer, use, devices=devices, rows=DIVIDED, all_steps=True, wrap=wrap_both
    )


# --- several inputs and outputs ---------------------------------------------


def two_heads(**settings: Any) -> Any:
    first, second = keras.Input((8,), name="first"), keras.Input((6,), name="second")
    x = layers.Concatenate()([layers.Dense(9)(first), layers.Dense(10)(second)])
    x = layers.Dense(13, activation="tanh")(x)
    label = layers.Dense(5, activation="softmax", name="label")(x)
    value = layers.Dense(3, name="value")(x)
    model = keras.Model([first, second], [label, value])
    return compiled(model, **settings)


def two_heads_by_list() -> Any:
    return two_heads(
        loss=["sparse_categorical_crossentropy", "mse"],
        loss_weights=[0.7, 1.3],
        metrics=[["accuracy"], ["mae"]],
    )


def two_heads_by_name() -> Any:
    first, second = keras.Input((8,), name="first"), keras.Input((6,), name="second")
    x = layers.Concatenate()([layers.Dense(9)(first), layers.Dense(10)(second)])
    outputs = {
        "label": layers.Dense(5, activation="softmax", name="label")(x),
        "value": layers.Dense(3, name="value")(x),
    }
    return compiled(
        keras.Model({"first": first, "second": second}, outputs),
        loss={"label": "sparse_categorical_crossentropy", "value": "mse"},
        loss_weights={"label": 0.7, "value": 1.3},
        metrics={"label": ["accuracy"], "value": ["mae", "mse"]},
        weighted_metrics={"value": ["mae"]},
    )


def one_loss_of_two_outputs() -> Any:
    return two_heads(loss=["sparse_categorical_crossentropy", None])


def siamese() -> Any:
    encoder = keras.Sequential(
        [keras.Input((8,)), layers.Dense(13, activation="tanh"), layers.Dense(7)],
        name="encoder",
    )
    left, right = keras.Input((8,)), keras.Input((8,))
    distance = layers.Lambda(lambda pair: ops.abs(pair[0] - pair[1]))(
        [encoder(left), encoder(right)]
    )
    return compiled(
        keras.Model([left, right], layers.Dense(1, activation="sigmoid")(distance)),
        loss="binary_crossentropy",
        metrics=["accuracy"],
    )


def batch_and_one_example() -> Any:
    """Rows of the second input follow the first, of other rank."""
    rows, series = keras.Input((8,)), keras.Input((7, 6))
    x = layers.Dense(13)(rows)
    y = layers.GlobalAveragePooling1D()(layers.Conv1D(13, 3)(series))
    return compiled(keras.Model([rows, series], layers.Dense(3)(x * y)), loss="mse")


SEVERAL = {
    "lists": (two_heads_by_list, [X8, X6], [LABELS, TARGET]),
    "dicts": (
        two_heads_by_name,
        {"first": X8, "second": X6},
        {"label": LABELS, "value": TARGET},
    ),
    "lists_by_names_of_inputs": (
        two_heads_by_list,
        {"second": X6, "first": X8},
        [LABELS, TARGET],
    ),
    "an_output_without_loss": (one_loss_of_two_outputs, [X8, X6], [LABELS, TARGET]),
    "siamese": (siamese, [X8, X8[::-1].copy()], LABELS % 2),
    "inputs_of_different_rank": (batch_and_one_example, [X8, SERIES], TARGET),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_inputs_and_outputs(name: str, devices: int) -> None:
    build, x, y = SEVERAL[name]
    check(build, trained(x, y), devices=devices, rows=DIVIDED, all_steps=True)


# --- subclassed models ------------------------------------------------------


class Plain(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(13, activation="tanh")
        self.out = layers.Dense(5, activation="softmax")

    def call(self, x):
        return self.out(self.hidden(x))


class WithTraining(keras.Model):
    """Uses `training`, and layers that draw and that keep state."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(13, activation="tanh")
        self.norm = layers.BatchNormalization(momentum=0.7)
        self.drop = layers.Dropout(0.3, seed=5)
        self.out = layers.Dense(5, activation="softmax")

    def call(self, x, training=False):
        x = self.norm(self.hidden(x), training=training)
        if training:
            x = self.drop(x, training=True) * 0.9
        return self.out(x)


class OfDicts(keras.Model):
    """Takes a dict and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = layers.Dense(13), layers.Dense(13)
        self.label = layers.Dense(5, activation="softmax")
        self.value = layers.Dense(3)

    def call(self, inputs):
        x = ops.tanh(self.left(inputs["first"]) + self.right(inputs["second"]))
        return {"label": self.label(x), "value": self.value(x)}


class OfTuples(keras.Model):
    """Layers in a list, inputs in a tuple, and weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = [layers.Dense(13, activation="tanh") for _ in range(2)]
        self.out = layers.Dense(5, activation="softmax")

    def build(self, shapes):
        self.scale = self.add_weight(shape=(13,), initializer="ones", name="scale")
        for tower, shape in zip(self.towers, shapes, strict=True):
            tower.build(shape)
        self.out.build((None, 13))
        self.built = True

    def call(self, inputs):
        first, second = inputs
        x = self.towers[0](first) * self.scale + self.towers[1](second)
        return self.out(x)


class Unused(keras.Model):
    """A layer that takes no part in the result."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(13, activation="tanh")
        self.spare = layers.Dense(9)
        self.out = layers.Dense(5, activation="softmax")

    def build(self, shape):
        self.hidden.build(shape)
        self.spare.build(shape)
        self.out.build((None, 13))
        self.built = True

    def call(self, x):
        return self.out(self.hidden(x))


def built_by_call() -> Any:
    model = Plain()
    model(X8[:1])
    return compiled(model, metrics=["accuracy"])


def built_by_shape() -> Any:
    model = WithTraining()
    model.build((None, 8))
    return compiled(model, metrics=["accuracy"])


def of_dicts() -> Any:
    return compiled(
        OfDicts(),
        loss={"label": "sparse_categorical_crossentropy", "value": "mse"},
        metrics={"label": ["accuracy"], "value": ["mae"]},
    )


SUBCLASSED = {
    "unbuilt": (lambda: compiled(Plain(), metrics=["accuracy"]), X8, LABELS),
    "built_by_call": (built_by_call, X8, LABELS),
    "built_by_shape": (built_by_shape, X8, LABELS),
    "training_argument": (lambda: compiled(WithTraining()), X8, LABELS),
    "dicts": (
        of_dicts,
        {"first": X8, "second": X6},
        {"label": LABELS, "value": TARGET},
    ),
    "tuples": (lambda: compiled(OfTuples()), (X8, X6), LABELS),
    "unused_weights": (lambda: compiled(Unused()), X8, LABELS),
}


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("name", SUBCLASSED)
def test_subclassed_models(name: str, devices: int) -> None:
    build, x, y = SUBCLASSED[name]
    check(build, trained(x, y), devices=devices, rows=DIVIDED, all_steps=True)


@pytest.mark.parametrize("first", ["predict", "evaluate", "train_on_batch"])
def test_unbuilt_models_are_built_by_any_method(first: str, devices: int) -> None:
    def use(model: Any) -> Any:
        if first == "predict":
            begun = model.predict(X8, batch_size=BATCH, verbose=0)
        elif first == "evaluate":
            begun = model.evaluate(X8, LABELS, batch_size=BATCH, verbose=0)
        else:
            begun = model.train_on_batch(X8[:BATCH], LABELS[:BATCH])
        fitted = model.fit(X8, LABELS, batch_size=BATCH, shuffle=False, verbose=0)
        return begun, fitted

    check(lambda: compiled(Plain()), use, devices=devices, rows=DIVIDED, all_steps=True)


def test_a_model_that_was_never_compiled_predicts(devices: int) -> None:
    def build() -> Any:
        return keras.Sequential([keras.Input((8,)), layers.Dense(13), layers.Dense(5)])

    def use(model: Any) -> Any:
        return (
            model.predict(X8, batch_size=BATCH, verbose=0),
            model.predict_on_batch(X8[:34]),
        )

    check(build, use, devices=devices, rows=DIVIDED, all_steps=True)


# --- weights from elsewhere -------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_weights_loaded_before_or_after_wrapping(when, tmp_path, devices) -> None:
    path = tmp_path / "trained.weights.h5"
    keras.utils.set_random_seed(99)
    source = dense_model()
    source.fit(*data(40), epochs=1, verbose=0)
    source.save_weights(path)

    def build() -> Any:
        model = dense_model()
        if when == "before":
            model.load_weights(path)
        return model

    def use(model: Any) -> Any:
        if when == "after":
            model.load_weights(path)
        assert np.array_equal(model.get_weights()[0], source.get_weights()[0])
        return trained(X8, LABELS)(model)

    check(build, use, devices=devices, rows=DIVIDED, all_steps=True)


def test_weights_set_between_fits(devices: int) -> None:
    def use(model: Any) -> Any:
        begin = model.get_weights()
        first = trained(X8, LABELS)(model)
        model.set_weights(begin)
        reset = model.predict(X8, batch_size=BATCH, verbose=0)
        model.layers[0].kernel.assign(model.layers[0].kernel * 0.5)
        return first, reset, trained(X8, LABELS)(model)

    check(dense_model, use, devices=devices, rows=DIVIDED, all_steps=True)
