"""A copy of a model from its bytes."""

import io
import pickle
from dataclasses import dataclass
from typing import Any

import keras

from keras_unison.engines.torch.shipping import restore
from keras_unison.engines.torch.shipping.identities import rename
from keras_unison.engines.torch.shipping.ship import LENGTH
from keras_unison.engines.torch.shipping.tensors import read_storages
from keras_unison.errors import HelperError


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A copy of a model.

    Attributes:
        model: The copy, a plain Keras model.
        variables: Keras's variables that are in it, in the order of the original's.
        objects: Layers, optimizers, metrics, losses and the like, in that order.
    """

    model: Any
    variables: list[Any]
    objects: list[Any]


def unpack(data: bytes) -> Unpacked:
    """Makes a copy of a model.

    Args:
        data: What `ship` gave, in a process of the same user with the same packages.

    Raises:
        HelperError: The classes of the model cannot be imported here.
    """
    view = memoryview(data)
    body = LENGTH + int.from_bytes(view[:LENGTH], "little")
    places = pickle.loads(view[LENGTH:body])
    device = keras.ops.convert_to_tensor(0.0).device
    storages = read_storages(places, view[body:], device)
    body += sum(length for _, length, _ in places)
    token = restore.arrival.set(restore.Arrival(storages))
    try:
        return _load(pickle.Unpickler(io.BytesIO(view[body:])))
    except (ImportError, AttributeError) as error:
        raise HelperError(
            f"A helper process cannot make its copy of the model: {error}. It imports "
            "the modules that the model's classes are from, on the same `sys.path`. "
            "Make the module importable there, or define the class in the script."
        ) from error
    finally:
        restore.arrival.reset(token)


def _load(unpickler: pickle.Unpickler) -> Unpacked:
    model = unpickler.load()
    while True:
        owner, state = unpickler.load()
        if owner is None:
            break
        restore.fill(owner, state)
    variables, objects, others, old = unpickler.load()
    made = (variables, objects, others)
    identities = {
        before: id(now)
        for befores, nows in zip(old, made, strict=True)
        for before, now in zip(befores, nows, strict=True)
    }
    rename(objects, identities)
    return Unpacked(model, variables, objects)
