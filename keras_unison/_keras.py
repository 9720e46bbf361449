"""The only module that touches what Keras does not promise.

Each touch says why it is needed; `tests/unit/test_keras_internals.py` fails
with a clear message when a Keras release changes one. keras is imported inside
functions, so that the command line can start without it.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_HOOKED = "_unison_original"

# TensorFlow shows Keras under two names of its own: `tf.keras` is this package,
# and `import tensorflow.keras.utils` loads the same files once more under that
# name. It is the only place where `tf.keras.utils` can be completed; with a Keras
# without it nothing is completed.
TF_KERAS = "keras._tf_keras.keras"


def hook_layer_call(
    call: Callable[[Callable[..., Any], Any, Any, Any], Any],
) -> None:
    """Lets `call(original, layer, args, kwargs)` stand in for `Layer.__call__`.

    Keras has no hook around a layer call, and a special method is looked up on
    the class, so that the class itself has to change. Done once, when the
    first step runs on several devices.
    """
    import keras

    original = keras.layers.Layer.__call__
    if hasattr(original, _HOOKED):
        return

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(original, self, args, kwargs)

    setattr(__call__, _HOOKED, original)
    keras.layers.Layer.__call__ = __call__


def copy_mask(source: Any, target: Any) -> None:
    """Gives `target` the Keras mask of `source`.

    Keras keeps masks beside the tensor object; a tensor that was moved or
    constrained is another object and would lose it.
    """
    from keras.src.backend.common import masking

    mask = masking.get_keras_mask(source)
    if mask is not None:
        masking.set_keras_mask(target, mask)


# --- Keras's trainer on JAX -------------------------------------------------

# The order of the parts of a training state, as `_get_jax_state` returns them.
STATE_PARTS = (
    "trainable_variables",
    "non_trainable_variables",
    "optimizer_variables",
    "metrics_variables",
)
# A training step has four parts, a test step no optimizer, prediction two.
_PARTS_BY_LENGTH = {
    4: STATE_PARTS,
    3: (STATE_PARTS[0], STATE_PARTS[1], STATE_PARTS[3]),
    2: STATE_PARTS[:2],
}


def jax_trainer_hooks(
    *,
    wrap_step: Callable[[Any, Callable[..., Any]], Callable[..., Any]],
    place_state: Callable[[Any, Any], Any],
    bring_home: Callable[[Any], None],
    place_source: Callable[[Any, Any], None],
) -> type:
    """A mixin that calls back where Keras's JAX trainer passes state and data.

    Keras compiles a step per model and carries all variables through it as a
    state. State and data can only be placed where they enter that step, and
    the trainer has no public hook there.

    Args:
        wrap_step: Gets the model and the compiled step `(state, data)`.
        place_state: Gets the model and the state that a loop begins with.
        bring_home: Called before the state goes back to the variables.
        place_source: Gets the model and the iterator of batches.
    """

    class JaxTrainerHooks:
        def _make_function(
            self, step_function: Callable[..., Any], *args: Any, **kwargs: Any
        ) -> Any:
            # Called with the jitted step, by all three make_*_function.
            return super()._make_function(  # type: ignore[misc]
                wrap_step(self, step_function), *args, **kwargs
            )

        def _get_jax_state(self, **kwargs: Any) -> Any:
            # Called at each epoch's start and after each sync.
            return place_state(self, super()._get_jax_state(**kwargs))  # type: ignore[misc]

        def jax_state_sync(self) -> None:
            if not is_synced(self):
                bring_home(self)
            super().jax_state_sync()  # type: ignore[misc]

        def _symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
            # The one call of fit and evaluate that passes their iterator.
            super()._symbolic_build(iterator=iterator, data_batch=data_batch)  # type: ignore[misc]
            if iterator is not None:
                place_source(self, iterator)

    return JaxTrainerHooks


def state_dict(state: Any) -> dict[str, Any]:
    """A step's state as the trainer stores it, by the names of its parts."""
    return dict(zip(_PARTS_BY_LENGTH[len(state)], state, strict=True))


def publish_state(model: Any, state: Any) -> None:
    """Makes `state` the one that the trainer's next sync writes to variables.

    Keras does so after each step; an interrupted step has to do it itself.
    """
    model._jax_state = state_dict(state)
    model._jax_state_synced = False


def is_synced(model: Any) -> bool:
    """Whether the variables hold the newest state."""
    return model._jax_state_synced or not getattr(model, "_jax_state", None)


def pending_state(model: Any) -> dict[str, Any]:
    """The state that the next sync writes, by the names of its parts."""
    found: dict[str, Any] = model._jax_state
    return found


def set_pending_state(model: Any, parts: dict[str, Any]) -> None:
    """Replaces the state that the next sync writes."""
    model._jax_state = parts


def forget_pending_state(model: Any) -> None:
    """Ends the loop that the state belongs to, as Keras does at its end."""
    model._jax_state = None


def forget_functions(model: Any) -> None:
    """Makes the trainer build its compiled functions anew."""
    model.train_function = None
    model.test_function = None
    model.predict_function = None


def replace_source(
    iterator: Any, wrap: Callable[[Iterator[Any]], Iterator[Any]]
) -> None:
    """Lets `wrap` stand between an epoch's data and the training loop.

    On accelerators Keras copies each batch to the first device before the step
    divides it, which is one transfer too many; only the iterator's own method
    can be replaced, per object.
    """
    adapter = iterator.data_adapter
    iterator._get_iterator = lambda: wrap(adapter.get_jax_iterator())


# --- code written for Keras 2 -----------------------------------------------


def explain_missing_attributes(explain: Callable[[Any, str], str | None]) -> None:
    """Lets `explain(layer, name)` word the error of a missing attribute.

    Only asked where Python has found no attribute of that name. Keras's layers
    have no such method, and the user's layers are of any class below theirs.
    """
    import keras

    if hasattr(keras.layers.Layer, "__getattr__"):
        return

    def __getattr__(self: Any, name: str) -> Any:
        text = explain(self, name)
        if text is None:
            # Raises again, with the text of Python or of the failing property.
            return object.__getattribute__(self, name)
        raise AttributeError(text, name=name, obj=self)

    keras.layers.Layer.__getattr__ = __getattr__


def let_callbacks_take_model() -> None:
    """Lets `self.model = model` work in a callback, as it did in Keras 2.

    In Keras 3 the attribute is a property without a setter.
    """
    import keras

    cls = keras.callbacks.Callback
    model = cls.__dict__["model"]
    if model.fset is None:
        cls.model = model.setter(lambda self, value: cls.set_model(self, value))


# --- MirroredStrategy.scope -------------------------------------------------


@contextmanager
def models_seen(seen: Callable[[Any], None]) -> Iterator[None]:
    """Calls `seen(model)` for each model built or compiled within the context.

    Every model runs `Trainer.__init__` and `Trainer.compile` of Keras; the
    class of the user may be any, so that there is no other common place.
    """
    from keras.src.trainers.trainer import Trainer

    originals = {name: Trainer.__dict__[name] for name in ("__init__", "compile")}

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            seen(self)
            return result

        return method

    for name, original in originals.items():
        setattr(Trainer, name, watched(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(Trainer, name, original)
