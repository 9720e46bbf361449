"""Files that Keras 2 wrote come into Keras 3 with their predictions and state."""

import base64
import copy
import json
import marshal
import shutil
import warnings
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

from keras_unison import (
    LegacyFileError,
    UnisonWarning,
    load_keras2_model,
    load_keras2_weights,
)

DATA = Path(__file__).parent.parent / "data" / "keras2"
MODELS = {
    "dense": ["dense_2gpu_model.h5", "dense_template_model.h5"],
    "cnn": ["cnn_4gpu_model.h5"],
    "multi": ["multi_3gpu_model.h5"],
}
FILES = [(kind, name) for kind, names in MODELS.items() for name in names]
WEIGHTS = [
    ("dense", "dense_2gpu.weights.h5"),
    ("cnn", "cnn_4gpu.weights.h5"),
    *FILES,
]


def fresh(kind):
    layers = keras.layers
    if kind == "dense":
        stack = [
            keras.Input((4,)),
            layers.Dense(8, activation="relu"),
            layers.Dense(3, activation="softmax"),
        ]
        return keras.Sequential(stack)
    if kind == "cnn":
        x = keras.Input((16, 16, 3))
        y = layers.Conv2D(8, 3, activation="relu")(x)
        y = layers.MaxPooling2D()(layers.BatchNormalization()(y))
        y = layers.Dense(5, activation="softmax")(layers.Flatten()(y))
        return keras.Model(x, y)
    a, b = keras.Input((4,)), keras.Input((2,))
    shared = layers.Dense(6, activation="tanh")(layers.Concatenate()([a, b]))
    return keras.Model([a, b], [layers.Dense(2)(shared), layers.Dense(1)(shared)])


def expected(kind):
    saved = np.load(DATA / f"{kind}_expected.npz")
    if kind == "multi":
        return [saved["a"], saved["b"]], [saved["u"], saved["v"]], saved
    return saved["x"], [saved["predict"]], saved


def assert_predicts(model, kind):
    inputs, outputs, _ = expected(kind)
    got = model.predict(inputs, verbose=0)
    for one, want in zip(got if kind == "multi" else [got], outputs, strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-7)


def arrays_of(path, group):
    """Read a group by h5py alone, independent of the importer."""
    with h5py.File(path, "r") as file:
        names = [name.decode() for name in file[group].attrs["weight_names"]]
        return {name: file[group][name][()] for name in names}


def number(variable):
    return keras.ops.convert_to_numpy(variable).item()


def slots(model, suffix):
    return [
        keras.ops.convert_to_numpy(v)
        for v in model.optimizer.variables
        if v.name.endswith(suffix)
    ]


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for one, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, want)


# The real files.


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_a_whole_model_file_predicts_as_it_did_in_keras_2(kind, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = load_keras2_model(DATA / name)
    assert_predicts(model, kind)
    classes = {type(layer).__name__ for layer in model.layers}
    assert "Lambda" not in classes


@pytest.mark.parametrize(("kind", "name"), WEIGHTS)
def test_weights_go_into_a_freshly_built_model(kind, name):
    model = fresh(kind)
    load_keras2_weights(model, DATA / name)
    assert_predicts(model, kind)
    _, _, saved = expected(kind)
    weights = model.get_weights()
    assert_same(weights, [saved[f"w{i}"] for i in range(len(weights))])


def test_the_template_keeps_its_kind_its_names_and_its_order():
    dense = load_keras2_model(DATA / "dense_2gpu_model.h5")
    assert isinstance(dense, keras.Sequential)
    assert [layer.name for layer in dense.layers] == ["dense_1", "dense_2"]
    assert dense.name == "sequential_1"
    multi = load_keras2_model(DATA / "multi_3gpu_model.h5")
    assert multi.output_names == ["u", "v"]
    assert [tensor.name for tensor in multi.inputs] == ["a", "b"]


def test_the_result_saves_and_loads_as_a_plain_keras_file(tmp_path):
    model = load_keras2_model(DATA / "cnn_4gpu_model.h5")
    model.save(tmp_path / "cnn.keras")
    assert_predicts(keras.models.load_model(tmp_path / "cnn.keras"), "cnn")


def test_adam_keeps_its_slots_and_its_iterations():
    path = DATA / "dense_2gpu_model.h5"
    model = load_keras2_model(path)
    saved = arrays_of(path, "optimizer_weights")
    assert number(model.optimizer.iterations) == saved["Adam/iterations:0"] > 0
    assert_same(
        slots(model, "_momentum"), [saved[f"training/Adam/m_{i}_1:0"] for i in range(4)]
    )
    assert_same(
        slots(model, "_velocity"), [saved[f"training/Adam/v_{i}_1:0"] for i in range(4)]
    )
    assert number(model.optimizer.learning_rate) == pytest.approx(1e-3)
    assert model.loss == "categorical_crossentropy"


def test_rmsprop_keeps_its_accumulators_and_sgd_its_iterations():
    path = DATA / "multi_3gpu_model.h5"
    model = load_keras2_model(path)
    saved = arrays_of(path, "optimizer_weights")
    names = [f"training_2/RMSprop/accumulator_{i}_1:0" for i in range(6)]
    assert_same(slots(model, "_velocity"), [saved[name] for name in names])
    assert number(model.optimizer.iterations) == saved["RMSprop/iterations:0"] > 0
    path = DATA / "cnn_4gpu_model.h5"
    model = load_keras2_model(path)
    saved = arrays_of(path, "optimizer_weights")
    assert number(model.optimizer.iterations) == saved["SGD/iterations:0"] > 0
    assert number(model.optimizer.learning_rate) == pytest.approx(0.01)


def test_one_more_step_goes_on_from_the_saved_state_of_adam():
    path = DATA / "dense_2gpu_model.h5"
    x, _, _ = expected("dense")
    y = np.eye(3, dtype="float32")[np.arange(len(x)) % 3]
    carried, restarted = load_keras2_model(path), load_keras2_model(path)
    restarted.compile(keras.optimizers.Adam(1e-3), "categorical_crossentropy")
    # The oracle: Keras's own Adam, given the arrays of the file by hand.
    oracle = load_keras2_model(path, compile=False)
    oracle.compile(keras.optimizers.Adam(1e-3), "categorical_crossentropy")
    oracle.optimizer.build(oracle.trainable_variables)
    saved = arrays_of(path, "optimizer_weights")
    oracle.optimizer.iterations.assign(saved["Adam/iterations:0"])
    for kind, letter in (("_momentum", "m"), ("_velocity", "v")):
        found = [v for v in oracle.optimizer.variables if v.name.endswith(kind)]
        for index, variable in enumerate(found):
            variable.assign(saved[f"training/Adam/{letter}_{index}_1:0"])
    for model in (carried, restarted, oracle):
        model.train_on_batch(x, y)
    for one, want in zip(carried.get_weights(), oracle.get_weights(), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-6, atol=1e-7)
    kernels = carried.get_weights()[0] - restarted.get_weights()[0]
    assert np.abs(kernels).max() > 1e-5


def test_a_model_with_two_outputs_trains_on_with_the_one_loss_that_was_saved():
    model = load_keras2_model(DATA / "multi_3gpu_model.h5")
    inputs, (u, v), _ = expected("multi")
    logs = model.evaluate(inputs, [u + 1.0, v + 2.0], verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx(5.0, rel=1e-4)
    model.fit(inputs, [u, v], verbose=0)


def test_without_compile_the_model_comes_uncompiled():
    model = load_keras2_model(DATA / "dense_2gpu_model.h5", compile=False)
    assert not model.compiled
    assert_predicts(model, "dense")


# Byte code in the file.


def live_code(marker):
    """Byte code as a Lambda holds it, which creates a file when it is run."""
    code = compile(f"open({str(marker)!r}, 'w').close()", "lambda", "exec")
    return base64.b64encode(marshal.dumps(code)).decode()


@pytest.mark.parametrize("kind", ["live", "garbage"])
def test_the_byte_code_of_the_slices_is_never_run_nor_read(tmp_path, kind):
    marker = tmp_path / "it ran"
    code = live_code(marker) if kind == "live" else "no code at all"
    if kind == "live":  # the trap works
        exec(marshal.loads(base64.b64decode(code)))
        assert marker.exists()
        marker.unlink()
    path = tmp_path / "tampered.h5"
    shutil.copyfile(DATA / "dense_2gpu_model.h5", path)
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        slices = [
            layer["config"]
            for layer in config["config"]["layers"]
            if layer["class_name"] == "Lambda"
        ]
        assert len(slices) == 2
        for one in slices:
            one["function"] = [code, None, None]
        file.attrs["model_config"] = json.dumps(config)
    assert_predicts(load_keras2_model(path), "dense")
    load_keras2_weights(fresh("dense"), path)
    assert not marker.exists()


# Files in the layout of Keras 2, for what the real ones do not hold.


def layer(class_name, name, inbound=(), **config):
    entry = {"class_name": class_name, "config": {"name": name, **config}}
    nodes = [[[source, 0, 0, {}] for source in inbound]] if inbound else []
    return {**entry, "name": name, "inbound_nodes": nodes}


def dense(name, units, *inbound, **config):
    return layer("Dense", name, inbound, units=units, trainable=True, **config)


def input_layer(name, *shape):
    return layer("InputLayer", name, batch_input_shape=[None, *shape], dtype="float32")


def sequential(name, *layers):
    return {
        "class_name": "Sequential",
        "name": name,
        "config": {"name": name, "layers": list(layers)},
    }


def n_gpu(template, input_name, shape, output_name, parts=2):
    """The graph that `multi_gpu_model` built around a template of one input."""
    names = [f"lambda_{i}" for i in range(parts)]
    slices = [
        layer("Lambda", name, [input_name], arguments={"i": i, "parts": parts})
        for i, name in enumerate(names)
    ]
    inner = copy.deepcopy(template)
    inner["inbound_nodes"] = [[[name, 0, 0, {}]] for name in names]
    join = layer("Concatenate", output_name, axis=0)
    join["inbound_nodes"] = [[[template["name"], i + 1, 0, {}] for i in range(parts)]]
    layers = [input_layer(input_name, *shape), *slices, inner, join]
    outer = {
        "name": "model_9",
        "layers": layers,
        "input_layers": [[input_name, 0, 0]],
        "output_layers": [[output_name, 0, 0]],
    }
    return {"class_name": "Model", "config": outer}


def write_names(group, attribute, names, parts=1):
    names = np.array([name.encode() for name in names])
    if parts == 1:
        group.attrs[attribute] = names
        return
    for index, part in enumerate(np.array_split(names, parts)):
        group.attrs[f"{attribute}{index}"] = part


def write_arrays(group, arrays, parts=1):
    write_names(group, "weight_names", list(arrays), parts)
    for name, value in arrays.items():
        group[name] = value


def write_keras2(
    path,
    groups,
    config=None,
    training=None,
    optimizer=None,
    parts=1,
    version="2.3.1",
    backend="tensorflow",
):
    with h5py.File(path, "w") as file:
        root = file if config is None else file.create_group("model_weights")
        root.attrs["keras_version"] = np.bytes_(version)  # bytes, as h5py 2 wrote
        root.attrs["backend"] = backend
        write_names(root, "layer_names", list(groups), parts)
        for name, arrays in groups.items():
            write_arrays(root.create_group(name), arrays, parts)
        if config is not None:
            file.attrs["model_config"] = json.dumps(config).encode()
        if training is not None:
            file.attrs["training_config"] = json.dumps(training).encode()
        if optimizer is not None:
            write_arrays(file.create_group("optimizer_weights"), optimizer)
    return path


def training(class_name, config, loss="mse", **others):
    optimizer = {"class_name": class_name, "config": config}
    empty = {"metrics": [], "weighted_metrics": None, "loss_weights": None}
    return {**empty, "optimizer_config": optimizer, "loss": loss, **others}


def values(*shape, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return rng.normal(size=shape).astype("float32")


TWO_DENSE = {
    "dense_1/kernel:0": values(4, 3),
    "dense_1/bias:0": values(3),
    "dense_2/kernel:0": values(3, 2),
    "dense_2/bias:0": values(2),
}


def two_dense_template(**first):
    return sequential(
        "sequential_1",
        dense("dense_1", 3, batch_input_shape=[None, 4], activation="tanh", **first),
        dense("dense_2", 2),
    )


def two_dense_model():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, activation="tanh"),
            keras.layers.Dense(2),
        ]
    )
    model.set_weights(list(TWO_DENSE.values()))
    return model


def two_dense_file(path, **others):
    config = n_gpu(two_dense_template(), "dense_1_input", [4], "dense_2")
    groups = {"dense_1_input": {}, "lambda_0": {}, "sequential_1": TWO_DENSE}
    return write_keras2(path, groups, config, **others)


MOMENTS = {
    "SGD/iterations:0": np.int64(7),
    **{f"moment_{i}:0": v * 0.1 for i, v in enumerate(TWO_DENSE.values())},
}


def test_sgd_goes_on_with_its_momenta_decay_and_clipping(tmp_path):
    config = {
        "lr": 0.1,
        "momentum": 0.9,
        "nesterov": True,
        "decay": 0.5,
        "clipnorm": 0.01,
    }
    path = two_dense_file(
        tmp_path / "sgd.h5", training=training("SGD", config), optimizer=MOMENTS
    )
    model = load_keras2_model(path)
    momenta = list(MOMENTS.values())[1:]
    assert_same(slots(model, "_momentum"), momenta)
    # One step by the formulas of Keras 2, with gradients from a plain SGD step.
    x, y = values(8, 4), values(8, 2, seed=1)
    plain = two_dense_model()
    plain.compile(keras.optimizers.SGD(1.0), "mse")
    plain.train_on_batch(x, y)
    start = list(TWO_DENSE.values())
    gradients = [a - b for a, b in zip(start, plain.get_weights(), strict=True)]
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in gradients))
    assert norm > 0.01
    rate = 0.1 / (1.0 + 0.5 * 7)
    model.train_on_batch(x, y)
    for weight, gradient, momentum, new in zip(
        start, gradients, momenta, model.get_weights(), strict=True
    ):
        clipped = gradient * 0.01 / norm
        velocity = 0.9 * momentum - rate * clipped
        want = weight + 0.9 * velocity - rate * clipped
        np.testing.assert_allclose(new, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "config", "kinds"),
    [
        ("Adam", {"amsgrad": True}, ["_momentum", "_velocity", "_velocity_hat"]),
        ("Adamax", {}, ["_momentum", "_norm"]),
        ("Adagrad", {}, ["_accumulator"]),
        ("Adadelta", {}, ["_accumulated_grad", "_accumulated_delta_var"]),
    ],
)
def test_slots_of_each_optimizer_come_over_in_order(tmp_path, name, config, kinds):
    state = {
        f"{kind}_{i}:0": values(*v.shape, seed=k + 1) ** 2
        for k, kind in enumerate(kinds)
        for i, v in enumerate(TWO_DENSE.values())
    }
    path = two_dense_file(
        tmp_path / "model.h5",
        training=training(name, {"lr": 0.01, "decay": 0.0, "epsilon": None, **config}),
        optimizer={f"{name}/iterations:0": np.int64(5), **state},
    )
    model = load_keras2_model(path)
    for kind in kinds:
        want = [value for key, value in state.items() if key.startswith(kind + "_")]
        want = want[:4]  # "_velocity" also begins "_velocity_hat"
        assert_same(slots(model, kind), want)
    assert number(model.optimizer.iterations) == 5


def test_nadam_keeps_its_product_and_its_other_schedule_is_named(tmp_path):
    state = {f"m_{i}:0": v for i, v in enumerate(TWO_DENSE.values())}
    state |= {f"v_{i}:0": v**2 for i, v in enumerate(TWO_DENSE.values())}
    first = {"Nadam/iterations:0": np.int64(3), "Nadam/m_schedule:0": np.float32(0.25)}
    path = two_dense_file(
        tmp_path / "nadam.h5",
        training=training("Nadam", {"lr": 0.01, "schedule_decay": 0.004}),
        optimizer=first | state,
    )
    with pytest.warns(UnisonWarning, match=r"schedule_decay=0\.004") as caught:
        model = load_keras2_model(path)
    assert len(caught) == 1
    assert_same(slots(model, "_momentum"), list(TWO_DENSE.values()))
    scalars = [number(v) for v in model.optimizer.variables if tuple(v.shape) == ()]
    assert 0.25 in scalars


def test_long_lists_of_names_are_read_from_their_parts(tmp_path):
    path = two_dense_file(tmp_path / "model.h5", parts=3)
    with h5py.File(path, "r") as file:
        assert "weight_names" not in file["model_weights/sequential_1"].attrs
    x = values(5, 4)
    want = two_dense_model().predict(x, verbose=0)
    model = load_keras2_model(path)
    np.testing.assert_allclose(model.predict(x, verbose=0), want, rtol=1e-6)


@pytest.mark.parametrize("wrapped", [True, False])
def test_the_first_form_of_sequential_is_read_too(tmp_path, wrapped):
    template = two_dense_template()
    template["config"] = template["config"]["layers"]  # a bare list, before 2.2.3
    groups = {"sequential_1": TWO_DENSE}
    config = n_gpu(template, "dense_1_input", [4], "dense_2")
    if not wrapped:
        config = template
        names = list(TWO_DENSE)
        groups = {
            "dense_1": {name: TWO_DENSE[name] for name in names[:2]},
            "dense_2": {name: TWO_DENSE[name] for name in names[2:]},
        }
    compiled = training("SGD", {"lr": 0.1}, loss={"dense_2": "mae"})
    path = write_keras2(tmp_path / "m.h5", groups, config, compiled, version="2.1.6")
    model = load_keras2_model(path)
    x = values(5, 4)
    want = two_dense_model().predict(x, verbose=0)
    np.testing.assert_allclose(model.predict(x, verbose=0), want, rtol=1e-6)
    assert model.evaluate(x, want + 2, verbose=0) == pytest.approx(2, rel=1e-5)


def test_a_model_nested_in_the_template_keeps_its_place(tmp_path):
    inner = sequential(
        "base",
        dense("dense_5", 3, batch_input_shape=[None, 4]),
        layer("BatchNormalization", "bn_1", axis=[-1], epsilon=0.001),
    )
    template = sequential("outer", inner, dense("dense_6", 2))
    saved = {
        "dense_5/kernel:0": values(4, 3),
        "dense_5/bias:0": values(3),
        "bn_1/gamma:0": values(3, seed=1),
        "bn_1/beta:0": values(3, seed=2),
        "dense_6/kernel:0": values(3, 2),
        "dense_6/bias:0": values(2),
        "bn_1/moving_mean:0": values(3, seed=3),
        "bn_1/moving_variance:0": values(3, seed=4) ** 2,
    }
    config = n_gpu(template, "base_input", [4], "dense_6", parts=4)
    path = write_keras2(tmp_path / "model.h5", {"outer": saved}, config)
    base = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization()]
    )
    plain = keras.Sequential([base, keras.layers.Dense(2)])
    order = [0, 1, 2, 3, 6, 7, 4, 5]
    plain.set_weights([list(saved.values())[i] for i in order])
    x = values(5, 4)
    want = plain.predict(x, verbose=0)
    loaded = load_keras2_model(path).predict(x, verbose=0)
    np.testing.assert_allclose(loaded, want, rtol=1e-5, atol=1e-6)
    plain.set_weights([np.zeros_like(w) for w in plain.get_weights()])
    load_keras2_weights(plain, path)
    np.testing.assert_allclose(plain.predict(x, verbose=0), want, rtol=1e-6)


def functional(layers, inputs, outputs):
    config = {
        "name": "model_1",
        "layers": layers,
        "input_layers": [[name, 0, 0] for name in inputs],
        "output_layers": [[name, 0, 0] for name in outputs],
    }
    return {"class_name": "Model", "name": "model_1", "config": config}


def test_losses_weights_and_metrics_come_over_by_the_names_of_the_outputs(tmp_path):
    layers = [input_layer("x", 4), dense("u", 2, "x"), dense("v", 1, "x")]
    compiled = training(
        "SGD",
        {"learning_rate": 0.1},
        loss={"v": "mae", "u": "mean_squared_error"},
        loss_weights={"v": 3.0, "u": 0.5},
        metrics={"v": ["mse", "mae"], "u": "mae"},
    )
    kernels = {
        "u": {"u/kernel:0": values(4, 2), "u/bias:0": values(2)},
        "v": {"v/kernel:0": values(4, 1), "v/bias:0": values(1)},
    }
    path = write_keras2(
        tmp_path / "m.h5", kernels, functional(layers, ["x"], ["u", "v"]), compiled
    )
    model = load_keras2_model(path)
    x = values(6, 4)
    u, v = model.predict(x, verbose=0)
    logs = model.evaluate(x, {"u": u + 2, "v": v - 3}, verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx(0.5 * 4 + 3.0 * 3, rel=1e-5)
    assert logs["v_mse"] == pytest.approx(9, rel=1e-5)
    assert logs["v_mae"] == pytest.approx(3, rel=1e-5)
    assert logs["u_mae"] == pytest.approx(2, rel=1e-5)


def test_metrics_without_names_count_for_every_output(tmp_path):
    layers = [input_layer("x", 4), dense("u", 2, "x"), dense("v", 1, "x")]
    kernels = {
        "u": {"u/kernel:0": values(4, 2), "u/bias:0": values(2)},
        "v": {"v/kernel:0": values(4, 1), "v/bias:0": values(1)},
    }
    compiled = training("SGD", {"lr": 0.1}, metrics=["mae"], loss_weights=[1.0, 2.0])
    path = write_keras2(
        tmp_path / "m.h5", kernels, functional(layers, ["x"], ["u", "v"]), compiled
    )
    model = load_keras2_model(path)
    x = values(6, 4)
    u, v = model.predict(x, verbose=0)
    logs = model.evaluate(x, [u + 2, v - 3], verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx(4 + 2 * 9, rel=1e-5)
    assert (logs["u_mae"], logs["v_mae"]) == pytest.approx((2, 3), rel=1e-5)


def test_an_own_loss_is_named_and_the_optimizer_is_kept(tmp_path):
    compiled = training(
        "SGD", {"lr": 0.1, "momentum": 0.9}, loss="my_loss", metrics=["my_metric"]
    )
    path = two_dense_file(tmp_path / "m.h5", training=compiled, optimizer=MOMENTS)
    with pytest.warns(UnisonWarning, match="loss 'my_loss', metric 'my_metric'") as got:
        model = load_keras2_model(path)
    assert len(got) == 1
    assert got[0].filename == __file__
    model.compile(optimizer=model.optimizer, loss="mse")
    model.train_on_batch(values(4, 4), values(4, 2))
    assert number(model.optimizer.iterations) == 8


def test_an_own_loss_in_scope_is_found(tmp_path):
    def my_loss(wanted, found):
        return keras.ops.mean(keras.ops.abs(wanted - found), axis=-1) * 10

    compiled = training("SGD", {"lr": 0.1}, loss="my_loss")
    path = two_dense_file(tmp_path / "m.h5", training=compiled)
    with keras.saving.custom_object_scope({"my_loss": my_loss}):
        model = load_keras2_model(path)
        x = values(4, 4)
        loss = model.evaluate(x, model.predict(x, verbose=0) + 1, verbose=0)
    assert loss == pytest.approx(10, rel=1e-5)


@pytest.mark.parametrize(
    ("class_name", "state", "text"),
    [
        ("MyOptimizer", {}, "optimizer 'MyOptimizer'"),
        ("SGD", {"SGD/iterations:0": np.int64(1), "moment_0:0": values(4, 3)}, "1 arr"),
        ("SGD", {f"moment_{i}:0": values(9) for i in range(4)}, r"shape \(9,\)"),
    ],
)
def test_an_optimizer_that_does_not_fit_is_named(tmp_path, class_name, state, text):
    compiled = training(class_name, {"lr": 0.1, "momentum": 0.9})
    path = two_dense_file(tmp_path / "m.h5", training=compiled, optimizer=state)
    with pytest.warns(UnisonWarning, match=text):
        model = load_keras2_model(path)
    want = two_dense_model().predict(values(5, 4), verbose=0)
    np.testing.assert_allclose(model.predict(values(5, 4), verbose=0), want, rtol=1e-6)


# Frozen layers: Keras 2 put their weights behind all others.

SQUARE = {
    "dense_2/kernel:0": values(4, 4, seed=2),
    "dense_2/bias:0": values(4, seed=2),
    "dense_1/kernel:0": values(4, 4, seed=1),
    "dense_1/bias:0": values(4, seed=1),
}


def square_model(first, second, frozen=False):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(4, activation="tanh", name=first),
            keras.layers.Dense(4, name=second),
        ]
    )
    model.layers[0].trainable = not frozen
    return model


def square_prediction(x):
    model = square_model("one", "two")
    model.set_weights([list(SQUARE.values())[i] for i in (2, 3, 0, 1)])
    return model.predict(x, verbose=0)


@pytest.mark.parametrize(
    ("names", "frozen"),
    [
        (("dense_1", "dense_2"), False),
        (("dense", "dense_1"), False),  # the numbers that Keras 3 gives
        (("dense_7", "dense_8"), False),
        (("mine", "other"), True),
    ],
)
def test_frozen_layers_find_their_weights(tmp_path, names, frozen):
    path = write_keras2(tmp_path / "w.h5", {"sequential_1": SQUARE})
    model = square_model(*names, frozen=frozen)
    load_keras2_weights(model, path)
    x = values(5, 4)
    got = model.predict(x, verbose=0)
    np.testing.assert_allclose(got, square_prediction(x), rtol=1e-6)


def test_a_frozen_layer_of_a_whole_model_stays_frozen_with_its_weights(tmp_path):
    first = dense("dense_1", 4, batch_input_shape=[None, 4], activation="tanh")
    first["config"]["trainable"] = False
    template = sequential("sequential_1", first, dense("dense_2", 4))
    config = n_gpu(template, "dense_1_input", [4], "dense_2")
    state = {"it/iterations:0": np.int64(2), "m_0:0": values(4, 4), "m_1:0": values(4)}
    path = write_keras2(
        tmp_path / "m.h5",
        {"sequential_1": SQUARE},
        config,
        training("SGD", {"lr": 0.1, "momentum": 0.5}),
        state,
    )
    model = load_keras2_model(path)
    assert not model.layers[0].trainable
    assert_same(slots(model, "_momentum"), [values(4, 4), values(4)])
    x = values(5, 4)
    got = model.predict(x, verbose=0)
    np.testing.assert_allclose(got, square_prediction(x), rtol=1e-6)


def test_an_order_that_may_be_wrong_is_refused(tmp_path):
    path = write_keras2(tmp_path / "w.h5", {"sequential_1": SQUARE})
    model = square_model("mine", "other")
    before = model.get_weights()
    with pytest.raises(LegacyFileError, match="name the layers as .* dense_2, dense_1"):
        load_keras2_weights(model, path)
    assert_same(model.get_weights(), before)


# What Keras 3 computes otherwise.


def hard_sigmoid_file(path):
    only = layer(
        "Dense",
        "dense_1",
        units=3,
        batch_input_shape=[None, 4],
        activation="hard_sigmoid",
    )
    arrays = {"dense_1/kernel:0": values(4, 3), "dense_1/bias:0": values(3)}
    return write_keras2(path, {"dense_1": arrays}, sequential("s", only))


def test_the_hard_sigmoid_of_keras_2_is_kept_also_through_saving(tmp_path):
    path = hard_sigmoid_file(tmp_path / "m.h5")
    with pytest.warns(UnisonWarning, match="hard_sigmoid"):
        model = load_keras2_model(path)
    x = values(9, 4)
    want = np.clip(0.2 * (x @ values(4, 3) + values(3)) + 0.5, 0, 1)
    np.testing.assert_allclose(model.predict(x, verbose=0), want, rtol=1e-5, atol=1e-6)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras").predict(x, verbose=0)
    np.testing.assert_allclose(again, want, rtol=1e-5, atol=1e-6)


def test_weights_for_the_other_hard_sigmoid_come_with_a_warning(tmp_path):
    path = hard_sigmoid_file(tmp_path / "m.h5")
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, activation="hard_sigmoid")]
    )
    with pytest.warns(UnisonWarning, match="keras2_hard_sigmoid"):
        load_keras2_weights(model, path)
    assert_same(model.get_weights(), [values(4, 3), values(3)])


# What is refused.


def lambda_template(code):
    layers = [
        input_layer("x", 4),
        layer("Lambda", "twice", ["x"], function=[code, None, None]),
        dense("dense_1", 2, "twice"),
    ]
    return functional(layers, ["x"], ["dense_1"])


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_lambda_of_the_user_is_refused_by_name_and_not_run(tmp_path, wrapped):
    marker = tmp_path / "it ran"
    config = lambda_template(live_code(marker))
    arrays = {"dense_1/kernel:0": values(4, 2), "dense_1/bias:0": values(2)}
    group = "dense_1"
    if wrapped:
        config, group = n_gpu(config, "x", [4], "dense_1"), "model_1"
    path = write_keras2(tmp_path / "m.h5", {group: arrays}, config)
    with pytest.raises(LegacyFileError, match="'twice'.*load_keras2_weights"):
        load_keras2_model(path)
    x = keras.Input((4,))
    model = keras.Model(x, keras.layers.Dense(2)(x * 2))
    load_keras2_weights(model, path)
    assert_same(model.get_weights(), list(arrays.values()))
    assert not marker.exists()


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (layer("CuDNNLSTM", "lstm_1", ["x"], units=3), "'lstm_1'.*'CuDNNLSTM'"),
        (layer("Dense", "d", ["x"], units=3, bogus=1), "'d'.*bogus"),
        (layer("Dense", "d", ["y"], units=3), "inputs of layer 'd'"),
        (
            layer("UpSampling2D", "up", ["x"], size=[2, 2], interpolation="bilinear"),
            "'up'.*bilinearly",
        ),
        (
            layer(
                "TimeDistributed",
                "wrapped",
                ["x"],
                layer=layer("Lambda", "inner", function=["", None, None]),
            ),
            "'wrapped'.*Lambda",
        ),
        (
            layer(
                "Dense",
                "d",
                ["x"],
                units=3,
                kernel_initializer={"class_name": "f", "module": "os", "config": {}},
            ),
            "'d'.*module",
        ),
    ],
)
def test_a_layer_that_cannot_be_rebuilt_is_named(tmp_path, bad, text):
    config = functional([input_layer("x", 4), bad], ["x"], [bad["name"]])
    path = write_keras2(tmp_path / "m.h5", {bad["name"]: {"w:0": values(1)}}, config)
    with pytest.raises(LegacyFileError, match=text):
        load_keras2_model(path)


def test_a_missing_file_keeps_the_error_of_python(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_keras2_model(tmp_path / "none.h5")
    with pytest.raises(FileNotFoundError):
        load_keras2_weights(fresh("dense"), tmp_path / "none.h5")


def test_files_of_keras_3_are_sent_to_keras_3(tmp_path):
    model = fresh("dense")
    model.compile("adam", "mse")
    for name in ("m.keras", "m.h5"):
        model.save(tmp_path / name)
        for load in (load_keras2_model, lambda p: load_keras2_weights(model, p)):
            with pytest.raises(LegacyFileError, match=r"keras\.models\.load_model"):
                load(tmp_path / name)
    model.save_weights(tmp_path / "m.weights.h5")
    with pytest.raises(LegacyFileError, match=r"model\.load_weights"):
        load_keras2_weights(model, tmp_path / "m.weights.h5")


@pytest.mark.parametrize(
    ("content", "text"), [(b"no HDF5", "no HDF5 file"), (None, "damaged")]
)
def test_what_is_no_readable_hdf5_file_is_refused(tmp_path, content, text):
    path = tmp_path / "m.h5"
    half = (DATA / "dense_2gpu_model.h5").read_bytes()[:9000]
    path.write_bytes(half if content is None else content)
    with pytest.raises(LegacyFileError, match=text):
        load_keras2_model(path)


@pytest.mark.parametrize(
    ("version", "backend", "text"),
    [("1.2.2", "tensorflow", "Keras 1"), ("2.3.1", "theano", "Theano")],
)
def test_files_with_other_layers_or_kernels_are_refused(
    tmp_path, version, backend, text
):
    path = tmp_path / "w.h5"
    write_keras2(path, {"s": SQUARE}, version=version, backend=backend)
    with pytest.raises(LegacyFileError, match=text):
        load_keras2_weights(square_model("dense_1", "dense_2"), path)


def test_a_weights_file_is_no_model():
    with pytest.raises(LegacyFileError, match="weights only.*load_keras2_weights"):
        load_keras2_model(DATA / "dense_2gpu.weights.h5")


def test_a_weight_of_another_shape_is_named_and_nothing_is_changed():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(2)]
    )
    before = model.get_weights()
    text = r"'dense_2/kernel:0'.* \(8, 3\).*kernel' of the model has shape \(8, 2\)"
    with pytest.raises(LegacyFileError, match=text):
        load_keras2_weights(model, DATA / "dense_2gpu.weights.h5")
    assert_same(model.get_weights(), before)


@pytest.mark.parametrize(
    ("units", "text"),
    [
        ([8], r"'dense_2/kernel:0' of the file, of shape \(8, 3\)"),
        ([8, 3, 3], r"kernel' of the model, of shape \(3, 3\)"),
    ],
)
def test_another_count_of_weights_is_named_and_nothing_is_changed(units, text):
    stack = [keras.Input((4,)), *(keras.layers.Dense(n) for n in units)]
    model = keras.Sequential(stack)
    before = model.get_weights()
    with pytest.raises(LegacyFileError, match=text):
        load_keras2_weights(model, DATA / "dense_2gpu.weights.h5")
    assert_same(model.get_weights(), before)


def test_loading_nothing_is_an_error(tmp_path):
    path = write_keras2(tmp_path / "empty.h5", {"flatten_1": {}})
    with pytest.raises(LegacyFileError, match="no weights"):
        load_keras2_weights(fresh("dense"), path)
    unbuilt = keras.Sequential([keras.layers.Dense(3)])
    with pytest.raises(LegacyFileError, match="no variables"):
        load_keras2_weights(unbuilt, DATA / "dense_2gpu.weights.h5")


def test_a_link_to_another_file_is_not_followed(tmp_path):
    write_keras2(tmp_path / "other.h5", {"sequential_1": TWO_DENSE})
    path = write_keras2(tmp_path / "w.h5", {"sequential_1": TWO_DENSE})
    with h5py.File(path, "r+") as file:
        name = "sequential_1/dense_1/kernel:0"
        del file[name]
        file[name] = h5py.ExternalLink("other.h5", name)
    with pytest.raises(LegacyFileError, match="'dense_1/kernel:0'"):
        load_keras2_weights(two_dense_model(), path)
