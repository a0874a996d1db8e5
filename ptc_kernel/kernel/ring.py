"""The last output, in memory that the host shares: what a crash would lose is read from there.

Layout: a header of 16 bytes, then a ring of records. A record is a code (1 byte), the length (4
bytes, little endian) and the UTF-8 bytes. The header has the end offset (8 bytes), written last:
it says how much of the last record counts. For fd 1 and 2 it has the first bytes of a character
whose others have not come (4 bytes each: their number, then up to three). `host/recovery.py`
reads all that.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Final

__all__ = ("Ring",)

HEADER: Final = 16
RECORD: Final = struct.Struct("<BI")
CODES: Final = {"stdout": 1, "stderr": 2, "display": 3, "began": 4}
PARTIAL_AT: Final = {"stdout": 8, "stderr": 12}
_END: Final = struct.Struct("<Q")
_PARTIAL: Final = struct.Struct("<B3s")


class Ring:
    """The writing side; the caller holds a lock."""

    def __init__(self, fd: int) -> None:
        self._size = os.fstat(fd).st_size - HEADER
        self._map = mmap.mmap(fd, self._size + HEADER)
        self.end: int = 0
        self._last = ""  # the kind of the record that may still grow
        self._start = self._length = 0

    def mark(self) -> int:
        """The end offset, for a message; what is added from now on is a record of its own."""
        self._last = ""
        return self.end

    def add(self, kind: str, data: bytes) -> None:
        """Append output of a channel, or the id of a run that began.

        Output that follows other output of its channel, and that no message has reached, goes
        into the same record: else short writes would be mostly headers.
        """
        data = data[-(self._size // 2) :]  # a display may be larger than the ring
        if kind == self._last and len(data) + self._length <= self._size // 2:
            self._write(self.end, data)
            self._length += len(data)
            self._write(self._start, RECORD.pack(CODES[kind], self._length))
            self.end += len(data)
        else:
            self._start, self._length = self.end, len(data)
            self._last = "" if kind == "began" else kind
            self._write(self.end, RECORD.pack(CODES[kind], len(data)) + data)
            self.end += RECORD.size + len(data)
        _END.pack_into(self._map, 0, self.end)

    def _write(self, offset: int, data: bytes) -> None:
        at = offset % self._size
        first = min(len(data), self._size - at)
        self._map[HEADER + at : HEADER + at + first] = data[:first]
        if first < len(data):
            self._map[HEADER : HEADER + len(data) - first] = data[first:]

    def set_partial(self, channel: str, data: bytes) -> None:
        """Note the first bytes of a character of fd 1 or 2, or that there are none."""
        _PARTIAL.pack_into(self._map, PARTIAL_AT[channel], len(data), data)
