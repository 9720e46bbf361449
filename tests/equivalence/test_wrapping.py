"""DataParallel itself: when it is called, on which devices, and what it leaves."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_unison as ku
from tests.equivalence.harness import (
    ON_JAX,
    assert_divided,
    check,
    compare,
    data,
    dense_model,
    programs,
    run,
)
from tests.equivalence.on_tensorflow import executed_graphs, nodes_of

ROWS = 82
BATCH = 48
DIVIDED = [48, 34]
X, Y = data(ROWS)


def fitted(model: Any, epochs: int = 1) -> Any:
    return model.fit(X, Y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)


def used(model: Any) -> Any:
    return fitted(model), model.predict(X, batch_size=BATCH, verbose=0)


def momentum_model() -> Any:
    return dense_model(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))


def compiled(model: Any) -> Any:
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def network(*, built: bool) -> Any:
    first = [keras.Input((8,))] if built else []
    return keras.Sequential(
        [*first, layers.Dense(13, activation="tanh"), layers.Dense(5, "softmax")]
    )


# --- when -------------------------------------------------------------------


def wrapped_twice(model: Any, devices: int) -> Any:
    once = ku.DataParallel(model, devices)
    kind = type(once)
    twice = ku.DataParallel(once, devices)
    assert type(twice) is kind
    return twice


def compiled_after(model: Any, devices: int) -> Any:
    return compiled(ku.DataParallel(model, devices))


def compiled_before_and_after(model: Any, devices: int) -> Any:
    return compiled(ku.DataParallel(compiled(model), devices))


def built_after(model: Any, devices: int) -> Any:
    model = compiled(ku.DataParallel(model, devices))
    model.build((None, 8))
    return model


# How a network is made parallel, and whether it is built before.
ORDERS: dict[str, tuple[bool, Callable[[Any, int], Any]]] = {
    "wrapped_twice": (True, lambda m, n: wrapped_twice(compiled(m), n)),
    "built_and_compiled": (True, lambda m, n: ku.DataParallel(compiled(m), n)),
    "compiled_after": (True, compiled_after),
    "compiled_before_and_after": (True, compiled_before_and_after),
    "built_by_fit": (False, lambda m, n: ku.DataParallel(compiled(m), n)),
    "built_by_fit_compiled_after": (False, compiled_after),
    "built_after": (False, built_after),
}


@pytest.mark.parametrize("name", ORDERS)
def test_wrapped_at_any_time(name: str, devices: int) -> None:
    built, wrap = ORDERS[name]

    def wrap_in_place(model: Any, count: int) -> Any:
        parallel = wrap(model, count)
        assert parallel is model
        return parallel

    def plain() -> Any:
        model = compiled(network(built=built))
        if name == "built_after":
            model.build((None, 8))
        return model

    def use(model: Any) -> Any:
        return used(model)

    expected = run(plain, use)
    with programs() as seen:
        found = run(
            lambda: network(built=built), use, lambda m: wrap_in_place(m, devices)
        )
    compare(expected, found, 1e-5)
    assert_divided(seen, devices=devices, rows=DIVIDED, all_steps=True)


def test_wrapped_after_some_training(devices: int) -> None:
    """The optimizer's state goes along."""

    def build() -> Any:
        model = momentum_model()
        used(model)
        return model

    check(build, used, devices=devices, rows=DIVIDED, all_steps=True)


# --- where ------------------------------------------------------------------


def test_devices_change_between_fits() -> None:
    kinds: list[Any] = []

    def use(counts: list[int]) -> Callable[[Any], Any]:
        def run_through(model: Any) -> Any:
            seen = []
            for count in counts:
                if count:
                    assert ku.DataParallel(model, count) is model
                seen.append(used(model))
                kinds.append(type(model))
            return seen

        return run_through

    plain = run(momentum_model, use([0, 0, 0, 0, 0]))
    kinds.clear()
    with programs() as seen:
        parallel = run(momentum_model, use([2, 3, 2, 1, 3]))
    compare(plain, parallel, 1e-5)
    assert [kind is keras.Sequential for kind in kinds] == [False] * 3 + [True, False]
    # The programs of devices that were left are gone with them.
    assert_divided(seen, devices=3, rows=DIVIDED, all_steps=True)


@pytest.mark.parametrize("count", [2, 3])
def test_each_move_divides_again(count: int) -> None:
    """Every stage by itself, while its programs live."""

    def use(model: Any) -> Any:
        for other in (5 - count, 1, count):
            ku.DataParallel(model, other)
            with programs() as seen:
                used(model)
            if other > 1:
                assert_divided(seen, devices=other, rows=DIVIDED, all_steps=True)
            else:
                assert {program.partitions for program in seen.programs} == {1}

    run(momentum_model, use)


def placed(model: Any) -> list[int]:
    """Ids of the devices that a step of the model runs on, in their order."""
    return _placed_on_jax(model) if ON_JAX else _placed_on_tensorflow(model)


def _placed_on_jax(model: Any) -> list[int]:
    order: list[int] = []

    @ku.step
    def look(x: Any) -> Any:
        order.extend(device.id for device in x.sharding.mesh.devices.flat)
        return x

    look(X[:6])
    return order


def _placed_on_tensorflow(model: Any) -> list[int]:
    import tensorflow as tf

    order: list[int] = []

    @ku.step
    @tf.function
    def look(x: Any) -> Any:
        outputs = model(x)
        for operation in tf.compat.v1.get_default_graph().get_operations():
            device = int(operation.device.rpartition(":")[2] or 0)
            if operation.type == "MatMul" and device not in order:
                order.append(device)
        return outputs

    look(X[:6])
    return order


CHOICES: dict[str, tuple[Any, list[int]]] = {
    "ids_in_another_order": ([2, 0], [2, 0]),
    "names": (["cpu:1", "/device:CPU:2"], [1, 2]),
    "ids_and_names": ([np.int64(1), "cpu:0"], [1, 0]),
    "a_range": (range(1, 3), [1, 2]),
    "all": (None, [0, 1, 2]),
    "a_numpy_number": (np.int32(2), [0, 1]),
}


@pytest.mark.parametrize("name", CHOICES)
def test_chosen_devices(name: str) -> None:
    choice, expected = CHOICES[name]

    def wrap(model: Any, count: int) -> Any:
        return ku.DataParallel(model, choice)

    check(
        momentum_model,
        used,
        devices=len(expected),
        rows=DIVIDED,
        all_steps=True,
        wrap=wrap,
    )
    model = wrap(momentum_model(), len(expected))
    used(model)
    assert placed(model) == expected


@pytest.mark.parametrize("choice", [[1], ["cpu:2"]])
def test_one_other_device_alone(choice: list[Any]) -> None:
    position = {1: 1, "cpu:2": 2}[choice[0]]
    plain = run(momentum_model, used)
    with computed_on() as devices_used:
        found = run(momentum_model, used, lambda m: ku.DataParallel(m, choice))
    compare(plain, found, 1e-5)
    assert devices_used == {position}


def computed_on() -> Any:
    """Ids of the devices on which steps in this context compute."""
    return _computed_on_jax() if ON_JAX else _computed_on_tensorflow()


@contextmanager
def _computed_on_jax() -> Iterator[set[int]]:
    import jax

    used_devices: set[int] = set()
    client = jax.devices()[0].client
    before = client.live_executables()
    known = {id(executable) for executable in before}
    yield used_devices
    for executable in client.live_executables():
        name = executable.hlo_modules()[0].to_string().split()[1]
        if id(executable) not in known and re.match("jit_(train|predict)_step", name):
            used_devices.update(device.id for device in executable.local_devices())
    del before


@contextmanager
def _computed_on_tensorflow() -> Iterator[set[int]]:
    used_devices: set[int] = set()
    with executed_graphs() as graphs:
        yield used_devices
    used_devices.update(
        int(node.device.rpartition(":")[2])
        for node in nodes_of(graphs)
        if "MatMul" in node.op
    )


# --- several models ---------------------------------------------------------


def pair() -> tuple[Any, Any]:
    """Two models over one layer."""
    shared = layers.Dense(13, activation="tanh", name="shared")
    inputs = keras.Input((8,))
    one = keras.Model(inputs, layers.Dense(5, activation="softmax")(shared(inputs)))
    inputs = keras.Input((8,))
    two = keras.Model(inputs, layers.Dense(3)(shared(inputs)))
    compiled(one)
    two.compile(keras.optimizers.SGD(0.05), "mse")
    return one, two


@pytest.mark.parametrize("other", ["wrapped", "on_other_devices", "plain"])
def test_models_that_share_a_layer(other: str, devices: int) -> None:
    held: list[Any] = []

    def build() -> Any:
        one, two = pair()
        held[:] = [two]
        return one

    def wrap(model: Any, count: int) -> Any:
        if other == "wrapped":
            ku.DataParallel(held[0], count)
        elif other == "on_other_devices":
            ku.DataParallel(held[0], [2, 0] if count == 2 else [1, 0])
        return ku.DataParallel(model, count)

    def use(model: Any) -> Any:
        two = held[0]

        def fit_two() -> Any:
            return two.fit(X, X[:, :3], batch_size=BATCH, shuffle=False, verbose=0)

        return (
            used(model),
            fit_two(),
            two.predict(X, batch_size=BATCH, verbose=0),
            used(model),
            fit_two(),
            two.get_weights(),
            model.evaluate(X, Y, batch_size=BATCH, verbose=0),
        )

    check(build, use, devices=devices, rows=DIVIDED, wrap=wrap)


def test_a_plain_model_around_a_parallel_one(devices: int) -> None:
    """A new model over layers of a parallel one is plain, and right."""

    def use(model: Any) -> Any:
        first = used(model)
        inputs = keras.Input((8,))
        around = keras.Model(inputs, layers.Dense(3, name="new")(model(inputs)))
        around.compile(keras.optimizers.SGD(0.05), "mse")
        second = around.fit(X, X[:, :3], batch_size=BATCH, shuffle=False, verbose=0)
        features = keras.Model(model.inputs, model.layers[0].output)
        return (
            first,
            second,
            around.get_weights(),
            features.predict(X, batch_size=BATCH, verbose=0),
            used(model),
        )

    check(momentum_model, use, devices=devices, rows=DIVIDED, all_steps=True)


# --- what a fit leaves ------------------------------------------------------


def by_hand(model: Any) -> Any:
    """What a user may do with a model outside of Keras's methods."""
    own = _by_hand_on_jax if ON_JAX else _by_hand_on_tensorflow
    x = ops.convert_to_tensor(X)
    return (
        model(X),
        model(x),
        model(x, training=True),
        model.compute_loss(x, ops.convert_to_tensor(Y), model(x)),
        [variable.numpy() for variable in model.variables],
        ops.sum(model.weights[0] * 2.0),
        own(model),
    )


def _by_hand_on_jax(model: Any) -> Any:
    import jax

    first = jax.devices()[0]
    x = jax.device_put(X, first)
    weights = [jax.device_put(v.value, first) for v in model.trainable_variables]

    def loss(weights: Any) -> Any:
        outputs, _ = model.stateless_call(
            weights, [v.value for v in model.non_trainable_variables], x
        )
        return ops.mean(outputs**2)

    return (
        model(x),
        model(jax.numpy.asarray(X), training=True),
        jax.jit(lambda inputs: model(inputs))(x),
        jax.grad(loss)(weights),
        model.compute_loss(x, Y, model(x)),
        ops.sum(model.weights[0] * jax.device_put(1.0, first)),
    )


def _by_hand_on_tensorflow(model: Any) -> Any:
    import tensorflow as tf

    def gradients(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            loss = tf.reduce_mean(model(x) ** 2)
        return tape.gradient(loss, x), tape.gradient(loss, model.trainable_variables)

    with tf.device("CPU:0"):
        x = tf.constant(X)
        return (
            model(x),
            tf.function(model)(x),
            gradients(x),
            tf.function(gradients)(x),
            tf.reduce_sum(model.weights[0] * tf.constant(2.0)),
        )


def lie_on_the_first_device(variables: list[Any]) -> bool:
    """On JAX; on TensorFlow weights are spread over the devices."""
    if not ON_JAX:
        return True
    import jax

    return all(v.value.devices() == {jax.devices()[0]} for v in variables)


@pytest.mark.parametrize("after", ["fit", "predict", "train_on_batch", "evaluate"])
def test_a_model_called_by_hand_afterwards(after: str, devices: int) -> None:
    """Its values can be used as those of a plain model."""

    def use(model: Any) -> Any:
        if after == "fit":
            result = fitted(model)
        elif after == "predict":
            result = model.predict(X[:48], verbose=0, batch_size=48)
        elif after == "evaluate":
            result = model.evaluate(X, Y, verbose=0, batch_size=48)
        else:
            result = model.train_on_batch(X[:48], Y[:48])
        assert lie_on_the_first_device([*model.variables, *model.optimizer.variables])
        for metric in model.metrics:
            assert lie_on_the_first_device(metric.variables)
        return result, by_hand(model)

    check(momentum_model, use, devices=devices, rows=[48])


def test_an_optimizer_step_by_hand_afterwards(devices: int) -> None:
    def use(model: Any) -> Any:
        first = used(model)
        gradients = [ops.ones_like(v.value) for v in model.trainable_variables]
        model.optimizer.apply(gradients, model.trainable_variables)
        return first, used(model)

    check(momentum_model, use, devices=devices, rows=DIVIDED, all_steps=True)


class Net(keras.Model):
    """A class of the user."""

    def __init__(self, units: int = 13) -> None:
        super().__init__()
        self.units = units
        self.hidden = layers.Dense(units, activation="tanh")
        self.out = layers.Dense(5, activation="softmax")

    def call(self, x):
        return self.out(self.hidden(x))

    def describe(self) -> str:
        return f"{type(self).__name__} of {self.units}"


def test_the_class_is_still_the_users(devices: int) -> None:
    def build() -> Any:
        return compiled(Net())

    def use(model: Any) -> Any:
        assert isinstance(model, Net)
        assert isinstance(model, keras.Model)
        assert model.__class__ is Net
        assert issubclass(type(model), Net)
        assert type(model).__name__ == "Net"
        assert type(model).__qualname__ == "Net"
        assert type(model).__module__ == __name__
        assert type(model).__doc__ == Net.__doc__
        assert repr(model).startswith("<Net name=net")
        assert model.describe() == "Net of 13"
        return used(model)

    check(build, use, devices=devices, rows=DIVIDED, all_steps=True)


def test_one_device_makes_the_class_the_users_again(devices: int) -> None:
    def use(model: Any) -> Any:
        result = used(model)
        if type(model) is not Net:
            ku.DataParallel(model, devices=1)
        assert type(model) is Net
        return result, used(model)

    # The programs of several devices are gone when it ends: seen in the middle.
    plain = run(lambda: compiled(Net()), use)
    seen: list[Any] = []

    def use_and_look(model: Any) -> Any:
        assert type(model) is not Net
        with programs() as first:
            result = used(model)
        seen.append(first)
        ku.DataParallel(model, devices=1)
        assert type(model) is Net
        return result, used(model)

    parallel = run(
        lambda: compiled(Net()), use_and_look, lambda m: ku.DataParallel(m, devices)
    )
    compare(plain, parallel, 1e-5)
    assert_divided(seen[0], devices=devices, rows=DIVIDED, all_steps=True)


# --- classes of every make --------------------------------------------------


class Base(keras.Model):
    """Has state that the subclass reads."""

    def __init__(self, *, scale: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = scale


class Mixin:
    """Stands in front of the model, with a fit of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fits = 0

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        self.fits += 1
        return super().fit(*args, **kwargs)


class Deep(Mixin, Base):
    """Cooperative initialisers, own attributes of all kinds, own methods."""

    limit = 3

    def __init__(self, units: int) -> None:
        super().__init__(scale=0.5)
        self.settings = {"units": units, "names": ["a", "b"]}
        self.parts = [layers.Dense(units, activation="tanh"), layers.Dense(5)]
        self._private = object()

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return ops.softmax(x * self.scale)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        result = super().train_on_batch(*args, **kwargs)
        return [*result, float(self.fits)]

    @property
    def rate(self) -> float:
        return float(self.optimizer.learning_rate)


class Slotted(keras.Model):
    """With slots beside Keras's dictionary."""

    __slots__ = ("note",)

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(13, activation="tanh")
        self.out = layers.Dense(5, activation="softmax")

    def call(self, x):
        return self.out(self.hidden(x))


class Strict(keras.Sequential):
    """Refuses unknown attributes, and answers for some that it has not."""

    def __setattr__(self, name, value):
        if name.startswith("forbidden"):
            raise AttributeError(name)
        super().__setattr__(name, value)

    def __getattr__(self, name):
        if name == "answer":
            return 42
        raise AttributeError(name)


class Registering(type(keras.Model)):
    """A metaclass that notes the classes it makes."""


class OfMetaclass(Net, metaclass=Registering):
    """A class of the user's own metaclass."""


class Subclassing(Net):
    """Its subclasses need an argument."""

    def __init_subclass__(cls, *, tag: str = "none", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tag = tag


class Tagged(Subclassing, tag="mine"):
    """Has a tag."""


def strict() -> Any:
    return Strict(
        [
            keras.Input((8,)),
            layers.Dense(13, activation="tanh"),
            layers.Dense(5, activation="softmax"),
        ]
    )


def look_at_deep(model: Any) -> Any:
    assert model.limit == 3
    assert model.settings == {"units": 13, "names": ["a", "b"]}
    assert model.rate == pytest.approx(0.1)
    assert model.fits == 1
    return model.train_on_batch(X[:34], Y[:34])


def look_at_slots(model: Any) -> Any:
    model.note = 5
    assert model.note == 5


def look_at_strict(model: Any) -> Any:
    assert model.answer == 42
    with pytest.raises(AttributeError):
        model.forbidden_name = 1


def look_at_tag(model: Any) -> Any:
    assert model.tag == "mine"


CLASSES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "initialisers_and_mixins": (lambda: Deep(13), look_at_deep),
    "slots": (Slotted, look_at_slots),
    "own_attribute_access": (strict, look_at_strict),
    "own_metaclass": (OfMetaclass, lambda model: None),
    "class_arguments": (Tagged, look_at_tag),
}


@pytest.mark.parametrize("name", CLASSES)
def test_classes_of_users(name: str, devices: int) -> None:
    make, look = CLASSES[name]

    def use(model: Any) -> Any:
        return used(model), look(model)

    check(lambda: compiled(make()), use, devices=devices, rows=DIVIDED)


# --- beside other strategies ------------------------------------------------


@contextmanager
def keras_distribution() -> Iterator[None]:
    devices = keras.distribution.list_devices()[:2]
    try:
        distribution = keras.distribution.DataParallel(devices=devices)
    except AttributeError:
        pytest.skip("this release has no keras.distribution on this backend")
    keras.distribution.set_distribution(distribution)
    try:
        yield
    finally:
        keras.distribution.set_distribution(None)


@contextmanager
def tensorflow_strategy() -> Iterator[None]:
    import tensorflow as tf

    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        yield


STRATEGIES = {"keras": keras_distribution, "tensorflow": tensorflow_strategy}


@pytest.mark.parametrize("name", STRATEGIES)
def test_another_strategy_is_refused_when_wrapping(name: str) -> None:
    model = dense_model()
    with STRATEGIES[name](), pytest.raises(ku.PlacementError, match="only one"):
        ku.DataParallel(model, 2)
    assert type(model) is keras.Sequential
    fitted(model)


@pytest.mark.parametrize("name", STRATEGIES)
def test_another_strategy_is_refused_when_training(name: str, devices: int) -> None:
    """And the model can be used once it is gone."""

    def use(model: Any) -> Any:
        first = used(model)
        if type(model) is not keras.Sequential:
            weights = model.get_weights()
            calls = [
                lambda: fitted(model),
                lambda: model.evaluate(X, Y, verbose=0),
                lambda: model.predict(X, verbose=0),
                lambda: model.train_on_batch(X, Y),
                lambda: model.test_on_batch(X, Y),
                lambda: model.predict_on_batch(X),
                lambda: ku.step(lambda x: x)(X),
            ]
            with STRATEGIES[name]():
                for call in calls:
                    with pytest.raises(ku.PlacementError, match="only one"):
                        call()
            for old, new in zip(weights, model.get_weights(), strict=True):
                assert np.array_equal(old, new)
        return first, used(model)

    check(momentum_model, use, devices=devices, rows=DIVIDED, all_steps=True)
