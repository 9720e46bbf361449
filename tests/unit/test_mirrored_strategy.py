"""MirroredStrategy: models of its scope are data parallel, others are not."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_unison as ku
from keras_unison.engines import engine
from tests.equivalence.harness import check

X = np.random.default_rng(0).normal(size=(99, 100)).astype("float32")
Y = np.eye(10, dtype="float32")[np.random.default_rng(1).integers(0, 10, size=99)]


def positions(model):
    return engine().positions(model)


def add_layers(model):
    model.add(layers.Dense(64, input_dim=100))
    model.add(layers.Dense(64))
    model.add(layers.Dense(10, activation="softmax"))


def small():
    return keras.Sequential([keras.Input((100,)), layers.Dense(10)])


@pytest.fixture
def keras_restored():
    """Fails a test that leaves Keras changed."""

    def plain():
        before = positions(small())
        model = small()
        model.compile("sgd", "mse")
        return before is None and positions(model) is None

    assert plain()
    yield
    assert plain()


# --- the article's block, with the strategy of ours -------------------------


@pytest.mark.filterwarnings("ignore:Do not pass an")
def test_a_model_built_and_compiled_in_the_scope_trains_as_on_one_device(
    devices, keras_restored
):
    def article(scope):
        with scope():
            model = keras.Sequential(name="article")
            add_layers(model)
            for index, layer in enumerate(model.layers):
                assert layer.built, index
            model.compile(loss="categorical_crossentropy", optimizer="sgd")
        return model

    class Nothing:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    strategy = ku.MirroredStrategy(devices)
    made = [article(Nothing), article(strategy.scope)]

    def use(model):
        return (
            model.fit(X, Y, batch_size=45, epochs=2, verbose=0),
            model.evaluate(X, Y, batch_size=45, verbose=0),
            model.predict(X, batch_size=45, verbose=0),
        )

    # The harness builds twice: first the plain one, then the one of the scope.
    made[1].set_weights(made[0].get_weights())
    building = iter(made)
    check(
        lambda: next(building),
        use,
        devices=devices,
        rows=[45],
        wrap=lambda model, count: model,
    )
    assert positions(made[0]) is None
    assert positions(made[1]) == list(range(devices))


# --- what belongs to the strategy -------------------------------------------


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(10)

    def call(self, x):
        return self.dense(x)


class BuiltFromTensors(keras.Model):
    def __init__(self):
        inputs = keras.Input((100,))
        super().__init__(inputs, layers.Dense(10)(inputs))


def functional():
    inputs = keras.Input((100,))
    return keras.Model(inputs, layers.Dense(10)(inputs))


KINDS = {
    "sequential": small,
    "functional": functional,
    "not_built": lambda: keras.Sequential([layers.Dense(10)]),
    "subclassed": Subclassed,
    "built_from_tensors": BuiltFromTensors,
}


@pytest.mark.parametrize("build", KINDS.values(), ids=KINDS)
def test_a_model_built_in_the_scope_may_be_compiled_and_fitted_outside(
    build, keras_restored
):
    strategy = ku.MirroredStrategy(2)
    with strategy.scope():
        model = build()
    model.compile("sgd", "mse")
    assert positions(model) == [0, 1]
    assert model.fit(X, Y, batch_size=33, verbose=0).history["loss"]
    assert type(model).__name__ == type(build()).__name__


def test_a_model_compiled_in_the_scope_belongs_to_it(keras_restored):
    model, other = small(), small()
    with ku.MirroredStrategy(3).scope():
        model.compile("sgd", "mse")
    assert positions(model) == [0, 1, 2]
    assert positions(other) is None
    assert model.fit(X, Y, batch_size=33, verbose=0).history["loss"]


def test_a_model_may_be_fitted_inside_the_scope(keras_restored):
    with ku.MirroredStrategy(2).scope():
        model = small()
        model.compile("sgd", "mse")
        assert model.fit(X, Y, batch_size=33, verbose=0).history["loss"]


def test_models_outside_stay_untouched(keras_restored):
    before = small()
    before.compile("sgd", "mse")
    with ku.MirroredStrategy(2).scope():
        inside = small()
        before.predict(X[:4], verbose=0)
    after = small()
    after.compile("sgd", "mse")
    assert positions(inside) == [0, 1]
    assert positions(before) is None
    assert positions(after) is None
    assert type(before) is keras.Sequential


def test_the_scope_gives_the_strategy_and_may_be_entered_again(keras_restored):
    strategy = ku.MirroredStrategy(2)
    with strategy.scope() as given:
        first = small()
    assert given is strategy
    with strategy.scope():
        second = small()
    assert positions(first) == positions(second) == [0, 1]


def test_in_nested_scopes_the_inner_one_counts(keras_restored):
    with ku.MirroredStrategy(3).scope():
        before = small()
        with ku.MirroredStrategy([1, 2]).scope():
            inner = small()
        after = small()
    assert positions(before) == [0, 1, 2]
    assert positions(inner) == [1, 2]
    assert positions(after) == [0, 1, 2]


def test_a_model_compiled_in_another_scope_moves(keras_restored):
    with ku.MirroredStrategy(3).scope():
        model = small()
    with ku.MirroredStrategy(2).scope():
        model.compile("sgd", "mse")
    assert positions(model) == [0, 1]


def test_an_exception_in_the_scope_restores_keras(keras_restored):
    made = []

    def fail_in_scope():
        with ku.MirroredStrategy(2).scope():
            made.append(small())
            raise RuntimeError("in the scope")

    with pytest.raises(RuntimeError, match="in the scope"):
        fail_in_scope()
    assert positions(made[0]) == [0, 1]


def test_an_exception_in_an_inner_scope_leaves_the_outer_one(keras_restored):
    with ku.MirroredStrategy(3).scope():
        with (
            pytest.raises(ValueError, match="activation"),
            ku.MirroredStrategy(2).scope(),
        ):
            layers.Dense(1, activation="no such activation")
        model = small()
    assert positions(model) == [0, 1, 2]


def test_a_model_loaded_in_the_scope_is_parallel_and_trains_on(
    tmp_path, keras_restored
):
    saved = small()
    saved.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.Huber())
    saved.fit(X, Y, batch_size=33, verbose=0)
    saved.save(tmp_path / "model.keras")
    with ku.MirroredStrategy(2).scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert positions(loaded) == [0, 1]
    one = saved.fit(X, Y, batch_size=33, shuffle=False, verbose=0).history
    two = loaded.fit(X, Y, batch_size=33, shuffle=False, verbose=0).history
    np.testing.assert_allclose(one["loss"], two["loss"], rtol=1e-5)
    for weight, other in zip(saved.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-6)


def test_what_a_model_of_the_scope_saves_is_plain(tmp_path, keras_restored):
    with ku.MirroredStrategy(2).scope():
        model = small()
        model.compile("sgd", "mse")
        copy = keras.models.clone_model(model)
    model.save(tmp_path / "plain.keras")
    assert positions(keras.models.load_model(tmp_path / "plain.keras")) is None
    assert positions(copy) == [0, 1]


# --- the strategy -----------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "count"), [(None, 3), (2, 2), ([2, 0], 2), (["cpu:1"], 1), (1, 1)]
)
def test_num_replicas_in_sync_is_the_number_of_devices(devices, count):
    assert ku.MirroredStrategy(devices).num_replicas_in_sync == count


def test_on_one_device_models_are_plain(keras_restored):
    with ku.MirroredStrategy(1).scope():
        model = small()
        model.compile("sgd", "mse")
    assert positions(model) is None
    assert type(model) is keras.Sequential


@pytest.mark.parametrize("devices", [4, 0, -1, [0, 0], ["gpu:0"], True])
def test_devices_that_do_not_exist_raise_when_the_strategy_is_made(devices):
    with pytest.raises(ku.DeviceError, match="`devices`"):
        ku.MirroredStrategy(devices)


def test_run_says_how_a_step_is_written():
    with pytest.raises(ku.UnsupportedError, match=r"`keras_unison\.step`") as caught:
        ku.MirroredStrategy(2).run(lambda x: x, args=(X,))
    assert isinstance(caught.value, NotImplementedError)


def test_experimental_distribute_dataset_says_what_takes_the_dataset():
    with pytest.raises(ku.UnsupportedError, match=r"`model\.fit`"):
        ku.MirroredStrategy(2).experimental_distribute_dataset([X])
