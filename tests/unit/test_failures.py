"""Bad input gets a clear error, and every failure leaves the model usable."""

import os
import signal
import threading
import time
import warnings

import keras
import numpy as np
import pytest

import keras_unison as ku
from tests.equivalence.harness import compare, data, dense_model, values_of

ROWS = 34
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
# TensorFlow runs a step that takes its batches itself: what these raise arrives as
# an error of its own, with the text of the first.
OF_A_DATASET: tuple[type[Exception], ...] = (RuntimeError,)
if ON_TENSORFLOW:
    import tensorflow as tf

    OF_A_DATASET = (RuntimeError, tf.errors.OpError)
on_tensorflow = pytest.mark.skipif(
    not ON_TENSORFLOW, reason="TensorFlow's own operations, or sums between its parts"
)


def parallel(**compiled):
    keras.utils.set_random_seed(7)
    return ku.DataParallel(dense_model(**compiled), devices=2)


def assert_near_either(model, others):
    """Each weight is that of one of these models."""
    for number, weight in enumerate(model.get_weights()):
        candidates = [other.get_weights()[number] for other in others]
        assert any(np.allclose(weight, c, atol=1e-5) for c in candidates), number


def plain(**compiled):
    keras.utils.set_random_seed(7)
    return dense_model(**compiled)


def train(model, batches, epochs=1):
    """Trains on the batches in turn, as one uninterrupted run would."""
    for _ in range(epochs):
        for x, y in batches:
            model.train_on_batch(x, y)
    return model


def batches(count):
    x, y = data(count * ROWS)
    return [
        (x[start : start + ROWS], y[start : start + ROWS])
        for start in range(0, count * ROWS, ROWS)
    ]


def assert_usable_after(model, steps, in_step=False):
    """The model holds exactly `steps` steps, and goes on as plain Keras does.

    A step that fails while TensorFlow computes it may have been counted, in plain
    Keras too: counting needs no data.
    """
    expected = train(plain(), batches(4)[:steps])
    if ON_TENSORFLOW and in_step:
        assert int(model.optimizer.iterations) in (steps, steps + 1)
        model.optimizer.iterations.assign(steps)
    compare(values_of(expected, None), values_of(model, None), 1e-5)
    x, y = data(99)
    settings = {"batch_size": 33, "shuffle": False, "verbose": 0}
    compare(
        values_of(expected, expected.fit(x, y, **settings)),
        values_of(model, model.fit(x, y, **settings)),
        1e-5,
    )


def failing_batches(after, error):
    yield from batches(4)[:after]
    raise error


@pytest.fixture(scope="module")
def ahead():
    """How many batches Keras takes ahead of the one that is trained on.

    Keras 3.13 takes one on the CPU as well, so that a failing dataset ends its loop
    one step earlier.
    """
    if ON_TENSORFLOW:
        # Its step takes the batches itself, one after the other.
        return 0
    model = plain()
    with pytest.raises(OF_A_DATASET, match="the file is gone"):
        model.fit(
            failing_batches(3, RuntimeError("the file is gone")),
            steps_per_epoch=4,
            verbose=0,
        )
    return 3 - int(model.optimizer.iterations)


class At(keras.callbacks.Callback):
    """Does something after the training batch of a number."""

    def __init__(self, batch, action):
        super().__init__()
        self.batch, self.action = batch, action

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch:
            self.action()


def fail():
    raise RuntimeError("the callback failed")


# --- what is refused --------------------------------------------------------


@pytest.mark.parametrize(
    "model", [None, "model", 3, keras.Sequential, keras.layers.Dense, [1]]
)
def test_what_is_no_model_is_refused(model):
    with pytest.raises(ku.ModelError, match=r"A keras\.Model is needed\. Received"):
        ku.DataParallel(model, devices=2)


def test_a_layer_is_no_model():
    with pytest.raises(ku.ModelError, match="of type Dense"):
        ku.DataParallel(keras.layers.Dense(1), devices=2)


def test_a_keras_2_model_is_told_what_to_change():
    class Model:
        __module__ = "tf_keras.src.engine.training"

    with pytest.raises(ku.ModelError, match="Import `keras` instead of `tf_keras`"):
        ku.DataParallel(Model(), devices=2)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"sync_batch_norm": False}, ku.UnsupportedError, "sync_batch_norm=False"),
        ({"shard": "optimizer"}, ku.UnsupportedError, "shard='optimizer'"),
        ({"shard": "parameters"}, ku.UnsupportedError, "shard='parameters'"),
        ({"shard": "everything"}, ValueError, "Received: shard='everything'"),
        ({"data": "sharded"}, ku.UnsupportedError, "data='sharded'"),
        ({"data": "local"}, ValueError, "Received: data='local'"),
    ],
)
def test_options_that_are_not_built_say_so(options, error, text):
    model = dense_model()
    with pytest.raises(error, match=text):
        ku.DataParallel(model, devices=2, **options)
    assert type(model) is keras.Sequential


@pytest.mark.parametrize("devices", [9, 0, -1, [], [0, 0], [7], ["gpu:0"], True, 1.5])
def test_unknown_devices_leave_the_model_as_it_was(devices):
    model = parallel()
    with pytest.raises(ValueError, match=r"This machine has 3 device\(s\)"):
        ku.DataParallel(model, devices=devices)
    train(model, batches(1))
    assert_usable_after(model, 1)


def test_a_batch_of_zero_rows_is_named():
    model = parallel()
    x, y = data(ROWS)
    with pytest.raises(ku.BatchError, match="The batch has no rows"):
        model.train_on_batch(x[:0], y[:0])
    assert_usable_after(model, 0)


@pytest.mark.skipif(ON_TENSORFLOW, reason="TensorFlow's Keras takes a step on it")
def test_an_empty_batch_of_a_dataset_keeps_the_steps_before_it():
    model = parallel()
    x, y = data(ROWS)

    def generator():
        yield from batches(2)
        yield x[:0], y[:0]

    with pytest.raises(ku.BatchError, match="must not yield empty batches"):
        model.fit(generator(), steps_per_epoch=3, verbose=0)
    assert_usable_after(model, 2)


@on_tensorflow
def test_an_empty_batch_of_a_dataset_is_a_step_as_in_plain_keras():
    """The length of its batches is no part of a traced step."""
    one, many = plain(), parallel()
    x, y = data(ROWS)

    def generator():
        yield from batches(1)
        yield x[:0], y[:0]
        yield from batches(1)

    settings = {"steps_per_epoch": 3, "verbose": 0}
    expected = one.fit(generator(), **settings)
    found = many.fit(generator(), **settings)
    compare(values_of(one, expected), values_of(many, found), 1e-5)


def test_arrays_of_different_lengths_are_refused():
    model = parallel()
    x, y = data(ROWS)
    with pytest.raises(ValueError, match="cardinality"):
        model.fit(x, y[:-1], verbose=0)
    assert_usable_after(model, 0)


def test_a_model_that_cannot_be_built_is_usable_once_the_data_fits():
    model = parallel()
    x, y = data(ROWS)
    # Keras 3.13 wraps its ValueError.
    with pytest.raises((ValueError, RuntimeError), match="incompatible"):
        model.fit(x[:, :3], y, verbose=0)
    assert_usable_after(model, 0)


def test_a_model_that_was_not_compiled_says_so():
    model = ku.DataParallel(
        keras.Sequential([keras.Input((8,)), keras.layers.Dense(5)]), devices=2
    )
    x, y = data(ROWS)
    with pytest.raises(ValueError, match=r"compile\(\)"):
        model.fit(x, y, verbose=0)
    assert model.predict(x, verbose=0).shape == (ROWS, 5)


def test_sparse_arrays_are_divided_or_computed_whole_with_one_warning():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    x, y = data(ROWS)
    x[x < 0] = 0

    def build():
        keras.utils.set_random_seed(7)
        model = keras.Sequential(
            [keras.Input((8,), sparse=True), keras.layers.Dense(5)]
        )
        model.compile("sgd", "mse")
        return model

    one, many = build(), ku.DataParallel(build(), devices=2)
    target = np.eye(5)[y]
    expected = one.fit(scipy_sparse.csr_matrix(x), target, batch_size=ROWS, verbose=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = many.fit(
            scipy_sparse.csr_matrix(x), target, batch_size=ROWS, epochs=1, verbose=0
        )
        many.fit(scipy_sparse.csr_matrix(x), target, batch_size=ROWS, verbose=0)
    ours = [w for w in caught if issubclass(w.category, ku.UnisonWarning)]
    if ON_TENSORFLOW:
        assert not ours
    else:
        assert len(ours) == 1
        assert "sparse arrays" in str(ours[0].message)
    np.testing.assert_allclose(
        found.history["loss"], expected.history["loss"], rtol=1e-5
    )


@pytest.mark.skipif(ON_TENSORFLOW, reason="only TensorFlow computes with them")
def test_ragged_tensors_are_padded_by_keras_and_refused_where_it_does_not():
    tf = pytest.importorskip("tensorflow")
    rows = [[1.0] * (1 + number % 8) for number in range(ROWS)]
    ragged, target = tf.ragged.constant(rows), np.arange(ROWS) % 5
    one, many = plain(), parallel()
    settings = {"batch_size": ROWS, "verbose": 0}
    expected, found = (
        one.fit(ragged, target, **settings),
        many.fit(ragged, target, **settings),
    )
    compare(values_of(one, expected), values_of(many, found), 1e-5)
    model = parallel()
    with pytest.raises(ku.BatchError, match="[Rr]agged"):
        model.predict_on_batch(ragged)
    assert_usable_after(model, 0)


@on_tensorflow
def test_ragged_tensors_that_a_model_cannot_take_leave_it_usable():
    rows = [[1.0] * (1 + number % 8) for number in range(ROWS)]
    ragged, target = tf.ragged.constant(rows), np.arange(ROWS) % 5
    for model in (plain(), parallel()):
        with pytest.raises(tf.errors.InvalidArgumentError):
            model.fit(ragged, target, batch_size=ROWS, verbose=0)
    assert_usable_after(model, 0, in_step=True)


def test_a_strategy_of_keras_is_refused_when_wrapping_and_when_training():
    try:
        distribution = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"])
    except AttributeError:
        pytest.skip("Keras 3.13 has no keras.distribution on TensorFlow")
    model = parallel()
    keras.distribution.set_distribution(distribution)
    try:
        with pytest.raises(ku.PlacementError, match=r"keras\.distribution"):
            ku.DataParallel(dense_model(), devices=2)
        with pytest.raises(ku.PlacementError, match="set_distribution"):
            model.fit(*data(ROWS), verbose=0)
    finally:
        keras.distribution.set_distribution(None)
    assert_usable_after(model, 0)


def test_a_strategy_of_tensorflow_is_refused():
    tf = pytest.importorskip("tensorflow")
    with (
        tf.distribute.OneDeviceStrategy("/cpu:0").scope(),
        pytest.raises(ku.PlacementError, match=r"tf\.distribute"),
    ):
        ku.DataParallel(dense_model(), devices=2)


# --- what fails in mid-epoch ------------------------------------------------


class FailingDataset(keras.utils.PyDataset):
    """Fails when its batch of a number is trained on."""

    def __init__(self, failing):
        super().__init__()
        self.failing, self.asked = failing, 0

    def __len__(self):
        return 4

    def __getitem__(self, index):
        self.asked += 1
        # Keras asks for the first batches once before, to see what they hold.
        if index == self.failing and self.asked > (2 if ON_TENSORFLOW else 1):
            raise RuntimeError("the file is gone")
        return batches(4)[index]


@pytest.mark.parametrize("failing", [0, 1, 3])
def test_a_failing_dataset_keeps_the_complete_steps(failing, ahead):
    model = parallel()
    with pytest.raises(OF_A_DATASET, match="the file is gone"):
        model.fit(FailingDataset(failing), shuffle=False, verbose=0)
    assert_usable_after(model, max(failing - ahead, 0), in_step=True)


def test_a_failing_generator_keeps_the_complete_steps(ahead):
    model = parallel()
    with pytest.raises(OF_A_DATASET, match="the file is gone"):
        model.fit(
            failing_batches(3, RuntimeError("the file is gone")),
            steps_per_epoch=4,
            verbose=0,
        )
    assert_usable_after(model, 3 - ahead, in_step=True)


def test_a_dataset_that_fails_among_the_steps_of_one_execution_loses_nothing(ahead):
    model = parallel(steps_per_execution=3)
    with pytest.raises(OF_A_DATASET, match="the file is gone"):
        model.fit(
            failing_batches(2, RuntimeError("the file is gone")),
            steps_per_epoch=3,
            verbose=0,
        )
    if ON_TENSORFLOW:
        # TensorFlow ends the steps of one execution together where the dataset
        # fails: which updates of the last one were made is a matter of time.
        assert int(model.optimizer.iterations) in (1, 2, 3)
        assert_near_either(model, [train(plain(), batches(n)) for n in (1, 2)])
        train(model, batches(2))
        return
    expected = train(plain(), batches(2)[: 2 - ahead])
    compare(values_of(expected, None), values_of(model, None), 1e-5)


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_a_failing_callback_keeps_the_complete_steps(batch):
    model = parallel()
    x, y = data(4 * ROWS)
    with pytest.raises(RuntimeError, match="the callback failed"):
        model.fit(
            x, y, batch_size=ROWS, shuffle=False, verbose=0, callbacks=[At(batch, fail)]
        )
    assert_usable_after(model, batch + 1)


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_a_failure_while_evaluating_or_predicting_keeps_the_model(method):
    class Failing(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            fail()

        def on_predict_batch_end(self, batch, logs=None):
            fail()

    model = train(parallel(), batches(2))
    arguments = data(3 * ROWS) if method == "evaluate" else data(3 * ROWS)[:1]
    with pytest.raises(RuntimeError, match="the callback failed"):
        getattr(model, method)(
            *arguments, batch_size=ROWS, verbose=0, callbacks=[Failing()]
        )
    assert_usable_after(model, 2)


def test_a_failing_validation_keeps_the_trained_steps():
    model = parallel()
    x, y = data(2 * ROWS)
    with pytest.raises(OF_A_DATASET, match="the file is gone"):
        model.fit(
            x,
            y,
            batch_size=ROWS,
            shuffle=False,
            verbose=0,
            validation_data=failing_batches(2, RuntimeError("the file is gone")),
            validation_steps=3,
        )
    assert_usable_after(model, 2)


def test_a_failing_loss_keeps_the_model():
    def failing_loss(y_true, y_pred):
        raise RuntimeError("the loss failed")

    model = parallel()
    x, y = data(ROWS)
    model.compile("sgd", failing_loss)
    with pytest.raises(RuntimeError, match="the loss failed"):
        model.fit(x, y, verbose=0)
    model.compile(
        keras.optimizers.SGD(0.1),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    assert_usable_after(model, 0)


# --- what fails in one device's part ----------------------------------------


class Watched(keras.layers.Layer):
    """Does something to its inputs that TensorFlow has an operation for."""

    def __init__(self, operation):
        super().__init__()
        self.operation = operation

    def call(self, x):
        return self.operation(x)


def looked_up(x):
    table = tf.ones([5, 1])
    return x + tf.gather(table, tf.cast(tf.abs(x[:, 0]), tf.int32))


def normalized(operation, wrap=lambda model: model):
    """A model whose parts meet in BatchNormalization, before and after."""
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(8, kernel_initializer="identity"),
            keras.layers.BatchNormalization(),
            Watched(operation),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return wrap(model)


def on_two(model):
    return ku.DataParallel(model, devices=2)


@on_tensorflow
@pytest.mark.parametrize("row", [0, ROWS - 1], ids=["first_device", "second_device"])
@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch"])
def test_what_fails_on_one_device_fails_the_step_at_once(method, row):
    """The other devices do not wait for it, and the next steps meet again."""
    x, y = data(ROWS)
    bad = x.copy()
    bad[row] = 1e9
    settings = {} if method == "train_on_batch" else {"batch_size": ROWS, "verbose": 0}
    # Its moving statistics may be those of the step that failed, as in plain Keras.
    one, many = normalized(looked_up), normalized(looked_up, on_two)
    for model in (one, many):
        model.train_on_batch(x, y)
        weights = [v.numpy() for v in model.trainable_variables]
        started = time.monotonic()
        with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
            getattr(model, method)(bad, y, **settings)
        assert time.monotonic() - started < 20
        for before, variable in zip(weights, model.trainable_variables, strict=True):
            np.testing.assert_array_equal(before, variable.numpy())
    fresh = normalized(looked_up).get_weights()
    for model in (one, many):
        model.set_weights(fresh)
        model.optimizer.iterations.assign(0)
        for _ in range(3):
            model.train_on_batch(x, y)
    compare(
        values_of(one, one.evaluate(x, y, verbose=0)),
        values_of(many, many.evaluate(x, y, verbose=0)),
        1e-5,
    )


def printed(x):
    tf.print("rows", tf.shape(x)[0])
    return x


def asserted(x):
    tf.debugging.assert_less(x, 1e6)
    return x


def by_numpy(x):
    found = tf.numpy_function(lambda a: a * np.float32(2), [x], tf.float32)
    found.set_shape(x.shape)
    return found


@on_tensorflow
@pytest.mark.parametrize("operation", [printed, asserted, by_numpy])
def test_operations_that_cannot_run_beside_sums_cost_the_split_and_one_warning(
    operation,
):
    """TensorFlow puts them in one order, in which parts would wait for ever."""
    x, y = data(3 * ROWS)
    one, many = normalized(operation), normalized(operation, on_two)
    settings = {"batch_size": ROWS, "epochs": 2, "shuffle": False, "verbose": 0}
    expected = one.fit(x, y, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        started = time.monotonic()
        found = many.fit(x, y, **settings)
        assert time.monotonic() - started < 60
    compare(values_of(one, expected), values_of(many, found), 1e-5)
    ours = [w for w in caught if issubclass(w.category, ku.UnisonWarning)]
    assert len(ours) == 1
    assert f"{many.name!r} (Sequential) is not divided over 2" in str(ours[0].message)


@on_tensorflow
def test_an_assertion_of_a_users_layer_fails_the_step_and_no_later_one():
    x, y = data(ROWS)
    bad = x.copy()
    bad[-1] = 1e9
    model = keras.Sequential(
        [keras.Input((8,)), Watched(asserted), keras.layers.Dense(5, "softmax")]
    )
    ku.DataParallel(model, devices=2)
    model.compile("sgd", "sparse_categorical_crossentropy")
    with warnings.catch_warnings():
        # Without sums between the parts there is nothing to wait for.
        warnings.simplefilter("error", ku.UnisonWarning)
        model.fit(x, y, batch_size=ROWS, verbose=0)
        with pytest.raises(tf.errors.InvalidArgumentError):
            model.fit(bad, y, batch_size=ROWS, verbose=0)
        assert np.isfinite(model.fit(x, y, verbose=0).history["loss"]).all()


# --- Ctrl-C -----------------------------------------------------------------


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("batch", [0, 2])
def test_an_interrupt_keeps_the_last_complete_step(batch):
    model = parallel()
    x, y = data(4 * ROWS)
    with pytest.raises(KeyboardInterrupt):
        model.fit(
            x,
            y,
            batch_size=ROWS,
            shuffle=False,
            verbose=0,
            callbacks=[At(batch, interrupt)],
        )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_usable_after(model, batch + 1)


def test_an_interrupt_during_a_step_waits_for_its_result():
    """The signal arrives while the step computes, where JAX would lose the state."""
    wide = 700
    steps = []

    def build():
        keras.utils.set_random_seed(7)
        model = keras.Sequential(
            [keras.Input((wide,)), *[keras.layers.Dense(wide) for _ in range(8)]]
        )
        model.compile(keras.optimizers.SGD(1e-3), "mse")
        return model

    x = np.random.default_rng(0).normal(size=(20 * 400, wide)).astype("float32")
    model = ku.DataParallel(build(), devices=2)
    model.train_on_batch(x[:400], x[:400])
    model.set_weights(build().get_weights())
    before = int(model.optimizer.iterations)

    class Count(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3:
                threading.Timer(0.02, interrupt).start()

        def on_train_batch_end(self, batch, logs=None):
            steps.append(batch)

    with pytest.raises(KeyboardInterrupt):
        model.fit(x, x, batch_size=400, shuffle=False, verbose=0, callbacks=[Count()])
    done = int(model.optimizer.iterations) - before
    assert len(steps) <= done <= len(steps) + 1
    expected = build()
    for start in range(0, done * 400, 400):
        expected.train_on_batch(x[start : start + 400], x[start : start + 400])
    for found, wanted in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    model.fit(x[:400], x[:400], batch_size=400, verbose=0)


def test_the_users_own_interrupt_handler_is_called_and_put_back():
    calls = []
    previous = signal.signal(signal.SIGINT, lambda *_: calls.append(1))
    try:
        handler = signal.getsignal(signal.SIGINT)
        model = parallel()
        x, y = data(2 * ROWS)
        model.fit(
            x,
            y,
            batch_size=ROWS,
            shuffle=False,
            verbose=0,
            callbacks=[At(0, interrupt)],
        )
        assert calls == [1]
        assert signal.getsignal(signal.SIGINT) is handler
        assert_usable_after(model, 2)
    finally:
        signal.signal(signal.SIGINT, previous)


def test_training_in_a_thread_needs_no_signals():
    model = parallel()
    x, y = data(2 * ROWS)
    failures = []

    def run():
        try:
            model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert not failures
    assert_usable_after(model, 2)
