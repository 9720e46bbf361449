"""Metrics see the whole batch, whatever their state is."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from tests.equivalence.harness import check, data, dense_model

# 35 and 29 rows divide evenly over neither two nor three devices.
ROWS, BATCH, REST = 99, 35, 29
VALIDATION = 44


class Largest(keras.metrics.Metric):
    """The largest output so far: a state that is no sum."""

    def __init__(self, name: str = "largest", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.largest = self.add_variable((), "zeros", name="largest")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.largest.assign(ops.maximum(self.largest.value, ops.max(y_pred)))

    def result(self) -> Any:
        return self.largest.value


class Spread(keras.metrics.Metric):
    """The distance of the smallest from the largest row, and the rows."""

    def __init__(self, name: str = "spread", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.total = self.add_variable((), "zeros", name="total")
        self.rows = self.add_variable((), "zeros", name="rows")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        sums = ops.sum(ops.abs(y_pred), axis=-1)
        self.total.assign_add(ops.max(sums) - ops.min(sums))
        self.rows.assign_add(ops.cast(ops.shape(y_pred)[0], "float32"))

    def result(self) -> dict[str, Any]:
        return {"spread": self.total.value, "rows_seen": self.rows.value}


def mean_entropy(y_true: Any, y_pred: Any) -> Any:
    """A function as a metric."""
    return -ops.sum(y_pred * ops.log(y_pred + 1e-6), axis=-1)


def classes() -> list[Any]:
    """Metrics of class labels."""
    return [
        "accuracy",
        "sparse_categorical_crossentropy",
        keras.metrics.SparseTopKCategoricalAccuracy(k=2, name="top_2"),
        mean_entropy,
        Largest(),
        Spread(),
    ]


def one_hot() -> list[Any]:
    """Metrics of one-hot labels."""
    return [
        "accuracy",
        keras.metrics.TopKCategoricalAccuracy(k=2, name="top_2"),
        keras.metrics.AUC(name="auc", num_thresholds=50),
        keras.metrics.AUC(
            name="auc_of_labels", num_thresholds=50, multi_label=True, curve="PR"
        ),
        keras.metrics.Precision(thresholds=0.25, name="precision"),
        keras.metrics.Precision(top_k=2, name="precision_of_2"),
        keras.metrics.Recall(thresholds=[0.1, 0.2], name="recall"),
        keras.metrics.Recall(class_id=1, thresholds=0.2, name="recall_of_1"),
        keras.metrics.SpecificityAtSensitivity(0.5, name="specificity"),
        keras.metrics.FalsePositives(thresholds=0.2, name="false_positives"),
        keras.metrics.F1Score(average="macro", name="f1"),
        keras.metrics.FBetaScore(beta=2.0, threshold=0.2, name="f_beta"),
        keras.metrics.OneHotMeanIoU(num_classes=5, name="iou"),
    ]


def numbers() -> list[Any]:
    """Metrics of numbers."""
    return [
        "mae",
        keras.metrics.RootMeanSquaredError(name="rmse"),
        keras.metrics.R2Score(name="r2", class_aggregation="variance_weighted_average"),
        keras.metrics.CosineSimilarity(name="cosine"),
        keras.metrics.LogCoshError(name="log_cosh"),
        keras.metrics.PearsonCorrelation(name="pearson"),
        keras.metrics.ConcordanceCorrelation(name="concordance"),
        Largest(),
    ]


def _class_data() -> tuple[Any, Any]:
    return data(ROWS)


def _one_hot_data() -> tuple[Any, Any]:
    x, y = data(ROWS)
    return x, np.eye(5, dtype="float32")[y]


def _number_data() -> tuple[Any, Any]:
    x, _ = data(ROWS)
    return x, (x[:, :5] ** 2 + 0.1).astype("float32")


Family = tuple[Callable[[], list[Any]], Callable[[], tuple[Any, Any]], str]

FAMILIES: dict[str, Family] = {
    "classes": (classes, _class_data, "sparse_categorical_crossentropy"),
    "one_hot": (one_hot, _one_hot_data, "categorical_crossentropy"),
    "numbers": (numbers, _number_data, "mse"),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_metrics_of_each_epoch_validation_and_evaluate(name: str, devices: int) -> None:
    metrics, make_data, loss = FAMILIES[name]
    x, y = make_data()

    def build():
        return dense_model(
            loss=loss, metrics=metrics(), optimizer=keras.optimizers.SGD(0.05)
        )

    def use(model):
        history = model.fit(
            x,
            y,
            batch_size=BATCH,
            epochs=2,
            validation_data=(x[:VALIDATION], y[:VALIDATION]),
            validation_batch_size=VALIDATION,
            verbose=0,
        )
        return (
            history,
            model.evaluate(x, y, batch_size=BATCH, verbose=0),
            model.evaluate(x, y, batch_size=BATCH, return_dict=True, verbose=0),
            model.get_metrics_result(),
        )

    check(build, use, devices=devices, rows=[BATCH, REST, VALIDATION])


@pytest.mark.parametrize("name", FAMILIES)
def test_weighted_metrics(name: str, devices: int) -> None:
    metrics, make_data, loss = FAMILIES[name]
    x, y = make_data()
    weights = np.random.default_rng(6).uniform(0.1, 2.0, ROWS).astype("float32")
    weights[:18] = 0.0

    def build():
        return dense_model(
            loss=loss,
            metrics=["mse"] if name == "numbers" else ["accuracy"],
            weighted_metrics=metrics(),
            optimizer=keras.optimizers.SGD(0.05),
        )

    def use(model):
        history = model.fit(
            x,
            y,
            sample_weight=weights,
            batch_size=BATCH,
            shuffle=False,
            verbose=0,
        )
        return history, model.evaluate(
            x, y, sample_weight=weights, batch_size=BATCH, verbose=0
        )

    check(build, use, devices=devices, rows=[BATCH, REST])


def test_metrics_of_pixels(devices: int) -> None:
    x = np.random.default_rng(7).normal(size=(ROWS, 6, 6, 2)).astype("float32")
    y = np.random.default_rng(8).integers(0, 3, (ROWS, 6, 6))

    def build():
        model = keras.Sequential(
            [
                keras.Input((6, 6, 2)),
                keras.layers.Conv2D(7, 3, padding="same", activation="relu"),
                keras.layers.Conv2D(3, 1, activation="softmax"),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.05),
            "sparse_categorical_crossentropy",
            metrics=[
                keras.metrics.MeanIoU(
                    num_classes=3, sparse_y_pred=False, name="mean_iou"
                ),
                keras.metrics.IoU(
                    num_classes=3,
                    target_class_ids=[0, 2],
                    sparse_y_pred=False,
                    name="iou",
                ),
                "accuracy",
            ],
        )
        return model

    def use(model):
        return (
            model.fit(x, y, batch_size=BATCH, verbose=0),
            model.evaluate(x, y, batch_size=BATCH, verbose=0),
        )

    check(build, use, devices=devices, rows=[BATCH, REST], per_row=36)


def test_metrics_of_single_batches_accumulate(devices: int) -> None:
    x, y = data(ROWS)

    def use(model):
        return [
            model.train_on_batch(x[:BATCH], y[:BATCH]),
            model.train_on_batch(x[BATCH : 2 * BATCH], y[BATCH : 2 * BATCH]),
            model.test_on_batch(x[:BATCH], y[:BATCH]),
            model.test_on_batch(x[:BATCH], y[:BATCH], return_dict=True),
        ]

    check(
        lambda: dense_model(metrics=["accuracy", Largest()]),
        use,
        devices=devices,
        rows=[BATCH],
    )
