"""Reading the process table: lines of `/proc/PID/stat`, and who descends from whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("Process", "descendants_of", "parse_stat")


class Process(NamedTuple):
    """One process; `pid` and `started` (clock ticks since boot) together are never used again."""

    pid: int
    started: int
    parent: int
    group: int
    zombie: bool

    @property
    def identity(self) -> tuple[int, int]:
        """The pid and the start time."""
        return self.pid, self.started


def parse_stat(line: bytes) -> Process:
    """The process that a `/proc/PID/stat` line describes (proc(5)); its name may hold anything."""
    pid = int(line.partition(b" ")[0])
    fields = line.rpartition(b")")[2].split()
    return Process(pid, int(fields[19]), int(fields[1]), int(fields[2]), fields[0] == b"Z")


def descendants_of(pid: int, processes: Iterable[Process]) -> list[Process]:
    """The living descendants of a process, parents before children."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [pid]
    while waiting:
        for child in children.pop(waiting.pop(), []):
            waiting.append(child.pid)
            if not child.zombie:
                found.append(child)
    return found
