"""The processes that programs start: which are there, and which a stopped run leaves behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import Final

from ptc_kernel.protocol.proctree import descendants_of, parse_stat

__all__ = ("kill_new", "living_descendants")

ROUNDS: Final = 10  # a process may have started another one while it was being killed
ROUND_MS: Final = 100


def living_descendants() -> frozenset[tuple[int, int]]:
    """Pid and start time of every descendant of this process, adopted ones included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # no child at all: the common case, and cheap to find out
        return frozenset()
    processes = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    processes.append(parse_stat(file.read()))
            except OSError:  # it ended meanwhile
                continue
    return frozenset((process.pid, process.started) for process in descendants_of(os.getpid(), processes))


def kill_new(earlier: frozenset[tuple[int, int]]) -> None:
    """Kill the descendants that were not there before, and wait until they are gone."""
    for _ in range(ROUNDS):
        new = living_descendants() - earlier
        if not new:
            return
        for fd in [fd for pid, _ in new if (fd := _kill(pid)) is not None]:
            gone = select.poll()
            gone.register(fd, select.POLLIN)
            gone.poll(ROUND_MS)
            os.close(fd)


def _kill(pid: int) -> int | None:
    """Kill a process; returns a pidfd that becomes readable when it is gone."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    return fd
