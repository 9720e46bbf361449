"""Replicas in threads of one process, which take turns: for trials of a layer call.

One runs at a time, until it has to meet the others. So the results do not depend on
the order in which the system runs threads, and each has the random numbers of
Python, NumPy and torch to itself, all from the same state.
"""

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from keras_unison import _keras
from keras_unison.engines.torch.random_states import bring_back, states

# How long a replica may compute between two meetings, in seconds.
_LIMIT = 600.0


class _Ended(Exception):
    """Another replica has failed, so that this one goes no further."""


class _Turns:
    """Whose turn it is, and what each has brought to the present meeting."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.turn = threading.Condition()
        self.running = 0
        self.brought: list[Any] = [None] * size
        self.met: list[Any] = [None] * size
        self.failure: BaseException | None = None
        self.generators = [states()] * size

    def wait_for(self, rank: int) -> None:
        """Waits for the turn, and takes up this replica's random numbers."""
        with self.turn:
            mine = self.turn.wait_for(
                lambda: self.running == rank or self.failure is not None, _LIMIT
            )
        if self.failure is not None or not mine:
            raise _Ended
        bring_back(self.generators[rank])

    def pass_on(self, rank: int) -> None:
        """Gives the turn to the next replica."""
        self.generators[rank] = states()
        with self.turn:
            if rank == self.size - 1:
                self.met, self.brought = self.brought, [None] * self.size
            self.running = (rank + 1) % self.size
            self.turn.notify_all()

    def end(self, failure: BaseException) -> None:
        """Ends all replicas, since one has failed."""
        with self.turn:
            self.failure = self.failure or failure
            self.turn.notify_all()


class ThreadGroup:
    """One replica's way to the others; see `processes.group.Group`.

    Attributes:
        rank: Which replica this is.
        size: Number of replicas.
    """

    def __init__(self, rank: int, turns: _Turns) -> None:
        self.rank = rank
        self.size = turns.size
        self._turns = turns

    def gather(self, part: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """All rows, of which each replica brings its own."""
        return torch.cat(self._meet(part.detach()))

    def sum(
        self, tensors: Sequence[torch.Tensor | None], likes: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """The sum of each tensor over replicas, in their order."""
        found: list[torch.Tensor | None] = []
        for each in zip(*self._meet(list(tensors)), strict=True):
            there = [tensor.detach() for tensor in each if tensor is not None]
            found.append(torch.stack(there).sum(0) if there else None)
        return found

    def same_for_all(self, value: Any) -> Any:
        """The first replica's value."""
        return self._meet(value)[0]

    def barrier(self) -> None:
        """Waits for all replicas."""
        self._meet(None)

    def _meet(self, value: Any) -> list[Any]:
        self._turns.brought[self.rank] = value
        self._turns.pass_on(self.rank)
        self._turns.wait_for(self.rank)
        return list(self._turns.met)


def run_in_threads(size: int, run: Callable[[ThreadGroup], Any]) -> list[Any]:
    """Runs `run(group)` once for each of `size` replicas; returns what each returned.

    Raises what one of them raised. Python's, NumPy's and torch's random numbers are
    afterwards where the first replica left them.
    """
    turns = _Turns(size)
    results: list[Any] = [None] * size
    here = _keras.state_of_thread()
    grad, context = torch.is_grad_enabled(), contextvars.copy_context()

    def work(rank: int) -> None:
        _keras.set_state_of_thread(here)
        torch.set_grad_enabled(grad)
        try:
            turns.wait_for(rank)
            results[rank] = run(ThreadGroup(rank, turns))
            turns.pass_on(rank)
        except _Ended:
            pass
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            turns.end(error)

    threads = [
        threading.Thread(target=context.copy().run, args=(work, rank), daemon=True)
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LIMIT)
    if turns.failure is not None:
        raise turns.failure
    bring_back(turns.generators[0])
    return results
