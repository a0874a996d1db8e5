"""What the worker inherits from its host, and how it dies with it.

The host holds the only write end of a pipe; this process holds the read end. Linux sends SIGKILL
to the whole process group as soon as something happens on that pipe: the host's death closes it,
in whatever state the program is. The host's first line on the pipe, read before that is armed, is
the configuration.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import select
import signal
from typing import Any, Final, NamedTuple

__all__ = ("Descriptors", "adopt", "become_subreaper", "limit_memory")

F_SETSIG: Final = 10  # not in the fcntl module
PR_SET_CHILD_SUBREAPER: Final = 36


class Descriptors(NamedTuple):
    """The descriptors that a host passes, in the order of the command line."""

    life: int
    ready: int
    ring: int
    out_read: int
    out_write: int
    err_read: int
    err_write: int


def adopt(life: int) -> dict[str, Any]:
    """Read the host's configuration, then tie the life of this process group to the host's."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(life, 1)
        if not byte:
            os._exit(1)
        line += byte
    os.set_inheritable(life, False)
    fcntl.fcntl(life, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(life, select.POLLIN)
    if poll.poll(0):  # the host died before the pipe was armed
        os.killpg(os.getpgrp(), signal.SIGKILL)
    hello: dict[str, Any] = json.loads(line)
    return hello


def become_subreaper() -> None:
    """Adopt descendants whose parents ended, so that whoever stops this kernel finds them."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def limit_memory(mebibytes: int | None) -> None:
    """Bound the address space of this process and of everything that it starts."""
    if mebibytes is not None:
        size = mebibytes * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
