"""Copies of models in other processes: they compute what the originals compute."""

import json
import os
import subprocess
import sys

import pytest

from tests.process.scripts import ROOT, output_of, run_python

pytestmark = pytest.mark.process

PARENT = """
import functools, io, os, pickle, sys, traceback, weakref
from pathlib import Path
import numpy as np
import torch
import keras
from keras import layers, ops
from keras_unison.engines.torch.shipping import ship

FOLDER = Path(os.environ["FOLDER"])
rng = np.random.default_rng(0)

def data(rows=8, inputs=6, outputs=1):
    x = rng.normal(size=(rows, inputs)).astype("float32")
    return x, rng.normal(size=(rows, outputs)).astype("float32")

def values(variables):
    return [np.array(ops.convert_to_numpy(v)) for v in variables]

def send(name, model, x, y, steps=1):
    tensors = keras.tree.map_structure(ops.convert_to_tensor, (x, y))
    for _ in range(steps):
        model.train_on_batch(*tensors)
    shipped = ship(model)
    (FOLDER / f"{name}.model").write_bytes(shipped.data)
    before = values(shipped.variables)
    keras.utils.set_random_seed(7)
    logs = [model.train_on_batch(*tensors, return_dict=True) for _ in range(3)]
    after = values(shipped.variables)
    moved = sum(not np.array_equal(a, b) for a, b in zip(before, after))
    kinds = [type(one).__name__ for one in shipped.objects]
    content = pickle.dumps((x, y, before, after, moved, kinds, logs))
    (FOLDER / f"{name}.run").write_bytes(content)

def send_made(make):
    try:
        keras.utils.set_random_seed(1)
        send(make.__name__, *make())
    except Exception:
        (FOLDER / f"{make.__name__}.failed").write_text(traceback.format_exc())
"""

CHILD = """
import json, os, pickle, traceback
from pathlib import Path
import numpy as np
import keras
from keras import ops
from keras_unison.engines.torch.shipping import unpack

def values(variables):
    return [np.array(ops.convert_to_numpy(v)) for v in variables]

def far(ours, theirs):
    assert len(ours) == len(theirs), (len(ours), len(theirs))
    pairs = zip(ours, theirs)
    return max(float(np.abs(np.float64(a) - np.float64(b)).max()) for a, b in pairs)

def received(path):
    x, y, before, after, moved, kinds, logs = pickle.loads(
        path.with_suffix(".run").read_bytes()
    )
    found = unpack(path.read_bytes())
    assert moved > 0
    assert [type(one).__name__ for one in found.objects] == kinds
    assert not any(hasattr(one, "_unison_mixins") for one in found.objects)
    assert all(type(v) is keras.Variable for v in found.variables)
    for layer in found.model._flatten_layers():
        held = {id(p) for p in layer.parameters()}
        assert held >= {id(v.value) for v in layer.trainable_variables}
    start = far(values(found.variables), before)
    keras.utils.set_random_seed(7)
    batch = keras.tree.map_structure(ops.convert_to_tensor, (x, y))
    ours = [found.model.train_on_batch(*batch, return_dict=True) for _ in range(3)]
    end = far(values(found.variables), after)
    for one, other in zip(ours, logs):
        assert one.keys() == other.keys()
        assert all(np.allclose(one[k], other[k], rtol=1e-5) for k in one), (one, other)
    return {"start": start, "end": end, "moved": moved}

results = {}
for path in sorted(Path(os.environ["FOLDER"]).glob("*.model")):
    try:
        results[path.stem] = received(path)
    except Exception:
        results[path.stem] = traceback.format_exc()
print("RESULTS" + json.dumps(results))
"""


def sent(code, folder):
    """What became of each model that a script sends, in a fresh process."""
    environment = {
        "KERAS_BACKEND": "torch",
        "FOLDER": str(folder),
        "CUDA_VISIBLE_DEVICES": "",
    }
    output_of(run_python(PARENT + code, timeout=200, cwd=folder, **environment))
    output = output_of(run_python(CHILD, timeout=200, cwd=folder, **environment))
    failed = {path.stem: path.read_text() for path in folder.glob("*.failed")}
    return {**json.loads(output.partition("RESULTS")[2]), **failed}


def is_equal(result):
    """Whether a copy computed what the original did, to the last digits."""
    assert isinstance(result, dict), result
    assert result["start"] == 0
    assert result["end"] < 1e-6, result


MODELS = """
class Scale(layers.Layer):
    def __init__(self, start=1.0, **kwargs):
        super().__init__(**kwargs)
        self.start = start
        self.inner = [layers.Dense(3), {"last": layers.Dense(3)}]

    def build(self, shape):
        self.scale = self.add_weight(
            shape=(shape[-1],), initializer=keras.initializers.Constant(self.start)
        )
        for layer in (self.inner[0], self.inner[1]["last"]):
            layer.build((None, 3))

    def call(self, x):
        return self.inner[1]["last"](self.inner[0](x * self.scale))


def functional_with_shared_layers():
    shared = layers.Dense(4, activation="tanh")
    a, b = keras.Input((6,)), keras.Input((6,))
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.ReLU()])
    nested = keras.Model(inner.inputs, inner(inner.inputs[0]) * 2)
    y = ops.concatenate([nested(shared(a)), nested(shared(b))], axis=-1)
    y = layers.Dense(1)(layers.Concatenate()([y, ops.exp(ops.clip(a, -1, 1))]))
    model = keras.Model({"a": a, "b": b}, y)
    model.compile("adam", "mse", metrics=["mae", keras.metrics.MeanSquaredError()])
    x, y = data()
    return model, {"a": x, "b": x[::-1].copy()}, y


def sequential_with_lambda_and_own_layer():
    factor = 1.5
    model = keras.Sequential(
        [layers.Dense(3), layers.Lambda(lambda x: x * factor), Scale(), layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model, *data()


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = layers.Dense(5, activation="relu"), layers.Dense(1)
        self.seen = keras.metrics.Mean(name="seen")
        self.temperature = self.add_weight(initializer="ones", name="temperature")

    def call(self, x, training=False):
        return self.last(self.first(x)) * self.temperature

    def train_step(self, batch):
        x, y, _ = batch
        self.zero_grad()
        loss = ops.mean((self(x, training=True) - y) ** 2)
        loss.backward()
        gradients = [v.value.grad * 0.5 for v in self.trainable_weights]
        with torch.no_grad():
            self.optimizer.apply(gradients, self.trainable_weights)
        self.seen.update_state(loss.detach())
        return {"seen": self.seen.result()}

    @property
    def metrics(self):
        return [self.seen]


def subclassed_with_own_train_step():
    model = Own()
    model.compile("rmsprop")
    return model, *data()


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.maker, self.judge = layers.Dense(6), layers.Dense(1)
        self.seed_generator = keras.random.SeedGenerator(3)

    def compile(self, first, second):
        super().compile()
        self.first, self.second = first, second

    def call(self, x):
        return self.judge(self.maker(x))

    def train_step(self, batch):
        x, *_ = batch
        noise = keras.random.normal(ops.shape(x), seed=self.seed_generator)
        for layer, optimizer, sign in (
            (self.judge, self.first, 1.0), (self.maker, self.second, -1.0)
        ):
            self.zero_grad()
            loss = sign * (ops.mean(self(noise)) - ops.mean(self.judge(x)))
            loss.backward()
            weights = layer.trainable_weights
            gradients = [v.value.grad for v in weights]
            with torch.no_grad():
                optimizer.apply(gradients, weights)
        return {"loss": loss.detach()}


def two_optimizers_and_own_draws():
    model = Gan()
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.RMSprop(0.02))
    return model, *data()


def recurrent():
    model = keras.Sequential(
        [
            layers.Embedding(20, 4, mask_zero=True),
            layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
            layers.GRU(4, return_sequences=True, recurrent_dropout=0.2, dropout=0.1),
            layers.RNN(layers.SimpleRNNCell(3)),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    x = rng.integers(0, 20, size=(8, 7))
    return model, x, data()[1]


def augmentation():
    model = keras.Sequential(
        [
            layers.RandomFlip(),
            layers.RandomRotation(0.1),
            layers.RandomContrast(0.2),
            layers.RandomZoom(0.1),
            layers.GaussianNoise(0.1),
            layers.Conv2D(3, 3),
            layers.BatchNormalization(),
            layers.SpatialDropout2D(0.3),
            layers.GlobalAveragePooling2D(),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    return model, rng.uniform(size=(6, 8, 8, 3)).astype("float32"), data(6)[1]


def attention():
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(10, 8, mask_zero=True)(inputs)
    y = layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x)
    y = layers.LayerNormalization()(layers.Add()([x, y]))
    y = layers.Dense(1)(layers.GlobalAveragePooling1D()(y))
    model = keras.Model(inputs, y)
    model.compile("adamw", "mse")
    return model, rng.integers(0, 10, size=(8, 5)), data()[1]


def normalization():
    model = keras.Sequential(
        [
            layers.Dense(4),
            layers.BatchNormalization(),
            layers.GroupNormalization(2),
            layers.SpectralNormalization(layers.Dense(4)),
            layers.Dropout(0.4, seed=11),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    return model, *data()


@keras.saving.register_keras_serializable("own")
class OwnLoss(keras.losses.Loss):
    def __init__(self, weight=2.0):
        super().__init__()
        self.weight = weight

    def call(self, y_true, y_pred):
        return self.weight * ops.mean((y_true - y_pred) ** 2, axis=-1)


class OwnMetric(keras.metrics.Metric):
    def __init__(self, name="own", **kwargs):
        super().__init__(name=name, **kwargs)
        self.total = self.add_weight(initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(ops.abs(y_pred)))

    def result(self):
        return self.total


class OwnSchedule(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.01 / (1.0 + ops.cast(step, "float32"))


class OwnRegularizer(keras.regularizers.Regularizer):
    def __call__(self, w):
        return 0.01 * ops.sum(ops.square(w))


class OwnConstraint(keras.constraints.Constraint):
    def __call__(self, w):
        return ops.clip(w, -0.5, 0.5)


def own_initializer(shape, dtype=None):
    return ops.ones(shape, dtype) * 0.3


def own_activation(x):
    return ops.tanh(x) * 0.9


def own_metric(y_true, y_pred):
    return ops.mean(ops.abs(y_true - y_pred))


def own_objects_of_each_kind():
    model = keras.Sequential(
        [
            layers.Dense(
                4,
                activation=own_activation,
                kernel_initializer=own_initializer,
                kernel_regularizer=OwnRegularizer(),
                kernel_constraint=OwnConstraint(),
                activity_regularizer="l2",
                dtype=keras.DTypePolicy("float32"),
            ),
            layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(OwnSchedule())
    model.compile(optimizer, OwnLoss(), metrics=[OwnMetric(), own_metric])
    return model, *data()


def several_outputs():
    inputs = keras.Input((6,))
    x = layers.Dense(4)(inputs)
    outputs = {"a": layers.Dense(1, name="a")(x), "b": layers.Dense(1, name="b")(x)}
    model = keras.Model(inputs, outputs)
    model.compile(
        "adam",
        {"a": "mse", "b": lambda t, p: ops.mean(ops.abs(t - p), axis=-1)},
        loss_weights={"a": 1.0, "b": 0.3},
        metrics={"a": ["mae"], "b": OwnMetric()},
    )
    x, y = data()
    return model, x, {"a": y, "b": -y}


def mixed_float16():
    model = keras.Sequential(
        [layers.Dense(4, dtype="mixed_float16"), layers.Dense(1, dtype="mixed_float16")]
    )
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=64.0, dynamic_growth_steps=2
    )
    model.compile(optimizer, "mse")
    return model, *data()


def averages_accumulation_and_exclusion():
    model = keras.Sequential([layers.Dense(4), layers.Dense(1)])
    optimizer = keras.optimizers.AdamW(
        0.01,
        weight_decay=0.1,
        use_ema=True,
        ema_overwrite_frequency=2,
        gradient_accumulation_steps=2,
        global_clipnorm=1.0,
    )
    model.build((None, 6))
    optimizer.exclude_from_weight_decay(
        var_list=[model.layers[0].kernel], var_names=["bias"]
    )
    model.compile(optimizer, "mse")
    return model, *data()


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(6, 4))
        self.two = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        return self.two(self.one(x))


class Holder(layers.Layer):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("shift", torch.arange(3.0))

    def call(self, x):
        return self.linear(x) + self.shift


def torch_modules():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.TorchModuleWrapper(Normed(), output_shape=(None, 4)),
            layers.TorchModuleWrapper(torch.nn.Sequential(torch.nn.Linear(4, 4))),
            Holder(),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    return model, *data()


class FunctionalSubclass(keras.Model):
    def __init__(self, units):
        inputs = keras.Input((6,))
        super().__init__(inputs, layers.Dense(1)(layers.Dense(units)(inputs)))
        self.units = units

    def train_step(self, batch):
        return super().train_step(batch)


def subclass_of_functional():
    model = FunctionalSubclass(3)
    model.compile("adam", "mse")
    return model, *data()


def deep():
    x = inputs = keras.Input((6,))
    for _ in range(400):
        x = layers.Add()([x, layers.Dense(6)(x)]) * 0.5
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile("sgd", "mse")
    return model, *data()


class Tied(layers.Layer):
    def __init__(self, other):
        super().__init__()
        self.other = other
        self.table = {"held": (other, [other])}
        self.view = other.kernel.value.detach()[1:3]

    def call(self, x):
        x = ops.matmul(x, ops.transpose(self.other.kernel))
        self.add_loss(ops.mean(ops.square(x)) * 0.1)
        return x * self.view.sum()


def tied_weights_and_views():
    first = layers.Dense(4)
    first.build((None, 6))
    model = keras.Sequential([first, Tied(first), layers.Dense(1)])
    model.compile("adam", "mse")
    return model, *data()


class ByIdentity(layers.Layer):
    def build(self, shape):
        self.one = self.add_weight(shape=(shape[-1],), initializer="ones")
        self.two = self.add_weight(shape=(shape[-1],), initializer="ones")
        self.factors = {id(self.one): 2.0, id(self.two): 3.0}
        self.frozen = {id(self.two)}

    def call(self, x):
        for v in (self.one, self.two):
            x = x * v * self.factors[id(v)]
            assert id(self.two) in self.frozen
        return x


def tables_by_identity():
    model = keras.Sequential([ByIdentity(), layers.Dense(1)])
    model.compile("adam", "mse")
    return model, *data()


class Accumulating(keras.Model):
    def __init__(self):
        super().__init__()
        self.last = layers.Dense(1)
        self.steps = 0

    def call(self, x):
        return self.last(x)

    def train_step(self, batch):
        x, y, _ = batch
        self.steps += 1
        loss = ops.mean((self(x) - y) ** 2)
        loss.backward()
        if self.steps % 3 == 0:
            weights = self.trainable_weights
            with torch.no_grad():
                self.optimizer.apply([v.value.grad for v in weights], weights)
            self.zero_grad()
        return {"loss": loss.detach()}


def gradients_kept_between_steps():
    model = Accumulating()
    model.compile(keras.optimizers.SGD(0.1))
    return model, *data()


def hooks_of_torch():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4), layers.Dense(1)])
    model.layers[0].kernel.value.register_hook(lambda g: g * 0.1)
    model.layers[1].register_forward_hook(lambda m, args, out: out * 2)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model, *data()


def frozen():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4), layers.Dense(1)])
    model.layers[0].kernel.value.register_hook(lambda g: g * 0.1)
    model.layers[0].trainable = False
    model.compile("adam", "mse")
    return model, *data()


class Holds(layers.Layer):
    def __init__(self, model):
        super().__init__()
        self.numbers = np.random.default_rng(3)
        self.generator = torch.Generator().manual_seed(5)
        self.log, self.text = io.StringIO("text"), sys.stdout
        self.whole, self.functions = weakref.ref(model), torch.ops
        self.names = {"a": keras.activations.relu, "b": functools.partial(ops.clip)}

    def call(self, x):
        assert self.whole().layers and self.log.getvalue() == "text"
        noise = torch.rand(x.shape, generator=self.generator)
        x = x * float(self.numbers.normal()) + noise
        return self.functions.aten.relu(x) + torch.ops.aten.sin(x)


def states_and_references():
    model = keras.Sequential([layers.Dense(4), layers.Dense(1)])
    model.build((None, 6))
    model.pop()
    model.add(Holds(model))
    model.add(layers.Dense(1))
    model.compile("adam", "mse")
    return model, *data()


def extended_in_place():
    from keras_unison.engines.upgrade import upgrade

    class Mixin:
        def train_step(self, batch):
            return super().train_step(batch)

    model = subclass_of_functional()[0]
    upgrade(model, Mixin)
    assert type(model) is not FunctionalSubclass
    return model, *data()


for make in (
"""
NAMES = [
    line.partition("(")[0].removeprefix("def ")
    for block in [MODELS]
    for line in block.splitlines()
    if line.startswith("def ") and line.endswith("():")
]
MODELS += "".join(f"    {name},\n" for name in NAMES)
MODELS += """):
    send_made(make)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What became of all models, sent by one process to another."""
    return sent(MODELS, tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_trains_as_the_original(results, name):
    is_equal(results[name])


OPTIMIZERS = """
def made(name, cls):
    def make():
        model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(5, activation="tanh"), layers.Dense(1)]
        )
        arguments = {"inner_optimizer": keras.optimizers.SGD(0.1)}
        optimizer = cls(**(arguments if name == "LossScaleOptimizer" else {}))
        model.compile(optimizer, "mse")
        return model, *data()

    make.__name__ = name
    return make


for name, cls in sorted(vars(keras.optimizers).items()):
    abstract = (keras.Optimizer, getattr(keras.optimizers, "MultiOptimizer", None))
    if isinstance(cls, type) and issubclass(cls, keras.Optimizer):
        if cls not in abstract:
            send_made(made(name, cls))

if hasattr(keras.optimizers, "MultiOptimizer"):
    def MultiOptimizer():
        model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(5, activation="tanh"), layers.Dense(1)]
        )
        first, last = model.layers
        adam, sgd = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1)
        optimizer = keras.optimizers.MultiOptimizer(
            lambda v: adam if any(v is w for w in first.weights) else sgd
        )
        model.compile(optimizer, "mse")
        return model, *data()

    send_made(MultiOptimizer)
"""


def test_every_optimizer_goes_on_where_it_was(tmp_path):
    results = sent(OPTIMIZERS, tmp_path)
    assert len(results) >= 14, results.keys()
    for name, result in results.items():
        assert isinstance(result, dict), f"{name}: {result}"
        is_equal(result)


IMPORTED = """
import functools
import keras
from keras import layers

class Imported(keras.Model):
    def __init__(self):
        inputs = keras.Input((6,))
        super().__init__(inputs, Half()(layers.Dense(1)(inputs)))

class Half(layers.Layer):
    def call(self, x):
        return scaled(x)

def half(function):
    @functools.wraps(function)
    def halved(x):
        return function(x) * FACTOR
    return halved

@half
def scaled(x):
    return x

FACTOR = 0.5
"""


def test_classes_of_modules_that_can_be_imported_go_by_name(tmp_path):
    (tmp_path / "own_models.py").write_text(IMPORTED)
    result = sent(
        """
sys.path.insert(0, str(FOLDER))
import own_models

def imported():
    model = own_models.Imported()
    model.compile("adam", "mse")
    return model, *data()

send_made(imported)
assert b"own_models" in (FOLDER / "imported.model").read_bytes()
assert b"FACTOR" not in (FOLDER / "imported.model").read_bytes()
""",
        tmp_path,
    )
    is_equal(result["imported"])


def test_classes_of_modules_that_cannot_be_imported_go_with_their_code(tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "loaded.py").write_text(IMPORTED)
    result = sent(
        """
import importlib.util
import types

def loaded(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / "hidden/loaded.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

# Of a name that an importable module has, too: the file is another.
json_tool = loaded("json.tool")
own = loaded("loaded")
by_hand = sys.modules["by_hand"] = types.ModuleType("by_hand")
exec((FOLDER / "hidden/loaded.py").read_text(), vars(by_hand))

def of(module):
    class Own(layers.Layer):
        def call(self, x):
            return module.scaled(x)

    def make():
        model = module.Imported() if "json" not in module.__name__ else (
            keras.Sequential([Own(), module.Imported()])
        )
        model.compile("adam", "mse")
        return model, *data()

    make.__name__ = module.__name__.replace(".", "_")
    return make

for module in (json_tool, own, by_hand):
    send_made(of(module))
import cloudpickle
assert not cloudpickle.list_registry_pickle_by_value()
""",
        tmp_path,
    )
    assert sorted(result) == ["by_hand", "json_tool", "loaded"]
    for one in result.values():
        is_equal(one)


def test_models_that_are_not_built_or_not_compiled(tmp_path):
    environment = {"KERAS_BACKEND": "torch", "FOLDER": str(tmp_path)}
    code = """
unbuilt = keras.Sequential([layers.Dense(3), layers.Dropout(0.1), layers.Dense(1)])
uncompiled = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
class Later(keras.Model):
    def build(self, shape):
        self.inner = layers.Dense(2)
        self.inner.build(shape)
    def call(self, x):
        return self.inner(x)
later = Later()
later.compile("adam", "mse", metrics=["mae"])
for name, model in (("a", unbuilt), ("b", uncompiled), ("c", later)):
    (FOLDER / name).write_bytes(ship(model).data)
np.save(FOLDER / "predicted.npy", uncompiled(np.ones((2, 6), "float32")).detach())
"""
    output_of(run_python(PARENT + code, cwd=tmp_path, **environment))
    code = """
import os
from pathlib import Path
import numpy as np
import keras
from keras_unison.engines.torch.shipping import unpack

folder = Path(os.environ["FOLDER"])
a, b, c = (unpack((folder / name).read_bytes()).model for name in "abc")
x = np.ones((2, 6), "float32")
assert not a.built and not c.built
for model in (a, c):
    model.compile("sgd", "mse") if model is a else None
    model.fit(x, x[:, :1], verbose=0)
    assert model.weights and model.built
assert np.array_equal(b(x).detach(), np.load(folder / "predicted.npy"))
assert not b.compiled
"""
    output_of(run_python(code, cwd=tmp_path, **environment))


def test_no_data_set_and_no_callback_goes_along(tmp_path):
    code = """
sizes, checked = [], []

class Ships(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.log = open(os.devnull, "w")

    def on_test_batch_end(self, batch, logs=None):
        assert self.model._eval_epoch_iterator is not None
        sizes.append(len(ship(self.model).data))

model = keras.Sequential([keras.Input((1000,)), layers.Dense(1)])
model.held = Ships()
model.compile("sgd", "mse")
x = np.zeros((4000, 1000), "float32")
model.fit(
    x, x[:, :1], validation_data=(x, x[:, :1]), batch_size=4000,
    callbacks=[model.held], verbose=0
)
assert model.history is not None and model.held is not None
sizes.append(len(ship(model).data))
print("SIZES", max(sizes), len(sizes))
"""
    found = output_of(
        run_python(PARENT + code, KERAS_BACKEND="torch", FOLDER=str(tmp_path))
    )
    largest, number = found.partition("SIZES")[2].split()
    assert int(number) >= 2
    assert int(largest) < 100_000


def test_of_memory_only_what_tensors_use_goes_along(tmp_path):
    code = """
mapping = torch.zeros(50_000_000)
model = keras.Sequential([keras.Input((10,)), layers.Dense(10)])
kernel = model.layers[0].kernel
with torch.no_grad():
    place = mapping[30_000_001:30_000_101].view(10, 10)
    place.copy_(kernel.value)
    kernel.value.data = place
model.part = kernel.value.detach()[2]
model.first = mapping[30_000_000:30_000_000]
data = ship(model).data
assert len(data) < 100_000, len(data)
from keras_unison.engines.torch.shipping import unpack
found = unpack(data).model
assert torch.equal(found.layers[0].kernel.value, kernel.value)
found.layers[0].kernel.assign(np.full((10, 10), 7.0))
assert found.part.tolist() == [7.0] * 10, found.part
assert kernel.value.max() < 7
"""
    output_of(run_python(PARENT + code, KERAS_BACKEND="torch", FOLDER=str(tmp_path)))


def test_ten_million_weights_take_less_than_a_second_each_way(tmp_path):
    code = """
import time
model = keras.Sequential(
    [keras.Input((2000,)), layers.Dense(4000), layers.Dense(500), layers.Dense(1)]
)
model.compile("adam", "mse")
x = np.zeros((2, 2000), "float32")
model.train_on_batch(x, x[:, :1])
assert model.count_params() > 10_000_000
from keras_unison.engines.torch.shipping import unpack

def best(call):
    spent = []
    for _ in range(3):
        begin = time.process_time()
        result = call()
        spent.append(time.process_time() - begin)
    return min(spent), result

out, shipped = best(lambda: ship(model))
back, _ = best(lambda: unpack(shipped.data))
print("SECONDS", out, back)
"""
    found = output_of(
        run_python(PARENT + code, KERAS_BACKEND="torch", FOLDER=str(tmp_path))
    )
    out, back = map(float, found.partition("SECONDS")[2].split())
    assert out < 1
    assert back < 1


REFUSED = """
import threading
from keras_unison.errors import ModelError

LOG = open(os.devnull, "w")


def model_with(layer=None, **arguments):
    model = keras.Sequential([keras.Input((3,)), layer or layers.Dense(1)])
    model.compile("sgd", **{"loss": "mse", **arguments})
    return model


class Probe(layers.Layer):
    def __init__(self, **held):
        super().__init__(name="probe")
        for name, value in held.items():
            setattr(self, name, value)

    def call(self, x):
        return x


class Writes(layers.Layer):
    def call(self, x):
        LOG.write("called")
        return x


class Plain:
    def __init__(self, value):
        self.value = value


def rows():
    yield 1


lock = threading.Lock()
CASES = {
    "file": (
        lambda: model_with(Probe(log=open(os.devnull, "w"))),
        "The layer 'probe' (Probe) holds an open file in `probe.log`",
    ),
    "file_to_read": (
        lambda: model_with(Probe(log=open(os.devnull))),
        "The layer 'probe' (Probe) holds an open file in `probe.log`",
    ),
    "lock": (
        lambda: model_with(Probe(table={"a": [1, Plain(lock)]})),
        "holds a lock in `probe.table['a'][1].value`",
    ),
    "generator": (
        lambda: model_with(Probe(rows=rows())),
        "holds a generator in `probe.rows`",
    ),
    "thread": (
        lambda: model_with(Probe(local=threading.local())),
        "holds values of a thread in `probe.local`",
    ),
    "closure": (
        lambda: model_with(layers.Lambda(lambda x: x if lock else x, name="own")),
        "holds a lock in `own.function (its global 'lock')`",
    ),
    "variable_of_closure": (
        lambda: (lambda held: model_with(
            layers.Lambda(lambda x: x if held else x, name="own")
        ))(rows()),
        "holds a generator in `own.function (its variable 'held')`",
    ),
    "loss": (
        lambda: model_with(loss=lambda t, p: ops.mean(t - p) if lock else 0.0),
        "(its global 'lock')`",
    ),
    "class": (
        lambda: model_with(Writes(name="writes")),
        "The layer 'writes' (Writes) holds an open file in "
        "`Writes.call (its global 'LOG')`",
    ),
}
for name, (make, text) in CASES.items():
    try:
        ship(make())
    except ModelError as error:
        assert text in str(error), f"{name}: {error}"
        assert "cannot be sent to helper processes" in str(error), error
    else:
        raise AssertionError(f"{name} was sent")


class Careful(Probe):
    def __getstate__(self):
        return {**super().__getstate__(), "log": None}


class OwnPreprocessor(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.words, self.length = threading.local(), 5

    def call(self, x):
        return x


from keras_unison.engines.torch.shipping import unpack

found = unpack(ship(model_with(Careful(log=LOG, kept=3))).data)
assert found.model.layers[0].log is None and found.model.layers[0].kept == 3
model = model_with()
model.preprocessor = OwnPreprocessor()
model.own_tokenizer = Plain(threading.Lock())
found = unpack(ship(model).data)
assert found.model.preprocessor.words is None and found.model.preprocessor.length == 5
assert found.model.own_tokenizer is None
assert model.own_tokenizer is not None and model.preprocessor.words is not None
"""


def test_what_cannot_be_sent_is_named(tmp_path):
    output_of(run_python(PARENT + REFUSED, KERAS_BACKEND="torch", FOLDER=str(tmp_path)))


def test_a_module_that_a_helper_lacks_is_named(tmp_path):
    (tmp_path / "own_models.py").write_text(IMPORTED)
    environment = {"KERAS_BACKEND": "torch", "FOLDER": str(tmp_path)}
    code = """
sys.path.insert(0, str(FOLDER))
import own_models
(FOLDER / "model").write_bytes(ship(own_models.Imported()).data)
"""
    output_of(run_python(PARENT + code, **environment))
    code = """
import os
from pathlib import Path
from keras_unison.engines.torch.shipping import unpack
from keras_unison.errors import HelperError
try:
    unpack((Path(os.environ["FOLDER"]) / "model").read_bytes())
except HelperError as error:
    assert "No module named 'own_models'" in str(error), error
    assert "sys.path" in str(error), error
else:
    raise AssertionError("imported")
"""
    output_of(run_python(code, **environment))


def test_keras_keeps_what_shipping_relies_on():
    """The tests of these internals, which need Keras on torch."""
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        + ["tests/unit/test_torch_internals.py"],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "torch", "KERAS_UNISON_SIMULATE": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "skipped" not in found.stdout.splitlines()[-1], found.stdout
