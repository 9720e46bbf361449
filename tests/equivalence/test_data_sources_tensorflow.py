"""Inputs that only TensorFlow has: ragged, sparse, strings, and layers for them."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import keras_unison as ku
from tests.equivalence.harness import (
    ON_TENSORFLOW,
    check,
    data,
    dense_model,
)

if not ON_TENSORFLOW:
    pytest.skip("these inputs exist on TensorFlow only", allow_module_level=True)

import tensorflow as tf

ROWS = 82
BATCH = 48
DIVIDED = [48, 34]
X, Y = data(ROWS)
DRAW = np.random.default_rng(11)
WORDS = np.array(["red", "green", "blue", "grey", "unknown"])[
    DRAW.integers(0, 5, (ROWS, 7))
]
NUMBERS = DRAW.integers(0, 40, (ROWS, 7))
TEXTS = np.array([" ".join(row[: 1 + i % 7]) for i, row in enumerate(WORDS)])


# --- tf.data --------------------------------------------------------------------


def of(x: Any, y: Any = Y) -> Any:
    return tf.data.Dataset.from_tensor_slices((x, y))


def through(model: Any, dataset: Any) -> Any:
    """What training, evaluation and prediction make of a dataset."""
    return (
        model.fit(dataset, epochs=2, verbose=0),
        model.evaluate(dataset, verbose=0),
        model.predict(dataset.map(lambda x, y: x), verbose=0),
    )


DATASETS: dict[str, tuple[Callable[[], Any], list[int]]] = {
    "any_rows": (lambda: of(X).batch(BATCH), DIVIDED),
    "static_rows": (lambda: of(X).batch(41, drop_remainder=True), [41]),
    "ragged_batches": (lambda: of(X).ragged_batch(BATCH), DIVIDED),
    "unknown_shapes": (
        lambda: of(X).batch(BATCH).map(lambda x, y: (tf.ensure_shape(x, [None, 8]), y)),
        DIVIDED,
    ),
    "prefetched_and_parallel": (
        lambda: of(X).batch(BATCH).map(lambda x, y: (x, y), -1).prefetch(2),
        DIVIDED,
    ),
}


@pytest.mark.parametrize("steps_per_execution", [1, 2])
@pytest.mark.parametrize("name", DATASETS)
def test_datasets(name: str, steps_per_execution: int, devices: int) -> None:
    make, rows = DATASETS[name]

    def use(model: Any) -> Any:
        return (
            model.fit(make(), epochs=2, verbose=0),
            model.evaluate(make(), verbose=0),
            model.predict(make().map(lambda x, y: x), verbose=0),
        )

    def build() -> Any:
        return dense_model(steps_per_execution=steps_per_execution)

    check(build, use, devices=devices, rows=rows)


class ReadsRows(keras.Model):
    """A step that needs to know the number of rows while it is traced."""

    def train_step(self, data):
        x, y = data
        assert x.shape[0] is not None
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            assert predicted.shape[0] == x.shape[0]
            rows = keras.ops.arange(predicted.shape[0], dtype="float32")
            losses = keras.losses.sparse_categorical_crossentropy(y, predicted)
            loss = tf.tensordot(losses, rows, 1) / 1000
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self.compute_metrics(x, y, predicted)


def test_static_rows_are_known_outside_of_the_layers(devices: int) -> None:
    def build() -> Any:
        inputs = keras.Input((8,))
        hidden = layers.Dense(13, activation="tanh")(inputs)
        model = ReadsRows(inputs, layers.Dense(5, activation="softmax")(hidden))
        model.compile(keras.optimizers.SGD(0.1), metrics=["accuracy"])
        return model

    def use(model: Any) -> Any:
        dataset = of(X).batch(41, drop_remainder=True)
        return model.fit(dataset, epochs=2, verbose=0)

    check(build, use, devices=devices, rows=[41])


# --- ragged and sparse ------------------------------------------------------------


class ToDense(layers.Layer):
    """Rows of any length, filled with zeros to seven."""

    def call(self, x):
        return x.to_tensor(shape=(None, 7)) if isinstance(x, tf.RaggedTensor) else x


class RaggedModel(keras.Model):
    """Numbers of any count in each row."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.dense_rows = ToDense()
        self.table = layers.Embedding(40, 9)
        self.out = layers.Dense(5, activation="softmax")
        self.kind = kind

    def call(self, x):
        if self.kind == "to_tensor":
            return self.out(keras.ops.mean(self.table(self.dense_rows(x)), axis=1))
        found = tf.ragged.map_flat_values(self.table, x)
        return self.out(tf.reduce_sum(found, axis=1))


def ragged_rows() -> Any:
    # Five in the middle: no part has as many numbers as a batch has rows.
    lengths = 3 + np.arange(ROWS) % 5
    return tf.RaggedTensor.from_row_lengths(
        DRAW.integers(0, 40, int(lengths.sum())), lengths
    )


RAGGED = ragged_rows()


@pytest.mark.filterwarnings("error::keras_unison.UnisonWarning")
@pytest.mark.parametrize("source", ["arrays", "dataset"])
@pytest.mark.parametrize("kind", ["to_tensor", "map_flat_values"])
def test_ragged_inputs(kind: str, source: str, devices: int) -> None:
    def build() -> Any:
        model = RaggedModel(kind)
        model.compile(
            keras.optimizers.SGD(0.1),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return model

    def use(model: Any) -> Any:
        dataset = of(RAGGED).batch(BATCH)
        if source == "dataset":
            return through(model, dataset)
        first, rest = slice(0, BATCH), slice(BATCH, ROWS)
        return [
            (
                model.train_on_batch(RAGGED[rows], Y[rows]),
                model.test_on_batch(RAGGED[rows], Y[rows]),
            )
            for rows in (first, rest, first)
        ]

    check(build, use, devices=devices, rows=DIVIDED, all_steps=True)


def sparse_rows() -> Any:
    return tf.sparse.from_dense(np.where(np.abs(X) > 0.9, X, 0))


def sparse_model() -> Any:
    inputs = keras.Input((8,), sparse=True)
    hidden = layers.Dense(13, activation="tanh")(inputs)
    model = keras.Model(inputs, layers.Dense(5, activation="softmax")(hidden))
    model.compile(
        keras.optimizers.SGD(0.1),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def sparse_in_fit(model: Any) -> Any:
    x = sparse_rows()
    return (
        model.fit(x, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0),
        model.evaluate(x, Y, batch_size=BATCH, verbose=0),
        model.predict(x, batch_size=BATCH, verbose=0),
    )


def sparse_in_scipy(model: Any) -> Any:
    from scipy.sparse import csr_matrix

    x = csr_matrix(np.where(np.abs(X) > 0.9, X, 0))
    return (
        model.fit(x, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0),
        model.predict(x, batch_size=BATCH, verbose=0),
    )


def sparse_in_dataset(model: Any) -> Any:
    return through(model, of(sparse_rows()).batch(BATCH))


SPARSE: dict[str, Callable[[Any], Any]] = {
    "tensor": sparse_in_fit,
    "scipy": sparse_in_scipy,
    "dataset": sparse_in_dataset,
}


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_inputs(name: str, devices: int) -> None:
    check(sparse_model, SPARSE[name], devices=devices, rows=DIVIDED)


# --- preprocessing layers inside of the model ------------------------------------


def after(inputs: Any, features: Any) -> Any:
    hidden = layers.Dense(13, activation="tanh")(features)
    model = keras.Model(inputs, layers.Dense(5, activation="softmax")(hidden))
    model.compile(
        keras.optimizers.SGD(0.1),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def embedded(inputs: Any, numbers: Any, words: int) -> Any:
    table = layers.Embedding(words, 9)(numbers)
    return after(inputs, layers.GlobalAveragePooling1D()(table))


def string_lookup() -> Any:
    inputs = keras.Input((7,), dtype="string")
    lookup = layers.StringLookup(vocabulary=["red", "green", "blue", "grey"])
    return embedded(inputs, lookup(inputs), 6)


def string_lookup_one_hot() -> Any:
    inputs = keras.Input((7,), dtype="string")
    lookup = layers.StringLookup(
        vocabulary=["red", "green", "blue", "grey"], output_mode="multi_hot"
    )
    return after(inputs, lookup(inputs))


def adapted_string_lookup() -> Any:
    lookup = layers.StringLookup()
    lookup.adapt(WORDS)
    inputs = keras.Input((7,), dtype="string")
    return embedded(inputs, lookup(inputs), 7)


def integer_lookup() -> Any:
    inputs = keras.Input((7,), dtype="int64")
    lookup = layers.IntegerLookup(vocabulary=list(range(0, 40, 2)))
    return embedded(inputs, lookup(inputs), 22)


def text_vectorization() -> Any:
    inputs = keras.Input((), dtype="string")
    lookup = layers.TextVectorization(
        vocabulary=["red", "green", "blue"], output_sequence_length=6
    )
    return embedded(inputs, lookup(inputs), 6)


def counted_words() -> Any:
    lookup = layers.TextVectorization(output_mode="tf_idf")
    lookup.adapt(TEXTS)
    inputs = keras.Input((), dtype="string")
    return after(inputs, lookup(inputs))


def hashed_strings() -> Any:
    inputs = keras.Input((7,), dtype="string")
    return embedded(inputs, layers.Hashing(num_bins=11)(inputs), 11)


def hashed_numbers() -> Any:
    inputs = keras.Input((7,), dtype="int64")
    return embedded(inputs, layers.Hashing(num_bins=11)(inputs), 11)


def category_encoding() -> Any:
    inputs = keras.Input((7,), dtype="int64")
    encoding = layers.CategoryEncoding(num_tokens=40, output_mode="count")
    return after(inputs, encoding(inputs))


def discretized() -> Any:
    inputs = keras.Input((8,))
    buckets = layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0])(inputs)
    return embedded(inputs, buckets, 4)


def normalized() -> Any:
    normalization = layers.Normalization()
    normalization.adapt(X)
    inputs = keras.Input((8,))
    return after(inputs, normalization(inputs))


def crossed() -> Any:
    one, other = keras.Input((1,), dtype="string"), keras.Input((1,), dtype="int64")
    cross = layers.HashedCrossing(num_bins=11, output_mode="one_hot")((one, other))
    return after([one, other], cross)


def lookup_and_batch_statistics() -> Any:
    """Replicas look words up, and meet for BatchNormalization."""
    inputs = keras.Input((7,), dtype="string")
    lookup = layers.StringLookup(vocabulary=["red", "green", "blue", "grey"])
    table = layers.Embedding(6, 9)(lookup(inputs))
    pooled = layers.GlobalAveragePooling1D()(table)
    return after(inputs, layers.BatchNormalization(momentum=0.8)(pooled))


LAYERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "string_lookup": (string_lookup, WORDS),
    "string_lookup_one_hot": (string_lookup_one_hot, WORDS),
    "string_lookup_adapted": (adapted_string_lookup, WORDS),
    "integer_lookup": (integer_lookup, NUMBERS),
    "text_vectorization": (text_vectorization, TEXTS),
    "text_vectorization_tf_idf": (counted_words, TEXTS),
    "hashing_of_strings": (hashed_strings, WORDS),
    "hashing_of_numbers": (hashed_numbers, NUMBERS),
    "category_encoding": (category_encoding, NUMBERS),
    "discretization": (discretized, X),
    "normalization": (normalized, X),
    "hashed_crossing": (crossed, (WORDS[:, :1], NUMBERS[:, :1])),
    "lookup_and_batch_statistics": (lookup_and_batch_statistics, WORDS),
}


@pytest.mark.filterwarnings("error::keras_unison.UnisonWarning")
@pytest.mark.parametrize("name", LAYERS)
def test_preprocessing_layers_in_the_model(name: str, devices: int) -> None:
    build, x = LAYERS[name]
    x = keras.tree.map_structure(tf.constant, x)

    def use(model: Any) -> Any:
        dataset = of(x).batch(BATCH)
        inputs = dataset.map(lambda x, y: (x,))
        return (
            model.fit(x, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0),
            model.fit(dataset, verbose=0),
            model.evaluate(dataset, verbose=0),
            model.predict(inputs, verbose=0),
        )

    check(build, use, devices=devices, rows=DIVIDED, all_steps=True)


def test_lookups_behind_batch_statistics_are_not_divided(devices: int) -> None:
    """TensorFlow makes lookups one after the other, so that none may wait for a sum."""

    def build() -> Any:
        inputs = keras.Input((8,))
        x = layers.BatchNormalization()(inputs)
        x = layers.Lambda(lambda x: keras.ops.cast(x * 3, "int64"))(x)
        x = layers.IntegerLookup(vocabulary=[-2, -1, 0, 1, 2])(x)
        x = layers.Flatten()(layers.Embedding(6, 9)(x))
        return after(inputs, layers.BatchNormalization()(x))

    def use(model: Any) -> Any:
        history = model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
        return history, model.predict(X, batch_size=BATCH, verbose=0)

    with pytest.warns(ku.UnisonWarning, match="it holds LookupTableFindV2"):
        check(build, use, devices=devices, rows=DIVIDED)


def test_preprocessing_in_the_dataset(devices: int) -> None:
    lookup = layers.StringLookup(vocabulary=["red", "green", "blue", "grey"])

    def build() -> Any:
        return embedded(inputs := keras.Input((7,), dtype="int64"), inputs, 6)

    def use(model: Any) -> Any:
        dataset = of(tf.constant(WORDS)).batch(BATCH)
        dataset = dataset.map(lambda words, y: (lookup(words), y))
        return model.fit(dataset, epochs=2, verbose=0)

    check(build, use, devices=devices, rows=DIVIDED)


def test_labels_of_strings_looked_up_in_the_step(devices: int) -> None:
    """A layer that is called in the step beside the model."""
    names = np.array(["a", "b", "c", "d", "e"])[Y]

    class Named(keras.Model):
        def train_step(self, data):
            x, y = data
            return super().train_step((x, self.lookup(y)))

    def build() -> Any:
        inputs = keras.Input((8,))
        hidden = layers.Dense(13, activation="tanh")(inputs)
        model = Named(inputs, layers.Dense(5, activation="softmax")(hidden))
        model.lookup = layers.StringLookup(
            vocabulary=["a", "b", "c", "d", "e"], num_oov_indices=0
        )
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        return model

    def use(model: Any) -> Any:
        dataset = of(X, tf.constant(names)).batch(BATCH)
        return model.fit(dataset, epochs=2, verbose=0)

    check(build, use, devices=devices, rows=DIVIDED)
