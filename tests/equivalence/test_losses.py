"""Losses, their reductions, weights, masks and penalties are those of the batch."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from tests.equivalence.harness import check, data, dense_model

# 35 rows divide evenly over neither two nor three devices.
ROWS, BATCH = 70, 35
TIME = 7

REDUCTIONS = ["sum", "mean", "sum_over_batch_size", "mean_with_sample_weight"]


def generator() -> np.random.Generator:
    return np.random.default_rng(5)


def row_weights() -> np.ndarray:
    """Weights of rows; those of the first device of a batch are all zero."""
    weights = generator().uniform(0.2, 2.0, ROWS).astype("float32")
    weights[:18] = 0.0
    weights[50] = 0.0
    return weights


def fit(model: Any, y: Any = None, **arguments: Any) -> Any:
    """Two steps without shuffling, so that zero weights lie on one device."""
    x, labels = data(ROWS)
    settings = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
    return model.fit(x, labels if y is None else y, **settings, **arguments)


# --- reductions and weights ---------------------------------------------------

WEIGHTS = {
    "no_weights": dict,
    "sample_weight": lambda: {"sample_weight": row_weights()},
    "class_weight": lambda: {"class_weight": {0: 2.0, 1: 0.0, 2: 1.0, 3: 0.5, 4: 3.0}},
}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_every_reduction_with_weights(
    reduction: str, weights: str, devices: int
) -> None:
    def build():
        return dense_model(
            loss=keras.losses.SparseCategoricalCrossentropy(reduction=reduction),
            optimizer=keras.optimizers.SGD(0.01),
        )

    check(
        build,
        lambda model: fit(model, **WEIGHTS[weights]()),
        devices=devices,
        rows=[BATCH],
    )


def test_a_loss_without_reduction_is_evaluated(devices: int) -> None:
    x, y = data(ROWS)

    def build():
        return dense_model(
            loss=keras.losses.SparseCategoricalCrossentropy(reduction="none")
        )

    def use(model):
        weighted = model.evaluate(
            x, y, batch_size=BATCH, sample_weight=row_weights(), verbose=0
        )
        return weighted, model.evaluate(x, y, batch_size=BATCH, verbose=0)

    check(build, use, devices=devices, rows=[BATCH])


def test_weights_of_validation_data(devices: int) -> None:
    x, y = data(ROWS)

    def use(model):
        return fit(
            model,
            sample_weight=row_weights(),
            validation_data=(x[:44], y[:44], row_weights()[26:]),
            validation_batch_size=44,
        )

    check(dense_model, use, devices=devices, rows=[BATCH, 44])


# --- each position of a sequence has a weight or a mask -----------------------


def sequence_model(reduction: str, masked: bool) -> Any:
    model = keras.Sequential(
        [
            keras.Input((TIME,), dtype="int32"),
            keras.layers.Embedding(17, 6, mask_zero=masked),
            keras.layers.Dense(11, activation="tanh"),
            keras.layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.01),
        keras.losses.SparseCategoricalCrossentropy(reduction=reduction),
        metrics=["accuracy"],
        weighted_metrics=["accuracy"],
    )
    return model


def sequences() -> tuple[Any, Any, Any]:
    """Words, most of them padding in the first rows; labels; weights."""
    words = generator().integers(1, 17, (ROWS, TIME))
    lengths = generator().integers(1, TIME + 1, ROWS)
    lengths[:18] = 1
    words[np.arange(TIME) >= lengths[:, None]] = 0
    labels = generator().integers(0, 4, (ROWS, TIME))
    weights = generator().uniform(0.0, 2.0, (ROWS, TIME)).astype("float32")
    weights[weights < 0.3] = 0.0
    return words, labels, weights


@pytest.mark.parametrize(
    ("masked", "weighted"),
    [(True, False), (True, True), (False, True)],
    ids=["mask", "mask_and_weights", "weights"],
)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_masks_and_temporal_weights(
    reduction: str, masked: bool, weighted: bool, devices: int
) -> None:
    x, y, weights = sequences()

    def use(model):
        return model.fit(
            x,
            y,
            sample_weight=weights if weighted else None,
            batch_size=BATCH,
            shuffle=False,
            verbose=0,
        )

    check(
        lambda: sequence_model(reduction, masked),
        use,
        devices=devices,
        rows=[BATCH],
        per_row=TIME,
    )


def test_ctc(devices: int) -> None:
    labels = generator().integers(1, 5, (ROWS, 3))
    labels[::4, 2] = 0
    x = generator().normal(size=(ROWS, TIME, 3)).astype("float32")

    def build():
        model = keras.Sequential([keras.Input((TIME, 3)), keras.layers.Dense(5)])
        model.compile(keras.optimizers.SGD(0.01), keras.losses.CTC())
        return model

    def use(model):
        return model.fit(x, labels, batch_size=BATCH, verbose=0)

    check(build, use, devices=devices, rows=[BATCH], per_row=TIME)


# --- losses of Keras, and of a user -------------------------------------------


def contrastive(y_true: Any, y_pred: Any) -> Any:
    """Each row against all rows of the batch."""
    logits = ops.matmul(y_pred, ops.transpose(y_true)) * 3.0
    rows = ops.arange(ops.shape(y_pred)[0])
    return keras.losses.sparse_categorical_crossentropy(rows, logits, from_logits=True)


def pairwise_distance(y_true: Any, y_pred: Any) -> Any:
    """Distances of all pairs of rows, where these are ordered by the targets."""
    apart = ops.sum((y_pred[:, None] - y_pred[None]) ** 2, axis=-1)
    ordered = ops.cast(y_true[:, None, 0] > y_true[None, :, 0], "float32")
    return ops.mean(apart * ordered)


class Correlation(keras.losses.Loss):
    """One minus the correlation over the batch, for each output."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        a = y_true - ops.mean(y_true, axis=0)
        b = y_pred - ops.mean(y_pred, axis=0)
        return 1.0 - ops.sum(a * b, axis=0) / ops.sqrt(
            ops.sum(a**2, axis=0) * ops.sum(b**2, axis=0)
        )


class Weighted(keras.losses.Loss):
    """Squared errors, those of larger targets more."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean((1.0 + ops.abs(y_true)) * (y_true - y_pred) ** 2, axis=-1)


LOSSES = {
    "mse": "mse",
    "mae": "mae",
    "msle": "msle",
    "log_cosh": "log_cosh",
    "poisson": "poisson",
    "hinge": "hinge",
    "categorical_hinge": "categorical_hinge",
    "kl_divergence": "kl_divergence",
    "huber": keras.losses.Huber(0.3),
    "cosine_similarity": keras.losses.CosineSimilarity(),
    "cosine_similarity_over_rows": keras.losses.CosineSimilarity(axis=0),
    "binary_crossentropy": keras.losses.BinaryCrossentropy(label_smoothing=0.1),
    "binary_focal": keras.losses.BinaryFocalCrossentropy(apply_class_balancing=True),
    "categorical_focal": keras.losses.CategoricalFocalCrossentropy(),
    "dice": keras.losses.Dice(),
    "tversky": keras.losses.Tversky(0.3, 0.7),
    "function": lambda y, p: ops.mean((y - p) ** 4, axis=-1),
    "class": Weighted(),
    "correlation": Correlation(),
    "pairwise_distance": pairwise_distance,
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_vectors(name: str, devices: int) -> None:
    y = generator().uniform(0.1, 0.9, (ROWS, 5)).astype("float32")
    y /= y.sum(axis=1, keepdims=True)

    def build():
        return dense_model(loss=LOSSES[name], metrics=[])

    check(build, lambda model: fit(model, y), devices=devices, rows=[BATCH])


def test_a_contrastive_loss_over_the_batch(devices: int) -> None:
    y = generator().normal(size=(ROWS, 5)).astype("float32")

    def build():
        return dense_model(loss=contrastive, metrics=[])

    check(
        build, lambda model: fit(model, y), devices=devices, rows=[BATCH], coupled=True
    )


def test_the_circle_loss_of_labels(devices: int) -> None:
    def build():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(13, activation="tanh"),
                keras.layers.Dense(6),
                keras.layers.UnitNormalization(),
            ]
        )
        model.compile(keras.optimizers.SGD(0.01), keras.losses.Circle())
        return model

    # Circle compares all pairs of rows.
    check(build, fit, devices=devices, rows=[BATCH], coupled=True)


# --- several outputs ----------------------------------------------------------


def two_outputs() -> Any:
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(13, activation="tanh")(inputs)
    model = keras.Model(
        inputs,
        {
            "kind": keras.layers.Dense(5, activation="softmax", name="kind")(hidden),
            "size": keras.layers.Dense(3, name="size")(hidden),
        },
    )
    model.compile(
        keras.optimizers.SGD(0.05),
        loss={"kind": "sparse_categorical_crossentropy", "size": "mse"},
        loss_weights={"kind": 0.3, "size": 2.0},
        metrics={"kind": ["accuracy"], "size": ["mae"]},
    )
    return model


@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "unweighted"])
def test_losses_of_several_outputs(weighted: bool, devices: int) -> None:
    _, labels = data(ROWS)
    y = {
        "kind": labels,
        "size": generator().normal(size=(ROWS, 3)).astype("float32"),
    }
    weights = {"kind": row_weights(), "size": row_weights()[::-1].copy()}

    def use(model):
        return fit(model, y, sample_weight=weights if weighted else None)

    check(two_outputs, use, devices=devices, rows=[BATCH])


# --- penalties ----------------------------------------------------------------


class Spread(keras.regularizers.Regularizer):
    """A penalty of the whole batch that is no sum over rows."""

    def __call__(self, x: Any) -> Any:
        return (ops.mean(ops.abs(x)) - 0.2) ** 2 + ops.max(ops.std(x, axis=0))


class Penalty(keras.layers.Layer):
    """Adds a loss of what passes through."""

    def __init__(self, reduce: Any) -> None:
        super().__init__()
        self.reduce = reduce

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * self.reduce(x**2))
        return x


PENALTIES: dict[str, Any] = {
    "l1": lambda: {"kernel_regularizer": keras.regularizers.L1(0.1)},
    "l2": lambda: {"bias_regularizer": "l2", "kernel_regularizer": "l2"},
    "l1_l2": lambda: {"kernel_regularizer": keras.regularizers.L1L2(0.1, 0.2)},
    "orthogonal_rows": lambda: {
        "kernel_regularizer": keras.regularizers.OrthogonalRegularizer(0.1, "rows")
    },
    "orthogonal_columns": lambda: {
        "kernel_regularizer": keras.regularizers.OrthogonalRegularizer(0.1, "columns")
    },
    "activity_l2": lambda: {"activity_regularizer": keras.regularizers.L2(0.1)},
    "activity_l1": lambda: {"activity_regularizer": keras.regularizers.L1(0.1)},
    "activity_of_the_batch": lambda: {"activity_regularizer": Spread()},
}


def penalised(*layers: Any) -> Any:
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(5)])
    model.compile(
        keras.optimizers.SGD(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


@pytest.mark.parametrize("name", PENALTIES)
def test_a_regularizer_adds_the_same(name: str, devices: int) -> None:
    def build():
        return penalised(keras.layers.Dense(13, activation="tanh", **PENALTIES[name]()))

    check(build, fit, devices=devices, rows=[BATCH])


@pytest.mark.parametrize("name", ["mean", "sum", "max"])
def test_add_loss_is_over_the_batch(name: str, devices: int) -> None:
    def build():
        return penalised(
            keras.layers.Dense(13, activation="tanh"), Penalty(getattr(ops, name))
        )

    check(build, fit, devices=devices, rows=[BATCH])


def test_an_activity_regularizer_of_even_batches(devices: int) -> None:
    x, y = data(48)

    def build():
        return penalised(
            keras.layers.Dense(13, activation="tanh", activity_regularizer=Spread())
        )

    def use(model):
        return model.fit(x, y, batch_size=48, epochs=2, verbose=0)

    check(build, use, devices=devices, rows=[48])
