"""Sums and gatherings of the processes that compute one step.

All processes call the same functions in the same order, with tensors of the same
shapes. Each writes into its place, waits for the others, and reads theirs.
"""

import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from keras_unison.engines.torch.processes.arena import HEAD, Arena
from keras_unison.engines.torch.processes.semaphores import SIZE, Semaphore
from keras_unison.errors import HelperError

# Where in the arena's head things lie.
_ABORTED = 0
_ARRIVED = 64
_SEMAPHORES = 4096
MOST = (HEAD - _SEMAPHORES) // SIZE
# After so many bytes a step uses its memory again.
_REUSED_AFTER = 1 << 32
# From so many bytes on each process sums a part only.
_LARGE = 1 << 20
# How often a process that waits looks after the others, in seconds.
_LOOK = 0.5


class Aborted(Exception):
    """Another process has ended the step."""


class Group(Protocol):
    """What a replica knows of the others."""

    @property
    def rank(self) -> int:
        """Which replica this is."""

    @property
    def size(self) -> int:
        """Number of replicas."""

    def gather(self, part: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """All rows, of which replica r brings `lengths[r]`."""

    def sum(
        self, tensors: Sequence[torch.Tensor | None], likes: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """The sum of each tensor in the order of replicas: the same bits in all.

        Args:
            tensors: None for one that this replica does not bring.
            likes: Tensors of the same shapes and types, perhaps without values.

        Returns:
            None for a tensor that no replica brings.
        """

    def same_for_all(self, value: Any) -> Any:
        """The value that the first replica gives."""

    def barrier(self) -> None:
        """Waits for all replicas."""


class SharedGroup:
    """Processes of one machine, which meet in shared memory.

    Args:
        rank: Which of the processes this is.
        size: How many take part.
        arena: The memory.
        limit: How long it waits for the others, in seconds.
        watch: Called while it waits; raises where another process has ended.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        arena: Arena,
        limit: float = 600.0,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank = rank
        self.size = size
        self._arena = arena
        self._limit = limit
        self._watch = watch
        self._begin = HEAD
        self._aborted = arena.numbers(1, _ABORTED)
        self._arrived = arena.numbers(size, _ARRIVED)
        self._semaphores = [
            Semaphore(arena.address + _SEMAPHORES + SIZE * r) for r in range(size)
        ]

    def renew(self) -> None:
        """Makes what processes meet by as new; none may be waiting."""
        for semaphore in self._semaphores:
            semaphore.make()
        self._aborted.zero_()
        self._arrived.zero_()

    def begin(self, position: int) -> None:
        """Begins a step, whose memory begins at this position in all processes."""
        self._begin = self._arena.position = position

    def abort(self) -> None:
        """Ends the step of all processes: each raises `Aborted` where it waits."""
        self._aborted.fill_(1)
        for semaphore in self._semaphores:
            for _ in range(self.size):
                semaphore.post()

    def barrier(self) -> None:
        """Waits for all processes."""
        self._arrived[self.rank] += 1
        for rank, semaphore in enumerate(self._semaphores):
            if rank != self.rank:
                semaphore.post()
        for _ in range(self.size - 1):
            self._wait()
        if self._aborted.item():
            raise Aborted

    def gather(self, part: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """All rows, of which process r brings `lengths[r]`."""
        if len(part) != lengths[self.rank]:
            raise HelperError(
                f"Replica {self.rank} brings a tensor of shape "
                f"{tuple(part.shape)}, where {lengths[self.rank]} rows are expected. A "
                "layer must give as many rows for each row in every replica."
            )
        self._reuse()
        whole = self._arena.take((sum(lengths), *part.shape[1:]), part.dtype)
        before = sum(lengths[: self.rank])
        whole[before : before + lengths[self.rank]].copy_(part.detach())
        self.barrier()
        return whole.to(part.device, copy=True)

    def sum(
        self, tensors: Sequence[torch.Tensor | None], likes: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """The sum of each tensor in the order of processes: the same bits in all."""
        self._reuse()
        there = self._arena.take((self.size, max(1, len(likes))), torch.uint8)
        places = [
            self._arena.take((self.size, *like.shape), like.dtype) for like in likes
        ]
        for number, tensor in enumerate(tensors):
            there[self.rank, number] = tensor is not None
            if tensor is None:
                continue
            if (
                tensor.shape != likes[number].shape
                or tensor.dtype != likes[number].dtype
            ):
                raise HelperError(
                    f"Replica {self.rank} brings {tensor.dtype} of shape "
                    f"{tuple(tensor.shape)} to a sum of {likes[number].dtype} of shape "
                    f"{tuple(likes[number].shape)}: replicas computed different "
                    "things. A layer must not choose what it computes by the values of "
                    "its rows."
                )
            places[number][self.rank].copy_(tensor.detach())
        self.barrier()
        device = next((t.device for t in tensors if t is not None), None)
        if sum(like.numel() * like.element_size() for like in likes) > _LARGE:
            return self._in_parts(places, there.tolist(), device)
        found: list[torch.Tensor | None] = []
        for number, place in enumerate(places):
            ranks = [r for r in range(self.size) if there[r, number]]
            found.append(_added(place, ranks).to(device) if ranks else None)
        return found

    def same_for_all(self, value: Any) -> Any:
        """The value that the first process gives."""
        self._reuse()
        length = self._arena.take((1,), torch.int64)
        data = pickle.dumps(value, protocol=5) if self.rank == 0 else b""
        if self.rank == 0:
            length[0] = len(data)
            held = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            self._arena.take((len(data),), torch.uint8).copy_(held)
        self.barrier()
        if self.rank == 0:
            return value
        there = self._arena.take((int(length[0]),), torch.uint8)
        # From the first process, whose helper this one is.
        return pickle.loads(bytes(there.numpy()))

    def _in_parts(
        self, places: list[torch.Tensor], there: list[list[int]], device: Any
    ) -> list[torch.Tensor | None]:
        """Each process sums its part of every tensor, and takes those of the others."""
        found: list[torch.Tensor | None] = []
        for number, place in enumerate(places):
            ranks = [r for r in range(self.size) if there[r][number]]
            found.append(place[ranks[0]] if ranks else None)
            if len(ranks) < 2:
                continue
            flat = place.view(self.size, -1)
            begin = flat.shape[1] * self.rank // self.size
            end = flat.shape[1] * (self.rank + 1) // self.size
            own = flat[ranks[0], begin:end]
            for rank in ranks[1:]:
                own += flat[rank, begin:end]
        self.barrier()
        return [None if f is None else f.to(device, copy=True) for f in found]

    def _reuse(self) -> None:
        """Starts again with the memory of a step that has used much of it."""
        if self._arena.position - self._begin > _REUSED_AFTER:
            self.barrier()
            self._arena.position = self._begin

    def _wait(self) -> None:
        own = self._semaphores[self.rank]
        begun = time.monotonic()
        while not own.wait(_LOOK):
            if self._aborted.item():
                raise Aborted
            self._watch()
            if time.monotonic() - begun > self._limit:
                raise HelperError(
                    f"Replica {self._late()} did not reach the point where replicas "
                    f"meet within {self._limit:.0f} s: it is still computing, or has "
                    "taken another way through the model than the others. A layer "
                    "must not choose what it calls by the values of its rows."
                )

    def _late(self) -> str:
        arrived = self._arrived.tolist()
        return ", ".join(
            str(rank) for rank, count in enumerate(arrived) if count < max(arrived)
        )


def _added(place: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    total = place[ranks[0]].clone()
    for rank in ranks[1:]:
        total += place[rank]
    return total
