"""A helper process: what the user's process asks of it, one command after the other.

It starts with nothing of the user's script. A command names a function of this
package, which gets what the helper keeps and what came with the command.
"""

import importlib
import os
import select
import signal
import socket
import sys
import threading
import traceback
from dataclasses import dataclass, field
from typing import Any

from keras_unison.engines.torch.processes.messages import receive, send


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
        watch: Ends this process when the user's process has ended.
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
    """Runs a helper, which has its end of the connection under this number."""
    # Ctrl-C is for the user's process, which tells its helpers what follows.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = socket.socket(fileno=fd)
    threading.Thread(target=_end_with_parent, args=(fd,), daemon=True).start()
    hello: Hello = receive(link, None)
    sys.path[:] = hello.path
    context = _start(hello)
    send(link, "ready")
    while True:
        try:
            command = receive(link, None)
        except EOFError:
            os._exit(0)
        send(link, _answer(context, *command))


def _end_with_parent(fd: int) -> None:
    """Ends this process, whatever it does, when the other end of the link closes."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP | select.POLLHUP)
    while True:
        if poll.poll():
            os._exit(0)


def _start(hello: Hello) -> Context:
    import torch

    from keras_unison.engines.torch.processes.arena import Arena

    torch.set_num_threads(hello.threads)
    importlib.import_module("keras_unison.engines.torch.worker")
    return Context(rank=hello.rank, arena=Arena(hello.arena))


def _answer(context: Context, size: int, target: str, args: tuple[Any, ...]) -> Any:
    from keras_unison.engines.torch.processes.group import Aborted

    group = context.group(size)
    try:
        module, name = target.split(":")
        function = getattr(importlib.import_module(module), name)
        return "done", function(context, group, *args)
    except Aborted:
        return "aborted", None
    except BaseException as error:  # noqa: BLE001 - told to the user's process
        group.abort()
        failure = Failure(
            text=f"{type(error).__name__}: {error}", trace=traceback.format_exc()
        )
        return "failed", failure
