"""What Keras does not promise: fails where a Keras release changes it.

Each test stands for one touch in `keras_unison/_keras`.
"""

import importlib.util
import inspect
from contextlib import contextmanager

import keras
import numpy as np
import pytest

from keras_unison import _keras
from tests.equivalence.harness import data, dense_model

CHANGED = "Keras changed what keras_unison/_keras relies on: "
BACKEND = keras.backend.backend()
if BACKEND == "jax":
    import jax
if BACKEND == "tensorflow":
    import tensorflow as tf
on_jax = pytest.mark.skipif(BACKEND != "jax", reason="touches Keras's JAX backend")
on_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="touches Keras's TensorFlow backend"
)


@contextmanager
def hooked_anew(*places):
    """Within this context what hooks have replaced is Keras's own, to be hooked."""
    present = [(owner, name, getattr(owner, name)) for owner, name in places]
    for owner, name, found in present:
        setattr(owner, name, getattr(found, "_unison_original", found))
    try:
        yield
    finally:
        for owner, name, found in present:
            setattr(owner, name, found)


# --- layers and models, on every backend ------------------------------------


def test_calls_of_layers_and_operations_can_be_replaced_on_their_classes():
    from keras.src.ops.operation import Operation

    for cls in (keras.layers.Layer, Operation):
        assert "__call__" in vars(cls), CHANGED + f"{cls.__name__}.__call__"
    inputs = keras.Input((3,))
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="inner")])
    model = keras.Model(inputs, keras.ops.exp(inner(inputs)), name="outer")
    calls = []

    def call(original, operation, args, kwargs):
        calls.append(operation.name)
        return original(operation, *args, **kwargs)

    with hooked_anew((keras.layers.Layer, "__call__"), (Operation, "__call__")):
        _keras.hook_calls(call)
        model(np.ones((1, 3)))
    names = [operation.name for operation in _keras.operations_of(model)]
    assert [name for name in calls if not name.startswith("input")] == [
        "outer",
        inner.name,
        "inner",
        next(name for name in names if name.startswith("exp")),
    ], CHANGED + "each call of a layer and of an operation, once"


def test_operations_are_the_layers_at_any_depth_and_the_nodes_of_graphs():
    inputs = keras.Input((4,))
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    cell = keras.layers.Bidirectional(keras.layers.LSTM(2))
    sequence = keras.ops.reshape(inner(inputs), (-1, 2, 2))
    model = keras.Model(inputs, cell(sequence))
    found = _keras.operations_of(model)
    kinds = {type(operation).__name__ for operation in found}
    wanted = {"Functional", "Sequential", "Dense", "LSTM", "LSTMCell", "Reshape"}
    assert kinds >= wanted, CHANGED + "_flatten_layers, _operations"
    assert len({id(operation) for operation in found}) == len(found)
    reshape = next(o for o in found if type(o).__name__ == "Reshape")
    assert _keras.operations_of(reshape) == [reshape]


def test_a_layer_is_built_when_all_of_its_layers_are():
    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = keras.layers.Dense(2)

        def build(self, shape):
            pass

        def call(self, x):
            return self.inner(x)

    outer = Outer()
    outer.build((None, 3))
    assert outer.built, CHANGED + "Layer.built"
    assert not _keras.is_built(outer), CHANGED + "_flatten_layers"
    outer(np.ones((1, 3)))
    assert _keras.is_built(outer), CHANGED + "Layer.built"


def test_losses_that_a_call_added_can_be_replaced():
    layer = keras.layers.ActivityRegularization(l2=0.5)
    layer(np.ones((2, 3)))
    assert len(layer.losses) == 1
    other = keras.ops.convert_to_tensor(3.0)
    _keras.replace_losses(layer, [other, other])
    assert [float(loss) for loss in layer.losses] == [3.0, 3.0], (
        CHANGED + "_clear_losses, add_loss"
    )


def test_weights_say_what_they_are_cast_to():
    dense = keras.layers.Dense(2, dtype="mixed_bfloat16")
    norm = keras.layers.BatchNormalization(dtype="mixed_float16")
    model = keras.Sequential([keras.Input((3,)), dense, norm])
    found = _keras.computed_in(model)
    assert found[id(dense.kernel)] == "bfloat16", CHANGED + "Variable._autocast"
    assert len(found) <= len(model.trainable_variables)
    assert set(found) <= {id(v) for v in model.trainable_variables}, (
        CHANGED + "Layer._trainable_variables"
    )


def test_an_optimizers_slots_are_lists_in_the_order_of_the_weights():
    optimizer = keras.optimizers.AdamW(
        0.1, use_ema=True, gradient_accumulation_steps=2, amsgrad=True
    )
    weights = [keras.Variable(np.zeros(n), name=f"v{n}") for n in (2, 3)]
    optimizer.build(weights)
    pairs = _keras.slots_of(optimizer)
    # Two moments, the largest of the second, the average, the sum of gradients.
    for weight in weights:
        of_it = [slot for variable, slot in pairs if variable is weight]
        assert len(of_it) == 5, CHANGED + "lists of an optimizer"
        assert all(slot.shape == weight.shape for slot in of_it)
        assert all(any(slot is v for v in optimizer.variables) for slot in of_it)


def test_masks_are_kept_beside_the_tensor():
    embedded = keras.layers.Embedding(5, 2, mask_zero=True)(np.array([[1, 0]]))
    other = embedded + 0
    _keras.copy_mask(embedded, other)
    layer = keras.layers.GlobalAveragePooling1D()
    np.testing.assert_allclose(layer(other), layer(embedded), err_msg=CHANGED + "masks")


def test_a_mask_is_what_the_next_layer_takes():
    x = keras.ops.convert_to_tensor([[[1.0], [3.0]]])
    _keras.set_mask(x, keras.ops.convert_to_tensor([[True, False]]))
    assert np.array_equal(_keras.get_mask(x), [[True, False]])
    mean = keras.layers.GlobalAveragePooling1D()(x)
    np.testing.assert_allclose(mean, [[1.0]], err_msg=CHANGED + "masks")
    assert _keras.get_mask(x + 0) is None


# --- Keras's trainer on JAX -------------------------------------------------


@on_jax
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


@on_jax
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


@on_jax
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


@on_jax
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


# --- code written for Keras 2, and MirroredStrategy.scope ------------------------


def test_every_model_is_seen_when_it_is_built_and_compiled():
    seen = []
    with _keras.models_seen(seen.append):
        inputs = keras.Input((2,))
        functional = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        sequential = keras.Sequential([keras.layers.Dense(1)])
    assert any(model is functional for model in seen), CHANGED + "Model.__init__"
    assert any(model is sequential for model in seen), CHANGED + "Model.__init__"
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
    assert found is None or found.__module__.startswith("keras_unison._keras"), (
        CHANGED + "Layer.__getattr__"
    )


def test_tf_keras_is_this_package():
    assert importlib.util.find_spec(_keras.TF_KERAS), CHANGED + _keras.TF_KERAS


@on_jax
def test_draws_do_not_depend_on_the_division():
    assert jax.config.jax_threefry_partitionable, (
        "JAX changed what exact draws rely on: jax_threefry_partitionable"
    )


# --- layers in parts, on TensorFlow ------------------------------------------

DRAWS = {
    "uniform": lambda: keras.random.uniform((2,), seed=1),
    "normal": lambda: keras.random.normal((2,), seed=1),
    "truncated_normal": lambda: keras.random.truncated_normal((2,), seed=1),
    "randint": lambda: keras.random.randint((2,), 0, 5, seed=1),
    "gamma": lambda: keras.random.gamma((2,), 1.0, seed=1),
    "beta": lambda: keras.random.beta((2,), 1.0, 1.0, seed=1),
    "binomial": lambda: keras.random.binomial((2,), 3.0, 0.5, seed=1),
    "categorical": lambda: keras.random.categorical(np.zeros((2, 3)), 1, seed=1),
    "shuffle": lambda: keras.random.shuffle(np.arange(5), seed=1),
    "dropout": lambda: keras.random.dropout(np.ones(5), 0.5, seed=1),
}
LAYERS_THAT_DRAW = {
    "dropout": lambda: keras.layers.Dropout(0.5)(np.ones((2, 3)), training=True),
    "normal": lambda: keras.layers.GaussianNoise(1.0)(np.ones((2, 3)), training=True),
    "uniform": lambda: keras.layers.RandomFlip()(np.ones((2, 4, 4, 3)), training=True),
}


@on_tensorflow
@pytest.mark.parametrize(
    ("name", "draw"),
    [*DRAWS.items(), *LAYERS_THAT_DRAW.items()],
    ids=[*DRAWS, *(f"layer_{name}" for name in LAYERS_THAT_DRAW)],
)
def test_draws_are_looked_up_in_one_module_at_each_call(name, draw):
    from keras.src.backend.tensorflow import random

    made, seeds = [], []

    def watched(original, *args, **kwargs):
        made.append(original.__name__)
        return original(*args, **kwargs)

    def seed(original, given):
        seeds.append(given)
        return original(given)

    with hooked_anew(*((random, each) for each in [*DRAWS, "draw_seed"])):
        _keras.hook_random(dict.fromkeys(DRAWS, watched), seed)
        draw()
    assert name in made, CHANGED + f"keras.src.backend.tensorflow.random.{name}"
    assert seeds, CHANGED + "draw_seed"


@on_tensorflow
def test_every_draw_of_kerass_module_is_hooked():
    from keras.src.backend.tensorflow import random

    with hooked_anew(*((random, each) for each in [*DRAWS, "draw_seed"])):
        functions = {
            name
            for name, value in vars(random).items()
            if inspect.isfunction(value)
            and "seed" in inspect.signature(value).parameters
        }
    assert functions - {"draw_seed", "_cast_seed"} == set(DRAWS), (
        CHANGED + "the functions of keras.random"
    )


@on_tensorflow
def test_the_places_of_a_draw_depend_on_seed_and_place_alone():
    """What a replica keeps of the draw for the whole batch is what one device has."""
    for draw in (tf.random.stateless_uniform, tf.random.stateless_normal):
        few, many = draw((3, 4), seed=[1, 2]), draw((7, 4), seed=[1, 2])
        np.testing.assert_array_equal(many, draw((7, 4), seed=[1, 2]))
        assert few.shape == (3, 4)


@on_tensorflow
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_batch_statistics_have_one_place(masked):
    """Keras takes mean and variance of a batch by `_moments`, and by nothing else."""
    cls = keras.layers.BatchNormalization
    parameters = list(inspect.signature(cls._moments).parameters)
    assert parameters == ["self", "inputs", "mask"], CHANGED + "_moments"
    layer = cls(momentum=0.5)
    x = np.random.default_rng(0).normal(size=(4, 3, 2)).astype("float32")
    mask = np.array([[True, True, False]] * 4) if masked else None
    seen = []

    def moments(original, self, inputs, given):
        seen.append((_keras.batch_axes(self), given is not None))
        mean, variance = original(self, inputs, given)
        return mean + 1, variance

    with hooked_anew((cls, "_moments")):
        layer(x, training=True, mask=mask)
        before = np.array(layer.moving_mean)
        _keras.hook_batch_moments(moments)
        layer.moving_mean.assign(np.zeros(2))
        layer(x, training=True, mask=mask)
    assert seen == [([0, 1], masked)], CHANGED + "_moments, _reduction_axes"
    np.testing.assert_allclose(
        layer.moving_mean, before + 0.5, rtol=1e-5, err_msg=CHANGED + "moving_mean"
    )


@on_tensorflow
def test_losses_and_metrics_compute_their_values_by_a_function_of_theirs():
    from keras.src.losses.losses import LossFunctionWrapper
    from keras.src.metrics.reduction_metrics import MeanMetricWrapper

    seen = []

    def values(function, y_true, y_pred, **options):
        seen.append((function.__name__, sorted(options)))
        return function(y_true, y_pred, **options)

    y, logits = np.array([1, 0]), np.ones((2, 3), "float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metric = keras.metrics.SparseCategoricalAccuracy()
    expected = float(loss(y, logits))
    with hooked_anew(
        (LossFunctionWrapper, "call"), (MeanMetricWrapper, "update_state")
    ):
        _keras.hook_values(values)
        assert float(loss(y, logits)) == expected
        metric.update_state(y, logits)
    names = [name for name, _ in seen]
    assert names == [
        "sparse_categorical_crossentropy",
        "sparse_categorical_accuracy",
    ], CHANGED + "LossFunctionWrapper.fn, MeanMetricWrapper._fn"
    assert "from_logits" in seen[0][1], CHANGED + "LossFunctionWrapper._fn_kwargs"
    assert loss.fn is keras.losses.sparse_categorical_crossentropy


@on_tensorflow
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_activations_leave_their_logits_on_what_they_return(activation):
    """Crossentropies compute from them, in Keras's own backend."""
    x = tf.constant([[1.0, 2.0, 3.0]])
    crossentropy = {
        "softmax": keras.ops.categorical_crossentropy,
        "sigmoid": keras.ops.binary_crossentropy,
    }[activation]
    left = _keras.get_logits(keras.activations.get(activation)(x))
    assert left is not None, CHANGED + "_keras_logits"
    np.testing.assert_array_equal(left, x)
    outputs, target = tf.fill([1, 3], 1 / 3), tf.constant([[0.0, 0.0, 1.0]])
    _keras.set_logits(outputs, x)
    np.testing.assert_allclose(
        crossentropy(target, outputs),
        crossentropy(target, x, from_logits=True),
        rtol=1e-6,
        err_msg=CHANGED + "_keras_logits",
    )


@on_tensorflow
def test_a_layer_is_built_by_a_call_on_symbolic_tensors():
    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.embedding = keras.layers.Embedding(7, 4, mask_zero=True)
            self.lstm = keras.layers.LSTM(3)

        def call(self, x, scale=1.0, training=False):
            return self.lstm(self.embedding(x)) * scale

    layer = Outer()

    @tf.function(autograph=False)
    def traced(x):
        with tf.init_scope():
            _keras.build_by_call(
                keras.layers.Layer.__call__, layer, ((x,), {"training": True})
            )
        return layer(x)

    traced(tf.constant([[1, 0]]))
    assert _keras.is_built(layer), CHANGED + "a call on a KerasTensor builds"
    assert all(np.isfinite(w).all() for w in layer.get_weights())


@on_tensorflow
def test_a_variable_can_be_moved_with_its_slots():
    weight = keras.Variable(np.arange(3.0), name="weight")
    optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
    optimizer.build([weight])
    before = _keras.tensorflow_variable(weight)
    assert isinstance(before, tf.Variable), CHANGED + "Variable._value"
    assert _keras.last_move(weight) == 0
    _keras.move_variable(weight, "/device:CPU:2")
    after = _keras.tensorflow_variable(weight)
    assert after is not before
    assert after.device.endswith("CPU:2"), CHANGED + "Variable._value"
    assert _keras.last_move(weight) > 0
    np.testing.assert_array_equal(weight, np.arange(3.0))
    # The optimizer knows it still, by `_unique_id`.
    optimizer.apply([tf.ones(3)], [weight])
    np.testing.assert_array_equal(weight, np.arange(3.0) - 1)
    for _, slot in _keras.slots_of(optimizer):
        _keras.move_variable(slot, "/device:CPU:2")
    optimizer.apply([tf.ones(3)], [weight])
    np.testing.assert_array_equal(
        weight, np.arange(3.0) - 2.5, err_msg=CHANGED + "Optimizer._var_key"
    )


@on_tensorflow
def test_a_variable_without_a_value_has_no_tensorflow_variable():
    with keras.StatelessScope():
        variable = keras.Variable("zeros", shape=(2,))
        assert _keras.tensorflow_variable(variable) is None, CHANGED + "Variable._value"


@on_tensorflow
def test_slots_of_a_moved_variable_are_made_on_its_device():
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    weights = [keras.Variable(np.ones(3), name=f"w{n}") for n in range(2)]
    _keras.move_variable(weights[0], "/device:CPU:1")
    optimizer = keras.optimizers.Adam()

    @tf.function(autograph=False)
    def traced():
        optimizer.build(weights)

    with hooked_anew((TFOptimizer, "add_variable_from_reference")):
        _keras.hook_slots()
        traced()
    places = {
        id(weight): {
            _keras.tensorflow_variable(slot).device[-5:]
            for variable, slot in _keras.slots_of(optimizer)
            if variable is weight
        }
        for weight in weights
    }
    assert places == {id(weights[0]): {"CPU:1"}, id(weights[1]): {"CPU:0"}}, (
        CHANGED + "TFOptimizer.add_variable_from_reference"
    )


@on_tensorflow
def test_a_moved_variable_is_updated_on_its_device():
    weight = keras.Variable(np.ones(3), name="w")
    _keras.move_variable(weight, "/device:CPU:1")
    optimizer = keras.optimizers.Adam()
    optimizer.build([weight])
    _keras.hook_updates()

    @tf.function(autograph=False)
    def traced():
        optimizer.apply([tf.ones(3)], [weight])

    graph = traced.get_concrete_function().graph
    roots = {op.device[-5:] for op in graph.get_operations() if op.type == "Sqrt"}
    assert "CPU:1" in roots, CHANGED + "the strategy's extended.update"


@on_tensorflow
def test_traced_functions_are_made_by_methods_that_can_be_watched():
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    seen = []
    model = dense_model()
    x, y = data(4)
    with hooked_anew(*((TensorFlowTrainer, name) for name in _keras.FUNCTION_MAKERS)):
        _keras.hook_functions(seen.append)
        model.fit(x, y, verbose=0)
        model.evaluate(x, y, verbose=0)
        model.predict(x, verbose=0)
        model.train_on_batch(x, y)
        model.test_on_batch(x, y)
        model.predict_on_batch(x)
    assert len(seen) == 6, CHANGED + "make_train_function and its like"
    assert all(one is model for one in seen)
    for attribute in _keras.FUNCTION_MAKERS.values():
        assert callable(getattr(model, attribute)), CHANGED + attribute
    _keras.forget_functions(model)
    assert model.train_function is model.predict_function is None
    assert model.fit(x, y, verbose=0).history["loss"], CHANGED + "functions made anew"


@on_tensorflow
def test_the_trainer_reads_jit_compile_while_it_makes_a_function():
    """Where a part is compiled by itself, the whole step must not be."""
    seen = []

    class Watching(keras.Sequential):
        @property
        def jit_compile(self):
            seen.append("read")
            return False

        @jit_compile.setter
        def jit_compile(self, value):
            keras.Model.jit_compile.fset(self, value)

    model = Watching([keras.Input((8,)), keras.layers.Dense(5)])
    model.compile("sgd", "mse", jit_compile=True)
    model.make_train_function(force=True)
    assert seen, CHANGED + "Trainer.jit_compile"
    for name in ("train_step", "test_step", "predict_step"):
        found = list(inspect.signature(getattr(model, name)).parameters)
        assert found == ["data"], CHANGED + name


@on_tensorflow
def test_a_model_says_under_which_strategy_of_tensorflow_it_was_made():
    plain = dense_model()
    assert plain.distribute_strategy is tf.distribute.get_strategy()
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model = dense_model()
    assert model.distribute_strategy is strategy, CHANGED + "distribute_strategy"
