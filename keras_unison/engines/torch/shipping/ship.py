"""Bytes of a model, for helper processes to make a copy from."""

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras_unison.engines.torch.shipping.diagnosis import Diagnosis
from keras_unison.engines.torch.shipping.origins import Origins, origins
from keras_unison.engines.torch.shipping.pickler import LeftOut, ModelPickler

# Where the bytes of tensors begin, and how many bytes say so.
LENGTH = 8


@dataclass(frozen=True, slots=True)
class Shipped:
    """A model as bytes.

    Attributes:
        data: What `unpack` makes a copy from.
        variables: Keras's variables that are in it, in the order of the copy's.
        objects: Layers, optimizers, metrics, losses and the like, in that order.
    """

    data: bytes
    variables: list[Any]
    objects: list[Any]


def ship(model: Any) -> Shipped:
    """Bytes from which a process that shares nothing makes a copy of a model.

    Args:
        model: A Keras model, built or not, compiled or not. It is not changed.

    Raises:
        ModelError: The model holds what no other process can have.
    """
    left_out: LeftOut = set()
    with origins() as found:
        while True:
            shipped = _ship(model, found, left_out)
            if shipped is not None:
                return shipped


def _ship(model: Any, found: Origins, left_out: LeftOut) -> Shipped | None:
    """The bytes; None after more was left out, without which they may be had."""
    file = io.BytesIO()
    pickler = ModelPickler(file, found, left_out)
    owner = model
    try:
        pickler.dump(model)
        while pickler.waiting:
            owner = pickler.waiting.popleft()
            pickler.dump((owner, pickler.state_of(owner)))
    except Exception as error:  # noqa: BLE001
        Diagnosis(found, left_out).leave_out(owner, error)
        return None
    met = (pickler.variables, pickler.objects, pickler.others)
    pickler.dump((None, None))
    pickler.dump((*met, [[id(obj) for obj in objects] for objects in met]))
    head = pickle.dumps(pickler.storages.places())
    parts: Sequence[Any] = (
        len(head).to_bytes(LENGTH, "little"),
        head,
        *pickler.storages.contents(),
        file.getbuffer(),
    )
    return Shipped(b"".join(parts), pickler.variables, pickler.objects)
