"""Messages between the user's process and its helpers, over a pair of sockets.

They are pickled: both ends belong to one user and program, and no address is open.
"""

import pickle
import socket
import struct
import time
from typing import Any

_HEADER = struct.Struct("<q")
# How long the other process may leave a message lying, or stop in the middle of one.
PATIENCE = 300.0
# Up to so many bytes, one call of the system is worth a copy.
_SMALL = 1 << 16


def packed(message: Any) -> bytes:
    """A message as bytes."""
    return pickle.dumps(message, protocol=5)


def send(link: socket.socket, message: Any) -> None:
    """Sends a message.

    Raises:
        OSError: The other process has ended, or does not take it (TimeoutError).
    """
    send_packed(link, packed(message))


def send_packed(link: socket.socket, data: bytes) -> None:
    """Sends what `packed` returned; raises as `send` does."""
    link.settimeout(PATIENCE)
    header = _HEADER.pack(len(data))
    if len(data) < _SMALL:
        link.sendall(header + data)
        return
    link.sendall(header)
    link.sendall(data)


def receive(link: socket.socket, seconds: float | None) -> Any:
    """The next message.

    Raises:
        EOFError: The other process has ended.
        TimeoutError: There was none in time.
    """
    return pickle.loads(receive_packed(link, seconds))


def receive_packed(link: socket.socket, seconds: float | None) -> bytearray:
    """The next message as bytes; raises as `receive` does."""
    (length,) = _HEADER.unpack(_exactly(link, _HEADER.size, seconds))
    return _exactly(link, length, PATIENCE)


def _exactly(link: socket.socket, length: int, seconds: float | None) -> bytearray:
    """So many bytes, the first ones in so many seconds and the rest in bounded time."""
    data = bytearray(length)
    view, filled = memoryview(data), 0
    link.settimeout(None if seconds is None else max(seconds, 0.001))
    end = None
    while filled < length:
        if filled:
            end = end or time.monotonic() + PATIENCE
            link.settimeout(max(end - time.monotonic(), 0.001))
        try:
            count = link.recv_into(view[filled:])
        except ConnectionError as error:
            raise EOFError from error
        if not count:
            raise EOFError
        filled += count
    return data
