"""Extending the class of a user's model, in place.

The object that the user holds stays the same object. Its class becomes one
that derives from the user's class and puts mixins in front, as PyTorch's
`fully_shard` does with a module. Keras tells classes apart by identity when it
saves, clones and pickles, so the new class answers to the user's class there.
"""

from typing import Any, TypeVar

Model = TypeVar("Model")

_set_class = object.__dict__["__class__"].__set__


def user_class(model: object) -> type:
    """The class that the user wrote, without our mixins."""
    found: type = getattr(type(model), "_unison_user_class", type(model))
    return found


def mixins_of(model: object) -> tuple[type, ...]:
    """The mixins in front of the model's class."""
    found: tuple[type, ...] = getattr(type(model), "_unison_mixins", ())
    return found


def upgrade(model: object, mixin: type) -> None:
    """Puts `mixin` in front of the model's class, unless it is there already."""
    present = mixins_of(model)
    if mixin not in present:
        _set_class(model, _extended(user_class(model), (*present, mixin)))


def downgrade(model: object, mixin: type) -> None:
    """Takes `mixin` away from the model's class."""
    rest = tuple(other for other in mixins_of(model) if other is not mixin)
    plain = user_class(model)
    _set_class(model, _extended(plain, rest) if rest else plain)


def _extended(cls: type, mixins: tuple[type, ...]) -> type:
    # Python keeps weak references to subclasses. A dictionary from class to
    # subclass would keep both alive for ever: the subclass refers to its base.
    known: list[type] = cls.__subclasses__()
    for subclass in known:
        if subclass.__dict__.get("_unison_mixins") == mixins:
            return subclass

    def __new__(_: type, *args: Any, **kwargs: Any) -> Any:
        # `type(model)(...)` and `model.from_config(...)` make a plain model.
        return cls(*args, **kwargs)

    namespace = {
        "__new__": __new__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__reduce__": _reduce,
        "_unison_user_class": cls,
        "_unison_mixins": mixins,
        # Serialisation looks the class up by `obj.__class__`.
        "__class__": property(lambda self: cls),
    }
    return type(cls)(cls.__name__, (_Unannounced, *mixins, cls), namespace)


class _Unannounced:
    """First of the bases: the user's class is not told of this subclass.

    Its `__init_subclass__` may keep a registry, or set attributes by arguments
    of the class statement that are not known here.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


def _reduce(self: Any) -> Any:
    """Pickles and copies as an object of the user's class."""
    function, *rest = super(type(self), self).__reduce__()
    if getattr(function, "__self__", None) is type(self):
        function = getattr(user_class(self), function.__name__)
    return (function, *rest)
