"""Every method of a model, and every way to compile it, as on one device."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import keras_unison as ku
from tests.equivalence.harness import (
    ON_JAX,
    ON_TENSORFLOW,
    check,
    compare,
    data,
    dense_model,
    run,
)

ROWS = 82
BATCH = 48
DIVIDED = [48, 34]
X, Y = data(ROWS)


def fitted(model: Any, epochs: int = 1) -> Any:
    return model.fit(X, Y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)


# --- one method at a time ---------------------------------------------------

METHODS: dict[str, Callable[[Any], Any]] = {
    "fit": lambda model: fitted(model, epochs=2),
    "evaluate": lambda model: [
        model.evaluate(X, Y, batch_size=BATCH, verbose=0),
        model.evaluate(X, Y, batch_size=BATCH, verbose=0, return_dict=True),
        model.evaluate(X, Y, batch_size=BATCH, steps=1, verbose=0),
    ],
    "predict": lambda model: [
        model.predict(X, batch_size=BATCH, verbose=0),
        model.predict(X, batch_size=BATCH, steps=1, verbose=0),
    ],
    "train_on_batch": lambda model: [
        model.train_on_batch(X[:48], Y[:48]),
        model.train_on_batch(X[48:], Y[48:], return_dict=True),
        model.train_on_batch(X[:34], Y[:34], class_weight={0: 1, 1: 2}),
    ],
    "test_on_batch": lambda model: [
        model.test_on_batch(X[:48], Y[:48]),
        model.test_on_batch(X[48:], Y[48:], return_dict=True),
    ],
    "predict_on_batch": lambda model: [
        model.predict_on_batch(X[:48]),
        model.predict_on_batch(X[48:]),
    ],
}


@pytest.mark.parametrize("name", METHODS)
def test_each_method_alone(name: str, devices: int) -> None:
    check(dense_model, METHODS[name], devices=devices, rows=DIVIDED)


def test_methods_in_turn(devices: int) -> None:
    def use(model: Any) -> Any:
        return [METHODS[name](model) for name in ("evaluate", "fit", "predict")] + [
            METHODS[name](model)
            for name in ("test_on_batch", "train_on_batch", "predict_on_batch", "fit")
        ]

    check(dense_model, use, devices=devices, rows=DIVIDED, all_steps=True)


def test_results_have_the_types_of_keras(devices: int) -> None:
    def kinds(model: Any) -> Any:
        logs = model.train_on_batch(X, Y, return_dict=True)
        return [
            type(model.predict(X, verbose=0)),
            type(model.predict_on_batch(X)),
            type(model.evaluate(X, Y, verbose=0)),
            [type(value) for value in model.evaluate(X, Y, verbose=0)],
            sorted(logs),
            [type(value) for value in logs.values()],
            [type(v) for v in fitted(model).history["loss"]],
        ]

    seen = []

    def use(model: Any) -> Any:
        seen.append(kinds(model))
        return model.predict(X, batch_size=BATCH, verbose=0)

    check(dense_model, use, devices=devices, rows=[BATCH])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("rows", [1, 2, 3, 31, 47, 100])
def test_predictions_keep_their_order_and_shape(rows: int, devices: int) -> None:
    """Row i of the result is that of row i, for any size."""
    x, _ = data(rows + 34)

    def use(model: Any) -> Any:
        alone = model.predict(x[:rows], batch_size=31, verbose=0)
        assert alone.shape == (rows, 5)
        one_by_one = np.concatenate(
            [model.predict_on_batch(row[None]) for row in x[:4]]
        )
        return alone, one_by_one, model.predict(x, batch_size=34, verbose=0)

    check(dense_model, use, devices=devices, rows=[34])


def test_predictions_of_several_outputs(devices: int) -> None:
    def build() -> Any:
        inputs = keras.Input((8,))
        x = layers.Dense(13)(inputs)
        outputs = {"a": layers.Dense(5)(x), "b": [x, layers.Reshape((13, 1))(x)]}
        return keras.Model(inputs, outputs)

    def use(model: Any) -> Any:
        return model.predict(X, batch_size=BATCH, verbose=0)

    check(build, use, devices=devices, rows=DIVIDED)


# --- steps_per_execution ----------------------------------------------------


@pytest.mark.parametrize("batch_size", [48, 31])
def test_several_steps_per_execution(batch_size: int, devices: int) -> None:
    """Three steps at a time; the last time there are fewer, and fewer rows."""
    x, y = data(226)

    def use(model: Any) -> Any:
        seen: list[Any] = []
        logs = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append([batch, dict(logs)])
        )
        settings: dict[str, Any] = {"batch_size": batch_size, "verbose": 0}
        return (
            model.fit(x, y, epochs=2, shuffle=False, callbacks=[logs], **settings),
            model.evaluate(x, y, **settings),
            model.predict(x, **settings),
            seen,
        )

    check(
        lambda: dense_model(steps_per_execution=3),
        use,
        devices=devices,
        rows=[batch_size, 226 % batch_size],
        all_steps=True,
    )


def test_more_steps_per_execution_than_batches(devices: int) -> None:
    check(
        lambda: dense_model(steps_per_execution=7),
        lambda model: [fitted(model, 2), model.predict(X, batch_size=BATCH, verbose=0)],
        devices=devices,
        rows=DIVIDED,
        all_steps=True,
    )


# --- compiled and eager -----------------------------------------------------


@pytest.mark.parametrize("jit_compile", [True, "auto"])
def test_compiled_steps(jit_compile: bool | str, devices: int) -> None:
    check(
        lambda: dense_model(jit_compile=jit_compile),
        lambda model: [METHODS[name](model) for name in ("fit", "evaluate", "predict")],
        devices=devices,
        rows=DIVIDED,
        all_steps=True,
    )


def recorder(seen: list[Any]) -> Any:
    """A layer that notes how the rows of its input lie on the devices."""

    class Recorder(layers.Layer):
        def call(self, x):
            import jax

            if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
                seen.append(tuple(part.data.shape for part in x.addressable_shards))
            return x

    return Recorder()


EAGER_ON_JAX = pytest.mark.skipif(not ON_JAX, reason="arrays of JAX in uneven parts")
EAGER_ON_TENSORFLOW = pytest.mark.skipif(
    not ON_TENSORFLOW, reason="eager tensors are TensorFlow's"
)
EAGER: dict[str, dict[str, Any]] = {
    "run_eagerly": {"run_eagerly": True},
    "jit_compile_false": {"jit_compile": False},
}


@EAGER_ON_JAX
@pytest.mark.parametrize("name", EAGER)
def test_eager_steps_are_divided_where_rows_divide_evenly(
    name: str, devices: int
) -> None:
    """A step that is not compiled has arrays whose parts can be seen directly."""
    seen: list[Any] = []

    def build() -> Any:
        model = keras.Sequential(
            [keras.Input((8,)), recorder(seen), layers.Dense(13), layers.Dense(5)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        settings = {"metrics": ["accuracy"], **EAGER[name]}
        model.compile(keras.optimizers.SGD(0.1), loss, **settings)
        return model

    def use(model: Any) -> Any:
        x, y = data(96)
        return (
            model.fit(x, y, batch_size=48, epochs=2, shuffle=False, verbose=0),
            model.evaluate(x, y, batch_size=48, verbose=0),
            model.predict(x, batch_size=48, verbose=0),
            model.train_on_batch(x[:42], y[:42]),
        )

    plain = run(build, use)
    seen.clear()
    parallel = run(build, use, lambda model: ku.DataParallel(model, devices))
    compare(plain, parallel, 1e-5)
    assert ((48 // devices, 8),) * devices in seen
    assert ((42 // devices, 8),) * devices in seen
    assert len(set(seen)) == 2, set(seen)


@EAGER_ON_JAX
@pytest.mark.parametrize("name", EAGER)
def test_eager_steps_of_uneven_batches_warn_once(name: str, devices: int) -> None:
    """JAX holds no uneven parts outside of compiled steps: right, and said."""

    def use(model: Any) -> Any:
        x, y = data(101)
        return (
            model.fit(x, y, batch_size=48, epochs=2, shuffle=False, verbose=0),
            model.evaluate(x, y, batch_size=48, verbose=0),
            model.predict(x, batch_size=48, verbose=0),
        )

    plain = run(lambda: dense_model(**EAGER[name]), use)
    with pytest.warns(ku.UnisonWarning, match="eager") as caught:
        parallel = run(
            lambda: dense_model(**EAGER[name]),
            use,
            lambda model: ku.DataParallel(model, devices),
        )
    compare(plain, parallel, 1e-5)
    assert len([w for w in caught if w.category is ku.UnisonWarning]) <= 2


@EAGER_ON_TENSORFLOW
def test_eager_steps_are_divided_on_tensorflow(devices: int) -> None:
    def use(model: Any) -> Any:
        x, y = data(96)
        return (
            model.fit(x, y, batch_size=48, epochs=2, shuffle=False, verbose=0),
            model.evaluate(x, y, batch_size=47, verbose=0),
            model.predict(x, batch_size=46, verbose=0),
            model.train_on_batch(x[:1], y[:1]),
        )

    check(
        lambda: dense_model(run_eagerly=True), use, devices=devices, rows=[48, 47, 46]
    )


@EAGER_ON_TENSORFLOW
def test_eager_batch_normalization_is_right_and_warns_once(devices: int) -> None:
    """Replicas run one after the other there: none could wait for another's sum."""

    def build() -> Any:
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(13, activation="tanh"),
                layers.BatchNormalization(momentum=0.7),
                layers.Dense(5, activation="softmax"),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.1),
            "sparse_categorical_crossentropy",
            run_eagerly=True,
        )
        return model

    def use(model: Any) -> Any:
        return fitted(model, epochs=2), model.predict(X, batch_size=BATCH, verbose=0)

    with pytest.warns(ku.UnisonWarning, match="eager mode") as caught:
        # Predictions need no sums, and are divided.
        check(build, use, devices=devices, rows=[48])
    assert len([w for w in caught if w.category is ku.UnisonWarning]) == 1


# --- one after the other ----------------------------------------------------


def recompiled(model: Any, **settings: Any) -> None:
    settings.setdefault("optimizer", keras.optimizers.SGD(0.05, momentum=0.9))
    settings.setdefault("metrics", ["accuracy"])
    model.compile(loss="sparse_categorical_crossentropy", **settings)


def frozen_after_a_fit(model: Any) -> Any:
    first = fitted(model)
    model.layers[0].trainable = False
    recompiled(model)
    second = fitted(model)
    model.layers[0].trainable = True
    recompiled(model)
    return first, second, fitted(model)


def frozen_without_recompiling(model: Any) -> Any:
    first = fitted(model)
    begin = model.layers[0].get_weights()
    model.layers[0].trainable = False
    recompiled(model, optimizer=model.optimizer.__class__(0.1))
    second = fitted(model)
    assert np.array_equal(begin[0], model.layers[0].get_weights()[0])
    return first, second


def recompiled_between_fits(model: Any) -> Any:
    first = fitted(model)
    recompiled(
        model,
        optimizer=keras.optimizers.Adam(0.001),
        metrics=["sparse_categorical_crossentropy"],
    )
    return first, fitted(model), model.evaluate(X, Y, batch_size=BATCH, verbose=0)


def same_optimizer_in_a_new_compile(model: Any) -> Any:
    first = fitted(model)
    recompiled(model, optimizer=model.optimizer)
    return first, fitted(model)


def learning_rate_changed(model: Any) -> Any:
    first = fitted(model)
    model.optimizer.learning_rate = 0.01
    return first, fitted(model)


def longer_dataset_of_other_rows(model: Any) -> Any:
    first = fitted(model)
    # 100 rows would give a third device 34, which are all rows of a last batch.
    x, y = data(90)
    return first, model.fit(x, y, batch_size=90, epochs=2, verbose=0)


TURNS: dict[str, Callable[[Any], Any]] = {
    "evaluate_then_fit_again": lambda model: [
        fitted(model),
        model.evaluate(X, Y, batch_size=BATCH, verbose=0),
        fitted(model),
    ],
    "two_fits": lambda model: [fitted(model), fitted(model)],
    "fit_after_predict": lambda model: [
        model.predict(X, batch_size=BATCH, verbose=0),
        fitted(model),
        model.predict(X, batch_size=BATCH, verbose=0),
    ],
    "recompiled_between_fits": recompiled_between_fits,
    "same_optimizer_in_a_new_compile": same_optimizer_in_a_new_compile,
    "frozen_and_thawed": frozen_after_a_fit,
    "frozen_stays_as_it_is": frozen_without_recompiling,
    "learning_rate_changed": learning_rate_changed,
    "longer_dataset_of_other_rows": longer_dataset_of_other_rows,
}


@pytest.mark.parametrize("name", TURNS)
def test_calls_in_turn(name: str, devices: int) -> None:
    check(dense_model, TURNS[name], devices=devices, rows=DIVIDED)


def test_metrics_read_and_reset_by_hand(devices: int) -> None:
    def use(model: Any) -> Any:
        model.reset_metrics()
        logs = [model.train_on_batch(X[:48], Y[:48])]
        results = model.get_metrics_result()
        model.reset_metrics()
        logs.append(model.test_on_batch(X[48:], Y[48:]))
        return logs, results, [metric.result() for metric in model.metrics]

    check(dense_model, use, devices=devices, rows=DIVIDED)


def test_optimizer_and_metrics_keep_their_values_between_epochs(devices: int) -> None:
    """Momentum and counters survive, as the optimizer's variables show."""

    def use(model: Any) -> Any:
        seen = []
        for _ in range(2):
            fitted(model)
            seen.append([np.array(v.value) for v in model.optimizer.variables])
        assert model.optimizer.iterations == 4
        return seen

    check(
        lambda: dense_model(optimizer=keras.optimizers.SGD(0.1, momentum=0.9)),
        use,
        devices=devices,
        rows=DIVIDED,
    )
