"""On JAX: a program per distinct shape, and arrays that move no more than they must."""

import keras
import numpy as np
import pytest

import keras_unison as ku
from tests.equivalence.harness import ON_JAX, check, data, dense_model, programs

if not ON_JAX:
    pytest.skip("these programs are XLA's, compiled for JAX", allow_module_level=True)

import jax

from keras_unison.engines.jax.placement import Placement


def count(seen, name):
    return sum(program.name == name for program in seen.programs)


def compiled(model):
    """Programs of the training and test steps, after each of several calls."""
    x, y = data(99)
    settings = {"batch_size": 33, "verbose": 0, "validation_data": (x, y)}
    calls = [
        lambda: model.fit(x, y, **settings),
        lambda: model.fit(x, y, epochs=2, **settings),
        lambda: model.set_weights([weight + 0 for weight in model.get_weights()]),
        lambda: model.fit(x, y, **settings),
        lambda: model.evaluate(x, y, batch_size=33, verbose=0),
        lambda: model.fit(x[:50], y[:50], batch_size=33, verbose=0),
        lambda: model.train_on_batch(x[:33], y[:33]),
        lambda: model.train_on_batch(x[33:66], y[33:66]),
    ]
    counts = []
    for call in calls:
        with programs() as seen:
            call()
        counts.append((count(seen, "jit_train_step"), count(seen, "jit_test_step")))
    return counts


def test_each_shape_is_compiled_once_as_in_plain_keras(devices):
    found = compiled(ku.DataParallel(dense_model(), devices))
    # 33 rows, then nothing new, then the 17 rows that are left of 50. A batch by
    # hand carries an empty sample weight, which is another structure.
    assert [train for train, _ in found] == [1, 0, 0, 0, 0, 1, 1, 0]
    assert [test for _, test in found] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert found == compiled(dense_model())


def test_a_step_is_traced_once_per_shape(devices):
    traces = []

    class Counting(keras.Sequential):
        def train_step(self, state, batch):
            traces.append(1)
            return super().train_step(state, batch)

    model = Counting([keras.Input((8,)), keras.layers.Dense(5)])
    ku.DataParallel(model, devices)
    model.compile("sgd", "sparse_categorical_crossentropy")
    x, y = data(99)
    model.fit(x, y, batch_size=31, epochs=2, verbose=0)
    assert len(traces) == 2


def test_wrapping_again_with_the_same_devices_compiles_nothing(devices):
    x, y = data(66)
    model = ku.DataParallel(dense_model(), devices)
    model.fit(x, y, batch_size=33, verbose=0)
    with programs() as seen:
        ku.DataParallel(model, devices)
        model.fit(x, y, batch_size=33, verbose=0)
    assert not seen.programs


def test_weights_that_a_step_returned_are_not_copied_to_the_devices_again(devices):
    """The next step starts from the arrays on the mesh, not from the first device."""
    from keras_unison.engines.jax.replicas import replicas_of

    x, y = data(33)
    model = ku.DataParallel(dense_model(), devices)
    model.train_on_batch(x, y)
    twins = replicas_of(model).twins
    layouts = [twins.placement.whole] * 4
    homes = [variable.value for variable in model.trainable_variables]
    placed = twins.place(homes, layouts)
    for home, array in zip(homes, placed, strict=True):
        assert len(array.sharding.device_set) == devices
        shard = array.addressable_data(0)
        assert shard.unsafe_buffer_pointer() == home.unsafe_buffer_pointer()


def test_state_is_given_away_by_a_step_as_in_plain_keras(devices):
    x, y = data(33)
    model = ku.DataParallel(dense_model(), devices)
    model.train_on_batch(x, y)
    held = model.trainable_variables[0].value
    copied = np.array(held)
    model.train_on_batch(x, y)
    assert held.is_deleted()
    assert not np.allclose(copied, model.trainable_variables[0].numpy())


@pytest.mark.parametrize("batch_size", [48, 33])
def test_batches_that_are_sent_ahead_give_the_same(batch_size, devices, monkeypatch):
    """On accelerators batches go to their devices one ahead; here it is switched on."""
    monkeypatch.setattr(Placement, "platform", "an accelerator")
    x, y = data(99)

    def use(model):
        return (
            model.fit(
                x, y, batch_size=batch_size, epochs=2, validation_split=0.2, verbose=0
            ),
            model.evaluate(x, y, batch_size=batch_size, verbose=0),
        )

    check(dense_model, use, devices=devices, rows=[batch_size])


def test_a_step_of_ones_own_that_cannot_be_divided_says_so_once(devices):
    class Window(keras.layers.Layer):
        """The maximum over three neighbouring rows."""

        def call(self, x):
            return keras.ops.max_pool(x[None], 3, 1, padding="same")[0]

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(5), Window()])
    weights = [variable.value for variable in model.trainable_variables]
    call = jax.jit(lambda w, x: model.stateless_call(w, [], x)[0])
    batches = [data(rows)[0] for rows in (48, 36, 48)]
    expected = [np.asarray(call(weights, x)) for x in batches]
    ku.DataParallel(model, devices)
    step = ku.step(call)
    with pytest.warns(ku.UnisonWarning, match="a window that slides") as caught:
        found = [np.asarray(step(weights, x)) for x in batches]
    assert len([w for w in caught if w.category is ku.UnisonWarning]) == 1
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-6)
