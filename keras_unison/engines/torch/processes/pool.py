"""The helper processes of this interpreter, seen from the user's process.

They belong to the interpreter: started once, while the user's process goes on, and
used by every model. They end with it, however it ends.
"""

import atexit
import os
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
from keras_unison.engines.torch.processes.messages import receive, send
from keras_unison.errors import HelperError

# Importing Keras takes a helper seconds, on a busy machine many of them.
_START_SECONDS = 300.0
_STOP_SECONDS = 3.0
_CODE = "from keras_unison.engines.torch.processes.helper import main; main({fd})"


@dataclass(slots=True, kw_only=True)
class _Helper:
    rank: int
    process: "subprocess.Popen[bytes]"
    link: socket.socket
    is_ready: bool = False


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
            group = SharedGroup(0, size, self.arena, watch=self._look)
            group.renew()
            self._groups[size] = group
        return self._groups[size]

    def command(self, size: int, target: str, *args: Any) -> None:
        """Lets each helper call `target(context, group, *args)`, and goes on.

        Args:
            size: How many processes take part, this one included.
            target: `"package.module:function"`.
            args: What it is called with.
        """
        self.group(size)
        try:
            for helper in self._helpers[: size - 1]:
                send(helper.link, (size, target, args))
                self._asked.append(helper)
        except OSError as error:
            raise self._lost() from error
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
        """The answers to the last command, by rank: `done`, `aborted` or `failed`."""
        asked, self._asked = self._asked, []
        try:
            return {helper.rank: self._receive(helper, seconds) for helper in asked}
        except HelperError:
            raise
        except BaseException:
            # The answers that are missing would be taken for those to the next one.
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the helpers; the next command starts new ones."""
        if os.getpid() != self._owner:
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
                [sys.executable, "-c", _CODE.format(fd=theirs.fileno())],
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
        return _Helper(rank=rank, process=process, link=ours)

    def _receive(self, helper: _Helper, seconds: float | None) -> Any:
        """An answer; looks now and then whether the process is there."""
        end = None if seconds is None else time.monotonic() + seconds
        try:
            return receive(helper.link, None if end is None else end - time.monotonic())
        except EOFError as error:
            raise self._lost(helper) from error
        except TimeoutError as error:
            self.stop()
            raise HelperError(
                f"Replica {helper.rank} did not answer within {seconds:.0f} s. Its "
                "process was ended; the next fit starts a new one."
            ) from error

    def _look(self) -> None:
        """Raises if a helper has ended."""
        for helper in self._helpers:
            if helper.process.poll() is not None:
                raise self._lost(helper)

    def _lost(self, helper: _Helper | None = None) -> HelperError:
        """The error for a helper that has ended; the others are ended too."""
        if helper is None:
            time.sleep(0.1)
            gone = [h for h in self._helpers if h.process.poll() is not None]
            helper = gone[0] if gone else self._helpers[0]
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
    if not _pools:
        _pools.append(Pool())
    return _pools[0]
