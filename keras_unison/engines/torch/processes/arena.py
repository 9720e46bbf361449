"""Memory that the processes share: one file in memory, without a name."""

import ctypes
import math
import mmap
import os
from collections.abc import Sequence

import torch

from keras_unison.errors import HelperError

# Pages exist once they are touched, so that this much costs nothing.
_BYTES = 1 << 36
_FEWEST_BYTES = 1 << 28
# In front: flags, counters and semaphores.
HEAD = 1 << 16
_ALIGNED = 64


class Arena:
    """Shared memory, given out one piece after the other.

    Every process takes the same pieces in the same order, so that places agree
    without a word.

    Args:
        fd: The file, which a helper process inherits.

    Attributes:
        position: Where the next piece begins.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self._map = mmap.mmap(fd, self.size)
        self._first = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._first)
        self.position = HEAD

    @classmethod
    def create(cls) -> "Arena":
        """A new one, which ends with the last process that has it.

        It is smaller where the system limits files or the space of addresses.

        Raises:
            HelperError: Not even a small one can be had.
        """
        fd = os.memfd_create("keras_unison", os.MFD_CLOEXEC)
        size = _BYTES
        while True:
            try:
                os.ftruncate(fd, size)
                return cls(fd)
            except OSError as error:
                if size > _FEWEST_BYTES:
                    size //= 2
                    continue
                os.close(fd)
                raise HelperError(
                    f"The system refuses {size >> 20} MiB of shared memory "
                    f"({error.strerror}). Raise the limits that `ulimit -f` and "
                    "`ulimit -v` show, or train on one device."
                ) from error

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The next piece, as a tensor of this shape and type.

        Raises:
            HelperError: There is no place for it.
        """
        count = math.prod(shape)
        if count == 0:
            return torch.empty(tuple(shape), dtype=dtype)
        taken = count * dtype.itemsize
        if self.position + taken > self.size:
            raise HelperError(
                f"A step exchanges more than {self.size >> 20} MiB between its "
                f"replicas; the next tensor has the shape {tuple(shape)}. Train with "
                "smaller batches."
            )
        piece = torch.frombuffer(
            self._map, dtype=dtype, count=count, offset=self.position
        )
        self.position += -(-taken // _ALIGNED) * _ALIGNED
        return piece.view(tuple(shape))

    def numbers(self, count: int, offset: int) -> torch.Tensor:
        """Whole numbers in the head."""
        return torch.frombuffer(
            self._map, dtype=torch.int64, count=count, offset=offset
        )

    def give_back(self, begin: int, end: int) -> None:
        """Gives the memory of pieces that nobody needs back to the system.

        Pages that other pieces lie on, too, stay.
        """
        page = mmap.PAGESIZE
        begin, end = -(-begin // page) * page, end // page * page
        if end > begin:
            self._map.madvise(mmap.MADV_REMOVE, begin, end - begin)
