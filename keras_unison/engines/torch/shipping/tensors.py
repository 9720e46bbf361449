"""The memory of tensors, which goes along as it is.

Torch pickles each storage as a file of its own, which takes several times as long.
Tensors that share memory share it in the copy, too. Of a storage only what tensors
use goes along: a weight may be a small part of a large mapping.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

_ALIGNED = 64


@dataclass(slots=True)
class _Storage:
    """The memory of some tensors.

    Attributes:
        memory: All of it, as bytes.
        begin: The first byte that a tensor uses.
        end: The byte after the last one that a tensor uses.
    """

    memory: torch.Tensor
    begin: int
    end: int


class Storages:
    """The memory that the tensors of a model use."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._storages: list[_Storage] = []

    def number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's memory, where its bytes are noted."""
        storage = tensor.untyped_storage()
        number = self._known.setdefault(storage._cdata, len(self._storages))
        if number == len(self._storages):
            memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            memory.set_(storage, 0, (storage.nbytes(),), (1,))
            self._storages.append(_Storage(memory, storage.nbytes(), 0))
        begin, end = _used(tensor)
        if end > begin:
            found = self._storages[number]
            found.begin = min(found.begin, begin // _ALIGNED * _ALIGNED)
            found.end = max(found.end, end)
        return number

    def places(self) -> list[tuple[int, int, bool]]:
        """Of each memory: its first byte, its length, and whether it is the CPU's."""
        return [
            (s.begin, max(s.end - s.begin, 0), s.memory.device.type == "cpu")
            for s in self._storages
        ]

    def contents(self) -> Iterator[Any]:
        """The bytes of each memory."""
        for storage in self._storages:
            if storage.end > storage.begin:
                used = storage.memory[storage.begin : storage.end]
                yield used.detach().cpu().numpy().data


def plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is bytes in memory, of no special kind."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def read_storages(
    places: list[tuple[int, int, bool]], data: memoryview, device: Any
) -> list[tuple[torch.Tensor, int]]:
    """New memory for tensors, and where it begins in the original's.

    Args:
        places: As `Storages.places` gave them.
        data: The bytes of all, one after the other.
        device: Where memory goes that was on an accelerator.
    """
    found, position = [], 0
    for begin, length, on_cpu in places:
        memory = torch.empty(length, dtype=torch.uint8, device="cpu")
        memory.numpy().data[:] = data[position : position + length]
        position += length
        found.append((memory if on_cpu else memory.to(device), begin))
    return found


def _used(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte that a tensor uses in its memory, and the one after the last."""
    size = tensor.element_size()
    begin = tensor.storage_offset() * size
    if not math.prod(tensor.shape):
        return begin, begin
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((length - 1) * stride for length, stride in steps)
    return begin, begin + (last + 1) * size
