"""Every optimizer and every option of one updates as on one device."""

from typing import Any

import keras
import pytest

from tests.equivalence.harness import (
    ON_JAX,
    ON_TENSORFLOW,
    Seen,
    check,
    data,
    dense_model,
)
from tests.equivalence.on_tensorflow import device_of, slots_of

# 35 rows divide evenly over neither two nor three devices.
ROWS, BATCH = 70, 35

SCHEDULES = {
    "exponential": lambda: keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5),
    "cosine": lambda: keras.optimizers.schedules.CosineDecay(
        0.01, 4, warmup_target=0.1, warmup_steps=2
    ),
}


def _adamw() -> Any:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "adamw": _adamw,
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.001),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01, exclude_layers=["d2"]),
}
if hasattr(keras.optimizers, "ScheduleFreeAdamW"):
    OPTIMIZERS["schedule_free"] = lambda: keras.optimizers.ScheduleFreeAdamW(0.01)
if hasattr(keras.optimizers, "MultiOptimizer"):
    OPTIMIZERS["multi"] = lambda: keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras.optimizers.Adam(0.01), {".*/d2/.*": keras.optimizers.SGD(0.1)}
        )
    )

OPTIONS: dict[str, dict[str, Any]] = {
    "clipnorm": {"clipnorm": 0.05},
    "global_clipnorm": {"global_clipnorm": 0.1},
    "clipvalue": {"clipvalue": 0.01},
    "weight_decay": {"weight_decay": 0.1},
    "ema": {"use_ema": True, "ema_momentum": 0.8},
    "ema_overwrites": {
        "use_ema": True,
        "ema_momentum": 0.8,
        "ema_overwrite_frequency": 3,
    },
    "accumulation_of_2": {"gradient_accumulation_steps": 2},
    "accumulation_of_3": {"gradient_accumulation_steps": 3},
    "accumulation_and_ema": {
        "gradient_accumulation_steps": 2,
        "use_ema": True,
        "ema_momentum": 0.8,
        "clipnorm": 0.05,
        "weight_decay": 0.1,
    },
    "loss_scale": {"loss_scale_factor": 128.0},
}


def fit(model: Any) -> Any:
    x, y = data(ROWS)
    return model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_makes_the_same_weights_and_slots(name: str, devices: int) -> None:
    check(
        lambda: dense_model(optimizer=OPTIMIZERS[name]()),
        fit,
        devices=devices,
        rows=[BATCH],
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_an_optimizer_means_the_same(name: str, devices: int) -> None:
    x, y = data(99)

    def use(model):
        # The last batch of an epoch is partial and in the middle of a period of
        # accumulation; 6 steps in all.
        return model.fit(x, y, batch_size=35, epochs=2, verbose=0)

    def build():
        return dense_model(
            optimizer=keras.optimizers.SGD(0.1, momentum=0.9, **OPTIONS[name])
        )

    check(build, use, devices=devices, rows=[35, 29])


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_counts_the_same_steps(name: str, devices: int) -> None:
    def build():
        return dense_model(optimizer=keras.optimizers.SGD(SCHEDULES[name]()))

    def use(model):
        return fit(model), float(model.optimizer.learning_rate)

    check(build, use, devices=devices, rows=[BATCH])


def test_a_learning_rate_set_between_fits_is_used(devices: int) -> None:
    def use(model):
        first = fit(model)
        model.optimizer.learning_rate = 0.01
        return first, fit(model)

    check(dense_model, use, devices=devices, rows=[BATCH])


# --- large slots: divided over the devices on JAX, spread with the weights on
# TensorFlow ---------------------------------------------------------------------

KERNEL = (260, 264)


def large_model(optimizer: Any) -> Any:
    """A model whose one kernel is so large that its slots are divided."""
    model = keras.Sequential(
        [
            keras.Input((KERNEL[0],)),
            keras.layers.Dense(KERNEL[1], activation="tanh", name="large"),
            keras.layers.Dense(5, activation="softmax", name="d2"),
        ]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


def divided_kernel(devices: int) -> tuple[int, int]:
    """What one device holds of a slot: the first axis that divides is divided."""
    if KERNEL[0] % devices == 0:
        return KERNEL[0] // devices, KERNEL[1]
    return KERNEL[0], KERNEL[1] // devices


# Each with its number of slots that have the shape of the kernel and are used.
LARGE: dict[str, tuple[Any, int]] = {
    "momentum": (lambda: keras.optimizers.SGD(0.1, momentum=0.9), 1),
    "adam": (lambda: keras.optimizers.Adam(0.001), 2),
    "ema": (
        lambda: keras.optimizers.SGD(
            0.1, momentum=0.9, use_ema=True, ema_overwrite_frequency=3
        ),
        2,
    ),
    "clipnorm": (lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.1), 1),
    "global_clipnorm": (
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1),
        1,
    ),
    "accumulation": (
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
        2,
    ),
    # Keeps sums of the rows and of the columns only: nothing is left to divide.
    "adafactor": (lambda: keras.optimizers.Adafactor(0.001), 0),
    "muon": (lambda: keras.optimizers.Muon(0.001, exclude_layers=["d2"]), 1),
    "lamb": (lambda: keras.optimizers.Lamb(0.001), 2),
}


@pytest.mark.skipif(not ON_JAX, reason="only on JAX a slot is divided by its size")
def test_the_large_kernel_is_large() -> None:
    from keras_unison.engines.jax.placement import MIN_DIVIDED_SLOT

    assert KERNEL[0] * KERNEL[1] >= MIN_DIVIDED_SLOT


@pytest.mark.parametrize("name", LARGE)
def test_large_slots_are_divided_and_saved_whole(
    name: str, devices: int, tmp_path: Any
) -> None:
    optimizer, slots = LARGE[name]
    x, y = data(ROWS, features=KERNEL[0])
    path = tmp_path / "model.keras"

    def use(model):
        history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
        assert_slots_beside_weights(model, slots)
        model.save(path)
        loaded = keras.models.load_model(path)
        saved = [variable.numpy() for variable in loaded.optimizer.variables]
        further = loaded.fit(x, y, batch_size=BATCH, verbose=0)
        return history, saved, further, loaded.get_weights()

    seen = check(lambda: large_model(optimizer()), use, devices=devices, rows=[BATCH])
    assert_slots_divided(seen, devices, slots)


def test_large_slots_in_a_second_fit_and_after_they_were_set(devices: int) -> None:
    x, y = data(ROWS, features=KERNEL[0])

    def use(model):
        histories = [model.fit(x, y, batch_size=BATCH, verbose=0) for _ in range(2)]
        for variable in model.optimizer.variables[2:]:
            variable.assign(variable * 0.5)
        assert_slots_beside_weights(model, 2)
        evaluated = model.evaluate(x, y, batch_size=BATCH, verbose=0)
        return histories, evaluated, model.fit(x, y, batch_size=BATCH, verbose=0)

    seen = check(
        lambda: large_model(keras.optimizers.Adam(0.001)),
        use,
        devices=devices,
        rows=[BATCH],
    )
    assert_slots_divided(seen, devices, 2)


def assert_slots_divided(seen: Seen, devices: int, slots: int) -> None:
    """Requires of each training step that it takes slots in parts, on JAX."""
    if not ON_JAX:
        return
    steps = [
        program
        for program in seen.programs
        if program.name == "jit_train_step" and program.partitions == devices
    ]
    assert steps
    for step in steps:
        assert step.parameters.count(divided_kernel(devices)) == slots
        assert step.parameters.count(KERNEL) == 1, "the kernel itself is whole"


def assert_slots_beside_weights(model: Any, slots: int) -> None:
    """Requires that slots lie on the device of their weight, on TensorFlow."""
    if not ON_TENSORFLOW:
        return
    pairs = list(slots_of(model.optimizer, model.trainable_variables))
    of_kernel = [slot for _, slot in pairs if tuple(slot.shape) == KERNEL]
    # Adafactor makes one more than it uses.
    assert len(of_kernel) >= slots
    for weight, slot in pairs:
        assert device_of(slot) == device_of(weight), slot.path
    if type(model) is not keras.Sequential:
        # The small layer lies on another device than the large one.
        assert len({device_of(weight) for weight, _ in pairs}) > 1
