"""What a dead kernel had written and not delivered: the crash ring, then the fd pipes.

The ring is the program's memory too, so every record is checked. `kernel/ring.py` writes it.
"""

from __future__ import annotations

import codecs
import mmap
import os
import struct
from typing import TYPE_CHECKING, Final, Literal, cast, final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ptc_kernel.types import Channel

__all__ = ("CrashRing", "read_rest")

HEADER: Final = 8
RING_BYTES: Final = 16 * 1024 * 1024 + HEADER
RECORD: Final = struct.Struct("<BI")
KINDS: Final = {1: "stdout", 2: "stderr", 3: "display", 4: "began"}
PIPE_REST: Final = 4 * 1024 * 1024  # a process outside the group may write for ever


@final
class CrashRing:
    """The host's side of the ring.

    Attributes:
        fd: to be inherited by the kernel; closed with `close_fd`.
        seen: the offset that delivered messages reached.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("ptc-output", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, RING_BYTES)
        self._map = mmap.mmap(self.fd, RING_BYTES, prot=mmap.PROT_READ)
        self.seen = 0

    def close_fd(self) -> None:
        """The kernel has inherited the descriptor."""
        os.close(self.fd)

    def undelivered(self) -> Iterator[tuple[Channel | Literal["began"], str]]:
        """The output beyond `seen`, and the ids of runs that began there, in order.

        Stops at the first record that is not one.
        """
        size = RING_BYTES - HEADER
        (end,) = struct.unpack_from("<Q", self._map, 0)
        at = self.seen
        if end - at > size:  # overwritten, or forged
            return
        while at + RECORD.size <= end:
            code, length = RECORD.unpack(self._read(at, RECORD.size))
            at += RECORD.size
            if code not in KINDS or at + length > end:
                return
            yield (
                cast("Channel | Literal['began']", KINDS[code]),
                self._read(at, length).decode("utf-8", "replace"),
            )
            at += length
        self.seen = at

    def _read(self, at: int, length: int) -> bytes:
        size = RING_BYTES - HEADER
        start = at % size
        first = min(length, size - start)
        data = self._map[HEADER + start : HEADER + start + first]
        return data + self._map[HEADER : HEADER + length - first]

    def close(self) -> None:
        """Free the memory."""
        self._map.close()


def read_rest(fd: int) -> str:
    """The text that is left in a pipe whose writers are gone."""
    os.set_blocking(fd, False)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts, size = [], 0
    while size < PIPE_REST:
        try:
            data = os.read(fd, 1024 * 1024)
        except BlockingIOError:
            break
        if not data:
            break
        size += len(data)
        texts.append(decoder.decode(data))
    return "".join(texts) + decoder.decode(b"", True)
