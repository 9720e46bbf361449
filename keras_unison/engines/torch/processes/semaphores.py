"""Semaphores of POSIX in shared memory: without a name, so that none can be left."""

import ctypes
import errno
import os
import time
from typing import Any

# The size of a `sem_t` on the systems that torch runs on is 32 bytes; each has a
# cache line or two to itself.
SIZE = 128

_libc = ctypes.CDLL(None, use_errno=True)
# A clock that is set while a process waits must not make it wait longer; not every
# C library has a way to wait by the other one.
_by_monotonic = getattr(_libc, "sem_clockwait", None)


class _Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Semaphore:
    """A counter that processes raise and wait for.

    Args:
        address: Where it lies, in memory that the processes share.
    """

    def __init__(self, address: int) -> None:
        self._at = ctypes.c_void_p(address)

    def make(self) -> None:
        """Makes it anew, at 0."""
        if _libc.sem_init(self._at, 1, 0) != 0:
            _raise()

    def post(self) -> None:
        """Raises it by one."""
        if _libc.sem_post(self._at) != 0:
            _raise()

    def wait(self, seconds: float) -> bool:
        """Lowers it by one when it is above 0; False if it was not in time."""
        if _libc.sem_trywait(self._at) == 0:
            return True
        now = time.time() if _by_monotonic is None else time.monotonic()
        end = now + seconds
        until = ctypes.byref(_Time(int(end), int(end % 1 * 1e9)))
        while self._wait_until(until) != 0:
            number = ctypes.get_errno()
            if number == errno.ETIMEDOUT:
                return False
            if number != errno.EINTR:
                _raise()
        return True

    def _wait_until(self, until: Any) -> int:
        if _by_monotonic is None:
            return int(_libc.sem_timedwait(self._at, until))
        return int(_by_monotonic(self._at, time.CLOCK_MONOTONIC, until))


def _raise() -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
