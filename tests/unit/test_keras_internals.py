"""What Keras does not promise: fails where a Keras release changes it.

Each test stands for one touch in `keras_unison/_keras.py`.
"""

import importlib.util
import inspect

import jax
import keras
import numpy as np
import pytest

from keras_unison import _keras
from tests.equivalence.harness import data, dense_model

CHANGED = "Keras changed what keras_unison/_keras.py relies on: "


def test_layer_call_can_be_replaced_on_the_class():
    assert "__call__" in vars(keras.layers.Layer), CHANGED + "Layer.__call__"
    calls = []

    def call(original, layer, args, kwargs):
        calls.append(layer.name)
        return original(layer, *args, **kwargs)

    original = keras.layers.Layer.__call__
    plain = getattr(original, "_unison_original", original)
    keras.layers.Layer.__call__ = plain
    try:
        _keras.hook_layer_call(call)
        keras.layers.Dense(2, name="seen")(np.ones((1, 3)))
    finally:
        keras.layers.Layer.__call__ = original
    assert calls == ["seen"]


def test_masks_are_kept_beside_the_tensor():
    embedded = keras.layers.Embedding(5, 2, mask_zero=True)(np.array([[1, 0]]))
    other = embedded + 0
    _keras.copy_mask(embedded, other)
    layer = keras.layers.GlobalAveragePooling1D()
    np.testing.assert_allclose(layer(other), layer(embedded), err_msg=CHANGED + "masks")


def test_the_trainer_has_the_methods_that_are_hooked():
    trainer = type(dense_model())
    for name, parameters in {
        "_make_function": ["step_function", "concatenate_outputs"],
        "_get_jax_state": [
            "trainable_variables",
            "non_trainable_variables",
            "optimizer_variables",
            "metrics_variables",
            "purge_model_variables",
        ],
        "jax_state_sync": [],
        "_symbolic_build": ["iterator", "data_batch"],
        "train_step": ["state", "data"],
        "test_step": ["state", "data"],
        "predict_step": ["state", "data"],
        "make_train_function": ["force"],
    }.items():
        assert hasattr(trainer, name), CHANGED + name
        found = list(inspect.signature(getattr(trainer, name)).parameters)
        assert found == ["self", *parameters], CHANGED + name


@pytest.mark.parametrize(
    ("method", "parts"),
    [
        ("fit", _keras.STATE_PARTS),
        ("evaluate", (*_keras.STATE_PARTS[:2], _keras.STATE_PARTS[3])),
        ("predict", _keras.STATE_PARTS[:2]),
    ],
)
def test_a_step_carries_these_parts_in_this_order(method, parts):
    """The compiled step of each loop gets the state that `state_dict` names."""
    seen = []

    class Watching(keras.Sequential):
        def _make_function(self, step_function, *args, **kwargs):
            def watched(state, batch):
                seen.append((step_function, state))
                return step_function(state, batch)

            return super()._make_function(watched, *args, **kwargs)

    model = Watching([keras.Input((8,)), keras.layers.Dense(5)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    x, y = data(4)
    arguments = (x,) if method == "predict" else (x, np.eye(5)[y])
    getattr(model, method)(*arguments, batch_size=4, verbose=0)
    compiled, state = seen[-1]
    assert hasattr(compiled, "trace"), CHANGED + "steps are compiled by jax.jit"
    named = _keras.state_dict(state)
    assert tuple(named) == parts, CHANGED + "the parts of a state"
    sizes = {
        "trainable_variables": len(model.trainable_variables),
        "non_trainable_variables": len(model.non_trainable_variables),
        "optimizer_variables": len(model.optimizer.variables),
        "metrics_variables": len(model.metrics_variables),
    }
    assert {name: len(part) for name, part in named.items()} == {
        name: sizes[name] for name in parts
    }, CHANGED + "the order of a state"


def test_a_published_state_is_what_the_next_sync_writes():
    model = dense_model()
    x, y = data(4)
    model.train_on_batch(x, y)
    state = tuple(
        [variable.value + 1 for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    )
    _keras.publish_state(model, state)
    assert not _keras.is_synced(model), CHANGED + "_jax_state_synced"
    assert list(_keras.pending_state(model)) == list(_keras.STATE_PARTS)
    model.jax_state_sync()
    assert _keras.is_synced(model)
    written = [variable.value for variable in model.trainable_variables]
    assert all(a is b for a, b in zip(written, state[0], strict=True)), (
        CHANGED + "a variable keeps the array that it is assigned"
    )
    _keras.forget_pending_state(model)


def test_the_source_of_an_epoch_can_be_replaced_on_its_iterator():
    x, y = data(8)
    model = dense_model()
    rows = []

    def wrap(batches):
        for batch in batches:
            rows.append(batch[0].shape[0])
            yield batch

    class Watched(keras.Sequential):
        def _symbolic_build(self, iterator=None, data_batch=None):
            super()._symbolic_build(iterator=iterator, data_batch=data_batch)
            _keras.replace_source(iterator, wrap)

    watched = Watched(model.layers)
    watched.compile("sgd", "sparse_categorical_crossentropy")
    watched.fit(x, y, batch_size=4, epochs=2, verbose=0)
    assert rows == [4, 4, 4, 4], CHANGED + "EpochIterator._get_iterator"
    watched.evaluate(x, y, batch_size=8, verbose=0)
    assert rows[4:] == [8], CHANGED + "EpochIterator._get_iterator"


def test_every_model_is_seen_when_it_is_built_and_compiled():
    seen = []
    with _keras.models_seen(seen.append):
        inputs = keras.Input((2,))
        functional = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        sequential = keras.Sequential([keras.layers.Dense(1)])
    assert any(model is functional for model in seen), CHANGED + "Trainer.__init__"
    assert any(model is sequential for model in seen), CHANGED + "Trainer.__init__"
    seen.clear()
    with _keras.models_seen(seen.append):
        functional.compile("sgd", "mse")
    assert len(seen) == 1, CHANGED + "Trainer.compile"
    functional.compile("sgd", "mse")
    assert len(seen) == 1


def test_callbacks_have_a_model_property_without_a_setter_or_ours():
    assert isinstance(vars(keras.callbacks.Callback)["model"], property), (
        CHANGED + "Callback.model"
    )


def test_layers_have_no_getattr_of_their_own_or_it_is_ours():
    found = getattr(keras.layers.Layer, "__getattr__", None)
    assert found is None or found.__module__ == "keras_unison._keras", (
        CHANGED + "Layer.__getattr__"
    )


def test_tf_keras_is_this_package():
    assert importlib.util.find_spec(_keras.TF_KERAS), CHANGED + _keras.TF_KERAS


def test_draws_do_not_depend_on_the_division():
    assert jax.config.jax_threefry_partitionable, (
        "JAX changed what exact draws rely on: jax_threefry_partitionable"
    )
