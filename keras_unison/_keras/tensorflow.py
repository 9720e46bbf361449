"""Variables and traced functions of Keras on TensorFlow."""

import itertools
from collections.abc import Callable
from typing import Any

from keras_unison._keras.hooks import replace_once

# What Keras's trainer on TensorFlow makes its traced functions by, and keeps them as.
FUNCTION_MAKERS = {
    "make_train_function": "train_function",
    "make_test_function": "test_function",
    "make_predict_function": "predict_function",
}

_moves = itertools.count(1)


def tensorflow_variable(variable: Any) -> Any:
    """The TensorFlow variable inside a Keras variable; None before it is made."""
    return getattr(variable, "_value", None)


def move_variable(variable: Any, device: str) -> None:
    """Moves a Keras variable's TensorFlow variable to another device.

    Keras's optimizers know a variable by the identifier of its TensorFlow variable,
    which the new one takes over. What was traced before goes on using the old one.
    """
    import tensorflow as tf

    old = variable._value
    with tf.init_scope(), tf.device(device):
        new = tf.Variable(
            old.read_value(),
            trainable=old.trainable,
            name=old.name.split(":")[0],
            aggregation=old.aggregation,
            synchronization=old.synchronization,
        )
    new._unique_id = old._unique_id
    new._unison_move = next(_moves)
    variable._value = new


def last_move(variable: Any) -> int:
    """The number of the move that brought a variable where it is; 0 for none."""
    return getattr(getattr(variable, "_value", None), "_unison_move", 0)


def hook_functions(made: Callable[[Any], None]) -> None:
    """Calls `made(model)` before any model makes or uses a traced function, once.

    A plain model may share layers with one whose weights were moved, and would go
    on with what it has traced.
    """
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def make(self: Any, force: bool = False) -> Any:
            made(self)
            return original(self, force)

        return make

    for name in FUNCTION_MAKERS:
        replace_once(TensorFlowTrainer, name, watched)


def hook_slots() -> None:
    """Makes an optimizer's variables for a moved variable on its device, once.

    Keras asks for that too, but makes them outside of the function that it traces,
    where TensorFlow forgets it.
    """
    import tensorflow as tf
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    def placed(original: Callable[..., Any]) -> Callable[..., Any]:
        def add(self: Any, reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
            if not last_move(reference_variable):
                return original(self, reference_variable, *args, **kwargs)
            with tf.init_scope(), tf.device(reference_variable._value.device):
                return original(self, reference_variable, *args, **kwargs)

        return add

    replace_once(TFOptimizer, "add_variable_from_reference", placed)


def hook_updates() -> None:
    """Makes an optimizer's arithmetic for a moved variable on its device, once.

    Keras passes each variable through TensorFlow's default strategy, which leaves
    the arithmetic to the first device and only assigns where the variable is.
    """
    import tensorflow as tf

    def placed(original: Callable[..., Any]) -> Callable[..., Any]:
        def update(var: Any, *args: Any, **kwargs: Any) -> Any:
            if not getattr(var, "_unison_move", 0):
                return original(var, *args, **kwargs)
            with tf.device(var.device):
                return original(var, *args, **kwargs)

        return update

    replace_once(tf.distribute.get_strategy().extended, "update", placed)


def slots_of(optimizer: Any) -> list[tuple[Any, Any]]:
    """Pairs of a trainable variable and an optimizer's variable for it.

    Every Keras optimizer keeps its slots in lists in the order of the variables.
    """
    trained = getattr(optimizer, "_trainable_variables", None)
    pairs: list[tuple[Any, Any]] = []
    if not trained:
        return pairs
    for value in vars(optimizer).values():
        if isinstance(value, list) and value is not trained:
            if len(value) != len(trained):
                continue
            pairs += [
                (variable, slot)
                for variable, slot in zip(trained, value, strict=True)
                if getattr(slot, "_value", None) is not None
            ]
    return pairs
