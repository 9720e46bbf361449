"""Models whose steps are the user's own, for both backends, and their data."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.equivalence.harness import check, data

ROWS = 82
BATCH = 48
DIVIDED = [48, 34]
X, Y = data(ROWS)
TARGET = np.random.default_rng(6).normal(size=(ROWS, 3)).astype("float32")


def trained(x: Any, y: Any = None) -> Callable[[Any], Any]:
    def use(model: Any) -> Any:
        return model.fit(
            x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0
        ), model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)

    return use


def body() -> tuple[Any, Any]:
    """Inputs and outputs of a small network."""
    inputs = keras.Input((8,))
    hidden = layers.Dense(13, activation="tanh")(inputs)
    return inputs, layers.Dense(5, activation="softmax")(hidden)


def compiled(cls: type, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        model = cls(*body())
        arguments: dict[str, Any] = {
            "optimizer": keras.optimizers.SGD(0.1, momentum=0.9),
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        }
        model.compile(**{**arguments, **settings})
        return model

    return build


def check_own(cls: type, devices: int) -> None:
    """Requires that a model of this class trains and evaluates as on one device."""
    check(compiled(cls), trained(X, Y), devices=devices, rows=DIVIDED, all_steps=True)


def all_steps_of(model: Any) -> Any:
    """What steps of training, evaluation and prediction give."""
    return (
        trained(X, Y)(model),
        model.predict(X, batch_size=BATCH, verbose=0),
        model.train_on_batch(X[:34], Y[:34], sample_weight=np.linspace(0, 1, 34)),
    )


class Distiller(keras.Model):
    """A student that learns from a frozen teacher, which is called in the step."""

    def __init__(self) -> None:
        super().__init__()
        inputs, outputs = body()
        self.student = keras.Model(inputs, outputs)
        self.teacher = keras.Model(*body())
        self.teacher.trainable = False
        self.built = True

    def call(self, x, training=False):
        return self.student(x, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        soft = self.teacher(x, training=False)
        hard = super().compute_loss(x, y, y_pred, sample_weight)
        return hard + ops.mean(keras.losses.kl_divergence(soft, y_pred))


def distiller() -> Any:
    model = Distiller()
    model.compile(keras.optimizers.SGD(0.1))
    return model


Loop = Callable[[Any], Any]


def going_on(model: Any, loop: Loop, other_loop: Loop, path: Any) -> Any:
    """A loop by hand; a call, a fit and a file after it; and another loop."""
    first = loop(model)
    by_hand = model(X[:33])
    fitted = model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    model.save(path)
    again = keras.models.load_model(path)
    assert type(again) is keras.Sequential
    second = other_loop(model)
    return (
        first,
        by_hand,
        fitted,
        again.predict(X, verbose=0),
        second,
        model.evaluate(X, Y, batch_size=BATCH, verbose=0),
    )


def loop_model() -> Any:
    """With everything that a loop has to carry: state, seeds and slots."""
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(13, activation="tanh"),
            layers.BatchNormalization(momentum=0.8),
            layers.Dropout(0.2, seed=3),
            layers.Dense(5),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
