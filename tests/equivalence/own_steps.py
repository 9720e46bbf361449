"""Models whose steps are the user's own, for both backends, and their data."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.equivalence.harness import data

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
