"""File descriptors 1 and 2: what C code and child processes write.

Both are pipes that the host made. One thread reads them; every Python-level write drains them
first, so that `print`, `subprocess.run`, `print` keep their order. Draining never waits for the
host; while the window is full the thread does not read, which is the back-pressure on children.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import fcntl
import os
import select
import sys
import termios
import threading
import traceback
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ptc_kernel.kernel.life import Descriptors
    from ptc_kernel.kernel.runs import Run, Runs
    from ptc_kernel.kernel.streams import Output

__all__ = ("FdReader",)

READ_BYTES: Final = 128 * 1024
COMPANY_MS: Final = 20  # how long the first text of a quiet stream waits for more


_libc = ctypes.PyDLL(None)  # calls without letting go of the interpreter
_buffer = ctypes.create_string_buffer(READ_BYTES)


def read_at_once(fd: int, most: int) -> bytes:
    """Read what is there, without letting another thread run before it is in the crash ring.

    `os.read` would: a program that kills itself meanwhile would take the bytes with it.
    """
    return ctypes.string_at(_buffer, max(_libc.read(fd, _buffer, most), 0))


class _End:
    """The read end of one pipe."""

    def __init__(self, fd: int, channel: str) -> None:
        self.fd = fd
        self.channel = channel
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.partial = b""

    def waiting(self) -> int:
        return int.from_bytes(fcntl.ioctl(self.fd, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)


class FdReader:
    """Reads the pipes behind descriptors 1 and 2 into the program's output."""

    def __init__(self, output: Output, runs: Runs, fds: Descriptors) -> None:
        self._output = output
        self._runs = runs
        self._lock = threading.Lock()
        self.saved_stderr = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 3)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ready = select.epoll()  # a poll object refuses a second thread
        self._ends = [_End(fds.out_read, "stdout"), _End(fds.err_read, "stderr")]
        for target, write_fd in ((1, fds.out_write), (2, fds.err_write)):
            os.dup2(write_fd, target)
            os.close(write_fd)
        for end in self._ends:
            self._ready.register(end.fd, select.EPOLLIN)
        self._thread = threading.Thread(target=self._read_forever, name="ptc-output", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def wake(self) -> None:
        """There is pending text, or room in the window."""
        os.eventfd_write(self._wake_fd, 1)

    def drain(self, *, final: bool = False) -> None:
        """Put what is in the pipes now; with `final`, incomplete characters too."""
        if not final and not self._ready.poll(0) and not self._lock.locked():
            return
        with self._lock:
            run = self._runs.active or self._runs.last
            for end in self._ends:
                self._drain_end(end, run, final=final)

    def _drain_end(self, end: _End, run: Run | None, *, final: bool) -> None:
        left = end.waiting()
        while left > 0:
            data = read_at_once(end.fd, min(left, READ_BYTES))
            if not data:
                return
            left -= len(data)
            self._put(run, end.channel, end.decoder.decode(data))
            self._keep_partial(end)
        if final:
            self._put(run, end.channel, end.decoder.decode(b"", True))
            self._keep_partial(end)

    def _keep_partial(self, end: _End) -> None:
        partial = end.decoder.getstate()[0]
        if partial != end.partial:
            end.partial = partial
            self._output.keep_partial(end.channel, partial)

    def _put(self, run: Run | None, channel: str, text: str) -> None:
        if text:
            self._output.put(run, channel, text)

    def barrier(self) -> None:
        """The end of a program: everything that its processes wrote so far is in the stream."""
        self.drain(final=True)
        self._output.flush()

    def report(self, text: str) -> None:
        """Tell the host's log: what the program must not see, or nobody can see any more."""
        os.write(self.saved_stderr, text.encode("utf-8", "replace"))

    def _read_forever(self) -> None:
        wait_room, wait_both, wait_more = select.poll(), select.poll(), select.poll()
        wait_room.register(self._wake_fd, select.POLLIN)
        wait_both.register(self._wake_fd, select.POLLIN)
        for end in self._ends:
            wait_both.register(end.fd, select.POLLIN)
            wait_more.register(end.fd, select.POLLIN)
        while True:
            try:
                self._turn(wait_room, wait_both, wait_more)
            except BaseException:  # noqa: BLE001 - without this thread os.write(1) hangs for ever
                self.report(traceback.format_exc())

    def _turn(self, wait_room: select.poll, wait_both: select.poll, wait_more: select.poll) -> None:
        """Wait for bytes, for text to flush, or for room; then move them on."""
        full = self._output.is_full()
        for fd, _ in (wait_room if full else wait_both).poll():
            if fd == self._wake_fd:
                self._forget_wake()
        if full:
            return
        if self._output.pending:
            wait_more.poll(COMPANY_MS)
        self.drain()
        if not self._ready.poll(0):
            self._output.flush()

    def _forget_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
