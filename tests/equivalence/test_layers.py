"""Layers of Keras, and layers with state, compute what one device computes."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import keras_unison as ku
from tests.equivalence.harness import ON_JAX, TOLERANCE, check, compare, data, run

# 35 rows divide evenly over neither two nor three devices.
ROWS, BATCH = 70, 35
TIME = 7
LOSS = "sparse_categorical_crossentropy"


def model_of(*layers: Any, shape: tuple[int, ...] = (8,)) -> Any:
    """These layers, then a classifier."""
    model = keras.Sequential(
        [keras.Input(shape), *layers, keras.layers.Dense(5, activation="softmax")]
    )
    model.compile(keras.optimizers.SGD(0.05), LOSS, metrics=["accuracy"])
    return model


def array(*shape: int) -> Any:
    return np.random.default_rng(11).normal(size=shape).astype("float32")


def train(model: Any, x: Any, batch: int = BATCH) -> Any:
    _, labels = data(len(x))
    return (
        model.fit(x, labels, batch_size=batch, epochs=2, verbose=0),
        model.evaluate(x, labels, batch_size=batch, verbose=0),
        model.predict(x, batch_size=batch, verbose=0),
    )


# --- normalization ------------------------------------------------------------

VECTORS: dict[str, Callable[[], list[Any]]] = {
    "batch_normalization": lambda: [keras.layers.BatchNormalization()],
    "batch_normalization_momentum": lambda: [
        keras.layers.BatchNormalization(momentum=0.5, epsilon=0.01, scale=False)
    ],
    "batch_normalization_twice": lambda: [
        keras.layers.BatchNormalization(),
        keras.layers.Dense(11, activation="tanh"),
        keras.layers.BatchNormalization(center=False),
    ],
    "layer_normalization": lambda: [keras.layers.LayerNormalization()],
    "rms_normalization": lambda: [keras.layers.RMSNormalization()],
    "group_normalization": lambda: [keras.layers.GroupNormalization(groups=2)],
    "spectral_normalization": lambda: [
        keras.layers.SpectralNormalization(keras.layers.Dense(11))
    ],
    "unit_normalization": lambda: [keras.layers.UnitNormalization()],
    "unit_normalization_over_rows": lambda: [keras.layers.UnitNormalization(axis=0)],
    "einsum_dense": lambda: [keras.layers.EinsumDense("ab,bc->ac", 11, bias_axes="c")],
    "lambda": lambda: [
        keras.layers.Lambda(lambda x: ops.concatenate([x, x**2], axis=-1))
    ],
}

if "renorm" in inspect.signature(keras.layers.BatchNormalization).parameters:
    VECTORS["batch_normalization_renorm"] = lambda: [
        keras.layers.BatchNormalization(renorm=True, momentum=0.7)
    ]
    VECTORS["batch_normalization_renorm_clipped"] = lambda: [
        keras.layers.BatchNormalization(
            renorm=True,
            renorm_momentum=0.6,
            renorm_clipping={"rmin": 0.9, "rmax": 1.1, "dmax": 0.1},
        )
    ]


@pytest.mark.parametrize("name", VECTORS)
def test_layers_of_vectors(name: str, devices: int) -> None:
    def build():
        return model_of(keras.layers.Dense(12), *VECTORS[name]())

    check(
        build,
        lambda model: train(model, array(ROWS, 8)),
        devices=devices,
        rows=[BATCH],
        all_steps=True,
    )


def test_batch_normalization_of_even_batches_and_a_rest(devices: int) -> None:
    def build():
        return model_of(keras.layers.Dense(12), keras.layers.BatchNormalization())

    check(
        build,
        lambda model: train(model, array(49, 8), batch=48),
        devices=devices,
        rows=[48],
    )


def test_batch_normalization_in_training_mode_outside_of_fit(devices: int) -> None:
    x = array(ROWS, 8)

    def use(model):
        history = train(model, x)
        normalized = model.layers[1](model.layers[0](x), training=True)
        return history, normalized, model.layers[1].moving_variance

    check(
        lambda: model_of(keras.layers.Dense(12), keras.layers.BatchNormalization()),
        use,
        devices=devices,
        rows=[BATCH],
        all_steps=True,
    )


def test_frozen_batch_normalization_keeps_its_statistics(devices: int) -> None:
    def build():
        model = model_of(keras.layers.Dense(12), keras.layers.BatchNormalization())
        model.layers[1].trainable = False
        model.compile(keras.optimizers.SGD(0.05), LOSS)
        return model

    check(
        build,
        lambda model: train(model, array(ROWS, 8)),
        devices=devices,
        rows=[BATCH],
        all_steps=True,
    )


# --- images -------------------------------------------------------------------

Image = tuple[tuple[int, ...], Callable[[], list[Any]]]

IMAGES: dict[str, Image] = {
    "conv_1d": (
        (9, 3),
        lambda: [keras.layers.Conv1D(7, 3, strides=2, activation="relu")],
    ),
    "conv_1d_causal": (
        (9, 3),
        lambda: [keras.layers.Conv1D(7, 3, padding="causal", dilation_rate=2)],
    ),
    "conv_2d": ((6, 6, 3), lambda: [keras.layers.Conv2D(7, 3, padding="same")]),
    "conv_3d": ((4, 4, 4, 2), lambda: [keras.layers.Conv3D(7, 2)]),
    "conv_2d_transpose": (
        (4, 4, 3),
        lambda: [keras.layers.Conv2DTranspose(7, 3, strides=2)],
    ),
    "depthwise": ((6, 6, 3), lambda: [keras.layers.DepthwiseConv2D(3)]),
    "separable": ((6, 6, 3), lambda: [keras.layers.SeparableConv2D(7, 3)]),
    "batch_normalization": (
        (6, 6, 3),
        lambda: [keras.layers.Conv2D(7, 3), keras.layers.BatchNormalization()],
    ),
    "group_normalization": (
        (6, 6, 3),
        lambda: [keras.layers.Conv2D(6, 3), keras.layers.GroupNormalization(3)],
    ),
    "up_sampling_and_padding": (
        (6, 6, 3),
        lambda: [keras.layers.UpSampling2D(), keras.layers.ZeroPadding2D()],
    ),
    "resizing": (
        (6, 6, 3),
        lambda: [keras.layers.Resizing(4, 4), keras.layers.Rescaling(0.5, 0.1)],
    ),
}


@pytest.mark.parametrize("name", IMAGES)
def test_layers_of_images(name: str, devices: int) -> None:
    shape, layers = IMAGES[name]
    check(
        lambda: model_of(*layers(), keras.layers.Flatten(), shape=shape),
        lambda model: train(model, array(ROWS, *shape)),
        devices=devices,
        rows=[BATCH],
        all_steps=True,
    )


POOLS: dict[str, Image] = {
    "max_1d": ((9, 3), lambda: [keras.layers.MaxPooling1D(2)]),
    "max_2d": ((6, 6, 3), lambda: [keras.layers.MaxPooling2D(2)]),
    "max_2d_overlapping": (
        (6, 6, 3),
        lambda: [keras.layers.MaxPooling2D(3, strides=1, padding="same")],
    ),
    "max_3d": ((4, 4, 4, 2), lambda: [keras.layers.MaxPooling3D(2)]),
    "average_1d": ((9, 3), lambda: [keras.layers.AveragePooling1D(2)]),
    "average_2d": (
        (6, 6, 3),
        lambda: [keras.layers.AveragePooling2D(3, strides=2, padding="same")],
    ),
    "average_3d": ((4, 4, 4, 2), lambda: [keras.layers.AveragePooling3D(2)]),
    "global_max": ((6, 6, 3), lambda: [keras.layers.GlobalMaxPooling2D()]),
    "global_average": ((9, 3), lambda: [keras.layers.GlobalAveragePooling1D()]),
    "adaptive_max": ((7, 7, 3), lambda: [keras.layers.AdaptiveMaxPooling2D(3)]),
    "adaptive_average": ((7, 7, 3), lambda: [keras.layers.AdaptiveAveragePooling2D(3)]),
    "height_of_the_rows": (
        (BATCH, BATCH, 2),
        lambda: [keras.layers.MaxPooling2D(7), keras.layers.AveragePooling2D(5)],
    ),
    "height_of_twice_the_rows": (
        (2 * BATCH, 4, 1),
        lambda: [keras.layers.MaxPooling2D((14, 2), padding="same")],
    ),
}


@pytest.mark.parametrize("name", POOLS)
def test_pooling(name: str, devices: int) -> None:
    shape, layers = POOLS[name]
    check(
        lambda: model_of(*layers(), keras.layers.Flatten(), shape=shape),
        lambda model: train(model, array(ROWS, *shape)),
        devices=devices,
        rows=[BATCH],
        all_steps=True,
    )


def test_a_convolution_in_groups(devices: int) -> None:
    """XLA's partitioner does not divide it, which is said; the rest is divided."""
    layers = keras.layers
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(
            lambda: model_of(
                layers.Conv2D(6, 3, groups=2), layers.Flatten(), shape=(6, 6, 4)
            ),
            lambda model: train(model, array(ROWS, 6, 6, 4)),
            devices=devices,
            rows=[BATCH],
            coupled=ON_JAX,
        )
    texts = [str(w.message) for w in caught if w.category is ku.UnisonWarning]
    assert len(texts) == (1 if ON_JAX else 0)
    assert all("a convolution in groups" in text for text in texts)


def test_pooling_32_images_of_32_by_32(devices: int) -> None:
    check(
        lambda: model_of(
            keras.layers.MaxPooling2D(8), keras.layers.Flatten(), shape=(32, 32, 3)
        ),
        lambda model: train(model, array(64, 32, 32, 3), batch=32),
        devices=devices,
        rows=[32],
        all_steps=True,
    )


# --- sequences ----------------------------------------------------------------


def words(masked: bool) -> Any:
    generator = np.random.default_rng(12)
    found = generator.integers(1, 17, (ROWS, TIME))
    if masked:
        found[np.arange(TIME) >= generator.integers(1, TIME + 1, ROWS)[:, None]] = 0
    return found


class Block(keras.layers.Layer):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = keras.layers.MultiHeadAttention(2, 4, dropout=0.1)
        self.first = keras.layers.LayerNormalization()
        self.inner = keras.layers.Dense(19, activation="gelu")
        self.outer = keras.layers.Dense(6)
        self.second = keras.layers.LayerNormalization()
        self.supports_masking = True

    def build(self, shape: Any) -> None:
        self.attention.build(shape, shape)
        self.first.build(shape)
        self.inner.build(shape)
        self.outer.build((*shape[:-1], 19))
        self.second.build(shape)

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.first(x + self.attention(x, x, training=training))
        return self.second(x + self.outer(self.inner(x)))


class Causal(keras.layers.Layer):
    """Attention of each position to earlier ones, in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = keras.layers.GroupQueryAttention(3, 4, 2)

    def build(self, shape: Any) -> None:
        self.attention.build(shape, shape)

    def call(self, x: Any) -> Any:
        return self.attention(x, x, use_causal_mask=True)


def sequence_layers() -> dict[str, Callable[[], list[Any]]]:
    layers = keras.layers
    mean = layers.GlobalAveragePooling1D
    return {
        "embedding": lambda: [mean()],
        "simple_rnn": lambda: [layers.SimpleRNN(11)],
        "lstm": lambda: [layers.LSTM(11, return_sequences=True), layers.LSTM(6)],
        "lstm_dropout": lambda: [layers.LSTM(11, dropout=0.2, recurrent_dropout=0.2)],
        "gru": lambda: [layers.GRU(11)],
        "gru_unrolled": lambda: [layers.GRU(11, unroll=True, reset_after=False)],
        "bidirectional": lambda: [layers.Bidirectional(layers.LSTM(9))],
        "time_distributed": lambda: [layers.TimeDistributed(layers.Dense(11)), mean()],
        "batch_normalization": lambda: [layers.BatchNormalization(), mean()],
        "attention": lambda: [Block(), mean()],
        "causal_attention": lambda: [Causal(), mean()],
        "conv_lstm_1d": lambda: [
            layers.Reshape((TIME, 6, 1)),
            layers.ConvLSTM1D(3, 2),
            layers.Flatten(),
        ],
    }


# Layers that take no mask, of which Keras would warn.
UNMASKED = ("causal_attention", "conv_lstm_1d")

SEQUENCES = [(name, False) for name in sequence_layers()] + [
    (name, True) for name in sequence_layers() if name not in UNMASKED
]


@pytest.mark.parametrize(
    ("name", "masked"),
    SEQUENCES,
    ids=[f"{name}_masked" if masked else name for name, masked in SEQUENCES],
)
def test_layers_of_sequences(name: str, masked: bool, devices: int) -> None:
    def build():
        model = keras.Sequential(
            [
                keras.Input((TIME,), dtype="int32"),
                keras.layers.Embedding(17, 6, mask_zero=masked),
                *sequence_layers()[name](),
                keras.layers.Dense(5, activation="softmax"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05), LOSS)
        return model

    def use(model):
        _, labels = data(ROWS)
        x = words(masked)
        return (
            model.fit(x, labels, batch_size=BATCH, verbose=0),
            model.predict(x, batch_size=BATCH, verbose=0),
        )

    check(build, use, devices=devices, rows=[BATCH], all_steps=True)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_stateful_rnn_keeps_its_state(kind: str, devices: int) -> None:
    x = array(ROWS, TIME, 3)
    _, labels = data(ROWS)

    def build():
        model = keras.Sequential(
            [
                keras.Input(batch_shape=(BATCH, TIME, 3)),
                getattr(keras.layers, kind)(11, stateful=True),
                keras.layers.Dense(5, activation="softmax"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05), LOSS)
        return model

    def use(model):
        history = model.fit(x, labels, batch_size=BATCH, shuffle=False, verbose=0)
        states = [state.numpy() for state in model.layers[0].states]
        predicted = model.predict(x, batch_size=BATCH, verbose=0)
        model.layers[0].reset_state()
        return (
            history,
            states,
            predicted,
            model.predict(x, batch_size=BATCH, verbose=0),
        )

    check(build, use, devices=devices, rows=[BATCH], all_steps=True)


# --- layers with state of their own -------------------------------------------


class RowCounter(keras.layers.Layer):
    """Counts the rows of training, and keeps the largest entry."""

    def build(self, shape: Any) -> None:
        self.rows = self.add_weight(shape=(), trainable=False, name="rows")
        self.largest = self.add_weight(shape=(), trainable=False, name="largest")
        self.last = self.add_weight(shape=shape[1:], trainable=False, name="last")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.rows.assign_add(ops.cast(ops.shape(x)[0], "float32"))
            self.largest.assign(ops.maximum(self.largest, ops.max(x)))
            self.last.assign(x[-1])
        return x + 0.01 * self.largest - 0.1 * self.last


class Codebook(keras.layers.Layer):
    """A vector quantizer whose codes are moving averages of the rows near them."""

    def build(self, shape: Any) -> None:
        size = (6, shape[-1])
        draw = keras.initializers.RandomNormal(seed=2)
        self.codes = self.add_weight(size, draw, trainable=False, name="codes")
        self.sums = self.add_weight(size, draw, trainable=False, name="sums")
        self.counts = self.add_weight((6,), "ones", trainable=False, name="counts")

    def call(self, x: Any, training: bool = False) -> Any:
        distance = ops.sum((x[:, None] - self.codes[None]) ** 2, axis=-1)
        chosen = ops.one_hot(ops.argmin(distance, axis=-1), 6)
        if training:
            counts = 0.8 * self.counts + 0.2 * ops.sum(chosen, axis=0)
            sums = 0.8 * self.sums + 0.2 * ops.matmul(ops.transpose(chosen), x)
            self.counts.assign(counts)
            self.sums.assign(sums)
            self.codes.assign(sums / (counts[:, None] + 0.01))
        quantized = ops.matmul(chosen, self.codes)
        self.add_loss(ops.mean((x - ops.stop_gradient(quantized)) ** 2))
        return x + ops.stop_gradient(quantized - x)


@pytest.mark.parametrize("layer", [RowCounter, Codebook])
def test_layers_with_state(layer: Any, devices: int) -> None:
    check(
        lambda: model_of(keras.layers.Dense(12), layer()),
        lambda model: train(model, array(ROWS, 8)),
        devices=devices,
        rows=[BATCH],
        all_steps=True,
    )


def test_a_preprocessing_layer_in_the_model(devices: int) -> None:
    x = array(ROWS, 8) * 3.0 + 1.0

    def build():
        normalization = keras.layers.Normalization()
        normalization.adapt(x)
        return model_of(normalization)

    check(
        build,
        lambda model: train(model, x),
        devices=devices,
        rows=[BATCH],
        all_steps=True,
    )


def test_lora(devices: int) -> None:
    x = array(ROWS, 8)

    def use(model):
        first = train(model, x)
        model.layers[0].enable_lora(2)
        model.compile(keras.optimizers.SGD(0.05), LOSS)
        return first, train(model, x)

    check(
        lambda: model_of(keras.layers.Dense(12, activation="tanh")),
        use,
        devices=devices,
        rows=[BATCH],
        all_steps=True,
    )


def test_an_output_without_a_batch_axis(devices: int) -> None:
    class Summary(keras.Model):
        """Returns its rows, and what is common to them."""

        def __init__(self) -> None:
            super().__init__()
            self.hidden = keras.layers.Dense(13, activation="tanh")
            self.output_layer = keras.layers.Dense(5, activation="softmax")

        def call(self, x: Any) -> Any:
            hidden = self.hidden(x)
            return {"rows": self.output_layer(hidden), "mean": ops.mean(hidden, axis=0)}

        def compute_loss(
            self, x=None, y=None, y_pred=None, sample_weight=None, training=True
        ):
            error = keras.losses.sparse_categorical_crossentropy(y, y_pred["rows"])
            return ops.mean(error) + ops.sum(y_pred["mean"] ** 2)

    def build():
        model = Summary()
        model.compile(keras.optimizers.SGD(0.05))
        return model

    x = array(ROWS, 8)
    _, labels = data(ROWS)

    def use(model):
        return (
            model.fit(x, labels, batch_size=BATCH, verbose=0),
            model.predict(x, batch_size=BATCH, verbose=0),
        )

    # On TensorFlow the model's own call is not located, and one device makes it.
    located = ON_JAX
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if located:
            check(build, use, devices=devices, rows=[BATCH], all_steps=True)
        else:
            parallel = run(build, use, lambda model: ku.DataParallel(model, devices))
            compare(run(build, use), parallel, TOLERANCE)
    texts = [str(w.message) for w in caught if w.category is ku.UnisonWarning]
    assert len(texts) == (0 if located else 1)
    assert all("'summary" in text for text in texts)


def test_an_output_without_a_batch_axis_of_a_functional_model(devices: int) -> None:
    def build():
        inputs = keras.Input((8,))
        hidden = keras.layers.Dense(13, activation="tanh")(inputs)
        rows = keras.layers.Dense(5, activation="softmax", name="rows")(hidden)
        mean = ops.mean(hidden, axis=0)
        model = keras.Model(inputs, {"rows": rows, "mean": mean})

        def loss_of_mean(y_true, y_pred):
            return ops.sum((y_pred - 0.3) ** 2)

        model.compile(
            keras.optimizers.SGD(0.05),
            {"rows": "sparse_categorical_crossentropy", "mean": loss_of_mean},
        )
        return model

    x = array(ROWS, 8)
    _, labels = data(ROWS)

    def use(model):
        return (
            model.fit(x, {"rows": labels, "mean": labels}, batch_size=BATCH, verbose=0),
            model.predict_on_batch(x[:BATCH]),
        )

    check(build, use, devices=devices, rows=[BATCH], all_steps=True)
