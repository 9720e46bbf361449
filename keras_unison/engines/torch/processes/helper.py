"""A helper process: what the user's process asks of it, one command after the other.

It starts with nothing of the user's script. A command names a function of this
package, which gets what the helper keeps and what came with the command.
"""

import gc
import importlib
import os
import pickle
import socket
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any

from keras_unison.engines.torch.processes.messages import (
    packed,
    receive,
    receive_packed,
    send,
    send_packed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message to a helper.

    Attributes:
        rank: Which replica it is.
        arena: The number under which it has the shared memory.
        threads: How many threads torch computes with.
        path: Where Python looks for modules.
    """

    rank: int
    arena: int
    threads: int
    path: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error in a helper.

    Attributes:
        text: Its type and text, in a line.
        trace: The whole traceback.
    """

    text: str
    trace: str


@dataclass(slots=True, kw_only=True)
class Context:
    """What a helper has, for the functions that commands name.

    Attributes:
        rank: Which replica it is.
        arena: The shared memory.
        groups: The processes that meet, by their number.
        held: What functions keep from one command to the next.
    """

    rank: int
    arena: Any
    groups: dict[int, Any] = field(default_factory=dict)
    held: dict[Any, Any] = field(default_factory=dict)

    def group(self, size: int) -> Any:
        """This process among the first `size` ones."""
        from keras_unison.engines.torch.processes.group import SharedGroup

        if size not in self.groups:
            self.groups[size] = SharedGroup(self.rank, size, self.arena)
        return self.groups[size]


def main(fd: int) -> None:
    """Runs a helper, which has its end of the connection under this number.

    `pool` has seen to it, before this module was imported, that the process ends when
    the other end closes.
    """
    link = socket.socket(fileno=fd)
    hello: Hello = receive(link, None)
    sys.path[:] = hello.path
    context = _start(hello)
    send(link, "ready")
    try:
        while True:
            _serve(link, context)
    except (EOFError, ConnectionError):
        os._exit(0)


def _serve(link: socket.socket, context: Context) -> None:
    """Runs the next command; nothing of it stays in memory afterwards."""
    size, target, path = receive(link, None)
    if path is not None:
        sys.path[:] = path
    kind, data = _answer(context, size, target, receive_packed(link, None))
    send_packed(link, data)
    if kind == "failed":
        # Frames of the traceback may hold each other, and a step's tensors.
        gc.collect()


def _start(hello: Hello) -> Context:
    import torch

    from keras_unison.engines.torch.processes.arena import Arena

    torch.set_num_threads(hello.threads)
    return Context(rank=hello.rank, arena=Arena(hello.arena))


def _answer(
    context: Context, size: int, target: str, data: bytearray
) -> tuple[str, bytes]:
    """What became of a command, and that as a message."""
    from keras_unison.engines.torch.processes.group import Aborted

    group = context.group(size)
    try:
        module, name = target.split(":")
        function = getattr(importlib.import_module(module), name)
        # From the user's process, whose helper this one is.
        result = function(context, group, *pickle.loads(data))
        return "done", packed(("done", result))
    except Aborted:
        return "aborted", packed(("aborted", None))
    except BaseException as error:  # noqa: BLE001 - told to the user's process
        group.abort()
        failure = Failure(
            text=f"{type(error).__name__}: {error}", trace=traceback.format_exc()
        )
        return "failed", packed(("failed", failure))
