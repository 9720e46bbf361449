"""The helper processes of this interpreter, seen from the user's process.

They belong to the interpreter: started once, while the user's process goes on, and
used by every model. They end with it, however it ends.
"""

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from keras_unison.engines.torch.processes.arena import Arena
from keras_unison.engines.torch.processes.group import MOST, SharedGroup
from keras_unison.engines.torch.processes.helper import Hello
from keras_unison.engines.torch.processes.messages import (
    PATIENCE,
    packed,
    receive,
    send,
    send_packed,
)
from keras_unison.errors import HelperError

# Importing Keras takes a helper seconds, on a busy machine many of them.
_START_SECONDS = 300.0
_STOP_SECONDS = 3.0
# How often the pool looks after its helpers while it waits for them, in seconds.
_LOOK = 0.5
# Before anything is imported, which takes seconds: a helper leaves Ctrl-C to the
# user's process, and ends when that has ended, which closes the other end.
_CODE = """
import os, select, signal, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)
def end_with_parent():
    poll = select.poll()
    poll.register({fd}, select.POLLRDHUP)
    poll.poll()
    os._exit(0)
threading.Thread(target=end_with_parent, daemon=True).start()
from keras_unison.engines.torch.processes.helper import main
main({fd})
"""


@dataclass(slots=True, kw_only=True)
class _Helper:
    rank: int
    process: "subprocess.Popen[bytes]"
    link: socket.socket
    is_ready: bool = False
    path: list[str]


class Pool:
    """Helper processes, and the memory that they share with this one."""

    def __init__(self) -> None:
        self.arena = Arena.create()
        self._helpers: list[_Helper] = []
        self._groups: dict[int, SharedGroup] = {}
        self._asked: list[_Helper] = []
        self._owner = os.getpid()
        atexit.register(self.stop)
        os.register_at_fork(after_in_child=self._let_go)

    def pids(self) -> list[int]:
        """The numbers of the helper processes."""
        return [helper.process.pid for helper in self._helpers]

    def ensure(self, size: int) -> None:
        """Starts what is missing of the processes for `size` replicas."""
        if size > MOST:
            raise HelperError(f"At most {MOST} replicas can meet. Received: {size}")
        for rank in range(len(self._helpers) + 1, size):
            self._helpers.append(self._started(rank))

    def group(self, size: int) -> SharedGroup:
        """This process among the first `size` ones, which are ready then."""
        self.ensure(size)
        for helper in self._helpers[: size - 1]:
            if not helper.is_ready:
                self._receive(helper, _START_SECONDS)
                helper.is_ready = True
        if size not in self._groups:
            self._groups[size] = SharedGroup(0, size, self.arena, watch=self._look)
        return self._groups[size]

    def command(self, size: int, target: str, *args: Any) -> None:
        """Lets each helper call `target(context, group, *args)`, and goes on.

        Args:
            size: How many processes take part, this one included.
            target: `"package.module:function"`.
            args: What it is called with.
        """
        group = self.group(size)
        if not self._asked:
            # All helpers are outside: what an ended step has left is of no use.
            group.renew()
        data = packed(args)
        try:
            for helper in self._helpers[: size - 1]:
                path = None if helper.path == sys.path else list(sys.path)
                send(helper.link, (size, target, path))
                send_packed(helper.link, data)
                helper.path = path or helper.path
                self._asked.append(helper)
        except TimeoutError as error:
            self.stop()
            raise HelperError(
                f"Replica {helper.rank} did not take a command of {len(data)} bytes "
                f"within {PATIENCE:.0f} s: its process was stopped, or the machine is "
                "far too busy. It was ended; the next fit starts a new one."
            ) from error
        except OSError as error:
            raise self._lost(helper) from error
        except BaseException:
            # Half a message may have gone out.
            self.stop()
            raise

    def settle(self, seconds: float | None = None) -> list[Any]:
        """Waits for the answers to the last command; returns them by rank.

        Raises:
            HelperError: One has failed, with its own traceback, or has ended.
        """
        answers = self.answers(seconds)
        failed = [
            (r, value) for r, (kind, value) in answers.items() if kind == "failed"
        ]
        if failed:
            rank, failure = failed[0]
            raise HelperError(
                f"Replica {rank} failed: {failure.text}\n\nThe traceback of replica "
                f"{rank}:\n{failure.trace}"
            )
        return [value for _, value in answers.values()]

    def answers(self, seconds: float | None = None) -> dict[int, tuple[str, Any]]:
        """The answers to the last command, by rank: `done`, `aborted` or `failed`.

        Where several commands were given, what went wrong in the first that failed.
        """
        asked, self._asked = self._asked, []
        end = None if seconds is None else time.monotonic() + seconds
        found: dict[int, tuple[str, Any]] = {}
        try:
            while asked:
                helper = self._next(asked, end)
                if helper is None:
                    raise self._late(asked[0], seconds)
                asked.remove(helper)
                answer = self._receive(helper, PATIENCE)
                if found.get(helper.rank, ("done", None))[0] == "done":
                    found[helper.rank] = answer
            return dict(sorted(found.items()))
        except HelperError:
            raise
        except BaseException:
            # The answers that are missing would be taken for those to the next one.
            self.stop()
            raise

    @property
    def is_ours(self) -> bool:
        """Whether this process started it, and was not forked from the one that did."""
        return self._owner == os.getpid()

    def stop(self) -> None:
        """Ends the helpers; the next command starts new ones."""
        if not self.is_ours:
            return
        helpers, self._helpers, self._asked = self._helpers, [], []
        self._groups.clear()
        for helper in helpers:
            helper.link.close()
        end = time.monotonic() + _STOP_SECONDS
        for helper in helpers:
            try:
                helper.process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                helper.process.kill()
                helper.process.wait()

    def _started(self, rank: int) -> _Helper:
        import torch

        ours, theirs = socket.socketpair()
        fds = [theirs.fileno(), self.arena.fd]
        path = [part for part in sys.path if part] + [os.getcwd()]
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE.format(fd=theirs.fileno())],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                env={**_environment(), "PYTHONPATH": os.pathsep.join(path)},
                # Signals that a terminal sends go to the user's process only.
                process_group=0,
            )
        finally:
            theirs.close()
        hello = Hello(
            rank=rank,
            arena=self.arena.fd,
            threads=torch.get_num_threads(),
            path=sys.path,
        )
        send(ours, hello)
        return _Helper(rank=rank, process=process, link=ours, path=list(sys.path))

    def _next(self, asked: list[_Helper], end: float | None) -> _Helper | None:
        """The next helper that answers; None if none does in time.

        Looks now and then after all of them.
        """
        poll = select.poll()
        for helper in asked:
            poll.register(helper.link, select.POLLIN)
        while True:
            for fd, _ in poll.poll(_LOOK * 1000):
                return next(h for h in asked if h.link.fileno() == fd)
            self._look()
            if end is not None and time.monotonic() > end:
                return None

    def _receive(self, helper: _Helper, seconds: float | None) -> Any:
        """An answer."""
        try:
            return receive(helper.link, seconds)
        except EOFError as error:
            raise self._lost(helper) from error
        except TimeoutError as error:
            raise self._late(helper, seconds) from error

    def _late(self, helper: _Helper, seconds: float | None) -> HelperError:
        """The error for a helper that does not answer; all are ended."""
        self.stop()
        return HelperError(
            f"Replica {helper.rank} did not answer within {seconds or 0.0:.0f} s. Its "
            "process was ended; the next fit starts a new one."
        )

    def _look(self) -> None:
        """Raises if a helper has ended."""
        for helper in self._helpers:
            if helper.process.poll() is not None:
                raise self._lost(helper)

    def _lost(self, helper: _Helper) -> HelperError:
        """The error for a helper that has ended; the others are ended too."""
        try:
            code = helper.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            code = 0
        self.stop()
        return HelperError(
            f"The process of replica {helper.rank} has ended: {_reason(code)}. The "
            "model is as after its last complete step; the next fit starts a new "
            "process."
        )

    def _let_go(self) -> None:
        """In a process that was forked: lets the helpers end with their own parent."""
        for helper in self._helpers:
            helper.link.close()
        self._helpers = []


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("KERAS_UNISON_SIMULATE", "KERAS_UNISON_DEVICES")
    }
    # Where the user's layers import these, they must leave the GPUs to torch.
    return {
        **kept,
        "KERAS_BACKEND": "torch",
        "JAX_PLATFORMS": "cpu",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }


def _reason(code: int) -> str:
    if code >= 0:
        return f"its exit status is {code}"
    name = signal.Signals(-code).name
    memory = " (the system does that when memory runs out)" if code == -9 else ""
    return f"it was ended by {name}{memory}"


_pools: list[Pool] = []


def pool() -> Pool:
    """The pool of this interpreter."""
    # One that came with a fork shares its memory with the other process's steps.
    if not _pools or not _pools[0].is_ours:
        _pools[:] = [Pool()]
    return _pools[0]
