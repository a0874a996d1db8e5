"""What the machine says: memory, processor time and wake-ups of processes, and its versions."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("Usage", "descendants", "describe_machine", "memory_mib", "pss_mib", "usage")

TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
PACKAGES = ("ipykernel", "jupyter_client", "ipython", "pyzmq")


@dataclass(frozen=True, slots=True)
class Usage:
    """What processes used since they began: milliseconds of processor time, voluntary switches."""

    cpu_ms: float
    switches: int

    def __sub__(self, before: Usage) -> Usage:
        return Usage(self.cpu_ms - before.cpu_ms, self.switches - before.switches)


def _number(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _stat(pid: str) -> list[str]:
    """The fields of a process after its name: state, parent, ...; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def descendants() -> list[int]:
    """The living processes below this one."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        stat = _stat(name) if name.isdigit() else []
        if stat and stat[0] != "Z":
            parents[int(name)] = int(stat[1])
    found, waiting = [], [os.getpid()]
    while waiting:
        above = waiting.pop()
        below = [pid for pid, parent in parents.items() if parent == above]
        found += below
        waiting += below
    return found


def pss_mib(pids: Iterable[int]) -> float:
    """The memory of processes together in MiB; what several share is counted once."""
    texts = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
    return sum(_number(text, "Pss") for text in texts) / 1024


def memory_mib(name: str) -> float:
    """A memory field of this process in MiB: `VmRSS` is now, `VmHWM` is the most so far."""
    return _number(Path("/proc/self/status").read_text(), name) / 1024


def usage(pids: Iterable[int]) -> Usage:
    """What processes, with all their threads, used so far."""
    ticks = switches = 0
    for pid in pids:
        stat = _stat(str(pid))
        ticks += int(stat[11]) + int(stat[12])
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            switches += _number(status.read_text(), "voluntary_ctxt_switches")
    return Usage(ticks * TICK_MS, switches)


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def describe_machine() -> str:
    """The machine, how busy it is, and the versions of what is measured."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("ptc-kernel", *PACKAGES))
    return (
        f"{os.cpu_count()} x {_processor()}, Linux {platform.release()}, load {os.getloadavg()[0]:.2f}; "
        f"{platform.python_implementation()} {platform.python_version()}, {versions}"
    )
