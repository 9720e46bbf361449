"""Messages between the user's process and its helpers, over a pair of sockets.

They are pickled: both ends belong to one user and program, and no address is open.
"""

import pickle
import socket
import struct
import time
from typing import Any

_HEADER = struct.Struct("<q")


def send(link: socket.socket, message: Any) -> None:
    """Sends a message.

    Raises:
        OSError: The other process has ended.
    """
    data = pickle.dumps(message, protocol=5)
    link.settimeout(None)
    link.sendall(_HEADER.pack(len(data)))
    link.sendall(data)


def receive(link: socket.socket, seconds: float | None) -> Any:
    """The next message.

    Raises:
        EOFError: The other process has ended.
        TimeoutError: There was none in time.
    """
    end = None if seconds is None else time.monotonic() + seconds
    (length,) = _HEADER.unpack(_exactly(link, _HEADER.size, end))
    return pickle.loads(_exactly(link, length, end))


def _exactly(link: socket.socket, length: int, end: float | None) -> bytearray:
    data = bytearray(length)
    view, filled = memoryview(data), 0
    while filled < length:
        link.settimeout(None if end is None else max(end - time.monotonic(), 0.001))
        try:
            count = link.recv_into(view[filled:])
        except ConnectionError as error:
            raise EOFError from error
        if not count:
            raise EOFError
        filled += count
    return data
