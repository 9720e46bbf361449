"""How programs of the Keras 2 years used multi_gpu_model, in small.

Each trial has the shape of a kind of program that is found in public, and must
give what one device gives. `docs/keras2.md` says what became of each idiom.
"""

from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_unison as ku
from tests.equivalence.harness import Model, check

KERAS2_FILES = Path(__file__).parent.parent / "data" / "keras2"


def wrap(model: Model, gpus: int) -> Model:
    return ku.multi_gpu_model(model, gpus=gpus)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def labels(rows: int, classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, size=rows)


def batches(x: np.ndarray, y: np.ndarray, size: int):
    """A generator that never ends, as `fit_generator` took it."""
    while True:
        for start in range(0, len(x), size):
            yield x[start : start + size], y[start : start + size]


# --- 1. a class of one's own around the model -------------------------------


class ParallelModel(keras.Model):
    """Sends loading and saving to the model inside, as Mask R-CNN's class does."""

    def __init__(self, inner: Model) -> None:
        # Before super().__init__, so that __getattribute__ finds it.
        object.__setattr__(self, "inner", inner)
        super().__init__(inputs=inner.inputs, outputs=inner.outputs)

    def __getattribute__(self, name: str):
        if "load" in name or "save" in name:
            return getattr(self.inner, name)
        return super().__getattribute__(name)

    def summary(self, *args, **kwargs) -> None:
        super().summary(*args, **kwargs)
        self.inner.summary(*args, **kwargs)


def conv_net() -> Model:
    inputs = keras.Input((12, 12, 1))
    x = layers.Conv2D(6, 3, activation="relu", name="conv")(inputs)
    x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    x = layers.Dense(14, activation="relu", name="hidden")(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax", name="out")(x))


def test_a_class_around_a_conv_net_trains_and_saves_the_inner_model(
    tmp_path, devices: int
) -> None:
    x, y = random(99, 12, 12, 1), labels(99, 10)

    def build():
        model = ParallelModel(conv_net())
        model.compile(
            optimizer=keras.optimizers.SGD(0.01, momentum=0.9, clipnorm=5.0),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return model

    def use(model):
        lines: list[str] = []
        model.summary(print_fn=lines.append)
        assert len(lines) == 2
        history = model.fit(
            batches(x, y, 33),
            steps_per_epoch=3,
            epochs=2,
            validation_data=(x[:34], y[:34]),
            verbose=0,
        )
        model.save(tmp_path / "inner.keras")
        model.save_weights(tmp_path / "inner.weights.h5")
        plain = keras.models.load_model(tmp_path / "inner.keras")
        assert type(plain) is type(conv_net())
        again = conv_net()
        again.load_weights(tmp_path / "inner.weights.h5")
        return history, plain.predict(x, verbose=0), again.get_weights()

    check(build, use, devices=devices, rows=[33], wrap=wrap)


# --- 2. a detector with a second model for prediction -----------------------


def test_a_detector_trains_by_output_names_and_predicts_by_another_model(
    devices: int,
) -> None:
    x = random(70, 16, 16, 3)
    y = {
        "regression": random(70, 4, seed=1),
        "classification": np.eye(6, dtype="float32")[labels(70, 6)],
    }

    def build():
        inputs = keras.Input((16, 16, 3))
        features = layers.Conv2D(9, 3, strides=2, activation="relu")(inputs)
        features = layers.GlobalAveragePooling2D()(features)
        heads = [
            layers.Dense(4, name="regression")(features),
            layers.Dense(6, activation="sigmoid", name="classification")(features),
        ]
        model = keras.Model(inputs, heads)
        model.compile(
            optimizer=keras.optimizers.SGD(0.05),
            loss={"regression": "huber", "classification": "binary_focal_crossentropy"},
            loss_weights={"regression": 1.0, "classification": 2.0},
            metrics={"classification": ["accuracy"]},
        )
        return model

    def use(model):
        boxes, scores = model.outputs
        best = layers.Lambda(lambda s: ops.max(s, axis=-1), output_shape=())(scores)
        prediction_model = keras.Model(model.inputs, [boxes, scores, best])
        history = model.fit(x, y, batch_size=35, epochs=2, verbose=0)
        assert "classification_loss" in history.history
        return history, prediction_model.predict(x, verbose=0)

    check(build, use, devices=devices, rows=[35], wrap=wrap)


# --- 3. a loss that the model computes --------------------------------------


@pytest.mark.parametrize("shape", [(), (1,)], ids=["scalar", "one_number"])
def test_a_loss_that_is_the_output_of_the_model_is_that_of_the_whole_batch(
    shape: tuple[int, ...], devices: int
) -> None:
    images, truth = random(70, 8, 8, 3), random(70, 4, 4, 5, seed=1)

    def loss_of(tensors):
        predicted, wanted = tensors
        # As YOLO does: a sum over all cells, divided by the rows.
        total = ops.sum(ops.square(predicted - wanted)) / ops.shape(wanted)[0]
        return ops.reshape(total, shape)

    def build():
        image, wanted = keras.Input((8, 8, 3)), keras.Input((4, 4, 5))
        body = keras.Model(
            image,
            layers.Conv2D(5, 3, strides=2, padding="same")(image),
            name="body",
        )
        loss = layers.Lambda(loss_of, output_shape=shape, name="yolo_loss")(
            [body(image), wanted]
        )
        model = keras.Model([image, wanted], loss)
        model.compile(
            optimizer=keras.optimizers.SGD(0.01),
            loss={"yolo_loss": lambda y_true, y_pred: y_pred},
        )
        return model

    def use(model):
        history = model.fit(
            [images, truth], np.zeros(70), batch_size=35, epochs=2, verbose=0
        )
        body = model.get_layer("body")
        return history, body.predict(images, batch_size=35, verbose=0)

    check(build, use, devices=devices, rows=[35], wrap=wrap)


# --- 4. CTC with four inputs ------------------------------------------------


def test_ctc_computed_in_the_model_from_four_inputs(devices: int) -> None:
    rows, steps, letters, length = 34, 12, 7, 4
    x = {
        "the_input": random(rows, steps, 5),
        "the_labels": np.random.default_rng(1).integers(1, letters, (rows, length)),
        "input_length": np.full((rows, 1), steps),
        "label_length": np.random.default_rng(2).integers(2, length + 1, (rows, 1)),
    }

    def ctc(tensors):
        predicted, wanted, predicted_length, wanted_length = tensors
        return ops.expand_dims(
            ops.ctc_loss(
                wanted,
                predicted,
                ops.squeeze(wanted_length, axis=-1),
                ops.squeeze(predicted_length, axis=-1),
            ),
            axis=-1,
        )

    def build():
        inputs = [
            keras.Input((steps, 5), name="the_input"),
            keras.Input((length,), name="the_labels", dtype="int32"),
            keras.Input((1,), name="input_length", dtype="int32"),
            keras.Input((1,), name="label_length", dtype="int32"),
        ]
        hidden = layers.Bidirectional(layers.GRU(9, return_sequences=True))(inputs[0])
        predicted = layers.Dense(letters, name="letters")(hidden)
        loss = layers.Lambda(ctc, output_shape=(1,), name="ctc")(
            [predicted, *inputs[1:]]
        )
        model = keras.Model(inputs, loss)
        model.compile(
            optimizer=keras.optimizers.SGD(0.01, clipnorm=5.0),
            loss={"ctc": lambda y_true, y_pred: y_pred},
        )
        return model

    def use(model):
        return (
            model.fit(x, np.zeros(rows), batch_size=17, epochs=2, verbose=0),
            model.predict(x, batch_size=17, verbose=0),
        )

    check(build, use, devices=devices, rows=[17], per_row=steps, wrap=wrap)


# --- 5. a callback that generates text --------------------------------------

TEXT = "the quick brown fox jumps over the lazy dog. " * 3


class GenerateText(keras.callbacks.Callback):
    """Writes a few letters by the template at the end of each epoch."""

    def __init__(self, template: Model, seed: np.ndarray) -> None:
        super().__init__()
        self.template = template
        self.seed = seed
        self.texts: list[list[int]] = []
        self.weights: list[list[np.ndarray]] = []

    def on_epoch_end(self, epoch, logs=None):
        text = list(self.seed)
        for _ in range(4):
            window = np.array([text[-len(self.seed) :]])
            text.append(int(self.template.predict(window, verbose=0)[0].argmax()))
        self.texts.append(text)
        self.weights.append(self.template.get_weights())


def test_a_callback_generates_text_from_the_template_each_epoch(devices: int) -> None:
    letters = sorted(set(TEXT))
    codes = np.array([letters.index(letter) for letter in TEXT])
    window = 6
    x = np.stack([codes[i : i + window] for i in range(len(codes) - window)])
    y = codes[window:]

    def build():
        model = keras.Sequential(
            [
                keras.Input((window,)),
                layers.Embedding(len(letters), 11, name="letters"),
                layers.LSTM(13, name="memory"),
                layers.Dense(len(letters), activation="softmax", name="next"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy")
        return model

    def use(model):
        generate = GenerateText(model, x[0])
        history = model.fit(
            x, y, batch_size=50, epochs=3, verbose=0, callbacks=[generate]
        )
        assert not np.array_equal(generate.weights[0][0], generate.weights[1][0])
        return history, generate.texts, generate.weights

    check(build, use, devices=devices, rows=[50, len(x) % 50], wrap=wrap)


# --- 6. a GAN ---------------------------------------------------------------


def test_a_gan_shares_its_discriminator_between_two_wrapped_models(
    devices: int,
) -> None:
    real, noise = random(99, 10), random(99, 4, seed=1)

    def build():
        generator = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(12, name="g1"),
                layers.BatchNormalization(name="norm"),
                layers.LeakyReLU(name="leaky"),
                layers.Dense(10, activation="tanh", name="g2"),
            ],
            name="generator",
        )
        discriminator = keras.Sequential(
            [
                keras.Input((10,)),
                layers.Dense(14, activation="relu", name="c1"),
                layers.Dropout(0.3, seed=5, name="drop"),
                layers.Dense(1, activation="sigmoid", name="c2"),
            ],
            name="discriminator",
        )
        discriminator.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
        discriminator.trainable = False
        inputs = keras.Input((4,))
        combined = keras.Model(inputs, discriminator(generator(inputs)))
        combined.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
        return combined

    def wrap_all(combined, gpus):
        for name in ("generator", "discriminator"):
            wrap(combined.get_layer(name), gpus)
        return wrap(combined, gpus)

    def use(combined):
        generator = combined.get_layer("generator")
        discriminator = combined.get_layer("discriminator")
        losses = []
        for step in range(3):
            rows = slice(33 * step, 33 * step + 33)
            fake = generator.predict(noise[rows], verbose=0)
            discriminator.trainable = True
            losses += [
                discriminator.train_on_batch(real[rows], np.ones((33, 1))),
                discriminator.train_on_batch(fake, np.zeros((33, 1))),
            ]
            discriminator.trainable = False
            losses.append(combined.train_on_batch(noise[rows], np.ones((33, 1))))
        return losses, discriminator.get_weights(), discriminator.optimizer.variables

    check(build, use, devices=devices, rows=[33], wrap=wrap_all)


# --- 7. a siamese net -------------------------------------------------------


def test_a_siamese_net_learns_by_a_contrastive_loss(devices: int) -> None:
    left, right = random(70, 8), random(70, 8, seed=1)
    same = labels(70, 2).astype("float32")

    def contrastive(y_true, distance):
        far = ops.square(ops.maximum(1.0 - distance, 0.0))
        return ops.mean(y_true * ops.square(distance) + (1.0 - y_true) * far)

    def distance_of(tensors):
        difference = ops.square(tensors[0] - tensors[1])
        total = ops.sum(difference, axis=-1, keepdims=True)
        return ops.sqrt(ops.maximum(total, 1e-6))

    def build():
        embed = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(13, activation="relu", name="e1"),
                layers.Dense(5, name="e2"),
            ],
            name="embed",
        )
        a, b = keras.Input((8,)), keras.Input((8,))
        distance = layers.Lambda(distance_of, output_shape=(1,), name="distance")(
            [embed(a), embed(b)]
        )
        model = keras.Model([a, b], distance)
        model.compile(keras.optimizers.SGD(0.05), contrastive)
        return model

    def use(model):
        history = model.fit(
            [left, right],
            same,
            batch_size=35,
            epochs=2,
            verbose=0,
            validation_data=([left[:34], right[:34]], same[:34]),
        )
        embedded = model.get_layer("embed").predict(left, batch_size=35, verbose=0)
        return history, embedded

    check(build, use, devices=devices, rows=[35], wrap=wrap)


# --- 8. ways to save the model inside ---------------------------------------


def template() -> Model:
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(13, activation="tanh", name="d1"),
            layers.Dense(5, activation="softmax", name="d2"),
        ]
    )


class OverridesSetModel(keras.callbacks.ModelCheckpoint):
    def __init__(self, path, single, **kwargs) -> None:
        super().__init__(path, **kwargs)
        self.single = single

    def set_model(self, model):
        super().set_model(self.single)


class SetsModelAtEpochEnd(keras.callbacks.ModelCheckpoint):
    def __init__(self, path, single, **kwargs) -> None:
        super().__init__(path, **kwargs)
        self.single = single

    def on_epoch_end(self, epoch, logs=None):
        before = self.model
        self.model = self.single
        super().on_epoch_end(epoch, logs)
        self.model = before


class SetsModelOnce(keras.callbacks.ModelCheckpoint):
    def __init__(self, path, single, **kwargs) -> None:
        super().__init__(path, **kwargs)
        self.model = single

    def set_model(self, model):
        pass


class Redirects(keras.callbacks.Callback):
    """Another callback, told of another model."""

    def __init__(self, path, single, **kwargs) -> None:
        super().__init__()
        self.callback = keras.callbacks.ModelCheckpoint(path, **kwargs)
        self.single = single

    def on_train_begin(self, logs=None):
        self.callback.set_model(self.single)
        self.callback.on_train_begin(logs)

    def on_epoch_end(self, epoch, logs=None):
        self.callback.on_epoch_end(epoch, logs=logs)


STYLES = [OverridesSetModel, SetsModelAtEpochEnd, SetsModelOnce, Redirects]


def trained(model: Model, callbacks=()) -> None:
    x, y = random(70, 8), labels(70, 5)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=35, epochs=2, verbose=0, callbacks=list(callbacks))


@pytest.mark.parametrize("style", STYLES)
def test_a_checkpoint_redirected_to_the_template_loads_into_one_device(
    style, tmp_path, devices: int
) -> None:
    # Setting `self.model` works once multi_gpu_model was called.
    wrap(template(), devices)
    path = tmp_path / "single.weights.h5"

    def use(model):
        path.unlink(missing_ok=True)
        trained(model, [style(path, model, save_weights_only=True)])
        single = template()
        single.load_weights(path)
        for saved, wanted in zip(
            single.get_weights(), model.get_weights(), strict=True
        ):
            np.testing.assert_array_equal(saved, wanted)
        return single.get_weights()

    check(template, use, devices=devices, rows=[35], wrap=wrap)


def test_the_hook_for_callbacks_of_keras_2_gets_the_template(
    tmp_path, devices: int
) -> None:
    path = tmp_path / "single.keras"
    parallel = []

    def wrap_with_hook(model, gpus):
        parallel.append(wrap(model, gpus))
        parallel[0].callback_model = model
        return parallel[0]

    def use(model):
        trained(model, [keras.callbacks.ModelCheckpoint(path)])
        return keras.models.load_model(path).get_weights()

    check(template, use, devices=devices, rows=[35], wrap=wrap_with_hook)


class TakesOverDict(keras.Model):
    """The hack that copied the attributes of the parallel model."""

    def __init__(self, serial: Model, gpus: int) -> None:
        super().__init__()
        parallel = ku.multi_gpu_model(serial, gpus)
        self.__dict__.update(parallel.__dict__)
        object.__setattr__(self, "serial", serial)

    def __getattribute__(self, name: str):
        if "load" in name or "save" in name:
            return getattr(object.__getattribute__(self, "serial"), name)
        return super().__getattribute__(name)


def test_the_dict_hack_fails_with_its_replacement_which_works(
    tmp_path, devices: int
) -> None:
    from keras_unison.legacy.hints import hint_for

    serial = template()
    hacked = TakesOverDict(serial, devices)
    with pytest.raises(RuntimeError) as caught:
        trained(hacked)
    fix = hint_for(caught.value)
    assert fix is not None
    assert "use the model that multi_gpu_model returns itself" in fix

    def use(model):
        trained(model)
        model.save_weights(tmp_path / "single.weights.h5")
        single = template()
        single.load_weights(tmp_path / "single.weights.h5")
        return single.get_weights()

    check(template, use, devices=devices, rows=[35], wrap=wrap)
    # The hack left the model that it was given usable.
    trained(serial)


def test_saving_the_layer_before_the_last_names_what_to_save(
    tmp_path, devices: int
) -> None:
    parallel = wrap(template(), devices)
    trained(parallel)
    with pytest.raises(AttributeError, match=r"`parallel\.save`"):
        parallel.layers[-2].save(tmp_path / "single.keras")
    parallel.save(tmp_path / "single.keras")
    assert len(keras.models.load_model(tmp_path / "single.keras").layers) == 2


# --- 9. files that Keras 2 saved from several GPUs --------------------------


def test_a_model_saved_on_four_gpus_by_keras_2_trains_on(devices: int) -> None:
    expected = np.load(KERAS2_FILES / "cnn_expected.npz")
    x, y = random(35, 16, 16, 3), labels(35, 5)

    def build():
        model = ku.load_keras2_model(KERAS2_FILES / "cnn_4gpu_model.h5", compile=False)
        model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
        return model

    def use(model):
        before = model.predict(expected["x"], verbose=0)
        np.testing.assert_allclose(before, expected["predict"], rtol=1e-5, atol=1e-6)
        return model.fit(x, y, batch_size=35, epochs=2, verbose=0)

    check(build, use, devices=devices, rows=[35], wrap=wrap)


def test_weights_saved_on_two_gpus_by_keras_2_go_into_a_wrapped_model(
    devices: int,
) -> None:
    expected = np.load(KERAS2_FILES / "dense_expected.npz")
    x, y = random(35, 4), labels(35, 3)

    def build():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(8, activation="relu", name="d1"),
                layers.Dense(3, activation="softmax", name="d2"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        return model

    def use(model):
        ku.load_keras2_weights(model, KERAS2_FILES / "dense_2gpu.weights.h5")
        before = model.predict(expected["x"], verbose=0)
        np.testing.assert_allclose(before, expected["predict"], rtol=1e-5, atol=1e-6)
        return model.fit(x, y, batch_size=35, epochs=2, verbose=0)

    check(build, use, devices=devices, rows=[35], wrap=wrap)
