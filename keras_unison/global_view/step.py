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

    Args:
        fn: The step. It may take and return any tree of arrays.

    Returns:
        A function with the same arguments and results.

    Raises:
        ModelError: When called: it calls a parallel model on other devices than
            those of the model that was made parallel last.
        PlacementError: When called: a keras.distribution or tf.distribute
            strategy is active.
        UnsupportedError: The backend is not built.

    Example:
    ```python
    model = ku.DataParallel(model, devices=2)

    @ku.step
    @jax.jit
    def train_step(trainable, non_trainable, optimizer_state, x, y):
        (loss, non_trainable), grads = grad_fn(trainable, non_trainable, x, y)
        trainable, optimizer_state = optimizer.stateless_apply(
            optimizer_state, grads, trainable
        )
        return loss, trainable, non_trainable, optimizer_state
    ```

    Source: https://keras.io/guides/writing_a_custom_training_loop_in_jax/
    """
    run = engine().divided_step(fn)

    @functools.wraps(fn)
    def divided(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_other_strategies()
        result: R = run(*args, **kwargs)
        return result

    return divided
