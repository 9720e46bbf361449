"""What Keras does not promise of its objects on PyTorch: fails where it changes.

Each test stands for one touch in `keras_unison/_keras/torch.py`.
"""

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("touches Keras's torch backend", allow_module_level=True)

import pickle
from collections import OrderedDict

import numpy as np
import torch

from keras_unison._keras import torch as internals

CHANGED = "Keras changed what keras_unison/_keras/torch.py relies on: "


def dense_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("adam", "mse", metrics=["mae"])
    model.train_on_batch(np.ones((2, 3)), np.ones((2, 2)))
    return model


def test_models_layers_metrics_losses_and_optimizers_have_a_common_base():
    model = dense_model()
    common = internals.saveable_class()
    for one in (
        model,
        model.layers[0],
        model.optimizer,
        model.metrics[0],
        keras.losses.MeanSquaredError(),
        model._compile_loss,
        model._compile_metrics,
    ):
        assert isinstance(one, common), CHANGED + f"the base of {type(one).__name__}"
    assert not isinstance(model.weights[0], common)
    # Keras pickles them by saving, which is why they are not pickled its way.
    assert "__reduce__" in vars(common)


def test_graphs_consist_of_nodes_and_symbolic_tensors():
    model = dense_model()
    node_class, tensor_class = internals.graph_classes()
    (node,) = model.layers[0]._inbound_nodes[-1:]
    assert isinstance(node, node_class), CHANGED + "the nodes of a layer"
    assert isinstance(node.outputs[0], tensor_class)
    for cls in (node_class, tensor_class):
        assert cls.__reduce_ex__ is object.__reduce_ex__, CHANGED + cls.__name__
        assert not hasattr(cls, "__setstate__")


def test_containers_that_are_attributes_of_layers_are_tracked():
    layer = keras.layers.Layer()
    values = {
        "a": ([1], list),
        "b": ({"x": 1}, dict),
        "c": ({1}, set),
        "d": (OrderedDict(x=1), OrderedDict),
    }
    for name, (value, base) in values.items():
        setattr(layer, name, value)
        found = getattr(layer, name)
        assert isinstance(found, internals.tracked_classes()), (
            CHANGED + f"what a {base.__name__} becomes"
        )
        assert internals.builtin_of(found) in (base, dict)
        assert vars(found).keys() == {"tracker"}, CHANGED + "attributes of containers"
        # A container that is being restored has no tracker yet.
        with pytest.raises(AttributeError, match="tracker"):
            type(found).__new__(type(found)).clear()


def test_trackers_of_layers_tell_attributes_apart_by_the_same_code():
    one, other = keras.layers.Dense(1), keras.layers.Dense(2)
    for name, (predicate, _) in one._tracker.config.items():
        assert internals.is_predicate(predicate), CHANGED + f"the tracker of {name}"
        assert predicate.__code__ is other._tracker.config[name][0].__code__
    assert not internals.is_predicate(lambda x: x)
    assert not internals.is_predicate(keras.activations.relu)


def test_fit_keeps_the_iterator_of_validation_data_on_the_model():
    model, seen = dense_model(), []

    class Look(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            seen.append(vars(model)["_eval_epoch_iterator"])

    x, y = np.ones((2, 3)), np.ones((2, 2))
    model.fit(x, y, validation_data=(x, y), callbacks=[Look()], verbose=0)
    assert isinstance(seen[0], internals.left_out_classes()), (
        CHANGED + "the iterator of validation data"
    )
    assert isinstance(keras.callbacks.CallbackList(), internals.left_out_classes())


def test_lazy_modules_are_found_by_their_names():
    from keras.src.utils import module_utils

    module = module_utils.tensorflow
    assert isinstance(module, internals.lazy_class())
    name = internals.name_of_lazy_module(module)
    assert internals.lazy_module(name) is module
    other = type(module)("json")
    assert internals.name_of_lazy_module(other) is None


def test_augmentation_layers_compute_with_a_backend_by_name():
    backend = keras.layers.RandomFlip().backend
    assert isinstance(backend, internals.dynamic_backend_class()), (
        CHANGED + "the backend of augmentation layers"
    )
    name = internals.name_of_dynamic(backend)
    assert name == "torch"
    assert internals.name_of_dynamic(internals.dynamic_backend(name)) == name
    with pytest.raises(RecursionError):
        pickle.loads(pickle.dumps(backend))


def test_the_first_functional_model_changes_its_class():
    class Own(keras.Model):
        pass

    class Other(keras.Model):
        pass

    assert not internals.is_functional(Own)
    inputs = keras.Input((3,))
    Own(inputs, keras.layers.Dense(1)(inputs))
    assert internals.is_functional(Own), CHANGED + "the class of functional models"
    internals.make_functional(Other)
    assert Other.__mro__[1:] == Own.__mro__[1:]
    before = Other.__bases__
    internals.make_functional(Other)
    assert Other.__bases__ == before


def test_attributes_of_a_loop_are_known():
    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.sum(x))
            return x

    model = keras.Sequential([keras.Input((3,)), Adds(), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    x, y = np.ones((2, 3)), np.ones((2, 2))
    model.fit(x, y, verbose=0)
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    functions = ("train_function", "test_function", "predict_function")
    for name in (*functions, "history"):
        assert vars(model)[name] is not None, CHANGED + f"model.{name}"
    state = internals.without_a_loop(dict(vars(model)))
    assert [state[name] for name in functions] == [None] * 3
    assert "history" not in state
    layer = model.layers[0]
    assert isinstance(vars(layer)["_losses"][0], torch.Tensor), (
        CHANGED + "what add_loss collects"
    )
    state = internals.without_a_loop(dict(vars(layer)))
    assert state["_losses"] == []
    assert vars(layer)["_losses"], "the original was changed"
    for name in ("_losses_override", "_loss_ids"):
        assert name in vars(layer), CHANGED + name


def test_optimizers_and_trackers_know_variables_by_identity():
    model = dense_model()
    optimizer = model.optimizer
    optimizer.exclude_from_weight_decay(var_list=[model.weights[0]])
    tables = [set(table) for table in internals.identity_tables(optimizer)]
    trained = {id(v) for v in model.trainable_variables}
    assert trained in tables, CHANGED + "the indices of an optimizer's variables"
    assert {id(model.weights[0])} in tables, CHANGED + "the excluded variables"
    layer = model.layers[0]
    tracked = set().union(*internals.identity_tables(layer))
    assert {id(v) for v in layer.weights} <= tracked, CHANGED + "Tracker.stored_ids"


def test_functional_models_name_nodes_by_identity():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    layer = model.layers[-1]
    keys = [key for key in model._nodes if key.startswith(str(id(layer)))]
    assert len(keys) == 1, CHANGED + "Function._nodes"
    assert model._nodes in list(internals.identity_tables(model))
    renamed = internals.rename_node(keys[0], {id(layer): 12})
    assert renamed.startswith("12_")
    assert internals.rename_node(keys[0], {1: 2}) == keys[0]
    assert internals.rename_node("own", {1: 2}) == "own"
    assert internals.rename_node(3, {3: 2}) == 3
