"""Callbacks see the user's model and the numbers of one device."""

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import callbacks

import keras_unison as ku
from tests.equivalence.harness import check, data, dense_model

ROWS = 130
BATCH = 48
DIVIDED = [48, 34]  # The third batch of an epoch is the short one.
X, Y = data(ROWS)
HELD_OUT = data(70)


def fitted(model: Any, *used: Any, epochs: int = 2, **settings: Any) -> Any:
    arguments = {"batch_size": BATCH, "shuffle": False, "verbose": 0, **settings}
    return model.fit(X, Y, epochs=epochs, callbacks=list(used), **arguments)


def adam_model(**compiled: Any) -> Any:
    """A model whose optimizer has state to save."""
    return dense_model(optimizer=keras.optimizers.Adam(0.01), **compiled)


class Recorder(callbacks.Callback):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []
        self.models: list[Any] = []

    def _note(self, number: int, logs: Any) -> None:
        self.models.append(self.model)
        self.told.append([number, dict(logs or {})])

    def on_train_batch_begin(self, batch, logs=None):
        self._note(batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self._note(batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        self._note(batch, logs)

    def on_predict_batch_end(self, batch, logs=None):
        self._note(batch, logs)

    def on_epoch_begin(self, epoch, logs=None):
        self._note(epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self._note(epoch, logs)

    def on_test_end(self, logs=None):
        self._note(0, logs)

    def on_train_end(self, logs=None):
        self._note(0, logs)


def test_callbacks_see_the_same_logs_and_the_users_model(devices: int) -> None:
    def use(model: Any) -> Any:
        recorder = Recorder()
        fitted(model, recorder, validation_data=HELD_OUT)
        model.evaluate(X, Y, batch_size=BATCH, verbose=0, callbacks=[recorder])
        model.predict(X, batch_size=BATCH, verbose=0, callbacks=[recorder])
        assert recorder.models
        assert all(seen is model for seen in recorder.models)
        return recorder.told

    check(dense_model, use, devices=devices, rows=[48, 34, 22])


# --- callbacks that change the course of training ---------------------------


class Interrupted(Exception):
    """Stands for a crash of the machine."""


def stops_at(epoch: int, batch: int) -> Any:
    """A callback that stops the training in the middle of an epoch."""

    class Stop(callbacks.Callback):
        now = 0

        def on_epoch_begin(self, epoch, logs=None):
            self.now = epoch

        def on_train_batch_end(self, number, logs=None):
            if (self.now, number) == (epoch, batch):
                self.model.stop_training = True

    return Stop()


def lambda_callback(model: Any) -> Any:
    seen: list[Any] = []
    told = callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append([epoch, logs["loss"]]),
        on_train_batch_end=lambda batch, logs: seen.append([batch, logs["accuracy"]]),
        on_train_end=lambda logs: seen.append(model.get_weights()),
    )
    return fitted(model, told), seen


def early_stopping(model: Any) -> Any:
    stop = callbacks.EarlyStopping(
        monitor="val_loss",
        mode="max",  # The first epoch is the best one, so that weights go back.
        patience=1,
        restore_best_weights=True,
    )
    history = fitted(model, stop, epochs=5, validation_data=HELD_OUT)
    return history, stop.stopped_epoch, stop.best, fitted(model)


def swap_ema_weights(model: Any) -> Any:
    # No predict after it: in Keras weights and averages are then the same arrays,
    # which a step deletes.
    swap = callbacks.SwapEMAWeights(swap_on_epoch=True)
    return fitted(model, swap, epochs=3, validation_data=HELD_OUT)


def learning_rates(*used: Callable[[], Any]) -> Callable[[Any], Any]:
    def use(model: Any) -> Any:
        history = fitted(
            model, *[make() for make in used], epochs=4, validation_data=HELD_OUT
        )
        return history, model.optimizer.learning_rate

    return use


def stop_training_in_mid_epoch(model: Any) -> Any:
    history = fitted(model, stops_at(1, 1), epochs=4)
    return history, len(history.epoch), model.optimizer.iterations, fitted(model)


CHANGING: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "lambda_callback": (dense_model, lambda_callback),
    "early_stopping": (dense_model, early_stopping),
    "swap_ema_weights": (
        lambda: dense_model(
            optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.7)
        ),
        swap_ema_weights,
    ),
    "reduce_lr_on_plateau": (
        dense_model,
        learning_rates(
            lambda: callbacks.ReduceLROnPlateau(
                monitor="val_loss", factor=0.3, patience=1, min_delta=1.0, min_lr=1e-4
            )
        ),
    ),
    "learning_rate_scheduler": (
        dense_model,
        learning_rates(
            lambda: callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.5)
        ),
    ),
    "stop_training_in_mid_epoch": (dense_model, stop_training_in_mid_epoch),
}


@pytest.mark.parametrize("name", CHANGING)
def test_callbacks_that_steer_training(name: str, devices: int) -> None:
    build, use = CHANGING[name]
    check(build, use, devices=devices, rows=DIVIDED)


def test_training_stops_at_a_loss_that_is_no_number(devices: int) -> None:
    def use(model: Any) -> Any:
        begin = model.get_weights()
        x = X.copy()
        x[60] = np.nan
        recorder = Recorder()
        model.fit(
            x,
            Y,
            batch_size=BATCH,
            shuffle=False,
            epochs=3,
            verbose=0,
            callbacks=[recorder, callbacks.TerminateOnNaN()],
        )
        assert model.optimizer.iterations == 2
        model.set_weights(begin)
        model.reset_metrics()
        numbers = [number for number, _ in recorder.told]
        return numbers, fitted(model)

    check(dense_model, use, devices=devices, rows=[48])


# --- callbacks that use the model -------------------------------------------


class UsesModel(callbacks.Callback):
    """Does something with the model in the middle of its training."""

    def __init__(self, do: Callable[[Any], Any], when: str) -> None:
        super().__init__()
        self.do, self.when, self.seen = do, when, []

    def _maybe(self, when: str) -> None:
        if when == self.when:
            self.seen.append(self.do(self.model))

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self._maybe("batch")

    def on_epoch_end(self, epoch, logs=None):
        self._maybe("epoch")


def halve(model: Any) -> Any:
    model.set_weights([weight * 0.5 for weight in model.get_weights()])
    return model.get_weights()


def fit_another(model: Any) -> Any:
    """Trains a second model of the same kind inside the fit of the first."""
    keras.utils.set_random_seed(4)
    other = dense_model()
    return other.fit(X[:34], Y[:34], batch_size=34, verbose=0)


USES: dict[str, Callable[[Any], Any]] = {
    "predict": lambda model: model.predict(X, batch_size=BATCH, verbose=0),
    "evaluate": lambda model: model.evaluate(*HELD_OUT, batch_size=BATCH, verbose=0),
    "predict_on_batch": lambda model: model.predict_on_batch(X[:33]),
    "get_weights": lambda model: model.get_weights(),
    "set_weights": halve,
    "call": lambda model: model(X[:33]),
    "fit_another": fit_another,
}


@pytest.mark.parametrize("when", ["epoch", "batch"])
@pytest.mark.parametrize("name", USES)
def test_a_callback_that_uses_the_model(name: str, when: str, devices: int) -> None:
    def use(model: Any) -> Any:
        used = UsesModel(USES[name], when)
        return fitted(model, used), used.seen, fitted(model)

    check(dense_model, use, devices=devices, rows=DIVIDED)


# --- callbacks that write ---------------------------------------------------


def checkpoint(directory: Path, **settings: Any) -> Any:
    suffix = ".weights.h5" if settings.get("save_weights_only") else ".keras"
    name = settings.pop("name", "{epoch:02d}")
    return callbacks.ModelCheckpoint(str(directory / f"{name}{suffix}"), **settings)


CHECKPOINTS: dict[str, dict[str, Any]] = {
    "full_each_epoch": {},
    "weights_each_epoch": {"save_weights_only": True},
    "full_each_two_batches": {"save_freq": 2, "name": "{epoch:02d}-{batch:02d}"},
    "weights_each_two_batches": {
        "save_freq": 2,
        "name": "{epoch:02d}-{batch:02d}",
        "save_weights_only": True,
    },
    "best_only": {"save_best_only": True, "monitor": "val_loss"},
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_are_plain_files_of_the_same_values(
    name: str, tmp_path: Path, devices: int
) -> None:
    runs = iter(["plain", "parallel"])

    def use(model: Any) -> Any:
        directory = tmp_path / next(runs)
        directory.mkdir()
        history = fitted(
            model,
            checkpoint(directory, **CHECKPOINTS[name]),
            epochs=3,
            validation_data=HELD_OUT,
        )
        return history, {p.name: loaded(p) for p in sorted(directory.iterdir())}

    def loaded(path: Path) -> Any:
        if path.suffix == ".keras":
            model = keras.models.load_model(path)
            assert type(model) is keras.Sequential
            optimizer = [variable.value for variable in model.optimizer.variables]
        else:
            model, optimizer = dense_model(), []
            model.load_weights(path)
        return model.get_weights(), optimizer, model.predict(X[:7], verbose=0)

    check(adam_model, use, devices=devices, rows=DIVIDED)
    plain, parallel = (sorted(p.name for p in (tmp_path / d).iterdir()) for d in RUNS)
    assert plain == parallel
    assert plain


RUNS = ("plain", "parallel")


def crash(epoch: int, batch: int) -> Any:
    """A callback that ends the training as a crash of the machine would."""

    class Crash(callbacks.Callback):
        now = 0

        def on_epoch_begin(self, number, logs=None):
            self.now = number

        def on_train_batch_begin(self, number, logs=None):
            if (self.now, number) == (epoch, batch):
                raise Interrupted

    return Crash()


def crashed_and_restored(model: Any, directory: Path, *, batch: int, freq: Any) -> Any:
    def backup() -> Any:
        return callbacks.BackupAndRestore(directory, save_freq=freq)

    with pytest.raises(Interrupted):
        fitted(model, backup(), crash(2, batch), epochs=4)
    # What the crash left in memory must not matter.
    model.set_weights([weight * 0 for weight in model.get_weights()])
    return fitted(model, backup(), epochs=4)


def test_an_interrupted_training_equals_one_that_ran_through(
    tmp_path: Path, devices: int
) -> None:
    """The oracle is a plain training that was never interrupted."""
    runs = iter(["plain", "parallel"])

    def use(model: Any) -> Any:
        if next(runs) == "plain":
            fitted(model, epochs=4)
        else:
            crashed_and_restored(model, tmp_path / "backup", batch=0, freq="epoch")

    check(adam_model, use, devices=devices, rows=DIVIDED)


def test_a_backup_of_some_batches_is_restored_as_by_keras(
    tmp_path: Path, devices: int
) -> None:
    """Keras begins the epoch again with the weights of the batch it saved."""
    runs = iter(["plain", "parallel"])

    def use(model: Any) -> Any:
        return crashed_and_restored(model, tmp_path / next(runs), batch=2, freq=2)

    check(adam_model, use, devices=devices, rows=DIVIDED)


def test_a_backup_of_two_devices_goes_on_in_a_plain_model(
    tmp_path: Path, devices: int
) -> None:
    runs = iter(["plain", "parallel"])

    def use(model: Any) -> Any:
        if next(runs) == "plain":
            fitted(model, epochs=3)
            return model.get_weights()

        backup = callbacks.BackupAndRestore(tmp_path / "backup")
        with pytest.raises(Interrupted):
            fitted(model, backup, crash(2, 0), epochs=3)
        plain = adam_model()
        fitted(plain, callbacks.BackupAndRestore(tmp_path / "backup"), epochs=3)
        weights = plain.get_weights()
        fitted(model, epochs=3, initial_epoch=2)
        return weights

    check(adam_model, use, devices=devices, rows=DIVIDED)


def test_csv_logs(tmp_path: Path, devices: int) -> None:
    runs = iter(["plain", "parallel"])

    def use(model: Any) -> Any:
        path = tmp_path / f"{next(runs)}.csv"
        fitted(model, callbacks.CSVLogger(str(path)), validation_data=HELD_OUT)
        with path.open() as file:
            return [
                {name: float(value) for name, value in row.items()}
                for row in csv.DictReader(file)
            ]

    check(dense_model, use, devices=devices, rows=DIVIDED)


def scalars(directory: Path) -> dict[str, list[float]]:
    """The numbers in TensorBoard's files below a directory."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found: dict[str, list[float]] = {}
    for folder in sorted({Path(at) for at, _, files in os.walk(directory) if files}):
        events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
        events.Reload()
        for tag in sorted(events.Tags()["tensors"]):
            if tag.startswith(("epoch", "batch", "evaluation")):
                found[f"{folder.name}/{tag}"] = [
                    float(make_ndarray(event.tensor_proto))
                    for event in events.Tensors(tag)
                    if make_ndarray(event.tensor_proto).ndim == 0
                ]
    return found


def test_tensorboard(tmp_path: Path, devices: int) -> None:
    runs = iter(["plain", "parallel"])

    def use(model: Any) -> Any:
        directory = tmp_path / next(runs)
        board = callbacks.TensorBoard(
            str(directory), histogram_freq=1, update_freq="epoch"
        )
        fitted(model, board, validation_data=HELD_OUT)
        written = scalars(directory)
        assert any(tag.endswith("epoch_loss") for tag in written)
        return {k: v for k, v in written.items() if "steps_per_second" not in k}

    check(dense_model, use, devices=devices, rows=DIVIDED)


def test_a_callback_that_changes_the_devices_for_the_next_fit(devices: int) -> None:
    """Wrapping and plain fits alternate while one optimizer goes on."""

    def use(model: Any) -> Any:
        parallel = type(model) is not keras.Sequential
        first = fitted(model)
        if parallel:
            ku.DataParallel(model, 1)
            assert type(model) is keras.Sequential
        second = fitted(model)
        if parallel:
            ku.DataParallel(model, devices)
        return first, second, fitted(model)

    check(adam_model, use, devices=devices, rows=DIVIDED)
