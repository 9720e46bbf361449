"""Random draws are those of one device, each row its own."""

import importlib
import random
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import keras_unison as ku
from keras_unison.errors import UnisonWarning
from tests.equivalence.harness import (
    ON_JAX,
    ON_TENSORFLOW,
    TOLERANCE,
    assert_divided,
    check,
    compare,
    data,
    programs,
    run,
)

# 35 rows divide evenly over neither two nor three devices.
ROWS, BATCH = 70, 35
SIZE = 6


def vector_model(layer: Any) -> Any:
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(13, activation="tanh"),
            layer,
            keras.layers.Dense(5, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return model


def image_model(*layers: Any) -> Any:
    model = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 3)),
            *layers,
            keras.layers.Flatten(),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return model


def images() -> Any:
    return (
        np.random.default_rng(9).uniform(size=(ROWS, SIZE, SIZE, 3)).astype("float32")
    )


def fit(model: Any, x: Any = None, batch: int = BATCH) -> Any:
    features, labels = data(ROWS)
    x = features if x is None else x
    return model.fit(x, labels, batch_size=batch, epochs=2, verbose=0)


def noise() -> dict[str, Any]:
    layers = keras.layers
    return {
        "dropout": lambda: layers.Dropout(0.4),
        "dropout_with_seed": lambda: layers.Dropout(0.4, seed=3),
        "dropout_shared_by_rows": lambda: layers.Dropout(0.4, noise_shape=(1, 13)),
        "dropout_of_whole_rows": lambda: layers.Dropout(0.4, noise_shape=(None, 1)),
        "gaussian_noise": lambda: layers.GaussianNoise(0.3),
        "gaussian_dropout": lambda: layers.GaussianDropout(0.3),
        "alpha_dropout": lambda: layers.AlphaDropout(0.3),
    }


@pytest.mark.parametrize("name", noise())
def test_noise_is_that_of_one_device(name: str, devices: int) -> None:
    check(
        lambda: vector_model(noise()[name]()),
        fit,
        devices=devices,
        rows=[BATCH],
    )


def augmentations() -> dict[str, Any]:
    layers = keras.layers
    found = {
        "spatial_dropout": lambda: layers.SpatialDropout2D(0.4),
        "flip": lambda: layers.RandomFlip("horizontal_and_vertical"),
        "rotation": lambda: layers.RandomRotation(0.2),
        "zoom": lambda: layers.RandomZoom(0.3),
        "translation": lambda: layers.RandomTranslation(0.2, 0.2),
        "contrast": lambda: layers.RandomContrast(0.4),
        "brightness": lambda: layers.RandomBrightness(0.3, value_range=(0, 1)),
        "hue": lambda: layers.RandomHue(0.4, value_range=(0, 1)),
        "saturation": lambda: layers.RandomSaturation(0.5, value_range=(0, 1)),
        "color_jitter": lambda: layers.RandomColorJitter(
            value_range=(0, 1),
            brightness_factor=0.2,
            contrast_factor=0.3,
            saturation_factor=0.4,
            hue_factor=0.2,
        ),
        "color_degeneration": lambda: layers.RandomColorDegeneration(
            0.6, value_range=(0, 1)
        ),
        "sharpness": lambda: layers.RandomSharpness(0.5, value_range=(0, 1)),
        "blur": lambda: layers.RandomGaussianBlur(value_range=(0, 1)),
        "shear": lambda: layers.RandomShear(0.3, 0.2),
        "perspective": lambda: layers.RandomPerspective(1.0, 0.4),
        "erasing": lambda: layers.RandomErasing(1.0, value_range=(0, 1)),
        "posterization": lambda: layers.RandomPosterization(3, value_range=(0, 1)),
        "grayscale": lambda: layers.RandomGrayscale(0.5),
        "invert": lambda: layers.RandomInvert(0.5, value_range=(0, 1)),
        "auto_contrast": lambda: layers.AutoContrast(value_range=(0, 1)),
        "equalization": lambda: layers.Equalization(value_range=(0, 1)),
        "solarization": lambda: layers.Solarization(value_range=(0, 1)),
    }
    if ON_TENSORFLOW:
        # Keras itself fails with these on JAX, or cannot compile them there.
        found |= eager_on_jax() | {
            "crop": lambda: layers.RandomCrop(4, 5),
            "elastic_transform": lambda: layers.RandomElasticTransform(
                1.0, 0.9, value_range=(0, 1)
            ),
        }
    return found


def eager_on_jax() -> dict[str, Any]:
    layers = keras.layers
    return {
        "rand_augment": lambda: layers.RandAugment(value_range=(0, 1)),
        "aug_mix": lambda: layers.AugMix(value_range=(0, 1)),
    }


@pytest.mark.parametrize("name", augmentations())
def test_augmentation_is_that_of_one_device(name: str, devices: int) -> None:
    def build():
        layer = augmentations()[name]()
        # Keras runs steps with some of these eagerly; JAX can compile them all.
        layer.supports_jit = True
        return image_model(layer)

    check(
        build,
        lambda model: fit(model, images()),
        devices=devices,
        rows=[BATCH],
    )


def test_several_augmentations_in_turn(devices: int) -> None:
    layers = keras.layers
    check(
        lambda: image_model(
            layers.RandomFlip(), layers.RandomContrast(0.3), layers.Dropout(0.2)
        ),
        lambda model: fit(model, images()),
        devices=devices,
        rows=[BATCH],
    )


@pytest.mark.parametrize("batch", [35, 36])
@pytest.mark.parametrize(
    "name",
    [
        "rotation",
        # On JAX such a step takes seconds.
        *(pytest.param(name, marks=pytest.mark.soak) for name in eager_on_jax()),
    ],
)
def test_augmentation_that_keras_runs_eagerly(
    name: str, batch: int, devices: int
) -> None:
    x = images()[:batch]
    _, labels = data(batch)

    def build():
        return image_model((augmentations() | eager_on_jax())[name]())

    def use(model):
        assert not model.jit_compile
        return model.fit(x, labels, batch_size=batch, epochs=2, verbose=0)

    plain = run(build, use)
    if ON_JAX:
        # An operation of an eager step may have been compiled in an earlier one.
        importlib.import_module("jax").clear_caches()
    with warnings.catch_warnings(record=True) as caught, programs(("jit_",)) as seen:
        warnings.simplefilter("always")
        parallel = run(build, use, lambda model: ku.DataParallel(model, devices))
    compare(plain, parallel, TOLERANCE)
    # On JAX an eager step is divided where the rows divide evenly, and says so if not.
    warned = [w for w in caught if w.category is UnisonWarning]
    if batch % devices and ON_JAX:
        assert len(warned) == 1
    else:
        assert not warned
        assert_divided(seen, devices=devices, rows=[batch])


# --- draws of a user's own layers ---------------------------------------------


class Drawing(keras.layers.Layer):
    """Draws in training what its function makes of the rows and a seed."""

    def __init__(self, function: Callable[[Any, Any], Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function = function
        self.seeds = keras.random.SeedGenerator(4)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.function(x, self.seeds) if training else x

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def _mix_up(x: Any, seeds: Any) -> Any:
    share = keras.random.beta((ops.shape(x)[0], 1), 0.4, 0.4, seed=seeds)
    other = ops.take(x, _partners(x, seeds), axis=0)
    return share * x + (1.0 - share) * other


def _cut_mix(x: Any, seeds: Any) -> Any:
    start = keras.random.randint((), 0, 8, seed=seeds)
    places = ops.arange(x.shape[1])
    cut = ops.logical_and(places >= start, places < start + 5)
    return ops.where(cut, ops.take(x, _partners(x, seeds), axis=0), x)


def _partners(x: Any, seeds: Any) -> Any:
    return keras.random.shuffle(ops.arange(ops.shape(x)[0]), seed=seeds)


def _now_and_then(x: Any, seeds: Any) -> Any:
    """Mixes rows in one step out of three: on TensorFlow not in the first three."""
    chosen = keras.random.uniform((), seed=seeds) > 0.65
    return ops.where(chosen, x - ops.mean(x, axis=0), x)


def _branches(x: Any, seeds: Any) -> Any:
    chosen = keras.random.uniform((), seed=seeds) > 0.65
    return ops.cond(chosen, lambda: x - ops.mean(x, axis=0), lambda: x)


def _some_rows(x: Any, seeds: Any) -> Any:
    """Takes another row in one row out of ten."""
    chosen = keras.random.uniform((ops.shape(x)[0], 1), seed=seeds) < 0.1
    return ops.where(chosen, ops.roll(x, 1, axis=0), x)


def _folded(draw: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Draws for rows times something: 13 values of a row are 13 rows of one."""

    def call(x: Any, seeds: Any) -> Any:
        flat = ops.reshape(x, (-1, 1))
        return ops.reshape(flat * draw(ops.shape(flat), seeds), (-1, 13))

    return call


def _choice(x: Any, seeds: Any) -> Any:
    chosen = keras.random.categorical(x, 1, seed=seeds)
    return x * (1.0 + 0.1 * ops.cast(chosen, "float32"))


DRAWS: dict[str, Callable[[Any, Any], Any]] = {
    "uniform": lambda x, s: x * keras.random.uniform(ops.shape(x), seed=s),
    "normal": lambda x, s: x + keras.random.normal(ops.shape(x), seed=s),
    "truncated_normal": lambda x, s: (
        x + keras.random.truncated_normal(ops.shape(x), seed=s)
    ),
    "randint": lambda x, s: (
        x * ops.cast(keras.random.randint(ops.shape(x), 0, 3, seed=s), "float32")
    ),
    "gamma": lambda x, s: x * keras.random.gamma(ops.shape(x), 2.0, seed=s),
    "binomial": lambda x, s: x * keras.random.binomial(ops.shape(x), 5.0, 0.3, seed=s),
    "beta": lambda x, s: x * keras.random.beta(ops.shape(x), 2.0, 3.0, seed=s),
    "categorical": _choice,
    "dropout": lambda x, s: keras.random.dropout(x, 0.3, seed=s),
    "one_draw_for_the_batch": lambda x, s: x * keras.random.uniform((), seed=s),
    "mix_up": _mix_up,
    "cut_mix": _cut_mix,
    "folded_uniform": _folded(lambda shape, s: keras.random.uniform(shape, seed=s)),
    "folded_gamma": _folded(lambda shape, s: keras.random.gamma(shape, 2.0, seed=s)),
    "folded_beta": _folded(lambda shape, s: keras.random.beta(shape, 2.0, 3.0, seed=s)),
    "folded_categorical": _folded(
        lambda shape, s: ops.cast(
            keras.random.categorical(ops.zeros((shape[0], 3)), 1, seed=s), "float32"
        )
    ),
    "mixing_now_and_then": _now_and_then,
    "branches": _branches,
    "mixing_some_rows": _some_rows,
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_a_custom_layer(name: str, devices: int) -> None:
    check(
        lambda: vector_model(Drawing(DRAWS[name])),
        fit,
        devices=devices,
        rows=[BATCH],
    )


class ChosenByPython(keras.layers.Layer):
    """Chooses what it computes when it is traced, as AugMix does."""

    def call(self, x: Any) -> Any:
        return x - ops.mean(x, axis=0) if random.random() < 0.5 else x


# Mixes rows when it is traced first, second, both times.
@pytest.mark.parametrize("seed", [1, 10, 4])
def test_what_pythons_random_numbers_choose(seed: int, devices: int) -> None:
    def fitted(model: Any) -> Any:
        random.seed(seed)
        # Another number of rows is traced anew.
        return fit(model), fit(model, batch=14)

    check(lambda: vector_model(ChosenByPython()), fitted, devices=devices, rows=[BATCH])


@pytest.mark.parametrize("rows", [48, 35])
def test_shuffled_rows(rows: int, devices: int) -> None:
    x, y = data(2 * rows)

    def shuffle(x, seeds):
        return 0.7 * x + 0.3 * keras.random.shuffle(x, seed=seeds)

    def use(model):
        return model.fit(x, y, batch_size=rows, verbose=0)

    # Keras on JAX shuffles by a sort, which no gradient passes in uneven parts.
    divided = rows % devices == 0 or not ON_JAX
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(
            lambda: vector_model(Drawing(shuffle)),
            use,
            devices=devices,
            rows=[rows] if divided else [],
        )
    assert divided != any(w.category is UnisonWarning for w in caught)


class KerasMixing(keras.layers.Layer):
    """A mixing layer of Keras on images and labels together."""

    def __init__(self, mixer: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mixer = mixer

    def call(self, inputs: Any, training: bool = False) -> Any:
        mixed = self.mixer(
            {"images": inputs[0], "labels": inputs[1]}, training=training
        )
        return mixed["images"], mixed["labels"]

    def compute_output_spec(self, inputs: Any, training: bool = False) -> Any:
        return tuple(keras.KerasTensor(x.shape, x.dtype) for x in inputs)


@pytest.mark.parametrize("name", ["MixUp", "CutMix"])
def test_mixing_layers_of_keras(name: str, devices: int) -> None:
    labels = np.eye(5, dtype="float32")[data(ROWS)[1]]

    def build():
        image = keras.Input((SIZE, SIZE, 3))
        label = keras.Input((5,))
        mixer = getattr(keras.layers, name)(seed=5)
        mixed, target = KerasMixing(mixer)([image, label])
        hidden = keras.layers.Flatten()(mixed)
        output = keras.layers.Dense(5, activation="softmax")(hidden)
        error = keras.layers.Lambda(
            lambda pair: ops.abs(pair[0] - pair[1]), output_shape=(5,)
        )([output, target])
        model = keras.Model([image, label], error)
        model.compile(keras.optimizers.SGD(0.1), "mae")
        return model

    def use(model):
        return model.fit(
            [images(), labels], 0.0 * labels, batch_size=BATCH, epochs=2, verbose=0
        )

    check(build, use, devices=devices, rows=[BATCH])
