"""Starting a kernel: its private folder, its scrubbed environment, its pipes, its process."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any, Final, final

from ptc_kernel.host.process import KernelProcess, describe_exit
from ptc_kernel.host.recovery import CrashRing
from ptc_kernel.host.transport import KernelAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ptc_kernel.config import JupyterPtcConfig

__all__ = ("LaunchError", "LaunchedKernel", "launch", "scrubbed_environment")

logger = logging.getLogger(__name__)

WORKER: Final = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "kernel", "__main__.py"
)
PIPE_BYTES: Final = (256 * 1024, 64 * 1024)  # not more: all pipes of a user share one allowance
LONGEST_FOLDER: Final = 107 - len("/k-5")  # sun_path, contract architecture row 10
LOG_TAIL: Final = 2000

ALLOWED: Final = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "TZ",
        "TMPDIR",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "LD_LIBRARY_PATH",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "CUDA_VISIBLE_DEVICES",
    }
)

_life_ends: set[int] = set()


def _forget_life_ends() -> None:
    """A process that the host forked without exec must not keep the kernels alive."""
    for fd in _life_ends:
        os.close(fd)
    _life_ends.clear()


os.register_at_fork(after_in_child=_forget_life_ends)


class LaunchError(Exception):
    """No kernel could be started; the text says why."""


def scrubbed_environment(host: Mapping[str, str], extra: Mapping[str, str], folder: str) -> dict[str, str]:
    """The environment of a kernel: an allow-list of the host's, what was configured, private folders."""
    env = {name: value for name, value in host.items() if name in ALLOWED or name.startswith("LC_")}
    env.update(
        IPYTHONDIR=f"{folder}/ipython",
        JUPYTER_CONFIG_DIR=folder,
        JUPYTER_DATA_DIR=folder,
        JUPYTER_RUNTIME_DIR=folder,
        PYDEVD_DISABLE_FILE_VALIDATION="1",
    )
    env.update(extra)
    return env


def _private_folder() -> str:
    """A new folder for this user alone, with a path that a Unix socket can have."""
    folder = tempfile.mkdtemp(prefix="ptc-")
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="ptc-", dir="/tmp")
    return folder


def _create(path: str) -> int:
    """A new file for this user alone. It is held open: by its name the program could put another there."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _enlarge_pipe(fd: int) -> None:
    for size in PIPE_BYTES:
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)
            return


@final
class LaunchedKernel:
    """What the host holds of a kernel that it started.

    Attributes:
        out_read, err_read: read ends of the kernel's fd 1 and 2, for after a crash.
        ready: done when the kernel takes requests.
        process: set by `spawn`.
    """

    def __init__(self, config: JupyterPtcConfig) -> None:
        self.config: JupyterPtcConfig = config
        self.process: KernelProcess
        self.comm_id: str = secrets.token_hex(16)
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[bool] = self._loop.create_future()
        self._fds: set[int] = set()
        self._log_mark = 0
        self.folder: str = _private_folder()
        self.address: KernelAddress = KernelAddress(self.folder)
        try:
            self.ring: CrashRing = CrashRing()
            self.out_read, self._out_write = self._pipe()
            self.err_read, self._err_write = self._pipe()
            self._ready_read, self._ready_write = self._pipe()
            self._life_read, self._life_write = self._pipe()
            self._log = _create(f"{self.folder}/log")
            self._fds.add(self._log)
        except OSError:
            self._close_fds()
            if hasattr(self, "ring"):
                self.ring.close_fd()
                self.ring.close()
            os.rmdir(self.folder)  # the log is made last, so the folder is empty
            raise
        for write in (self._out_write, self._err_write):
            _enlarge_pipe(write)
        _life_ends.add(self._life_write)

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._fds.update(ends)
        return ends

    def _close_fds(self, *fds: int) -> None:
        """Close these descriptors, or all that are left."""
        for fd in fds or tuple(self._fds):
            self._fds.discard(fd)
            os.close(fd)

    def spawn(self, hello: Mapping[str, object], on_exit: Callable[[int], None]) -> None:
        """Start the process.

        Raises:
            OSError: the interpreter cannot be executed.
        """
        connection_file = f"{self.folder}/connection.json"
        pipes = (self.out_read, self._out_write, self.err_read, self._err_write)
        given = (self._life_read, self._ready_write, self.ring.fd, *pipes)
        fds = ",".join(map(str, given))
        command = [self.config.python_executable, "-P", WORKER, "-f", connection_file, "--ptc-fds", fds]
        try:
            with open(_create(connection_file), "w") as file:
                json.dump(self.address.connection_info(), file)
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=scrubbed_environment(os.environ, self.config.env, self.folder),
                cwd=self.folder,
                pass_fds=given,
                start_new_session=True,
            )
        finally:
            child_ends = (self._life_read, self._ready_write, self._out_write, self._err_write)
            self._close_fds(*child_ends)
            self.ring.close_fd()
        self.process = KernelProcess(popen, on_exit)
        self._loop.add_reader(self._ready_read, self._on_ready)
        with contextlib.suppress(BrokenPipeError):  # it is dead already: on_exit tells
            os.write(self._life_write, json.dumps({**hello, "comm_id": self.comm_id}).encode() + b"\n")

    def _on_ready(self) -> None:
        self._loop.remove_reader(self._ready_read)
        if not self.ready.done():
            self.ready.set_result(os.read(self._ready_read, 1) == b"1")

    def mark_log(self) -> None:
        """What is in the log now concerns nobody any more."""
        self._log_mark = os.fstat(self._log).st_size

    def log_tail(self) -> str:
        """The end of what the kernel wrote to its own stderr, beside programs, since the mark.

        Without the frames of tracebacks, which name folders of this machine; those are logged.
        """
        if self._log not in self._fds:  # closed
            return ""
        at = max(self._log_mark, os.fstat(self._log).st_size - LOG_TAIL)
        text = os.pread(self._log, LOG_TAIL, at).decode("utf-8", "replace").strip()
        if text:
            logger.warning("kernel log folder=%s\n%s", self.folder, text)
        lines = [line for line in text.splitlines() if line and not line.startswith((" ", "Traceback "))]
        return "\n".join(lines)

    def close(self) -> None:
        """Free descriptors, memory and files; the process must be dead.

        Raises:
            OSError: the folder cannot be removed; may be called again.
        """
        if self._fds:
            self._loop.remove_reader(self._ready_read)
            _life_ends.discard(self._life_write)
            self._close_fds()
            self.ring.close()
        if os.path.exists(self.folder):
            shutil.rmtree(self.folder)


async def launch(kernel: LaunchedKernel, hello: Mapping[str, object], on_exit: Callable[[int], None]) -> None:
    """Start a kernel and wait until it takes requests.

    Raises:
        LaunchError: it cannot be executed, died, or was not ready in time.
    """
    try:
        kernel.spawn(hello, on_exit)
    except OSError as error:
        msg = f"the kernel could not be started: {error.strerror}"
        raise LaunchError(msg) from None
    limit = kernel.config.startup_timeout_ms
    dead = kernel.process.dead
    waits: set[asyncio.Future[Any]] = {kernel.ready, dead}
    done, _ = await asyncio.wait(waits, timeout=limit / 1000, return_when=asyncio.FIRST_COMPLETED)
    if not done:
        kernel.process.kill()
        msg = f"the kernel was not ready within startup_timeout_ms ({limit:g} ms)"
        raise LaunchError(msg)
    if not kernel.ready.done() or not kernel.ready.result():
        msg_0 = f"{describe_exit(await dead, oom_before=kernel.process.oom_before)} while it was starting"
        raise LaunchError(msg_0)
