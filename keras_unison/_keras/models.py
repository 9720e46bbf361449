"""Models, whatever the backend, and code written for Keras 2."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# TensorFlow shows Keras under two names of its own: `tf.keras` is this package,
# and `import tensorflow.keras.utils` loads the same files once more under that
# name. It is the only place where `tf.keras.utils` can be completed; with a Keras
# without it nothing is completed.
TF_KERAS = "keras._tf_keras.keras"


def forget_functions(model: Any) -> None:
    """Makes the trainer build its compiled functions anew."""
    model.train_function = None
    model.test_function = None
    model.predict_function = None


@contextmanager
def models_seen(seen: Callable[[Any], None]) -> Iterator[None]:
    """Calls `seen(model)` for each model built or compiled within the context.

    Every model runs `Model.__init__` and `Trainer.compile` of Keras; the class of
    the user may be any, so that there is no other common place. After `__init__`
    a functional model is a layer, and has no layers of its own yet.
    """
    import keras
    from keras.src.trainers.trainer import Trainer

    places = ((keras.Model, "__init__"), (Trainer, "compile"))
    originals = [(cls, name, cls.__dict__[name]) for cls, name in places]

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            seen(self)
            return result

        return method

    for cls, name, original in originals:
        setattr(cls, name, watched(original))
    try:
        yield
    finally:
        for cls, name, original in originals:
            setattr(cls, name, original)


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
