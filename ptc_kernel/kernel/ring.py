"""The last output, in memory that the host shares: what a crash would lose is read from there.

Layout: a header of 16 bytes, then a ring of records. A record is a code (1 byte), the length (4
bytes, little endian) and the UTF-8 bytes. The header has the end offset (8 bytes), written last,
so that a reader never sees half a record, and for fd 1 and 2 the first bytes of a character whose
others have not come (4 bytes each: their number, then up to three). `host/recovery.py` reads it.
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

    def add(self, kind: str, data: bytes) -> None:
        """Append one record: output of a channel, or the id of a run that began."""
        data = data[-(self._size // 2) :]  # a display may be larger than the ring
        record = RECORD.pack(CODES[kind], len(data)) + data
        at, size = self.end % self._size, self._size
        first = min(len(record), size - at)
        self._map[HEADER + at : HEADER + at + first] = record[:first]
        if first < len(record):
            self._map[HEADER : HEADER + len(record) - first] = record[first:]
        self.end += len(record)
        _END.pack_into(self._map, 0, self.end)

    def set_partial(self, channel: str, data: bytes) -> None:
        """Note the first bytes of a character of fd 1 or 2, or that there are none."""
        _PARTIAL.pack_into(self._map, PARTIAL_AT[channel], len(data), data)
