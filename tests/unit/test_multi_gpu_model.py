"""multi_gpu_model: its arguments, its errors, and what old code does with it."""

import json
import os
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
from keras import layers

import keras_unison as ku
from keras_unison.engines import engine
from tests.process.scripts import on_both

BACKEND = keras.backend.backend()

X = np.random.default_rng(0).normal(size=(33, 8)).astype("float32")
Y = np.random.default_rng(1).integers(0, 5, size=33)


def template(name=None):
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(13, activation="tanh", name="d1"),
            layers.Dense(5, activation="softmax", name="d2"),
        ],
        name=name,
    )


def compiled(model):
    model.compile(
        keras.optimizers.SGD(0.1),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def fit(model):
    return model.fit(X, Y, batch_size=11, verbose=0).history


def positions(model):
    return engine().positions(model)


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# --- gpus -------------------------------------------------------------------

TOO_FEW = {
    "true": (True, "`gpus >= 2`. Received: `gpus=True`"),
    "one": (1, "`gpus >= 2`. Received: `gpus=1`"),
    "numpy_one": (np.int64(1), "`gpus >= 2`. Received: `gpus=1`"),
    "minus_one": (-1, "`gpus >= 2`. Received: `gpus=-1`"),
    "one_id": ([0], "`len(gpus) >= 2`. Received: `gpus=[0]`"),
    "tuple_of_one_id": ((0,), "`len(gpus) >= 2`. Received: `gpus=[0]`"),
    "range_of_one": (range(1), "`len(gpus) >= 2`. Received: `gpus=[0]`"),
    "array_of_one": (np.array([0]), "`len(gpus) >= 2`. Received: `gpus=array([0])`"),
    "one_name": ("cpu:1", "`len(gpus) >= 2`. Received: `gpus='cpu:1'`"),
}


@pytest.mark.parametrize(("gpus", "text"), TOO_FEW.values(), ids=TOO_FEW)
def test_fewer_than_two_gpus_raise_the_value_error_of_keras_2(gpus, text):
    with pytest.raises(ku.DeviceError) as caught:
        ku.multi_gpu_model(template(), gpus=gpus)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith(
        "For multi-gpu usage to be effective, call `multi_gpu_model` with " + text
    )
    assert "cpu:0, cpu:1, cpu:2" in str(caught.value)
    assert "--simulate 2" in str(caught.value)


WRONG = {
    "too_many": (4, "asks for 4 devices. Received: gpus=4"),
    "unknown_id": ([0, 5], "names device 5, which does not exist"),
    "negative_id": ([0, -1], "names device -1, which does not exist"),
    "twice": ([0, 0], "names a device twice. Received: gpus=[0, 0]"),
    "twice_by_name": ([1, "cpu:1"], "names a device twice"),
    "number_as_text": ("2", "names '2', which does not exist"),
    "ids_as_text": (["0", "1"], "names '0', which does not exist"),
    "a_float": (2.0, "takes None, a number, ids or names of devices"),
    "truth_values": ([True, False], "takes ids (whole numbers) or names"),
}


@pytest.mark.parametrize(("gpus", "text"), WRONG.values(), ids=WRONG)
def test_gpus_that_do_not_exist_raise_a_value_error_that_lists_the_devices(gpus, text):
    with pytest.raises(ku.DeviceError) as caught:
        ku.multi_gpu_model(template(), gpus=gpus)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith("`gpus` " + text)
    assert "3 device(s)" in str(caught.value)
    assert "cpu:0, cpu:1, cpu:2" in str(caught.value)


@pytest.mark.parametrize("gpus", [1, [0, 0], 99])
def test_a_refused_model_stays_plain_and_trains(gpus):
    model = compiled(template())
    with pytest.raises(ValueError):
        ku.multi_gpu_model(model, gpus=gpus)
    assert positions(model) is None
    assert type(model) is keras.Sequential
    assert fit(model)["loss"]


@pytest.mark.parametrize(
    "gpus", [None, 0, False, [], (), {}, np.array([]), np.array(0)], ids=repr
)
def test_falsy_gpus_means_all(gpus):
    assert positions(ku.multi_gpu_model(template(), gpus=gpus)) == [0, 1, 2]


def test_gpus_left_out_means_all():
    assert positions(ku.multi_gpu_model(template())) == [0, 1, 2]


def test_all_means_those_that_the_environment_names(monkeypatch):
    monkeypatch.setenv("KERAS_UNISON_DEVICES", "2,0")
    assert positions(ku.multi_gpu_model(template())) == [2, 0]
    monkeypatch.setenv("KERAS_UNISON_DEVICES", "1")
    with pytest.raises(ValueError, match=r"Received: `gpus=1`"):
        ku.multi_gpu_model(template())


CHOICES = {
    "number": (2, [0, 1]),
    "numpy_number": (np.int64(3), [0, 1, 2]),
    "array_of_no_dimension": (np.array(2), [0, 1]),
    "ids": ([0, 2], [0, 2]),
    "order_is_kept": ((2, 1), [2, 1]),
    "range": (range(1, 3), [1, 2]),
    "set": ({0, 1}, [0, 1]),
    "array": (np.array([0, 2]), [0, 2]),
    "generator": ((index for index in (1, 0)), [1, 0]),
    "names": (["cpu:0", "/device:CPU:2"], [0, 2]),
}


@pytest.mark.parametrize(("gpus", "chosen"), CHOICES.values(), ids=CHOICES)
def test_gpus_choose(gpus, chosen):
    assert positions(ku.multi_gpu_model(template(), gpus=gpus)) == chosen


def devices_that_multiply_on_jax(run):
    """By each compiled training step, the devices that it ran on."""
    import jax

    client = jax.devices()[0].client
    before = client.live_executables()
    run()
    known = {id(executable) for executable in before}
    return [
        {device.id for device in executable.local_devices()}
        for executable in client.live_executables()
        if id(executable) not in known
        and "jit_train_step" in executable.hlo_modules()[0].name
    ]


def devices_that_multiply_on_tensorflow(run):
    """By each executed function, the devices of its matrix products."""
    from tensorflow.python.eager import context

    context.enable_run_metadata()
    try:
        # What TensorFlow has kept of earlier runs.
        context.export_run_metadata()
        run()
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    found = [
        {
            int(node.device.rpartition(":")[2])
            for graph in function.partition_graphs
            for node in graph.node
            if node.op.endswith("MatMul")
        }
        for function in metadata.function_graphs
    ]
    return [devices for devices in found if devices]


@pytest.mark.parametrize("gpus", [[0, 2], [2, 1]], ids=str)
def test_the_step_runs_on_the_chosen_devices(gpus):
    model = compiled(ku.multi_gpu_model(template(), gpus=gpus))
    look = {
        "jax": devices_that_multiply_on_jax,
        "tensorflow": devices_that_multiply_on_tensorflow,
    }[BACKEND]
    ran = look(lambda: fit(model))
    assert ran
    assert [devices for devices in ran if devices != set(gpus)] == []


def test_the_arguments_of_keras_2_may_be_positional():
    model = template()
    assert ku.multi_gpu_model(model, 2, False, True) is model
    assert ku.multi_gpu_model(model, gpus=2, cpu_merge=True, cpu_relocation=False)


@pytest.mark.parametrize("cpu_merge", [True, False])
@pytest.mark.parametrize("cpu_relocation", [True, False])
def test_the_cpu_options_keep_the_weights_and_train_the_template(
    cpu_merge, cpu_relocation
):
    model = compiled(template())
    before = model.get_weights()
    parallel = ku.multi_gpu_model(
        model, gpus=2, cpu_merge=cpu_merge, cpu_relocation=cpu_relocation
    )
    assert_same(parallel.get_weights(), before)
    fit(parallel)
    assert_same(model.get_weights(), parallel.get_weights())
    assert not np.allclose(model.get_weights()[0], before[0])


@pytest.mark.process
@on_both
def test_with_one_device_the_value_error_stays_and_the_old_pattern_trains(
    backend, tmp_path
):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, keras, keras_unison as ku\n"
        "assert len(ku.devices()) == 1, ku.devices()\n"
        "def build():\n"
        "    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n"
        "for gpus in (None, 0, [], 1, 2, [0, 1]):\n"
        "    model = build()\n"
        "    try:\n"
        "        parallel = ku.multi_gpu_model(model, gpus=gpus)\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
        "        parallel = model\n"
        "    parallel.compile('sgd', 'mse')\n"
        "    parallel.fit(np.ones((5, 4)), np.ones((5, 1)), verbose=0)\n"
    )
    environment = os.environ | {
        "KERAS_BACKEND": backend,
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
    }
    for name in ("KERAS_UNISON_SIMULATE", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    texts = done.stdout.splitlines()
    assert len(texts) == 6
    # A CPU is no GPU: none of them counts.
    for text in texts[:3]:
        assert "`gpus >= 2`. Received: `gpus=0`" in text
    assert "Received: `gpus=1`" in texts[3]
    assert "asks for 2 devices" in texts[4]
    assert "names device 1, which does not exist" in texts[5]
    assert all("This machine has" in text and "cpu:0" in text for text in texts)


# --- the model --------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("model.h5", "Received: 'model.h5' of type str"),
        (None, "Received: None"),
        (keras.Sequential, "Received: the class Sequential"),
        (layers.Dense(1), "of type Dense"),
    ],
    ids=["text", "none", "class", "layer"],
)
def test_what_is_no_model_is_refused(model, text):
    with pytest.raises(ku.ModelError) as caught:
        ku.multi_gpu_model(model, gpus=2)
    assert isinstance(caught.value, ValueError)
    assert text in str(caught.value)


def test_the_result_is_the_model_itself():
    model = template()
    parallel = ku.multi_gpu_model(model, gpus=2)
    assert parallel is model
    assert isinstance(parallel, keras.Sequential)
    assert [layer.name for layer in parallel.layers] == ["d1", "d2"]


class Subclassed(keras.Model):
    def __init__(self, units=5, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dense = layers.Dense(units, activation="softmax")

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@pytest.mark.parametrize(
    "build",
    [lambda: keras.Sequential([layers.Dense(5, activation="softmax")]), Subclassed],
    ids=["sequential", "subclassed"],
)
def test_a_model_that_is_not_built_is_built_by_its_first_batch(build):
    model = compiled(ku.multi_gpu_model(build(), gpus=2))
    assert fit(model)["loss"]
    assert model.predict(X, verbose=0).shape == (33, 5)


def test_a_compiled_model_stays_compiled():
    model = compiled(template())
    optimizer = model.optimizer
    parallel = ku.multi_gpu_model(model, gpus=2)
    assert parallel.compiled
    assert parallel.optimizer is optimizer
    assert set(fit(parallel)) == {"loss", "accuracy"}


def test_a_model_that_is_not_compiled_says_so():
    parallel = ku.multi_gpu_model(template(), gpus=2)
    with pytest.raises(ValueError, match=r"call `compile\(\)` before"):
        fit(parallel)


def test_wrapping_a_wrapped_model_moves_it():
    model = compiled(template())
    first = ku.multi_gpu_model(model, gpus=3)
    fit(first)
    weights = model.get_weights()
    second = ku.multi_gpu_model(first, gpus=[0, 2])
    assert second is model
    assert positions(model) == [0, 2]
    assert_same(model.get_weights(), weights)
    fit(second)
    mixins = [cls.__name__ for cls in type(model).__mro__]
    assert len(mixins) == len(set(mixins) - {"Sequential"}) + mixins.count("Sequential")


def test_a_wrapped_model_made_plain_again_keeps_the_old_names():
    model = compiled(ku.multi_gpu_model(template(), gpus=2))
    ku.DataParallel(model, devices=1)
    assert positions(model) is None
    assert model.get_layer(model.name) is model
    assert fit(model)["loss"]


def test_trainable_may_change_without_wrapping_again():
    model = compiled(ku.multi_gpu_model(template(), gpus=2))
    fit(model)
    first, second = (layer.get_weights() for layer in model.layers)
    model.layers[0].trainable = False
    compiled(model)
    assert len(model.trainable_weights) == 2
    fit(model)
    assert_same(model.layers[0].get_weights(), first)
    assert not np.allclose(model.layers[1].get_weights()[0], second[0])
    model.layers[0].trainable = True
    compiled(model)
    fit(model)
    assert not np.allclose(model.layers[0].get_weights()[0], first[0])


def test_two_wrapped_models_share_one_encoder():
    def autoencoders():
        keras.utils.set_random_seed(4)
        encoder = keras.Sequential([keras.Input((8,)), layers.Dense(6)], name="encoder")
        pair = []
        for name in ("a", "b"):
            inputs = keras.Input((8,))
            decoded = layers.Dense(8, name=f"decoder_{name}")(encoder(inputs))
            pair.append(keras.Model(inputs, decoded, name=name))
        return encoder, pair

    def train(pair):
        for model in pair:
            model.compile(keras.optimizers.SGD(0.1), "mse")
        for start in (0, 11, 22):
            for model in pair:
                model.train_on_batch(X[start : start + 11], X[start : start + 11])

    plain_encoder, plain = autoencoders()
    train(plain)
    encoder, pair = autoencoders()
    before = encoder.get_weights()
    train([ku.multi_gpu_model(pair[0], gpus=2), ku.multi_gpu_model(pair[1], gpus=3)])
    assert not np.allclose(encoder.get_weights()[0], before[0])
    assert_same(encoder.get_weights(), plain_encoder.get_weights())
    for model, other in zip(pair, plain, strict=True):
        assert_same(model.get_weights(), other.get_weights())
    # The parts are the user's own objects, and no models on several devices.
    assert positions(encoder) is None


def test_a_plain_model_around_a_wrapped_one_stays_plain_until_it_is_wrapped():
    inner = ku.multi_gpu_model(template(), gpus=2)
    inputs = keras.Input((8,))
    outer = keras.Model(inputs, inner(inputs))
    compiled(outer)
    assert fit(outer)["loss"]
    assert positions(outer) is None
    assert positions(inner) == [0, 1]
    ku.multi_gpu_model(outer, gpus=3)
    assert fit(outer)["loss"]
    assert positions(outer) == [0, 1, 2]


# --- replicas ---------------------------------------------------------------


def test_replicas_give_the_first_one_with_its_weights():
    replicas = [template(), template(), template()]
    weights = replicas[0].get_weights()
    parallel = ku.multi_gpu_model(replicas, gpus=2)
    assert parallel is replicas[0]
    assert positions(parallel) == [0, 1]
    assert_same(parallel.get_weights(), weights)
    assert all(type(replica) is keras.Sequential for replica in replicas[1:])
    assert positions(replicas[1]) is None


def test_a_lone_replica_and_a_tuple_are_accepted():
    assert positions(ku.multi_gpu_model([template()], gpus=2)) == [0, 1]
    assert positions(ku.multi_gpu_model((template(), template()))) == [0, 1, 2]


def test_the_first_replica_stays_compiled():
    parallel = ku.multi_gpu_model([compiled(template()), template()], gpus=2)
    assert fit(parallel)["loss"]


def functional(units=5, activation="softmax", rate=0.2, names=("x", "y"), join="add"):
    inputs = keras.Input((8,), name=names[0])
    left = layers.Dense(6)(inputs)
    right = layers.Dropout(rate)(layers.Dense(6)(inputs))
    both = (
        layers.add([left, right]) if join == "add" else layers.multiply([left, right])
    )
    output = layers.Dense(units, activation=activation, name=names[1])(both)
    return keras.Model(inputs, output)


def test_names_may_differ_between_replicas():
    first = functional()
    assert ku.multi_gpu_model([first, functional(names=("a", "b"))], gpus=2) is first


def under(policy):
    """A replica under another dtype policy."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        return functional()
    finally:
        keras.config.set_dtype_policy(before)


DIFFERENT = {
    "units": lambda: functional(units=4),
    "activation": lambda: functional(activation="sigmoid"),
    "rate": lambda: functional(rate=0.3),
    "precision": lambda: under("mixed_bfloat16"),
    "operation": lambda: functional(join="multiply"),
    "class": template,
    "not_built": lambda: keras.Sequential([layers.Dense(5)]),
    "subclassed": Subclassed,
}


@pytest.mark.parametrize("other", DIFFERENT.values(), ids=DIFFERENT)
def test_replicas_that_differ_are_refused(other):
    replicas = [functional(), functional(), other()]
    with pytest.raises(ku.ModelError) as caught:
        ku.multi_gpu_model(replicas, gpus=2)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith("The replicas must have the same architecture")
    assert f"replica 2 ({replicas[2].name}) differs from replica 0" in str(caught.value)
    assert positions(replicas[0]) is None


def test_a_name_that_is_an_activation_hides_no_difference():
    def named(activation):
        return keras.Sequential(
            [keras.Input((8,)), layers.Dense(5, activation=activation, name=activation)]
        )

    with pytest.raises(ValueError, match="same architecture"):
        ku.multi_gpu_model([named("relu"), named("tanh")], gpus=2)


def test_replicas_may_be_compiled_or_not():
    def nested():
        inputs = keras.Input((8,))
        return keras.Model(inputs, layers.Dense(5)(compiled(template())(inputs)))

    first = compiled(nested())
    assert ku.multi_gpu_model([first, nested()], gpus=2) is first
    plain = template()
    assert ku.multi_gpu_model([plain, compiled(template())], gpus=2) is plain


def test_the_wiring_of_replicas_counts():
    def wired(reverse):
        a, b = keras.Input((4,)), keras.Input((4,))
        pair = [layers.Dense(4)(a), layers.Dense(4)(b)]
        return keras.Model([a, b], layers.subtract(pair[::-1] if reverse else pair))

    assert ku.multi_gpu_model([wired(False), wired(False)], gpus=2)
    with pytest.raises(ValueError, match="same architecture"):
        ku.multi_gpu_model([wired(False), wired(True)], gpus=2)


def test_subclassed_replicas_are_compared_too():
    class Open(keras.Model):
        """Without get_config."""

        def __init__(self, units):
            super().__init__()
            self.dense = layers.Dense(units)

        def call(self, x):
            return self.dense(x)

    assert ku.multi_gpu_model([Subclassed(4), Subclassed(4)], gpus=2)
    with pytest.raises(ValueError, match="same architecture"):
        ku.multi_gpu_model([Subclassed(4), Subclassed(5)], gpus=2)
    built = [Open(4), Open(4), Open(5)]
    for model in built:
        model(X)
    assert ku.multi_gpu_model(built[:2], gpus=2) is built[0]
    with pytest.raises(ValueError, match="same architecture"):
        ku.multi_gpu_model(built[1:], gpus=2)


def test_no_replicas_and_things_that_are_none_are_refused():
    with pytest.raises(ku.ModelError, match="at least one model"):
        ku.multi_gpu_model([], gpus=2)
    with pytest.raises(ku.ModelError, match=r"keras\.Model is needed"):
        ku.multi_gpu_model([template(), "model"], gpus=2)


# --- code written for the nested layout -------------------------------------


def test_get_layer_by_the_name_of_the_model_is_the_model():
    model = template(name="model_1")
    parallel = ku.multi_gpu_model(model, gpus=2)
    assert parallel.get_layer("model_1") is model
    assert parallel.get_layer(name=model.name) is model
    assert parallel.get_layer("d2") is model.layers[1]
    assert parallel.get_layer(index=0) is model.layers[0]
    with pytest.raises(ValueError) as caught:
        parallel.get_layer("encoder")
    assert str(caught.value).startswith("No such layer: encoder. Existing layers are")
    assert "Keras 2" not in str(caught.value)
    with pytest.raises(ValueError, match="Provide either a layer name"):
        parallel.get_layer()


@pytest.mark.parametrize("name", ["model_1", "sequential_7"])
def test_get_layer_by_a_name_that_keras_2_counted_names_the_replacement(name):
    parallel = ku.multi_gpu_model(template(name="net"), gpus=2)
    with pytest.raises(ValueError) as caught:
        parallel.get_layer(name)
    assert str(caught.value).startswith(
        f"No such layer: {name}. Existing layers are: ['d1', 'd2']"
    )
    assert "named 'net'. Use it directly: `parallel.save(...)`" in str(caught.value)


def test_a_layer_of_the_models_name_is_found_first():
    inputs = keras.Input((8,))
    model = keras.Model(inputs, layers.Dense(5, name="net")(inputs), name="net")
    parallel = ku.multi_gpu_model(model, gpus=2)
    assert parallel.get_layer("net") is model.layers[1]


@pytest.mark.parametrize(
    "name",
    ["save", "save_weights", "load_weights", "summary", "layers", "predict", "fit"],
)
def test_what_old_code_asked_of_layers_minus_two_names_the_replacement(name):
    parallel = ku.multi_gpu_model(template(), gpus=2)
    with pytest.raises(AttributeError) as caught:
        getattr(parallel.layers[-2], name)
    assert str(caught.value).startswith(f"'Dense' object has no attribute '{name}'")
    assert f"Use it directly: `parallel.{name}`" in str(caught.value)
    assert not hasattr(parallel.layers[-2], name)


def test_layers_minus_two_get_weights_is_that_layers():
    parallel = ku.multi_gpu_model(template(), gpus=2)
    assert len(parallel.layers[-2].get_weights()) == 2


def test_a_model_that_really_is_the_layer_before_the_last_stays_what_it_is(tmp_path):
    base = template(name="base")
    parallel = ku.multi_gpu_model(
        keras.Sequential([keras.Input((8,)), base, layers.Dense(3)]), gpus=2
    )
    parallel.layers[-2].save(tmp_path / "base.keras")
    assert keras.models.load_model(tmp_path / "base.keras").name == "base"


def test_other_missing_attributes_keep_their_text():
    class OfTheUser(layers.Layer):
        @property
        def broken(self):
            return self.weights.missing

    ku.multi_gpu_model(template(), gpus=2)
    with pytest.raises(AttributeError) as caught:
        layers.Dense(2).unknown  # noqa: B018
    assert str(caught.value) == "'Dense' object has no attribute 'unknown'"
    with pytest.raises(AttributeError, match="'list' object has no attribute"):
        OfTheUser().broken  # noqa: B018
    with pytest.raises(AttributeError, match="has never been called"):
        layers.Dense(2).output  # noqa: B018


def test_callback_model_is_the_model_and_no_other():
    model = template()
    parallel = ku.multi_gpu_model(model, gpus=2)
    assert parallel.callback_model is model
    parallel.callback_model = model
    with pytest.raises(ku.UnsupportedError) as caught:
        parallel.callback_model = template(name="another")
    assert "another" in str(caught.value)
    assert "leave the line out" in str(caught.value)


def test_the_layers_inputs_and_outputs_are_those_of_the_template():
    model = functional(names=("words", "scores"))
    names = [layer.name for layer in model.layers]
    inputs, outputs = model.inputs, model.outputs
    parallel = ku.multi_gpu_model(model, gpus=2)
    assert [layer.name for layer in parallel.layers] == names
    assert parallel.output_names == ["scores"]
    assert parallel.inputs is inputs
    assert parallel.outputs is outputs
    parallel.compile("sgd", {"scores": "mse"})
    assert parallel.fit({"words": X}, np.zeros((33, 5)), verbose=0)


def test_the_summary_is_that_of_the_template():
    plain, lines, parallel_lines = template(name="net"), [], []
    plain.summary(print_fn=lines.append)
    parallel = ku.multi_gpu_model(template(name="net"), gpus=2)
    parallel.summary(print_fn=parallel_lines.append)
    assert parallel_lines == lines


# --- saving and loading -----------------------------------------------------


def trained():
    model = compiled(template())
    parallel = ku.multi_gpu_model(model, gpus=2)
    fit(parallel)
    return model, parallel


@pytest.mark.parametrize("handle", [0, 1], ids=["template", "parallel"])
def test_a_file_saved_from_either_handle_is_plain(handle, tmp_path):
    model = trained()[handle]
    path = tmp_path / "plain.keras"
    model.save(path)
    with zipfile.ZipFile(path) as file:
        config = file.read("config.json").decode()
    assert "unison" not in config
    assert "Lambda" not in config
    parsed = json.loads(config)
    assert (parsed["module"], parsed["class_name"]) == ("keras", "Sequential")


@pytest.mark.process
@on_both
def test_a_saved_file_loads_where_keras_unison_is_not_installed(backend, tmp_path):
    _, parallel = trained()
    parallel.save(tmp_path / "plain.keras")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", parallel.predict(X, verbose=0))
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "sys.modules['keras_unison'] = None\n"
        "import keras, numpy as np\n"
        "model = keras.models.load_model('plain.keras')\n"
        "predicted = model.predict(np.load('x.npy'), verbose=0)\n"
        "assert np.allclose(predicted, np.load('y.npy'), atol=1e-5)\n"
        "print(int(model.optimizer.iterations.value))\n"
    )
    environment = os.environ | {"KERAS_BACKEND": backend}
    environment.pop("KERAS_UNISON_SIMULATE", None)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr


@pytest.mark.parametrize("name", ["w.weights.h5", "model.keras", "model.h5"])
def test_files_go_from_several_devices_to_one_and_back(name, tmp_path):
    _, parallel = trained()
    path = tmp_path / name

    def write(model):
        model.save_weights(path) if name.startswith("w.") else model.save(path)

    write(parallel)
    single = template()
    single.load_weights(path)
    assert_same(single.get_weights(), parallel.get_weights())
    fit(compiled(single))
    path.unlink()
    write(single)
    parallel.load_weights(path)
    assert_same(parallel.get_weights(), single.get_weights())
    assert_same([parallel.predict(X, verbose=0)], [single.predict(X, verbose=0)])


def test_weights_are_in_the_order_of_the_template():
    single = template()
    _, parallel = trained()
    single.set_weights(parallel.get_weights())
    assert_same([single.predict(X, verbose=0)], [parallel.predict(X, verbose=0)])
    parallel.set_weights(template().get_weights())
    assert not np.allclose(parallel.get_weights()[0], single.get_weights()[0])


def test_a_checkpoint_of_the_parallel_model_loads_into_one_device(tmp_path):
    path = tmp_path / "best.weights.h5"
    parallel = compiled(ku.multi_gpu_model(template(), gpus=2))
    checkpoint = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    parallel.fit(X, Y, epochs=2, verbose=0, callbacks=[checkpoint])
    assert checkpoint.model is parallel
    single = template()
    single.load_weights(path)
    assert_same(single.get_weights(), parallel.get_weights())


def test_weights_loaded_before_wrapping_are_kept(tmp_path):
    path = tmp_path / "w.weights.h5"
    source = template()
    source.save_weights(path)
    model = template()
    model.load_weights(path)
    parallel = ku.multi_gpu_model(model, gpus=2)
    assert_same([parallel.predict(X, verbose=0)], [source.predict(X, verbose=0)])
