"""Which output was read, and what the kernel is told about it."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("ReadWindow",)

EVERY: Final = 1024 * 1024


@final
class ReadWindow:
    """Acknowledges, per MiB, what was read; a piece that nobody read holds back all behind it."""

    def __init__(self, acknowledge: Callable[[int], None]) -> None:
        self._acknowledge = acknowledge
        self._unread: collections.deque[list[int]] = collections.deque()  # [count, whether it was read]
        self._read = self._told = 0

    def arrived(self, count: int) -> Callable[[], None]:
        """A piece up to this count arrived; call what is returned when it was read."""
        piece = [count, 0]
        self._unread.append(piece)

        def taken() -> None:
            piece[1] = 1
            self._advance()

        return taken

    def read(self, count: int) -> None:
        """A piece up to this count arrived and was read."""
        if self._unread:
            self._unread.append([count, 1])
        else:
            self._read = max(self._read, count)
        self._advance()

    def _advance(self) -> None:
        while self._unread and self._unread[0][1]:
            self._read = max(self._read, self._unread.popleft()[0])
        if self._read - self._told >= EVERY:
            self._told = self._read
            self._acknowledge(self._told)
