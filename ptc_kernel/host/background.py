"""Late output of earlier runs: kept, bounded, and handed over with the owner's next run."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final, final

from ptc_kernel.types import PtcOutput, TextOutput

if TYPE_CHECKING:
    from ptc_kernel.types import Channel

__all__ = ("Background", "merge")

MOST: Final = 64 * 1024


@final
class Background:
    """At most 64 KiB of text; the oldest is dropped, and how much is said."""

    def __init__(self) -> None:
        self._texts: collections.deque[tuple[Channel, str]] = collections.deque()
        self._size = 0
        self._dropped = 0

    def add(self, channel: Channel, text: str) -> None:
        """Keep a piece of text."""
        if not text:
            return
        if len(text) > MOST:
            self._dropped += len(text) - MOST
            text = text[-MOST:]
        self._texts.append((channel, text))
        self._size += len(text)
        while self._size > MOST:
            oldest_channel, oldest = self._texts.popleft()
            cut = min(len(oldest), self._size - MOST)
            self._size -= cut
            self._dropped += cut
            if cut < len(oldest):
                self._texts.appendleft((oldest_channel, oldest[cut:]))

    def take(self) -> tuple[PtcOutput, ...]:
        """Everything that was kept, merged by channel."""
        pieces: list[PtcOutput] = [TextOutput(text, channel) for channel, text in self._texts]
        if self._dropped:
            note = f"[{self._dropped} older characters of late output were dropped]\n"
            pieces.insert(0, TextOutput(note, "stderr"))
        self._texts.clear()
        self._size = self._dropped = 0
        return tuple(merge(pieces))


def merge(pieces: list[PtcOutput]) -> list[PtcOutput]:
    """Outputs in which neighbouring texts of one channel are one entry."""
    merged: list[PtcOutput] = []
    texts: list[str] = []
    for index, piece in enumerate(pieces):
        if not isinstance(piece, TextOutput):
            merged.append(piece)
            continue
        texts.append(piece.text)
        after = pieces[index + 1] if index + 1 < len(pieces) else None
        if not isinstance(after, TextOutput) or after.channel != piece.channel:
            merged.append(TextOutput("".join(texts), piece.channel))
            texts = []
    return merged
