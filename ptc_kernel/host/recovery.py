"""What a dead kernel had written and not delivered: the crash ring, then the fd pipes.

The ring is the program's memory too, so every record is checked. `kernel/ring.py` writes it.
"""

from __future__ import annotations

import codecs
import fcntl
import mmap
import os
import struct
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("CrashRing", "read_rest")

Kind: TypeAlias = Literal["stdout", "stderr", "display", "began"]

HEADER: Final = 16
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
RING_BYTES: Final = 16 * 1024 * 1024 + HEADER
RECORD: Final = struct.Struct("<BI")
KINDS: Final[tuple[Kind, ...]] = ("stdout", "stderr", "display", "began")
PARTIAL_AT: Final = {"stdout": 8, "stderr": 12}
MOST_PARTIAL: Final = 3
MOST_RECORDS: Final = 64 * 1024  # more messages do not fit into the window, so more records are forged
PIPE_REST: Final = 4 * 1024 * 1024  # a process outside the group may write for ever


@final
class CrashRing:
    """The host's side of the ring.

    Attributes:
        fd: to be inherited by the kernel; closed with `close_fd`.
        seen: the offset that delivered messages reached.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("ptc-output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, RING_BYTES)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)  # a ring that shrinks kills who reads it
            self._map = mmap.mmap(self.fd, RING_BYTES, prot=mmap.PROT_READ)
        except OSError:
            os.close(self.fd)
            raise
        self.seen = 0

    def close_fd(self) -> None:
        """The kernel has inherited the descriptor, or never will."""
        os.close(self.fd)

    def undelivered(self) -> Iterator[tuple[Kind, bytes]]:
        """The records beyond `seen`, in order; stops at the first that is not one."""
        size = RING_BYTES - HEADER
        (end,) = struct.unpack_from("<Q", self._map, 0)
        at = self.seen
        if end - at > size:  # overwritten, or forged
            return
        for _ in range(MOST_RECORDS):
            if at + RECORD.size > end:
                break
            code, length = RECORD.unpack(self._read(at, RECORD.size))
            at += RECORD.size
            if not 1 <= code <= len(KINDS) or length > size // 2:
                return
            length = min(length, end - at)  # the last record may have been growing
            yield KINDS[code - 1], self._read(at, length)
            at += length
        self.seen = at

    def partial(self, channel: Literal["stdout", "stderr"]) -> bytes:
        """The first bytes of a character of fd 1 or 2 that the kernel had read."""
        at = PARTIAL_AT[channel]
        count, data = self._map[at], self._map[at + 1 : at + 1 + MOST_PARTIAL]
        return data[: min(count, MOST_PARTIAL)]

    def _read(self, at: int, length: int) -> bytes:
        size = RING_BYTES - HEADER
        start = at % size
        first = min(length, size - start)
        data = self._map[HEADER + start : HEADER + start + first]
        return data + self._map[HEADER : HEADER + length - first]

    def close(self) -> None:
        """Free the memory."""
        self._map.close()


def read_rest(fd: int, begun: bytes = b"") -> str:
    """The text that is left in a pipe whose writers are gone, after the first bytes of a character."""
    os.set_blocking(fd, False)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts, size = [decoder.decode(begun)], 0
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
