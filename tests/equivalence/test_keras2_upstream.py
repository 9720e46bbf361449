"""What Keras 2 tested of multi_gpu_model, with the numbers of one device added.

Keras 2 only asked that nothing fails, and only on a machine with eight GPUs.
"""

import keras
import numpy as np
import pytest
from keras import layers

import keras_unison as ku
from tests.equivalence.harness import (
    FLOORS,
    TOLERANCE,
    Model,
    Seen,
    assert_divided,
    check,
    compare,
    largest_difference,
    programs,
    reversed_batches,
    run,
)

ROWS = 1000
BATCH = 32
# Batches of 32 and a last one of 8: neither divides by 3.
DIVIDED = [BATCH, ROWS % BATCH]
TEMPLATES = {"three": 3, "zero_and_two": [0, 2]}


def on(gpus):
    """A wrap for the harness that passes `gpus` as old scripts wrote it."""
    return lambda model, count: ku.multi_gpu_model(model, gpus=gpus)


def number_of(gpus) -> int:
    return gpus if isinstance(gpus, int) else len(gpus)


def random(*shape: int) -> np.ndarray:
    generator = np.random.default_rng(sum(shape))
    return generator.random(shape).astype("float32")


def fit_two_epochs(x, y, order=lambda array: array):
    """Unshuffled, so that the rounding floor sees the same batches."""

    def reordered(data):
        return [order(array) for array in data] if isinstance(data, list) else data

    x, y = reordered(x), reordered(y)
    return lambda model: model.fit(
        x, y, epochs=2, batch_size=BATCH, shuffle=False, verbose=0
    )


def floor_of(x, y):
    """The same run with the rows of each batch in reverse."""
    return fit_two_epochs(x, y, lambda array: reversed_batches(array, BATCH))


# --- a simple model ---------------------------------------------------------


def simple() -> Model:
    model = keras.Sequential(
        [keras.Input((10,)), layers.Dense(10, name="d1"), layers.Dense(1, name="d2")],
        name="simple",
    )
    model.compile(loss="mse", optimizer="rmsprop")
    return model


SIMPLE_DATA = (random(ROWS, 10), random(ROWS, 1))


@pytest.mark.parametrize("gpus", TEMPLATES.values(), ids=TEMPLATES)
def test_a_simple_model_trains_as_on_one_device(gpus) -> None:
    x, y = SIMPLE_DATA
    check(
        simple,
        fit_two_epochs(x, y),
        devices=number_of(gpus),
        rows=DIVIDED,
        floor=floor_of(x, y),
        wrap=on(gpus),
    )


def test_the_same_template_is_wrapped_again_with_other_gpus() -> None:
    x, y = SIMPLE_DATA
    seen: list[Seen] = []

    def twice(fit, gpus=(None, None)):
        def use(model):
            histories = []
            for choice in gpus:
                if choice is not None:
                    assert ku.multi_gpu_model(model, gpus=choice) is model
                model.compile(loss="mse", optimizer="rmsprop")
                with programs() as compiled:
                    histories.append(fit(model))
                seen.append(compiled)
            return histories

        return use

    plain = run(simple, twice(fit_two_epochs(x, y)))
    floor = largest_difference(plain, run(simple, twice(floor_of(x, y))))
    parallel = run(simple, twice(fit_two_epochs(x, y), gpus=(3, [0, 2])))
    compare(plain, parallel, max(TOLERANCE, FLOORS * floor))
    assert_divided(seen[-2], devices=3, rows=DIVIDED)
    assert_divided(seen[-1], devices=2, rows=DIVIDED)


# --- several inputs and outputs ---------------------------------------------


def multi_io() -> Model:
    a, b = keras.Input((10,), name="a"), keras.Input((5,), name="b")
    joined = layers.concatenate(
        [layers.Dense(10, name="da")(a), layers.Dense(10, name="db")(b)]
    )
    outputs = [layers.Dense(1, name="c")(joined), layers.Dense(2, name="d")(joined)]
    model = keras.Model([a, b], outputs)
    model.compile(loss="mse", optimizer="rmsprop")
    return model


@pytest.mark.parametrize("gpus", TEMPLATES.values(), ids=TEMPLATES)
def test_several_inputs_and_outputs_train_as_on_one_device(gpus) -> None:
    x = [random(ROWS, 10), random(ROWS, 5)]
    y = [random(ROWS, 1), random(ROWS, 2)]
    check(
        multi_io,
        fit_two_epochs(x, y),
        devices=number_of(gpus),
        rows=DIVIDED,
        floor=floor_of(x, y),
        wrap=on(gpus),
    )


# --- devices that do not exist ----------------------------------------------


@pytest.mark.parametrize("gpus", [10, [0, 2, 4, 6, 8], 1, [0]], ids=str)
def test_invalid_devices_raise_and_the_model_trains_on(gpus) -> None:
    model = keras.Sequential(
        [
            keras.Input((10,)),
            layers.Dense(10, activation="relu"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    with pytest.raises(ValueError, match="gpus"):
        ku.multi_gpu_model(model, gpus=gpus)
    model.compile(loss="mse", optimizer="sgd")
    with programs() as seen:
        model.fit(random(33, 10), random(33, 1), verbose=0)
    assert {program.partitions for program in seen.programs} == {1}


# --- saving and loading -----------------------------------------------------


@pytest.mark.parametrize("name", ["parallel.keras", "parallel.h5"])
def test_a_saved_parallel_model_loads_and_predicts_the_same(
    name: str, tmp_path, devices: int
) -> None:
    x, y = random(100, 4), random(100, 4)

    def build():
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(3, name="d1"), layers.Dense(4, name="d2")],
            name="saved",
        )
        model.compile(loss=keras.losses.MeanSquaredError(), optimizer="rmsprop")
        return model

    def use(model):
        history = model.fit(x, y, epochs=1, verbose=0)
        predicted = model.predict(x, verbose=0)
        model.save(tmp_path / name)
        keras.utils.clear_session()
        loaded = keras.models.load_model(tmp_path / name)
        np.testing.assert_allclose(
            loaded.predict(x, verbose=0), predicted, rtol=1e-5, atol=1e-5
        )
        return history, predicted, loaded.get_weights()

    check(build, use, devices=devices, rows=[32], wrap=on(devices))


# --- a recurrent layer whose state is an input ------------------------------


@pytest.mark.parametrize(("rows", "devices"), [(2, 2), (25, 2), (25, 3)])
def test_an_initial_state_is_divided_with_its_rows(rows: int, devices: int) -> None:
    x = [random(rows, 4, 3), random(rows, 3)]
    y = random(rows, 4, 3)

    def build():
        sequence, state = keras.Input((4, 3)), keras.Input((3,))
        output = layers.SimpleRNN(3, return_sequences=True, name="rnn")(
            sequence, initial_state=state
        )
        model = keras.Model([sequence, state], output)
        model.compile(loss="mse", optimizer="adam")
        return model

    def use(model):
        return model.train_on_batch(x, y), model.predict_on_batch(x)

    check(build, use, devices=devices, rows=[rows], wrap=on(devices))


def test_a_stateful_layer_keeps_the_states_of_the_global_batch(devices: int) -> None:
    # Keras 2 could not divide these: the layer's state has the batch's rows.
    x, y = random(50, 4, 3), random(50, 1)

    def build():
        model = keras.Sequential(
            [
                keras.Input(batch_shape=(25, 4, 3)),
                layers.LSTM(7, stateful=True, name="rnn"),
                layers.Dense(1, name="out"),
            ],
            name="stateful",
        )
        model.compile(loss="mse", optimizer="sgd")
        return model

    def use(model):
        history = model.fit(
            x, y, batch_size=25, epochs=2, shuffle=False, verbose=0
        ).history
        model.layers[0].reset_state()
        return history, model.predict(x, batch_size=25, verbose=0)

    check(build, use, devices=devices, rows=[25], per_row=4, wrap=on(devices))


# --- one nested model called twice ------------------------------------------


def test_a_siamese_model_keeps_its_output_names_and_numbers(devices: int) -> None:
    x = [random(99, 3), random(99, 3)]
    y = [random(99, 1), random(99, 1), random(99, 1)]

    def build():
        nested = keras.Sequential(
            [keras.Input((3,)), layers.Dense(32), layers.Dense(1)], name="nested"
        )
        a, b = keras.Input((3,)), keras.Input((3,))
        scores = [nested(a), nested(b)]
        model = keras.Model([a, b], [layers.Add(name="add")(scores), *scores])
        model.compile(loss=["mse"] * 3, optimizer="sgd")
        return model

    def use(model):
        # Keras 2 renamed the second of two equal names; today's Keras keeps both.
        assert model.output_names == ["add", "nested", "nested"]
        return (
            model.fit(x, y, batch_size=50, verbose=0),
            model.predict(x, batch_size=50, verbose=0),
        )

    check(build, use, devices=devices, rows=[50, 49], wrap=on(devices))


# --- a nested model ---------------------------------------------------------


def test_a_nested_model_is_fed_step_by_step(devices: int) -> None:
    x = random(16, 10)
    y = np.eye(10, dtype="float32")[np.arange(16) % 10]

    def build():
        inner = keras.Sequential(
            [
                keras.Input((10,)),
                layers.Dense(3, name="d1"),
                layers.Dense(10, name="d2"),
            ],
            name="inner",
        )
        inputs = keras.Input((10,))
        model = keras.Model(inputs, layers.Softmax()(inner(inputs)))
        model.compile(
            loss="categorical_crossentropy", optimizer="rmsprop", metrics=["accuracy"]
        )
        return model

    def use(model):
        return (
            model.fit(x, y, batch_size=4, epochs=1, steps_per_epoch=3, verbose=0),
            model.evaluate(x, y, batch_size=4, verbose=0),
        )

    check(build, use, devices=devices, rows=[4], wrap=on(devices))
