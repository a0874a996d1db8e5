"""stdout, stderr and display as one ordered stream: bounded, and nothing lost.

Every piece is metered against the cap of its run, appended to the crash ring, and sent on iopub
in chunks. The host acknowledges what it read; a writer that is a whole window ahead waits, and
only the writer: bindings, status and replies never do.
"""

from __future__ import annotations

import codecs
import collections
import io
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Final

from ptc_kernel.kernel.interrupts import block
from ptc_kernel.protocol.messages import IMAGE_TYPES, display_text, whole_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptc_kernel.kernel.fds import FdReader
    from ptc_kernel.kernel.interrupts import Interrupts
    from ptc_kernel.kernel.ring import Ring
    from ptc_kernel.kernel.runs import Run, Runs

__all__ = ("Output", "OutputLimitError", "ProgramStream")

WINDOW: Final = 8 * 1024 * 1024  # bytes on their way to the host
CHUNK: Final = 128 * 1024  # characters of one message
MESSAGE_BYTES: Final = 512  # what a message weighs besides its text


class OutputLimitError(BaseException):
    """Raised by a write that crosses the output cap of its run; the host ends the run."""


class Output:
    """Where everything goes that a program writes or displays.

    Attributes:
        pending: whether text waits for the next flush.
    """

    def __init__(
        self,
        runs: Runs,
        interrupts: Interrupts,
        ring: Ring,
        send: Callable[[str, dict[str, Any], Run | None, dict[str, int], bytes], None],
    ) -> None:
        self._runs = runs
        self._interrupts = interrupts
        self._ring = ring
        self._send = send
        self._lock = RLock()
        self._texts: list[str] = []
        self._size = 0
        self._key: tuple[Run | None, str] = (None, "")
        self._sent = self._acknowledged = 0
        self._gates: collections.deque[Lock] = collections.deque()
        self.reader: FdReader
        self.on_over: Callable[[Run], None]

    @property
    def pending(self) -> bool:
        """Whether text waits for the next flush."""
        return bool(self._texts)

    def is_full(self) -> bool:
        """Whether a whole window is on its way to the host."""
        return self._sent - self._acknowledged >= WINDOW

    # ------------------------------------------------------------------ for writers

    def write(self, channel: str, text: str) -> None:
        """Write text of the program; may wait for the host, and may be interrupted while it waits."""
        run = self._runs.current()
        self.reader.drain()
        for start in range(0, len(text), CHUNK):
            self.put(run, channel, text[start : start + CHUNK])
            self._wait()
            if run is not None and run.over:
                raise OutputLimitError("the output is over its cap")
        self._interrupts.release()

    def display(self, kind: str, content: dict[str, Any]) -> None:
        """Send a display message at its place in the order."""
        run = self._runs.current()
        self.reader.drain()
        data: dict[str, Any] = content.get("data", {})
        plain = whole_text(display_text(data)) if data else ""
        size = sum(len(value) if isinstance(value, (str, bytes)) else 64 for value in data.values())
        image = not data.keys().isdisjoint(IMAGE_TYPES)
        with self._lock:
            self._flush()
            shown, over = self._cut(run, "display", plain, image=image)
            if run is not None and run.over:
                if over:
                    self._end_over(run, shown)
                raise OutputLimitError("the output is over its cap")
            if plain:
                self._ring.add("display", plain.encode())
            self._transmit(kind, content, run, size, b"display_data")
        self._wait()
        self._interrupts.release()

    def mark_begun(self, run: Run) -> None:
        """Note in the crash ring that a run began: the message that says so may not leave in time."""
        with self._lock:
            self._ring.add("began", run.id.encode())

    def keep_partial(self, channel: str, data: bytes) -> None:
        """Note in the crash ring the first bytes of a character: its others may never come."""
        with self._lock:
            self._ring.set_partial(channel, data)

    def flush(self) -> None:
        """Send what is pending, without waiting."""
        with self._lock:
            self._flush()

    def show_image(self, run: Run, send: Callable[[], None]) -> None:
        """Send what shows an image, behind the output that came before it."""
        self.reader.drain()
        with self._lock:
            self._flush()
            self._cut(run, "display", "", image=True)
            send()
        self._interrupts.release()

    def put(self, run: Run | None, channel: str, text: str) -> None:
        """Append text without waiting; drops what does not fit under the cap of the run."""
        data = text.encode("utf-8", "backslashreplace")
        if len(data) != len(text):
            text = data.decode()
        with self._lock:
            if self._key != (run, channel):
                self._flush()
                self._key = (run, channel)
            text, over = self._cut(run, channel, text)
            if text:
                self._append(channel, text, text.encode() if over else data)
            if over and run is not None:
                self._flush()
                self.on_over(run)

    # ------------------------------------------------------------------ metering

    @staticmethod
    def _cut(run: Run | None, channel: str, text: str, *, image: bool = False) -> tuple[str, bool]:
        """The part that fits, and whether this piece is the one that crossed the cap."""
        if run is None or run.meter is None:
            return text, False
        if run.meter.over:
            return "", False
        if not image:
            return run.meter.fit_text(channel, text), run.meter.over
        fits = run.meter.fit_image(0)  # the host knows what its reference weighs
        return text if fits else "", not fits

    def _end_over(self, run: Run, prefix: str) -> None:
        """Send what still fits of a display, and say that the cap was crossed."""
        if prefix:
            self._key = (run, "display")
            self._ring.add("display", prefix.encode())
            content = {"data": {"text/plain": prefix}, "metadata": {}, "transient": {}}
            self._transmit("display_data", content, run, len(prefix), b"display_data")
        self.on_over(run)

    # ------------------------------------------------------------------ sending

    def _append(self, channel: str, text: str, data: bytes) -> None:
        first = not self._texts
        self._texts.append(text)
        self._size += len(data)
        self._ring.add(channel, data)
        if self._size >= CHUNK:
            self._flush()
        elif first:
            self.reader.wake()

    def _flush(self) -> None:
        if self._texts:
            run, channel = self._key
            content = {"name": channel, "text": "".join(self._texts)}
            self._transmit("stream", content, run, self._size, b"stream." + channel.encode())
            self._texts, self._size = [], 0  # kept when sending failed: the program's stack may be full

    def _transmit(self, kind: str, content: dict[str, Any], run: Run | None, size: int, topic: bytes) -> None:
        self._sent += size + MESSAGE_BYTES
        self._send(kind, content, run, {"ptc_count": self._sent, "ptc_ring": self._ring.mark()}, topic)

    # ------------------------------------------------------------------ the window

    def _wait(self) -> None:
        while self.is_full():
            gate = Lock()
            gate.acquire()
            with self._lock:
                if not self.is_full():
                    return
                self._gates.append(gate)
            block(gate)

    def acknowledge(self, count: int) -> None:
        """The host has read this many bytes; called in the control thread."""
        with self._lock:
            self._acknowledged = max(self._acknowledged, count)
            if self.is_full():
                return
            gates, self._gates = self._gates, collections.deque()
        for gate in gates:
            gate.release()
        self.reader.wake()


class _Bytes(io.RawIOBase):
    """The `buffer` of a program stream: bytes are decoded as they come, split characters joined."""

    def __init__(self, stream: ProgramStream) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.partial = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        data = bytes(data)
        text = self._decoder.decode(data)
        self.partial = bool(self._decoder.getstate()[0])
        self._stream.put(text)
        return len(data)

    def finish(self) -> str:
        """The replacement of a character that was not finished."""
        self.partial = False
        return self._decoder.decode(b"", True)


class ProgramStream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of a program."""

    encoding = "utf-8"
    errors = "backslashreplace"
    line_buffering = False

    def __init__(self, output: Output, channel: str, fd: int) -> None:
        self._output = output
        self._channel = channel
        self._fd = fd
        self.name = f"<{channel}>"
        self.mode = "w"
        self.buffer = _Bytes(self)

    def write(self, text: str, /) -> int:
        """Write text; a str subclass is taken as the plain text that it holds."""
        if not isinstance(text, str):
            msg = f"write() argument must be str, not {type(text).__name__}"
            raise TypeError(msg)
        if type(text) is not str:
            text = str.__getitem__(text, slice(None))
        self.finish()
        self.put(text)
        return len(text)

    def put(self, text: str) -> None:
        """Hand text to the output."""
        if text:
            self._output.write(self._channel, text)

    def finish(self) -> None:
        """End a character whose last bytes were not written."""
        if self.buffer.partial:
            self.put(self.buffer.finish())

    def flush(self) -> None:
        self._output.flush()

    def close(self) -> None:
        """Do nothing: a program that closes its stdout does not take it from the next one."""

    def reconfigure(self, **_: object) -> None:
        """Do nothing: the text is UTF-8 and leaves by itself, whatever a program prefers."""

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._fd
