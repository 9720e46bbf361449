"""TensorFlow's own strategies and ours, in one program."""

import pytest

from tests.process.scripts import output_of, run_python

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.process

START = """
import keras, numpy as np, tensorflow as tf
import keras_unison as ku
ku.simulate(2)
from keras import layers

x = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
y = np.random.default_rng(1).integers(0, 5, size=96)

def build():
    keras.utils.set_random_seed(7)
    model = keras.Sequential([
        keras.Input((8,)),
        layers.Dense(30, activation="tanh"),
        layers.Dense(5, activation="softmax"),
    ])
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model

def fit(model, epochs=2):
    return model.fit(
        x, y, batch_size=32, epochs=epochs, shuffle=False, verbose=0,
        validation_data=(x[:32], y[:32]),
    )

def same(model, history, plain, expected):
    assert sorted(history.history) == sorted(expected.history)
    for name, values in expected.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-5, atol=1e-5)
    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
"""

# Batches that divide: TensorFlow's numbers are those of one device here too.
IN_TURN = (
    START
    + """
plain = build()
first = fit(plain)
theirs = tf.distribute.MirroredStrategy()
ours = ku.MirroredStrategy()
assert theirs.num_replicas_in_sync == ours.num_replicas_in_sync == 2

def of(strategy):
    with strategy.scope():
        return build()

one = of(theirs)
same(one, fit(one), plain, first)
two = of(ours)
same(two, fit(two), plain, first)
three = of(theirs)
same(three, fit(three), plain, first)
# And each of them goes on, in another order.
again = fit(plain)
for model in (two, three, one):
    same(model, fit(model), plain, again)
wrapped = ku.DataParallel(build(), devices=2)
same(wrapped, fit(wrapped, epochs=4), plain, fit(build(), epochs=4))
assert theirs.run(lambda: tf.distribute.get_replica_context().num_replicas_in_sync)
print("right", len(one.weights[0].value.values), two.weights[0].value.device != "")
"""
)


def on_tensorflow(code):
    return run_python(code, KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")


def test_models_of_both_strategies_train_in_turn_with_their_right_numbers():
    assert output_of(on_tensorflow(IN_TURN)).split() == ["right", "2", "True"]


REFUSED = (
    START
    + """
theirs = tf.distribute.MirroredStrategy()

def refused(action):
    try:
        action()
    except ku.PlacementError as error:
        print(error)
    else:
        raise AssertionError("not refused")

with theirs.scope():
    made_there = build()
    refused(lambda: ku.DataParallel(build(), devices=2))
    with_ours = ku.MirroredStrategy()
    def in_both():
        with with_ours.scope():
            build()
    refused(in_both)
refused(lambda: ku.DataParallel(made_there, devices=2))
refused(lambda: ku.multi_gpu_model(made_there, gpus=2))
wrapped = ku.DataParallel(build(), devices=2)
with theirs.scope():
    refused(lambda: fit(wrapped))
    refused(lambda: ku.step(lambda: None)())
# All of them are what they were.
plain = build()
expected = fit(plain)
same(wrapped, fit(wrapped), plain, expected)
same(made_there, fit(made_there), plain, expected)
"""
)


def test_what_belongs_to_both_is_refused_and_goes_on_with_one():
    lines = output_of(on_tensorflow(REFUSED)).splitlines()
    assert len(lines) == 6
    for line in lines:
        assert "MirroredStrategy" in line
        assert "tf.distribute" in line
        assert "Keras Unison" in line or "keras_unison" in line
        assert "scope()" in line
