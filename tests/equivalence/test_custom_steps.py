"""Steps that the user writes give what they give on one device.

In a step everything outside a layer call sees the whole batch; the layer calls
are divided. Here is what is written alike for all backends.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import keras
import pytest
from keras import layers, ops

import keras_unison as ku
from tests.equivalence.harness import ON_TENSORFLOW, check
from tests.equivalence.own_steps import (
    BATCH,
    DIVIDED,
    TARGET,
    Distiller,
    X,
    Y,
    check_own,
    trained,
)

# --- compute_loss and compute_metrics ----------------------------------------


class PairsLoss(keras.Model):
    """A loss of all pairs of rows."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        same = ops.cast(y[:, None] == y[None, :], "float32")
        apart = ops.sum(ops.square(y_pred[:, None] - y_pred[None, :]), axis=-1)
        return ops.mean(same * apart + (1 - same) * ops.relu(1.0 - apart))


class OwnMetrics(keras.Model):
    """compute_metrics returns more than Keras's metrics."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spread = keras.metrics.Mean(name="spread")

    @property
    def metrics(self):
        return [*super().metrics, self.spread]

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.spread.update_state(ops.std(y_pred, axis=0))
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        logs["spread"] = self.spread.result()
        return logs


OVERRIDES: dict[str, type] = {
    "compute_loss_of_all_pairs": PairsLoss,
    "compute_metrics": OwnMetrics,
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_overridden_methods(name: str, devices: int) -> None:
    check_own(OVERRIDES[name], devices)


# --- add_loss, metrics ------------------------------------------------------


class Penalty(layers.Layer):
    """Adds a loss of its inputs."""

    def __init__(self, measure: Callable[[Any], Any]) -> None:
        super().__init__()
        self.measure = measure

    def call(self, x):
        self.add_loss(0.01 * self.measure(x))
        return x


PENALTIES: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: ops.mean(ops.abs(x)),
    "sum": lambda x: ops.sum(ops.square(x)),
    "of_all_rows": lambda x: ops.sum(ops.var(x, axis=0)),
    "largest": lambda x: ops.max(x),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_losses_added_by_layers(name: str, devices: int) -> None:
    def build() -> Any:
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(13, activation="tanh", activity_regularizer="l2"),
                Penalty(PENALTIES[name]),
                layers.Dense(5, activation="softmax", kernel_regularizer="l1"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        return model

    check(build, trained(X, Y), devices=devices, rows=DIVIDED, all_steps=True)


class Autoencoder(keras.Model):
    """Adds its losses in its call, and may count rows; compiled without a loss."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.counts = counts
        self.inner, self.outer = layers.Dense(13, activation="tanh"), layers.Dense(8)
        self.seen = self.add_weight(shape=(), trainable=False, name="seen")
        self.noise = keras.random.SeedGenerator(4)

    def call(self, x, training=False):
        hidden = self.inner(x)
        if training and self.counts:
            self.seen.assign_add(ops.cast(ops.shape(x)[0], "float32"))
        if training:
            hidden = hidden + 0.1 * keras.random.normal(
                ops.shape(hidden), seed=self.noise
            )
        back = self.outer(hidden)
        self.add_loss(ops.mean(ops.square(back - x)))
        self.add_loss(0.001 * ops.sum(ops.abs(hidden)))
        return back


@pytest.mark.parametrize("counts", [False, True])
def test_losses_added_by_the_model(counts: bool, devices: int) -> None:
    def build() -> Any:
        model = Autoencoder(counts)
        model.compile(keras.optimizers.SGD(0.1))
        return model

    # On TensorFlow a model that itself keeps state of all rows is not divided, which
    # it says. Evaluation is, where it does not count.
    whole = counts and ON_TENSORFLOW
    says_so = pytest.warns(ku.UnisonWarning, match="is not divided")
    with says_so if whole else nullcontext():
        seen = check(build, trained(X), devices=devices, rows=DIVIDED, all_steps=True)
    divided = {p.name for p in seen.programs if p.partitions == devices}
    assert divided == {"jit_test_step"} | (set() if whole else {"jit_train_step"})


class Largest(keras.metrics.Metric):
    """The largest prediction, and how many rows there were."""

    def __init__(self, name: str = "largest") -> None:
        super().__init__(name=name)
        self.top = self.add_weight(name="top", shape=(), initializer="zeros")
        self.rows = self.add_weight(name="rows", shape=(), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.top.assign(ops.maximum(self.top.value, ops.max(y_pred)))
        self.rows.assign(self.rows + ops.cast(ops.shape(y_pred)[0], "float32"))

    def result(self):
        return {"top": self.top.value, "rows": self.rows.value}


def of_mean(y_true, y_pred):
    return ops.mean(ops.square(y_pred - ops.mean(y_pred, axis=0)), axis=-1)


def test_metrics_and_losses_of_the_user(devices: int) -> None:
    def build() -> Any:
        inputs = keras.Input((8,))
        x = layers.Dense(13, activation="tanh")(inputs)
        model = keras.Model(inputs, layers.Dense(3)(x))
        model.compile(
            keras.optimizers.SGD(0.1),
            lambda y, p: ops.sum(ops.abs(y - p), axis=-1),
            metrics=[Largest(), of_mean, "mae"],
        )
        return model

    check(build, trained(X, TARGET), devices=devices, rows=DIVIDED, all_steps=True)


# --- several networks ---------------------------------------------------------


class Contrastive(keras.Model):
    """Two encoders; each row must find its partner among the whole batch."""

    def __init__(self, by_product: bool) -> None:
        super().__init__()
        self.left = keras.Sequential([keras.Input((8,)), layers.Dense(13)])
        self.right = keras.Sequential(
            [keras.Input((6,)), layers.Dense(14, activation="tanh"), layers.Dense(13)]
        )
        self.by_product = by_product
        self.built = True

    def call(self, inputs, training=False):
        left, right = inputs
        return ops.normalize(self.left(left)), ops.normalize(self.right(right))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        left, right = y_pred
        if self.by_product:
            likeness = ops.matmul(left, ops.transpose(right)) / 0.3
        else:
            likeness = ops.sum(left[:, None] * right[None], axis=-1) / 0.3
        own = ops.arange(ops.shape(likeness)[0])
        losses = keras.losses.sparse_categorical_crossentropy(
            own, likeness, from_logits=True
        )
        return ops.mean(losses)


@pytest.mark.parametrize("by_product", [False, True])
def test_losses_among_the_rows_of_a_batch(by_product: bool, devices: int) -> None:
    def build() -> Any:
        model = Contrastive(by_product)
        model.compile(keras.optimizers.SGD(0.1))
        return model

    def use(model: Any) -> Any:
        return model.fit(
            (X, X[:, ::-1][:, :6].copy()),
            batch_size=BATCH,
            epochs=2,
            shuffle=False,
            verbose=0,
        )

    check(build, use, devices=devices, rows=DIVIDED, coupled=by_product)


def test_a_second_network_in_the_loss(devices: int) -> None:
    def build() -> Any:
        model = Distiller()
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        return model

    check(build, trained(X, Y), devices=devices, rows=DIVIDED, all_steps=True)
