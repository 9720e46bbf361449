"""Every source of data that Keras takes gives what it gives on one device.

Batches of 48 and 34 rows: the second divides by 2 and not by 3.
"""

from collections.abc import Callable, Iterator
from typing import Any

import grain
import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import torch
from keras import layers

from tests.equivalence.harness import ON_JAX, check, data, dense_model

ROWS = 82
BATCH = 48
DIVIDED = [48, 34]

X, Y = data(ROWS)
OTHER = np.random.default_rng(5).normal(size=(ROWS, 6)).astype("float32")
WEIGHTS = np.where(np.arange(ROWS) % 4 == 0, 0, np.linspace(0.5, 2, ROWS)).astype(
    "float32"
)
HELD_OUT = data(70)


class Batches(keras.utils.PyDataset):
    """Batches by index, as a user's class gives them."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return X[rows], Y[rows]


class Example(torch.utils.data.Dataset):
    """One row at a time."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


class Source:
    """One row at a time, as grain reads it."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: Any) -> Any:
        return X[int(index)], Y[int(index)]


def generated() -> Iterator[Any]:
    """Batches for ever."""
    while True:
        for start in range(0, ROWS, BATCH):
            yield X[start : start + BATCH], Y[start : start + BATCH]


def of_unknown_length() -> Any:
    signature = (
        tf.TensorSpec((None, 8), "float32"),
        tf.TensorSpec((None,), "int64"),
    )
    return tf.data.Dataset.from_generator(
        lambda: [(X[:BATCH], Y[:BATCH]), (X[BATCH:], Y[BATCH:])],
        output_signature=signature,
    )


def grain_loader() -> Any:
    return grain.DataLoader(
        data_source=Source(),
        sampler=grain.samplers.SequentialSampler(ROWS),
        operations=[grain.transforms.Batch(BATCH)],
    )


SOURCES: dict[str, Callable[[], Any]] = {
    "py_dataset": Batches,
    "py_dataset_with_workers": lambda: Batches(workers=2, max_queue_size=3),
    "tf_data": lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH),
    "tf_data_of_unknown_length": of_unknown_length,
    "torch_data_loader": lambda: torch.utils.data.DataLoader(Example(), BATCH),
    "grain_map_dataset": lambda: grain.MapDataset.source(Source()).batch(BATCH),
    "grain_iter_dataset": lambda: (
        grain.MapDataset.source(Source()).to_iter_dataset().batch(BATCH)
    ),
    "grain_data_loader": grain_loader,
}


@pytest.mark.parametrize("name", SOURCES)
def test_datasets(name: str, devices: int) -> None:
    def use(model: Any) -> Any:
        source = SOURCES[name]
        return (
            model.fit(source(), epochs=2, shuffle=False, verbose=0),
            model.evaluate(source(), verbose=0),
            model.predict(source(), verbose=0),
        )

    check(dense_model, use, devices=devices, rows=DIVIDED, all_steps=True)


def test_generators(devices: int) -> None:
    def use(model: Any) -> Any:
        return (
            model.fit(generated(), steps_per_epoch=2, epochs=2, verbose=0),
            model.evaluate(generated(), steps=3, verbose=0),
            model.predict(generated(), steps=3, verbose=0),
        )

    check(dense_model, use, devices=devices, rows=DIVIDED)


def test_a_generator_that_ends(devices: int) -> None:
    def use(model: Any) -> Any:
        batches = ((X[i : i + 34], Y[i : i + 34]) for i in (0, 34))
        return model.fit(batches, verbose=0)

    check(dense_model, use, devices=devices, rows=[34])


# --- arrays of every kind ---------------------------------------------------

ARRAYS: dict[str, tuple[Any, Any]] = {
    "tensorflow": (tf.constant(X), tf.constant(Y)),
    "tensorflow_and_numpy": (tf.constant(X), Y),
    "torch": (torch.tensor(X), torch.tensor(Y)),
    "pandas": (pd.DataFrame(X), pd.Series(Y)),
    "pandas_frames": (pd.DataFrame(X), pd.DataFrame({"y": Y})),
    "float64": (X.astype("float64"), Y.astype("float64")),
    "float16": (X.astype("float16"), Y.astype("int8")),
    "integers": (np.round(X * 10).astype("int64"), Y),
    "fortran_order": (np.asfortranarray(X), Y),
    "every_second_row": (np.repeat(X, 2, axis=0)[::2], Y),
    "column_of_labels": (X, Y[:, None]),
}
if ON_JAX:
    import jax.numpy as jnp

    ARRAYS["jax"] = jnp.asarray(X), jnp.asarray(Y)
    ARRAYS["jax_and_numpy"] = jnp.asarray(X), Y


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name: str, devices: int) -> None:
    x, y = ARRAYS[name]

    def use(model: Any) -> Any:
        return model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)

    check(dense_model, use, devices=devices, rows=DIVIDED)


def test_images_of_bytes(devices: int) -> None:
    images = np.random.default_rng(2).integers(0, 256, (ROWS, 9, 9, 3)).astype("uint8")

    def build() -> Any:
        model = keras.Sequential(
            [
                keras.Input((9, 9, 3), dtype="uint8"),
                layers.Rescaling(1 / 255),
                layers.Conv2D(6, 3, activation="relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(5, activation="softmax"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        return model

    def use(model: Any) -> Any:
        return (
            model.fit(images, Y, batch_size=BATCH, shuffle=False, verbose=0),
            model.predict(images, batch_size=BATCH, verbose=0),
        )

    check(build, use, devices=devices, rows=DIVIDED, all_steps=True)


# --- dicts, tuples and lists ------------------------------------------------


def two_inputs() -> Any:
    first, second = keras.Input((8,), name="first"), keras.Input((6,), name="second")
    x = layers.Concatenate()([layers.Dense(9)(first), layers.Dense(10)(second)])
    outputs = layers.Dense(5, activation="softmax")(x)
    model = keras.Model([first, second], outputs)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return model


def in_tf_data(x: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices((x, Y)).batch(BATCH)


STRUCTURES: dict[str, Callable[[], Any]] = {
    "list": lambda: [X, OTHER],
    "tuple": lambda: (X, OTHER),
    "dict": lambda: {"first": X, "second": OTHER},
    "pandas_in_a_dict": lambda: {
        "first": pd.DataFrame(X),
        "second": pd.DataFrame(OTHER),
    },
    "dict_in_tf_data": lambda: in_tf_data({"first": X, "second": OTHER}),
    "tuple_in_tf_data": lambda: in_tf_data((X, OTHER)),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_of_inputs(name: str, devices: int) -> None:
    def use(model: Any) -> Any:
        x = STRUCTURES[name]()
        if isinstance(x, tf.data.Dataset):
            return model.fit(x, shuffle=False, verbose=0), model.predict(x, verbose=0)
        return (
            model.fit(x, Y, batch_size=BATCH, shuffle=False, verbose=0),
            model.predict(x, batch_size=BATCH, verbose=0),
        )

    check(two_inputs, use, devices=devices, rows=DIVIDED, all_steps=True)


# --- the arguments of fit ---------------------------------------------------


def datasets_with_weights() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y, WEIGHTS)).batch(BATCH)


FITS: dict[str, Callable[[Any], Any]] = {
    "validation_split": lambda fit: fit(X, Y, validation_split=0.2),
    "validation_arrays": lambda fit: fit(X, Y, validation_data=HELD_OUT),
    "validation_arrays_with_weights": lambda fit: fit(
        X, Y, validation_data=(*HELD_OUT, np.linspace(0, 1, 70))
    ),
    "validation_batch_size_and_freq": lambda fit: fit(
        X, Y, validation_data=HELD_OUT, validation_batch_size=34, validation_freq=2
    ),
    "validation_dataset": lambda fit: fit(X, Y, validation_data=Batches()),
    "validation_tf_data_and_steps": lambda fit: fit(
        X,
        Y,
        validation_data=SOURCES["tf_data"]().repeat(),
        validation_steps=3,
    ),
    "class_weight": lambda fit: fit(X, Y, class_weight={0: 2, 1: 1, 2: 0, 3: 1, 4: 5}),
    "sample_weight": lambda fit: fit(X, Y, sample_weight=WEIGHTS),
    "sample_weight_in_a_dataset": lambda fit: fit(datasets_with_weights()),
    "sample_weight_of_whole_batches_zero": lambda fit: fit(
        X, Y, sample_weight=(np.arange(ROWS) >= BATCH).astype("float32")
    ),
    "steps_per_epoch_goes_on_where_it_stopped": lambda fit: fit(
        SOURCES["tf_data"]().repeat(), steps_per_epoch=3
    ),
    "shuffle": lambda fit: fit(X, Y, shuffle=True),
    "shuffle_batches": lambda fit: fit(X, Y, shuffle="batch"),
    "initial_epoch": lambda fit: fit(X, Y, initial_epoch=1, epochs=3),
    "validation_and_shuffle": lambda fit: fit(
        X, Y, validation_split=0.2, shuffle=True, sample_weight=WEIGHTS
    ),
}
# Rows of training batches where the fit does not see 48 and 34 of them.
LEFT = {"validation_split": [48, 17], "validation_and_shuffle": [48, 17]}


@pytest.mark.parametrize("name", FITS)
def test_arguments_of_fit(name: str, devices: int) -> None:
    def use(model: Any) -> Any:
        def fit(*args: Any, **kwargs: Any) -> Any:
            settings: dict[str, Any] = {"epochs": 2, "shuffle": False, "verbose": 0}
            if len(args) == 2:
                settings["batch_size"] = BATCH
            history = model.fit(*args, **{**settings, **kwargs})
            return history.epoch, history

        return FITS[name](fit)

    def build() -> Any:
        return dense_model(weighted_metrics=["accuracy"])

    check(build, use, devices=devices, rows=LEFT.get(name, DIVIDED))


def test_sample_weights_of_every_output(devices: int) -> None:
    def build() -> Any:
        inputs = keras.Input((8,))
        x = layers.Dense(13, activation="tanh")(inputs)
        outputs = {
            "a": layers.Dense(5, activation="softmax", name="a")(x),
            "b": layers.Dense(3, name="b")(x),
        }
        model = keras.Model(inputs, outputs)
        model.compile(
            keras.optimizers.SGD(0.1),
            {"a": "sparse_categorical_crossentropy", "b": "mse"},
            weighted_metrics={"a": ["accuracy"], "b": ["mae"]},
        )
        return model

    def use(model: Any) -> Any:
        targets = {"a": Y, "b": X[:, :3]}
        weights = {"a": WEIGHTS, "b": WEIGHTS[::-1].copy()}
        return (
            model.fit(
                X,
                targets,
                sample_weight=weights,
                batch_size=BATCH,
                epochs=2,
                shuffle=False,
                verbose=0,
            ),
            model.evaluate(
                X, targets, sample_weight=weights, batch_size=BATCH, verbose=0
            ),
        )

    check(build, use, devices=devices, rows=DIVIDED, all_steps=True)


def test_weights_in_evaluate_and_on_batches(devices: int) -> None:
    def use(model: Any) -> Any:
        weights = WEIGHTS[:BATCH]
        x, y = X[:BATCH], Y[:BATCH]
        return (
            model.evaluate(X, Y, batch_size=34, sample_weight=WEIGHTS, verbose=0),
            model.train_on_batch(x, y, sample_weight=weights),
            model.train_on_batch(x, y, class_weight=dict.fromkeys(range(5), 0.3)),
            model.test_on_batch(x, y, sample_weight=weights),
        )

    def build() -> Any:
        return dense_model(weighted_metrics=["accuracy"])

    check(build, use, devices=devices, rows=[34, 48])
