"""One kernel process and everything that it started: signals, death, and the end of all of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any, Final, final

from ptc_kernel.protocol.proctree import Process, descendants_of, parse_stat

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable

__all__ = ("KernelProcess", "describe_exit")

SWEEPS: Final = 20  # a process that forks while it is being killed is found by the next sweep


def _processes() -> list[Process]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                found.append(parse_stat(file.read()))  # or it ended meanwhile
    return found


def oom_kills() -> int | None:
    """How many processes the kernel of this machine killed for lack of memory, if it says so."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat", "rb") as file:
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return None


def describe_exit(code: int, *, oom_before: int | None) -> str:
    """What an exit status says, in words."""
    if code >= 0:
        return f"the kernel process ended with exit code {code}"
    number = -code
    try:
        name = f"{signal.Signals(number).name} ({number})"
    except ValueError:
        name = str(number)
    text = f"the kernel process was ended by signal {name}"
    if number != signal.SIGKILL:
        return text
    now = oom_kills()
    if now is None or oom_before is None:
        evidence = "this machine does not say whether it did"
    elif now > oom_before:
        evidence = "this machine did kill a process for lack of memory meanwhile"
    else:
        evidence = "there is no evidence that this machine did"
    return f"{text}; running out of memory is the likely reason, but {evidence}"


@final
class KernelProcess:
    """A kernel process, the leader of its own session and process group.

    Attributes:
        pid: the process id, also the id of the group.
        dead: done when the process is dead and reaped; its result is the exit status.
    """

    def __init__(self, popen: subprocess.Popen[bytes], on_exit: Callable[[int], None]) -> None:
        self._popen = popen
        self.pid = popen.pid
        self._loop = asyncio.get_running_loop()
        self._on_exit = on_exit
        self._pidfd = os.pidfd_open(self.pid)
        self._ending = False
        self._outside: set[tuple[int, int]] = set()  # descendants that left the group
        self._group: set[tuple[int, int]] | None = None  # all of the group, once its id may be used again
        self.oom_before = oom_kills()
        self.dead: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._exited)

    @property
    def alive(self) -> bool:
        """Whether the process may still run."""
        return not self.dead.done()

    def interrupt(self) -> None:
        """Send SIGINT to the group."""
        if self.alive:
            self._signal_group(signal.SIGINT)

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _exited(self) -> None:
        """The leader is dead. Until it is reaped, its id cannot belong to another group."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if not self._ending:  # `end` looks until nobody is left
            self._signal_group(signal.SIGKILL)
            self._close_group()
        code = self._popen.wait()
        try:
            self._on_exit(code)
        finally:
            self.dead.set_result(code)

    def kill(self) -> None:
        """Kill the process, its group, and the descendants that left the group."""
        if not self.alive:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)  # it must not start more, nor lose the ones that it adopted
        for _ in range(SWEEPS):
            found = [process for process in self._members() if process.group != self.pid]
            if not found:
                break
            _signal_all(found, signal.SIGKILL)
        self._signal_group(signal.SIGKILL)

    async def end(self, grace: float) -> bool:
        """End everything: politely, and after `grace` seconds by force; returns when all are gone.

        False when something is left all the same.
        """
        self._ending = True
        deadline = self._loop.time() + grace
        told: set[tuple[int, int]] = set()
        while members := self._members():
            _signal_all([process for process in members if process.identity not in told], signal.SIGTERM)
            told.update(process.identity for process in members)
            if not await self._gone(members, deadline - self._loop.time()):
                break
        self._ending = False
        try:
            return await self.all_gone(grace)
        finally:
            self._close_group()

    def _close_group(self) -> None:
        """Nobody can join any more: from now on the group's id may become a stranger's."""
        members = (process for process in _processes() if process.group == self.pid)
        self._group = {process.identity for process in members if not process.zombie}

    async def all_gone(self, grace: float) -> bool:
        """Kill what is left, and wait for it; False when something is left after `grace` seconds."""
        deadline = self._loop.time() + grace
        while members := self._members():
            self.kill()
            _signal_all(members, signal.SIGKILL)
            if not await self._gone(members, deadline - self._loop.time()):
                return False
        return True

    async def _gone(self, members: list[Process], seconds: float) -> bool:
        """Wait for the end of these processes; False when some are there after that time."""
        watches = [watch for process in members if (watch := _Watch.open(process.pid)) is not None]
        waits: set[asyncio.Future[Any]] = {watch.gone for watch in watches}
        if any(process.pid == self.pid for process in members):
            waits.add(self.dead)
        try:
            return not waits or not (await asyncio.wait(waits, timeout=max(seconds, 0)))[1]
        finally:
            for watch in watches:
                watch.close()

    def _members(self) -> list[Process]:
        """The living processes of the group, and the descendants outside it, now or seen before."""
        processes = _processes()
        group = self._group
        members = [p for p in processes if p.group == self.pid and (group is None or p.identity in group)]
        found = {p.pid: p for p in members if not p.zombie}
        roots = [p.pid for p in processes if p.identity in self._outside]
        for root in [self.pid, *roots] if self.alive else roots:
            found.update((p.pid, p) for p in descendants_of(root, processes))
        found.update((p.pid, p) for p in processes if p.identity in self._outside and not p.zombie)
        self._outside.update(p.identity for p in found.values() if p.group != self.pid)
        return list(found.values())


def _signal_all(processes: Iterable[Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # gone, or of another user
            os.kill(process.pid, number)


class _Watch:
    """Tells when a process that is not our child is gone."""

    def __init__(self, fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(fd, self._on_gone)

    @classmethod
    def open(cls, pid: int) -> _Watch | None:
        try:
            return cls(os.pidfd_open(pid))
        except ProcessLookupError:
            return None

    def _on_gone(self) -> None:
        self._loop.remove_reader(self._fd)
        if not self.gone.done():
            self.gone.set_result(None)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
