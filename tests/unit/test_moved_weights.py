"""Weights that live on another device than before: whoever reads them reads the new.

On TensorFlow a traced function goes on with the variables that it was traced with.
"""

import keras
import numpy as np
import pytest
from keras import layers

import keras_unison as ku
from keras_unison._keras import slots_of

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="on JAX arrays are moved, and variables stay",
)

X = np.random.default_rng(0).normal(size=(33, 8)).astype("float32")
Y = np.random.default_rng(1).integers(0, 5, size=33)


def dense(*units):
    return [layers.Dense(n, activation="tanh") for n in units]


def compiled(model):
    model.compile(
        keras.optimizers.SGD(0.5, momentum=0.9), "sparse_categorical_crossentropy"
    )
    return model


def classifier(encoder, inputs):
    outputs = layers.Dense(5, activation="softmax")(encoder(inputs))
    return compiled(keras.Model(inputs, outputs))


def fit(model, **settings):
    model.fit(X, Y, batch_size=11, shuffle=False, verbose=0, **settings)


def by_hand(model):
    """What the model computes with the weights that it has now."""
    return np.asarray(model(X))


def assert_reads_its_weights(model):
    np.testing.assert_allclose(
        model.predict(X, verbose=0), by_hand(model), rtol=1e-4, atol=1e-5
    )


def encoder_and_classifier():
    inputs = keras.Input((8,))
    encoder = keras.Sequential([keras.Input((8,)), *dense(40, 30)])
    return encoder, classifier(encoder, inputs)


def places(variables):
    return [variable.value.device.rpartition(":")[2] for variable in variables]


def test_a_plain_model_that_had_predicted_before_sees_what_is_trained():
    encoder, model = encoder_and_classifier()
    before = encoder.predict(X, verbose=0)
    ku.DataParallel(model, devices=2)
    assert {"0", "1"} == set(places(encoder.weights))
    fit(model)
    assert np.abs(encoder.predict(X, verbose=0) - before).max() > 0.01
    assert_reads_its_weights(encoder)


def test_a_plain_model_that_had_trained_before_trains_the_same_weights():
    encoder, model = encoder_and_classifier()
    other = classifier(encoder, keras.Input((8,)))
    fit(other)
    ku.DataParallel(model, devices=2)
    fit(model)
    before = model.predict(X, verbose=0)
    fit(other)
    assert np.abs(model.predict(X, verbose=0) - before).max() > 0.01
    for each in (model, other, encoder):
        assert_reads_its_weights(each)


@pytest.mark.parametrize("devices", [2, [1, 2]], ids=["same", "others"])
def test_two_parallel_models_that_share_layers_train_in_turn(devices):
    """As plain Keras trains them, though each may move the weights of the other."""

    def train(wrap):
        keras.utils.set_random_seed(3)
        encoder, one = encoder_and_classifier()
        other = classifier(encoder, keras.Input((8,)))
        wrap(one, 2)
        fit(one)
        wrap(other, devices)
        for model in (other, one, one, other):
            fit(model)
        return [model.predict(X, verbose=0) for model in (one, other, encoder)]

    plain = train(lambda model, devices: model)
    for found, wanted in zip(train(ku.DataParallel), plain, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_model_that_is_made_plain_again_reads_its_weights():
    encoder, model = encoder_and_classifier()
    ku.DataParallel(model, devices=3)
    fit(model)
    encoder.predict(X, verbose=0)
    ku.DataParallel(model, devices=1)
    assert set(places(model.weights)) == {"0"}
    fit(model)
    assert_reads_its_weights(model)
    assert_reads_its_weights(encoder)


def built_before(model):
    model.build((None, 8))
    return compiled(ku.DataParallel(model, devices=2))


def built_after(model):
    ku.DataParallel(model, devices=2)
    model.build((None, 8))
    return compiled(model)


def built_by_fit(model):
    return compiled(ku.DataParallel(model, devices=2))


@pytest.mark.parametrize("make", [built_before, built_after, built_by_fit])
def test_weights_and_slots_lie_on_both_devices_whenever_they_were_made(make):
    model = make(keras.Sequential([*dense(40, 40), layers.Dense(5)]))
    fit(model)
    kernels = [layer.kernel for layer in model.layers]
    assert set(places(kernels)) == {"0", "1"}
    slots = slots_of(model.optimizer)
    assert slots
    for variable, slot in slots:
        assert places([variable]) == places([slot])
    traced = model.train_function
    fit(model)
    assert model.train_function is traced


def test_weights_of_a_model_of_a_scope_are_spread():
    with ku.MirroredStrategy(2).scope():
        inputs = keras.Input((8,))
        x = inputs
        for layer in dense(40, 40):
            x = layer(x)
        model = compiled(keras.Model(inputs, layers.Dense(5)(x)))
    fit(model)
    assert set(places(model.weights)) == {"0", "1"}


def test_wrapping_on_other_devices_spreads_anew():
    model = compiled(keras.Sequential([keras.Input((8,)), *dense(40, 40, 40)]))
    ku.DataParallel(model, devices=2)
    ku.DataParallel(model, devices=3)
    assert set(places(model.weights)) == {"0", "1", "2"}
    ku.DataParallel(model, devices=[1, 2])
    assert set(places(model.weights)) == {"1", "2"}
