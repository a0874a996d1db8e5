"""What a run's result weighs, and which prefix of its output fits under the cap.

Counted (contract 10.2): 2 bytes for the empty list, a separator before every entry but the
first, each text as a JSON string in UTF-8, each image as the compact JSON of its reference, and
either the value or the failure message. The worker meters with the same `Meter`, so that a flood
stops inside the kernel; the host's `Ledger` has the last word.
"""

from __future__ import annotations

from typing import Final, TypeAlias

__all__ = ("LOST", "Ledger", "Meter", "json_size", "limit_message", "string_size")

LOST: Final = "Variables are gone; the next run starts fresh."
"""How every failure message ends when the owner's environment was lost (contract 8.3)."""

Held: TypeAlias = "tuple[str | int, object]"
"""A channel and its text, or the size of an image reference and the image."""

_SHORT_ESCAPES: Final = b'"\\\b\t\n\f\r'
_PLAIN: Final = bytes(byte for byte in range(0x20, 0x100) if byte not in _SHORT_ESCAPES)
_SURROGATE_BYTES: Final = 3  # of a lone surrogate under surrogatepass; its escape has 6


def string_size(text: str) -> int:
    """Bytes of `text` inside a JSON string, without the quotes and without an escaped copy."""
    try:
        data, extra = text.encode(), 0
    except UnicodeEncodeError:
        folded = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        data = folded.encode("utf-8", "surrogatepass")
        extra = _SURROGATE_BYTES * sum("\ud800" <= char <= "\udfff" for char in folded)
    escaped = data.translate(None, _PLAIN)
    if escaped:
        extra += len(escaped) + 4 * len(escaped.translate(None, _SHORT_ESCAPES))
    return len(data) + extra


def json_size(text: str) -> int:
    """Bytes of `text` as a JSON string."""
    return string_size(text) + 2


def longest_prefix(text: str, room: int) -> str:
    """The longest prefix of `text`, in code points, whose `string_size` is at most `room`."""
    if not text.isascii():  # a half of a spelled-out pair weighs more than the whole
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    low, high = 0, min(len(text), max(room, 0))
    while low < high:
        middle = (low + high + 1) // 2
        if string_size(text[:middle]) <= room:
            low = middle
        else:
            high = middle - 1
    return text[:low]


class Meter:
    """Counts output entries against a limit and cuts at the last code point that fits.

    Attributes:
        limit: bytes that the entries may take together.
        used: bytes that they take.
        over: True once something did not fit.
    """

    __slots__ = ("_channel", "limit", "over", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 2
        self.over = False
        self._channel: str | None = None

    @property
    def room(self) -> int:
        """Bytes that are left."""
        return self.limit - self.used

    def _head(self, channel: str) -> int:
        """Bytes before the entry itself: a separator and, for a text, quotes."""
        if channel == self._channel:
            return 0
        return (0 if self._channel is None else 1) + (2 if channel else 0)

    def _take(self, channel: str, size: int) -> None:
        self.used += size
        self._channel = channel

    def fit_text(self, channel: str, text: str) -> str:
        """The part of `text` that fits; less than all of it sets `over`."""
        if not text:
            return text
        head, size = self._head(channel), string_size(text)
        if head + size <= self.room:
            self._take(channel, head + size)
            return text
        self.over = True
        prefix = longest_prefix(text, self.room - head)
        if prefix:
            self._take(channel, head + string_size(prefix))
        return prefix

    def fit_image(self, size: int) -> bool:
        """Whether an image reference of `size` bytes fits; False sets `over`."""
        head = self._head("")
        if head + size > self.room:
            self.over = True
            return False
        self._take("image", head + size)
        return True


def limit_message(cap: int, *, lost: bool) -> str:
    """The text of an `output-limit` failure, short enough to leave half of the cap to output."""
    room = cap - 2
    long = f"the output and the value together are over max_output_bytes ({cap} bytes): print or return less."
    if 2 * json_size(f"{long} {LOST}") <= room:  # one choice, or the reserve is too small
        return f"{long} {LOST}" if lost else long
    short = f"over {cap} bytes"
    return longest_prefix(short, max(room // 2, 2) - 2)


class Ledger:
    """The host's account of one run.

    The text of an `output-limit` failure must fit too. Output that would take its place is held
    back until the run has ended, so that what was handed out is never taken back.
    """

    __slots__ = ("_held", "_meter", "_open", "cap")

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self._meter = Meter(cap)
        self._open = Meter(cap - json_size(limit_message(cap, lost=True)))
        self._held: list[Held] = []

    @property
    def over(self) -> bool:
        """True once output did not fit under the cap."""
        return self._meter.over

    @property
    def room(self) -> int:
        """Bytes left for the value or the failure message."""
        return self._meter.room

    def admit_text(self, channel: str, text: str) -> str:
        """Count text; returns the part that may be handed out now."""
        if self._meter.over:
            return ""
        fitting = self._meter.fit_text(channel, text)
        now = "" if self._held else self._open.fit_text(channel, fitting)
        if len(now) < len(fitting):
            self._held.append((channel, fitting[len(now) :]))
        return now

    def admit_image(self, size: int, image: object) -> bool:
        """Count an image reference; True when it may be handed out now."""
        if self._meter.over or not self._meter.fit_image(size):
            return False
        if not self._held and self._open.fit_image(size):
            return True
        self._held.append((size, image))
        return False

    def fits(self, size: int) -> bool:
        """Whether a value or message of `size` bytes still fits beside the output."""
        return not self._meter.over and size <= self._meter.room

    def rest(self) -> list[Held]:
        """The output that was held back, for a result that fits."""
        held, self._held = self._held, []
        return held

    def cut_rest(self, *, lost: bool) -> tuple[list[Held], str]:
        """The held output that fits beside an `output-limit` text, and that text."""
        message = limit_message(self.cap, lost=lost)
        self._open.limit = self.cap - json_size(message)
        kept: list[Held] = []
        for key, content in self.rest():
            if isinstance(key, int):
                if not self._open.fit_image(key):
                    break
                kept.append((key, content))
                continue
            piece = self._open.fit_text(key, str(content))
            if piece:
                kept.append((key, piece))
            if len(piece) < len(str(content)):
                break
        return kept, message
