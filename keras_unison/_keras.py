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


def hook_calls(
    call: Callable[[Callable[..., Any], Any, Any, Any], Any],
) -> None:
    """Lets `call(original, operation, args, kwargs)` make the calls of operations.

    Operations are layers and the nodes of functional models that are none. Keras
    has no hook around their calls, and a special method is looked up on the class,
    so that the classes themselves have to change. Done once, when the first step
    runs on several devices.
    """
    import keras
    from keras.src.ops.operation import Operation

    layer_class = keras.layers.Layer
    of_layers, of_others = layer_class.__call__, Operation.__call__
    if hasattr(of_layers, _HOOKED):
        return

    @functools.wraps(of_layers)
    def layer_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(of_layers, self, args, kwargs)

    @functools.wraps(of_others)
    def operation_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, layer_class):
            # The end of a layer's own call.
            return of_others(self, *args, **kwargs)
        return call(of_others, self, args, kwargs)

    for cls, original, hooked in (
        (layer_class, of_layers, layer_call),
        (Operation, of_others, operation_call),
    ):
        setattr(hooked, _HOOKED, original)
        cls.__call__ = hooked


def get_mask(tensor: Any) -> Any:
    """The Keras mask of a tensor, which Keras keeps beside the tensor."""
    from keras.src.backend.common import masking

    return masking.get_keras_mask(tensor)


def set_mask(tensor: Any, mask: Any) -> None:
    """Gives a tensor a Keras mask."""
    from keras.src.backend.common import masking

    masking.set_keras_mask(tensor, mask)


def copy_mask(source: Any, target: Any) -> None:
    """Gives `target` the Keras mask of `source`.

    Keras keeps masks beside the tensor object; a tensor that was moved or
    constrained is another object and would lose it.
    """
    mask = get_mask(source)
    if mask is not None:
        set_mask(target, mask)


def get_logits(tensor: Any) -> Any:
    """What an activation was computed from, which Keras keeps for crossentropies."""
    return getattr(tensor, "_keras_logits", None)


def set_logits(tensor: Any, logits: Any) -> None:
    """Tells Keras what a tensor was computed from."""
    tensor._keras_logits = logits


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


# --- layers in parts, on TensorFlow ---------------------------------------------


def hook_random(
    draws: dict[str, Callable[..., Any]],
    seed: Callable[[Callable[..., Any], Any], Any],
) -> None:
    """Lets `draws[name](original, ...)` make the draws of keras.random, once.

    Layers and keras.random look these functions up in this module at each call;
    `seed(original, seed)` stands in for what makes a tensor of a seed.
    """
    from keras.src.backend.tensorflow import random

    for name, draw in {**draws, "draw_seed": seed}.items():
        original = getattr(random, name)
        if not hasattr(original, _HOOKED):
            hooked = functools.wraps(original)(functools.partial(draw, original))
            setattr(hooked, _HOOKED, original)
            setattr(random, name, hooked)


def hook_batch_moments(
    moments: Callable[[Callable[..., Any], Any, Any, Any], Any],
) -> None:
    """Lets `moments(original, layer, inputs, mask)` take batch statistics, once.

    BatchNormalization has no public hook between its statistics and what it does
    with them: moving averages, renormalization, the normalized output.
    """
    import keras

    cls = keras.layers.BatchNormalization
    original = cls._moments
    if hasattr(original, _HOOKED):
        return

    @functools.wraps(original)
    def _moments(self: Any, inputs: Any, mask: Any) -> Any:
        return moments(original, self, inputs, mask)

    setattr(_moments, _HOOKED, original)
    cls._moments = _moments


def batch_axes(layer: Any) -> list[int]:
    """The axes over which a BatchNormalization takes its statistics."""
    return list(layer._reduction_axes)


def hook_values(values: Callable[..., Any]) -> None:
    """Lets `values(function, y_true, y_pred, **options)` compute losses, once.

    Keras's losses and metrics that wrap a function reduce what it returns; there is
    no public hook between the two.
    """
    from keras.src.losses.losses import LossFunctionWrapper
    from keras.src.metrics.reduction_metrics import MeanMetricWrapper

    def hook(cls: Any, method: str, attribute: str) -> None:
        original = getattr(cls, method)
        if hasattr(original, _HOOKED):
            return

        @functools.wraps(original)
        def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
            function = getattr(self, attribute)
            setattr(self, attribute, functools.partial(values, function))
            try:
                return original(self, *args, **kwargs)
            finally:
                setattr(self, attribute, function)

        setattr(hooked, _HOOKED, original)
        setattr(cls, method, hooked)

    hook(LossFunctionWrapper, "call", "fn")
    hook(MeanMetricWrapper, "update_state", "_fn")


def operations_of(layer: Any) -> list[Any]:
    """The layer, its layers at any depth, and the other nodes of its graphs."""
    if not hasattr(layer, "_flatten_layers"):
        return [layer]
    found: dict[int, Any] = {}
    for inner in layer._flatten_layers():
        found[id(inner)] = inner
        for operation in getattr(inner, "_operations", ()):
            found.setdefault(id(operation), operation)
    return list(found.values())


def build_by_call(call: Callable[..., Any], layer: Any, arguments: Any) -> None:
    """Builds a layer and its layers by a call on symbolic tensors.

    A layer that is built by its first call cannot make variables inside of a
    replica. Keras builds models so in its own trainer on JAX.
    """
    import keras
    from keras import tree

    def symbolic(leaf: Any) -> Any:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            return leaf
        if hasattr(leaf, "_value") or leaf.shape.rank is None:
            return leaf
        dtype = keras.backend.standardize_dtype(leaf.dtype)
        tensor = keras.KerasTensor(tuple(leaf.shape), dtype=dtype)
        copy_mask_spec(leaf, tensor)
        return tensor

    def copy_mask_spec(source: Any, target: Any) -> None:
        mask = get_mask(source)
        if mask is not None:
            set_mask(target, symbolic(mask))

    args, kwargs = tree.map_structure(symbolic, arguments)
    call(layer, *args, **kwargs)


def computed_in(layer: Any) -> dict[int, str]:
    """The type that each trainable weight is cast to, by identity of the weight."""
    return {
        id(variable): inner.compute_dtype
        for inner in layer._flatten_layers()
        for variable in inner._trainable_variables
        if variable._autocast
    }


def is_built(layer: Any) -> bool:
    """Whether a layer and all its layers are built."""
    return all(inner.built for inner in layer._flatten_layers())


def replace_losses(layer: Any, losses: list[Any]) -> None:
    """Makes these the losses that the last call of a layer added."""
    layer._clear_losses()
    for loss in losses:
        layer.add_loss(loss)


def tensorflow_variable(variable: Any) -> Any:
    """The TensorFlow variable inside a Keras variable; None before it is made."""
    return getattr(variable, "_value", None)


def move_variable(variable: Any, device: str) -> None:
    """Moves a Keras variable's TensorFlow variable to another device.

    Keras's optimizers know a variable by the identifier of its TensorFlow variable,
    which the new one takes over.
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
    variable._value = new


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
