"""step: a user's own training step with the engine active."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from keras_unison.engines import engine
from keras_unison.engines.conflicts import refuse_other_strategies

P = ParamSpec("P")
R = TypeVar("R")


def step(fn: Callable[P, R]) -> Callable[P, R]:
    """Divides the work of a user's own training step over the devices.

    The step is written as for one device and sees the global batch: its loss,
    gradients and update are those of one device. The calls of a model that
    `DataParallel` made parallel, and of its sub-models, are divided by rows.

    On JAX the step takes its state as arguments and returns the new one, as
    Keras's guide to custom training loops shows; compile it as usual, inside:
    `step(jax.jit(train_step))`. What it returns lies on the first device.

    On TensorFlow it is the step of any guide, with a `tf.GradientTape` and
    `optimizer.apply`, and compiled inside too: `step(tf.function(train_step))`.

    Args:
        fn: The step. It may take and return any tree of arrays.

    Returns:
        A function with the same arguments and results.

    Raises:
        ModelError: When called, on JAX: it calls a parallel model on other devices
            than those of the model that was made parallel last.
        PlacementError: When called: a keras.distribution or tf.distribute
            strategy is active.
        UnsupportedError: The backend is not built.

    Example:
    >>> import jax, keras, numpy as np
    >>> import keras_unison as ku
    >>> ku.simulate(2)
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    >>> model = ku.DataParallel(model, devices=2)
    >>> optimizer = keras.optimizers.SGD(0.1)
    >>> optimizer.build(model.trainable_variables)
    >>> def loss_of(weights, state, x, y):
    ...     outputs, state = model.stateless_call(weights, state, x, training=True)
    ...     return keras.ops.mean((outputs - y) ** 2), state
    >>> @ku.step
    ... @jax.jit
    ... def train_step(weights, state, slots, x, y):
    ...     gradient = jax.value_and_grad(loss_of, has_aux=True)
    ...     (loss, state), gradients = gradient(weights, state, x, y)
    ...     weights, slots = optimizer.stateless_apply(slots, gradients, weights)
    ...     return loss, weights, state, slots
    >>> weights = [variable.value for variable in model.trainable_variables]
    >>> slots = [variable.value for variable in optimizer.variables]
    >>> x, y = np.ones((11, 8), "float32"), np.ones((11, 1), "float32")
    >>> loss, weights, _, slots = train_step(weights, [], slots, x, y)
    >>> for variable, value in zip(model.trainable_variables, weights):
    ...     _ = variable.assign(value)

    Source: https://keras.io/guides/writing_a_custom_training_loop_in_jax/
    """
    run = engine().divided_step(fn)

    @functools.wraps(fn)
    def divided(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_other_strategies()
        result: R = run(*args, **kwargs)
        return result

    return divided
