"""On TensorFlow: what is traced, where weights lie, and what runs on which device."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_unison as ku
from tests.equivalence.harness import (
    ON_TENSORFLOW,
    compare,
    data,
    dense_model,
    programs,
    run,
)
from tests.equivalence.on_tensorflow import (
    bytes_by_device,
    device_of,
    executed_graphs,
    nodes_of,
    short,
    slots_of,
)

if not ON_TENSORFLOW:
    pytest.skip("these are graphs of TensorFlow", allow_module_level=True)

import tensorflow as tf

X, Y = data(99)


# --- traces -------------------------------------------------------------------


class Counted(keras.Sequential):
    """Counts the traces of its steps, by a side effect in Python."""

    def train_step(self, data):
        self.traces["train"] += 1
        return super().train_step(data)

    def test_step(self, data):
        self.traces["test"] += 1
        return super().test_step(data)

    def predict_step(self, data):
        self.traces["predict"] += 1
        return super().predict_step(data)


def counted_model(**compiled: Any) -> Any:
    model = Counted(
        [
            keras.Input((8,)),
            layers.Dense(13, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dense(5, activation="softmax"),
        ]
    )
    model.traces = dict.fromkeys(("train", "test", "predict"), 0)
    model.compile("sgd", "sparse_categorical_crossentropy", **compiled)
    return model


def dataset(rows: int = 99, **batch: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(31, **batch)


def of_static_batches() -> Any:
    """Three batches of 31 rows, of which TensorFlow knows the number."""
    found = dataset(rows=93, drop_remainder=True)
    assert found.element_spec[0].shape == (31, 8)
    return found


def use_datasets(make: Callable[[], Any]) -> Callable[[Any], Any]:
    def use(model: Any) -> Any:
        model.fit(make(), epochs=2, verbose=0)
        model.evaluate(make(), verbose=0)
        model.predict(make().map(lambda x, y: x), verbose=0)
        model.fit(make(), verbose=0)

    return use


def use_arrays(model: Any) -> None:
    model.fit(X, Y, batch_size=31, epochs=2, validation_data=(X, Y), verbose=0)
    model.predict(X, batch_size=31, verbose=0)
    model.set_weights([weight + 0 for weight in model.get_weights()])
    model.fit(X[:50], Y[:50], batch_size=31, verbose=0)


def use_batches(model: Any) -> None:
    for rows in (31, 31, 6, 6, 31, 20):
        model.train_on_batch(X[:rows], Y[:rows])
        model.test_on_batch(X[:rows], Y[:rows])
        model.predict_on_batch(X[:rows])


# What is used, and how often each step is traced at most.
TRACED: dict[str, tuple[Callable[[Any], Any], int]] = {
    "arrays": (use_arrays, 1),
    "dataset_of_any_rows": (use_datasets(dataset), 1),
    "dataset_of_static_rows": (use_datasets(of_static_batches), 1),
    # A second trace is for any number of rows.
    "single_batches": (use_batches, 2),
}


@pytest.mark.parametrize("name", TRACED)
def test_a_step_is_traced_once_also_for_the_last_batch(name: str, devices: int) -> None:
    use, most = TRACED[name]

    def traces(model: Any) -> Any:
        use(model)
        return dict(model.traces)

    found = traces(ku.DataParallel(counted_model(), devices))
    plain = traces(counted_model())
    assert found == plain
    # Keras makes its function for prediction anew at each call of `predict_on_batch`
    # with another number of rows, and once more for the last batch of arrays.
    assert max(found["train"], found["test"]) <= most


def test_several_steps_per_execution_are_traced_as_in_plain_keras(devices: int) -> None:
    def traces(model: Any) -> Any:
        model.fit(dataset(), epochs=2, verbose=0)
        model.evaluate(dataset(), verbose=0)
        return dict(model.traces)

    found = traces(ku.DataParallel(counted_model(steps_per_execution=2), devices))
    assert found == traces(counted_model(steps_per_execution=2))
    assert found["train"] == found["test"] == 1


# --- where weights live --------------------------------------------------------


def deep_model(optimizer: Any, built: bool = False) -> Any:
    """Several weights of different sizes, none of which is most of the model."""
    model = keras.Sequential(
        [
            keras.Input((16,)),
            *[layers.Dense(units, activation="tanh") for units in (24, 20, 28, 16, 26)],
            layers.Dense(5, activation="softmax"),
        ]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    if built:
        model.optimizer.build(model.trainable_variables)
    return model


OPTIMIZERS: dict[str, tuple[Callable[[], Any], int]] = {
    "adam": (lambda: keras.optimizers.Adam(0.001), 2),
    "momentum": (lambda: keras.optimizers.SGD(0.1, momentum=0.9), 1),
}
WIDE = data(99, features=16)[0]


def fit(model: Any, epochs: int = 1) -> Any:
    return model.fit(WIDE, Y, batch_size=33, epochs=epochs, shuffle=False, verbose=0)


@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_slots_are_spread_over_the_devices(
    name: str, built: bool, devices: int
) -> None:
    make, slots = OPTIMIZERS[name]
    model = ku.DataParallel(deep_model(make(), built), devices)
    weights = model.trainable_variables
    assert_spread(weights, devices)
    fit(model)
    assert_spread(weights, devices)
    pairs = list(slots_of(model.optimizer, weights))
    assert len(pairs) == slots * len(weights)
    for weight, slot in pairs:
        assert device_of(slot) == device_of(weight), slot.path
    assert_spread([slot for _, slot in pairs], devices)


def assert_spread(variables: Any, devices: int) -> None:
    held = bytes_by_device(variables)
    assert len(held) == devices, held
    assert max(held.values()) <= 1.5 * sum(held.values()) / devices, held


def test_weights_that_the_first_step_makes_are_spread(devices: int) -> None:
    model = keras.Sequential([layers.Dense(n, "tanh") for n in (24, 20, 28, 16, 5)])
    model.compile(keras.optimizers.Adam(0.001), "sparse_categorical_crossentropy")
    ku.DataParallel(model, devices)
    fit(model)
    assert_spread(model.trainable_variables, devices)
    for weight, slot in slots_of(model.optimizer, model.trainable_variables):
        assert device_of(slot) == device_of(weight), slot.path


def test_each_weight_is_updated_on_its_device(devices: int) -> None:
    """By the graph that ran: the operations that assign, and what they compute."""
    model = ku.DataParallel(deep_model(keras.optimizers.Adam(0.001), True), devices)
    with executed_graphs() as graphs:
        fit(model)
    everywhere = {f"CPU:{index}" for index in range(devices)}
    # Adam takes roots. The gradients of all parts are added there too.
    for kind in ("Sqrt", "AddN"):
        found = {short(node.device) for node in nodes_of(graphs) if node.op == kind}
        assert found == everywhere, kind


def test_another_optimizer_that_was_built_before_goes_on(devices: int) -> None:
    """It knows its weights by what moving has replaced."""

    def build() -> Any:
        model = deep_model(keras.optimizers.SGD(0.1))
        model.others = [keras.optimizers.Adam(0.001), keras.optimizers.SGD(0.1, 0.9)]
        for optimizer in model.others:
            optimizer.build(model.trainable_variables)
        return model

    def use(model: Any) -> Any:
        weights = model.trainable_variables
        losses = []
        for optimizer in model.others:

            @ku.step
            @tf.function
            def step(x: Any, y: Any, optimizer: Any = optimizer) -> Any:
                with tf.GradientTape() as tape:
                    loss = model.compute_loss(x, y, model(x, training=True))
                optimizer.apply(tape.gradient(loss, weights), weights)
                return loss

            losses += [step(tf.constant(WIDE[:33]), tf.constant(Y[:33]))] * 2
            losses.append(step(tf.constant(WIDE[33:66]), tf.constant(Y[33:66])))
        eager = [ops.ones_like(weight) for weight in weights]
        model.others[1].apply(eager, weights)
        return losses, [list(o.variables) for o in model.others], fit(model)

    compare(
        run(build, use), run(build, use, lambda m: ku.DataParallel(m, devices)), 1e-5
    )


def test_a_released_model_lies_on_the_first_device_again(devices: int) -> None:
    model = ku.DataParallel(deep_model(keras.optimizers.Adam(0.001)), devices)
    fit(model)
    expected = model.get_weights(), [v.numpy() for v in model.optimizer.variables]
    ku.DataParallel(model, devices=1)
    pairs = list(slots_of(model.optimizer, model.trainable_variables))
    assert len(pairs) == 2 * len(model.trainable_variables)
    for variable in [*model.variables, *model.optimizer.variables]:
        assert device_of(variable) == "CPU:0", variable.path
    found = model.get_weights(), [v.numpy() for v in model.optimizer.variables]
    for one, other in zip(expected, found, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    with executed_graphs() as graphs:
        fit(model)
    assert {short(n.device) for n in nodes_of(graphs) if n.device} == {"CPU:0"}


def checkpointed(model: Any, path: Any) -> Any:
    """TensorFlow's own checkpoint: written, and read after further training."""
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    written = checkpoint.write(str(path / "checkpoint"))
    before = model.get_weights()
    fit(model)
    checkpoint.read(written).assert_consumed()
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    return fit(model)


def saved_and_loaded(model: Any, path: Any) -> Any:
    model.save(path / "model.keras")
    again = keras.models.load_model(path / "model.keras")
    assert type(again) is keras.Sequential
    on_home = {device_of(v) for v in [*again.variables, *again.optimizer.variables]}
    assert on_home == {"CPU:0"}
    return fit(again), again.get_weights()


def weights_loaded(model: Any, path: Any) -> Any:
    model.save_weights(path / "model.weights.h5")
    fit(model)
    model.load_weights(path / "model.weights.h5")
    return fit(model)


def weights_set(model: Any, path: Any) -> Any:
    model.set_weights([weight * 0.5 for weight in model.get_weights()])
    for variable in model.optimizer.variables[2:]:
        variable.assign(variable * 0.5)
    first = fit(model)
    kernel = model.layers[0].kernel
    kernel.assign(kernel * 0.5)
    model.layers[1].set_weights([w * 2 for w in model.layers[1].get_weights()])
    return first, fit(model), model.predict(WIDE, batch_size=33, verbose=0)


def optimizer_stored(model: Any, path: Any) -> Any:
    store: dict[str, Any] = {}
    model.optimizer.save_own_variables(store)
    kept = {name: np.array(value) for name, value in store.items()}
    fit(model)
    model.optimizer.load_own_variables(kept)
    return fit(model)


UNNOTICED: dict[str, Callable[[Any, Any], Any]] = {
    "checkpoint": checkpointed,
    "save": saved_and_loaded,
    "load_weights": weights_loaded,
    "set_weights": weights_set,
    "optimizer_variables": optimizer_stored,
}


@pytest.mark.parametrize("name", UNNOTICED)
def test_it_is_not_noticed_that_weights_are_spread(
    name: str, tmp_path: Any, devices: int
) -> None:
    def use(model: Any) -> Any:
        result = fit(model), UNNOTICED[name](model, tmp_path)
        if type(model) is not keras.Sequential:
            assert_spread(model.trainable_variables, devices)
        return result

    def build() -> Any:
        return deep_model(keras.optimizers.SGD(0.1, momentum=0.9))

    compare(
        run(build, use), run(build, use, lambda m: ku.DataParallel(m, devices)), 1e-5
    )


# --- no strategy of TensorFlow --------------------------------------------------


def test_no_strategy_has_more_than_one_replica_inside_a_step(devices: int) -> None:
    seen: list[Any] = []

    def look() -> None:
        context = tf.distribute.get_replica_context()
        seen.append((context.num_replicas_in_sync, tf.distribute.has_strategy()))

    class Looking(layers.Layer):
        def call(self, x):
            look()
            return x * 1.0

    class Steps(keras.Model):
        def train_step(self, data):
            look()
            return super().train_step(data)

        def predict_step(self, data):
            look()
            return super().predict_step(data)

    inputs = keras.Input((8,))
    model = Steps(inputs, layers.Dense(5)(Looking()(inputs)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ku.DataParallel(model, devices)
    seen.clear()
    with programs() as found:
        model.fit(X, Y, batch_size=33, verbose=0)
        model.predict(X, batch_size=33, verbose=0)
    assert {p.partitions for p in found.programs} == {devices}
    assert len(seen) > 2 * devices
    assert set(seen) == {(1, False)}


# --- what runs where ------------------------------------------------------------


def convolutions() -> Any:
    model = keras.Sequential(
        [
            keras.Input((9, 9, 3)),
            layers.Conv2D(6, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Conv2D(7, 3, activation="relu"),
            layers.Reshape((25, 7)),
            layers.GRU(11),
            layers.Dense(5, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return model


# The name and the kind of what computes a gradient.
BACKWARD = {
    "dense": (dense_model, (8,), "dense|d1|d2", "MatMul"),
    "convolutions": (convolutions, (9, 9, 3), "conv2d", "Conv2DBackpropFilter"),
    "recurrent": (convolutions, (9, 9, 3), "gru", "MatMul"),
}


def gradients(graphs: Any, name: str, kind: str) -> list[str]:
    """The device of each operation of this kind in a gradient."""
    return [
        short(node.device)
        for node in nodes_of(graphs)
        if re.search(f"gradient_tape/.*({name})", node.name) and kind in node.op
    ]


@pytest.mark.parametrize("name", BACKWARD)
def test_gradients_are_computed_on_every_device(name: str, devices: int) -> None:
    """Each device goes back through its own part, and none through another's."""
    build, shape, layer, kind = BACKWARD[name]
    x = np.random.default_rng(1).normal(size=(48, *shape)).astype("float32")
    model = ku.DataParallel(build(), devices)
    with executed_graphs() as graphs:
        model.train_on_batch(x, Y[:48])
    found = gradients(graphs, layer, kind)
    counts = {found.count(device) for device in set(found)}
    assert len(set(found)) == devices
    assert len(counts) == 1, found


def test_gradients_in_a_loop_of_the_user_too(devices: int) -> None:
    model = ku.DataParallel(dense_model(), devices)

    @ku.step
    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    with executed_graphs() as graphs:
        step(tf.constant(X[:48]), tf.constant(Y[:48]))
    assert len(set(gradients(graphs, "d1", "MatMul"))) == devices


# --- jit_compile -----------------------------------------------------------------


def compiled_nodes(graphs: Any) -> list[tuple[str, bool]]:
    """The device of each call that XLA compiles; whether it holds matrix products."""
    found = []
    for graph in graphs:
        inside = {f.signature.name: f.node_def for f in graph.library.function}
        for node in graph.node:
            if not node.attr["_XlaMustCompile"].b:
                continue
            function = node.attr["f"].func.name or node.attr["function"].func.name
            products = any(n.op == "MatMul" for n in inside.get(function, ()))
            found.append((short(node.device), products))
    return found


def plain_products(graphs: Any) -> list[str]:
    """Names of matrix products that run one by one, not compiled."""
    return [node.name for graph in graphs for node in graph.node if "MatMul" in node.op]


def used(model: Any) -> Any:
    return (
        model.fit(X, Y, batch_size=48, epochs=2, shuffle=False, verbose=0),
        model.evaluate(X, Y, batch_size=48, verbose=0),
        model.predict(X, batch_size=48, verbose=0),
    )


def test_each_part_is_compiled_and_the_step_is_not(devices: int) -> None:
    plain = run(dense_model, used)
    with executed_graphs() as graphs:
        found = run(
            lambda: dense_model(jit_compile=True),
            used,
            lambda m: ku.DataParallel(m, devices),
        )
    compare(plain, found, 1e-5)
    nodes = compiled_nodes(graphs)
    with_products = {device for device, products in nodes if products}
    assert with_products == {f"CPU:{index}" for index in range(devices)}
    assert not plain_products(graphs)
    # The update is outside of what is compiled.
    updates = [n for graph in graphs for n in graph.node if n.op.startswith("Assign")]
    assert updates


def test_forward_and_backward_parts_are_compiled_on_each_device(devices: int) -> None:
    model = ku.DataParallel(dense_model(jit_compile=True), devices)
    with executed_graphs() as graphs:
        model.train_on_batch(X[:48], Y[:48])
    found = sorted({(device, products) for device, products in compiled_nodes(graphs)})
    assert found == [(f"CPU:{index}", True) for index in range(devices)]
    partitions = [g for g in graphs if any(n.op == "_Send" for n in g.node)]
    calls = [device for device, _ in compiled_nodes(partitions)]
    # One call forward and one back, alike on all devices.
    assert len({calls.count(device) for device in set(calls)}) == 1


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_draws_are_compiled_too(rate: float, devices: int) -> None:
    def build() -> Any:
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(13, activation="tanh"),
                layers.Dropout(rate, seed=5),
                layers.Dense(5, activation="softmax"),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.1),
            "sparse_categorical_crossentropy",
            jit_compile=True,
        )
        return model

    # XLA draws other numbers than TensorFlow's kernels do.
    plain = run(build, used)
    with executed_graphs() as graphs:
        found = run(build, used, lambda model: ku.DataParallel(model, devices))
    compare(plain, found, 1e-5)
    assert {d for d, products in compiled_nodes(graphs) if products} == {
        f"CPU:{index}" for index in range(devices)
    }


def not_compiled(build: Any, use: Any, devices: int) -> tuple[str, list[Any]]:
    """Compares `build(True)`, made parallel, with the plain `build(False)`.

    Returns the one warning, that it is not compiled, and the graphs that ran.
    """
    plain = run(lambda: build(False), use)
    with warnings.catch_warnings(record=True) as caught, executed_graphs() as graphs:
        warnings.simplefilter("always")
        found = run(
            lambda: build(True), use, lambda model: ku.DataParallel(model, devices)
        )
    compare(plain, found, 1e-5)
    texts = [str(w.message) for w in caught if w.category is ku.UnisonWarning]
    assert len(texts) == 1, texts
    assert "is not compiled by XLA" in texts[0]
    return texts[0], graphs


def test_what_cannot_be_compiled_says_so_once_and_is_right(devices: int) -> None:
    text, graphs = not_compiled(
        lambda jit: counted_model(jit_compile=jit), used, devices
    )
    assert "BatchNormalization" in text
    assert "jit_compile=False" in text
    # Training is divided without; evaluation, which needs no sums, is compiled.
    products = [n for n in nodes_of(graphs) if "gradient_tape/" in n.name]
    assert {short(n.device) for n in products if "MatMul" in n.op} == {
        f"CPU:{index}" for index in range(devices)
    }
    assert {d for d, holds in compiled_nodes(graphs) if holds} == {
        f"CPU:{index}" for index in range(devices)
    }


def test_recurrent_layers_are_not_compiled_and_say_so(devices: int) -> None:
    x = np.random.default_rng(3).normal(size=(96, 6, 4)).astype("float32")

    def build(jit: bool) -> Any:
        model = keras.Sequential(
            [keras.Input((6, 4)), layers.LSTM(9), layers.Dense(5, activation="softmax")]
        )
        model.compile(
            keras.optimizers.SGD(0.1),
            "sparse_categorical_crossentropy",
            jit_compile=jit,
        )
        return model

    def fitted(model: Any) -> Any:
        history = model.fit(x, Y[:96], batch_size=35, shuffle=False, verbose=0)
        return history, model.predict(x, batch_size=35, verbose=0)

    text, graphs = not_compiled(build, fitted, devices)
    assert "recurrent layer" in text
    products = {short(n.device) for n in nodes_of(graphs) if "MatMul" in n.op}
    assert products == {f"CPU:{index}" for index in range(devices)}


# --- losses of large outputs -------------------------------------------------------

TOKENS, WORDS = 40, 2000
TEXT = np.random.default_rng(8).integers(0, 50, (16, TOKENS))
NEXT = np.random.default_rng(9).integers(0, WORDS, (16, TOKENS))


def language_model(masked: bool = False, metrics: Any = ("accuracy",)) -> Any:
    inputs = keras.Input((TOKENS,), dtype="int64")
    x = layers.Embedding(50, 12, mask_zero=masked)(inputs)
    x = layers.Dense(14, activation="tanh")(x)
    model = keras.Model(inputs, layers.Dense(WORDS, name="logits")(x))
    model.compile(
        keras.optimizers.SGD(1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=list(metrics),
    )
    return model


def fit_text(model: Any, weights: Any = None) -> Any:
    return model.fit(
        TEXT,
        NEXT,
        batch_size=16,
        epochs=2,
        shuffle=False,
        sample_weight=weights,
        verbose=0,
    )


def train_text(model: Any) -> Any:
    """In batches of 11 and 5 rows, of an unknown number while tracing."""
    history = model.fit(TEXT, NEXT, batch_size=11, epochs=2, shuffle=False, verbose=0)
    return history, model.evaluate(TEXT, NEXT, batch_size=11, verbose=0)


TEXTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "known_rows": (language_model, fit_text),
    "unknown_rows": (language_model, train_text),
    "masked": (lambda: language_model(masked=True), fit_text),
    "weighted_tokens": (
        language_model,
        lambda model: fit_text(
            model, np.linspace(0, 1, 16 * TOKENS).reshape(16, TOKENS)
        ),
    ),
    "several_metrics": (
        lambda: language_model(
            metrics=[
                "sparse_top_k_categorical_accuracy",
                keras.metrics.SparseCategoricalCrossentropy(from_logits=True),
            ]
        ),
        fit_text,
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_losses_of_large_outputs_are_computed_where_these_are(
    name: str, devices: int
) -> None:
    build, use = TEXTS[name]
    plain = run(build, use)
    with executed_graphs() as graphs:
        found = run(build, use, lambda model: ku.DataParallel(model, devices))
    compare(plain, found, 1e-5)
    everywhere = {f"CPU:{index}" for index in range(devices)}
    losses = "SparseSoftmaxCrossEntropyWithLogits"
    assert {short(n.device) for n in nodes_of(graphs) if n.op == losses} == everywhere
    assert not joined_logits(graphs)


def joined_logits(graphs: Any) -> list[str]:
    """Names of what puts the parts of the logits together."""
    found = []
    for graph in graphs:
        # What another device sent is named after where it comes from.
        sent = {n.name: n.attr["tensor_name"].s.decode() for n in graph.node}
        for node in graph.node:
            if (
                node.op != "ConcatV2"
                or node.attr["T"].type != tf.float32.as_datatype_enum
            ):
                continue
            inputs = [sent.get(name, "") or name for name in node.input]
            if any(re.search(r"/logits[_\d]*/", name) for name in inputs):
                found.append(node.name)
    return found


def test_logits_that_are_asked_for_are_joined(devices: int) -> None:
    """What the test above looks for is found where it is."""
    model = ku.DataParallel(language_model(), devices)
    with executed_graphs() as graphs:
        model.predict(TEXT, batch_size=16, verbose=0)
    assert joined_logits(graphs)
