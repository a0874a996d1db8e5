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
        self._killed: list[Process] = []  # outside the group
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
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _exited(self) -> None:
        """The leader is dead. Until it is reaped, its id cannot belong to another group."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if not self._ending:
            self._signal_group(signal.SIGKILL)
        code = self._popen.wait()
        self._on_exit(code)
        self.dead.set_result(code)

    def kill(self) -> None:
        """Kill the process, its group, and the descendants that left the group."""
        if not self.alive:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)  # it must not start more, nor lose the ones that it adopted
        for _ in range(SWEEPS):
            found = [
                process for process in descendants_of(self.pid, _processes()) if process.group != self.pid
            ]
            if not found:
                break
            self._killed += found
            _signal_all(found, signal.SIGKILL)
        self._signal_group(signal.SIGKILL)

    async def end(self, grace: float) -> None:
        """End everything: politely, and after `grace` seconds by force; returns when all are gone."""
        self._ending = True
        members = [process for process in self._members() if process.pid != self.pid]
        watches = [watch for process in members if (watch := _Watch.open(process.pid)) is not None]
        try:
            _signal_all(members, signal.SIGTERM)
            self._signal_group(signal.SIGTERM)
            waits: set[asyncio.Future[Any]] = {self.dead, *(watch.gone for watch in watches)}
            _, left = await asyncio.wait(waits, timeout=grace)
            if left:
                self._ending = False
                self._kill_all(members)
                await asyncio.wait(left)
        finally:
            for watch in watches:
                watch.close()

    def _kill_all(self, members: list[Process]) -> None:
        """By force: also what is left when the leader is dead already."""
        self.kill()
        current = {(process.pid, process.started): process for process in _processes()}
        _signal_all([p for p in members if (p.pid, p.started) in current], signal.SIGKILL)

    def _members(self) -> list[Process]:
        """The living processes of the group, and the descendants outside it."""
        processes = _processes()
        group = [process for process in processes if process.group == self.pid and not process.zombie]
        known = {process.pid for process in group}
        return group + [
            process for process in descendants_of(self.pid, processes) if process.pid not in known
        ]

    async def all_gone(self, grace: float) -> bool:
        """Wait until nothing of what was killed is left; False when something is after `grace` seconds."""
        killed = {(process.pid, process.started) for process in self._killed}
        watches = [
            watch
            for process in _processes()
            if not process.zombie and (process.group == self.pid or (process.pid, process.started) in killed)
            if (watch := _Watch.open(process.pid)) is not None
        ]
        if not watches:
            return True
        try:
            _, waiting = await asyncio.wait({watch.gone for watch in watches}, timeout=grace)
        finally:
            for watch in watches:
                watch.close()
        return not waiting


def _signal_all(processes: Iterable[Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
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
