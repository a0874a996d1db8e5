"""ipykernel's application, started for one host: its sockets, its streams and its main loop."""

from __future__ import annotations

import asyncio
import builtins
import getpass
import logging
import os
import re
import signal
import sys
import threading
import traceback
from threading import get_ident
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ptc_kernel.kernel import private, selfcheck

selfcheck.check_version()
selfcheck.stub_debugger()

import ipykernel  # noqa: E402
import tornado  # noqa: E402
import zmq  # noqa: E402
from ipykernel.iostream import IOPubThread  # noqa: E402
from ipykernel.kernelapp import IPKernelApp  # noqa: E402
from traitlets import Type  # noqa: E402
from traitlets.config import Config  # noqa: E402

from ptc_kernel.kernel.fds import FdReader  # noqa: E402
from ptc_kernel.kernel.images import Image, make_inspect  # noqa: E402
from ptc_kernel.kernel.interrupts import InterruptedTask, Interrupts, is_worker_file  # noqa: E402
from ptc_kernel.kernel.kernel import RELIED_ON, HostedKernel  # noqa: E402
from ptc_kernel.kernel.life import become_subreaper, limit_memory  # noqa: E402
from ptc_kernel.kernel.programs import leave, refuse_stdin  # noqa: E402
from ptc_kernel.kernel.ring import Ring  # noqa: E402
from ptc_kernel.kernel.runs import Runs  # noqa: E402
from ptc_kernel.kernel.streams import Output, OutputLimitError, ProgramStream  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptc_kernel.kernel.life import Descriptors
    from ptc_kernel.kernel.runs import Run

__all__ = ("HostedApp", "run_hosted_kernel")

DUNDER = re.compile("__.+__")
KEPT_NAMES = frozenset({"_dh"})  # what %cd needs; everything else of IPython's stays out of sight


class OnePipeIOPub(IOPubThread):
    """An iopub thread that any number of threads wake through one pipe, and that sleeps when idle."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._wake_lock = threading.Lock()
        self._wake_pipe = self._event_pipe

    def schedule(self, f: Callable[[], None]) -> None:
        """Run a function on the iopub thread."""
        if get_ident() == self.thread.ident:
            f()
            return
        with self._wake_lock:
            self._events.append(f)
            self._wake_pipe.send(b"")

    async def _run_event_pipe_gc(self) -> None:
        """There is one pipe, nothing to collect."""


class HostedApp(IPKernelApp):
    """Everything around the kernel that a host needs otherwise than a notebook."""

    kernel_class = Type(HostedKernel)
    hello: dict[str, Any]
    fds: Descriptors

    def adopt(self, fds: Descriptors, hello: dict[str, Any]) -> None:
        """Take what the host passed."""
        self.fds, self.hello = fds, hello
        folders = (
            os.path.dirname(str(module.__file__)) + os.sep for module in (asyncio, tornado, zmq, ipykernel)
        )
        self.runs = Runs()
        self.interrupts = Interrupts(self.runs, tuple(folders))

    def init_poller(self) -> None:
        """The life pipe watches the host."""

    def init_pdb(self) -> None:
        """A program has no terminal to debug at."""

    def init_heartbeat(self) -> None:
        """The host sees this process die; it asks for no heartbeat."""

    def init_extensions(self) -> None:
        """A hosted kernel loads no extensions of a person's profile."""

    def init_code(self) -> None:
        """A hosted kernel runs no startup files."""

    def init_gui_pylab(self) -> None:
        """Draw figures inline, without importing matplotlib before a program does."""
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")

    def write_connection_file(self, **_: Any) -> None:
        """The host wrote it."""

    def log_connection_info(self) -> None:
        """The host knows."""
        self._ports = {}

    def init_iopub(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Open iopub without a high-water mark: the acknowledged window bounds what is queued."""
        self.iopub_socket = context.socket(zmq.XPUB)
        self.iopub_socket.linger = 0
        self.iopub_socket.sndhwm = 0  # counts only when set before bind
        self.iopub_port = self._bind_socket(self.iopub_socket, self.iopub_port)
        self.configure_tornado_logger()
        self.iopub_thread = OnePipeIOPub(self.iopub_socket, pipe=False, session=self.session)
        self.iopub_thread.start()
        self.iopub_socket = self.iopub_thread.background_socket

    def init_io(self) -> None:
        """Make fd 1 and 2, and Python's streams, parts of one ordered output."""
        self.output = Output(self.runs, self.interrupts, Ring(self.fds.ring), self._send_output)
        self.reader = self.output.reader = FdReader(self.output, self.runs, self.fds)
        self.log.setLevel(logging.ERROR)  # ipykernel formats three debug records per request
        log = open(self.reader.saved_stderr, "w", buffering=1, closefd=False)  # noqa: SIM115
        for handler in [*self.log.handlers, *logging.getLogger("tornado").handlers]:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(log)
        sys.stdin = open(os.devnull)  # noqa: SIM115
        sys.stdout = ProgramStream(self.output, "stdout", 1)
        sys.stderr = ProgramStream(self.output, "stderr", 2)
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc, assignment]
        self.displayhook = SimpleNamespace()
        self.reader.start()

    def _send_output(
        self, kind: str, content: dict[str, Any], run: Run | None, marks: dict[str, int], topic: bytes
    ) -> None:
        parent = {} if run is None else run.parent
        self.session.send(self.iopub_thread, kind, content, parent=parent, metadata=marks, ident=topic)

    def reset_io(self) -> None:
        """Leave the streams: the process ends without unwinding."""

    def init_signal(self) -> None:
        """Take SIGINT for the stop ladder."""
        self.interrupts.install()

    def settle_in(self) -> None:
        """Give programs plain Python names, and nothing that waits for a person."""
        shell = self.kernel.shell
        for name in [name for name in shell.user_ns if not DUNDER.fullmatch(name) and name not in KEPT_NAMES]:
            del shell.user_ns[name]
            shell.user_ns_hidden.pop(name, None)
        shell.builtin_trap.activate()  # hides exit and quit
        plain = {"exit": leave, "quit": leave, "input": refuse_stdin("input()")}
        images = {"Image": Image, "inspect": make_inspect(self.kernel.show_image)}
        vars(builtins).update(plain | images)
        getpass.getpass = refuse_stdin("getpass()")
        sys.breakpointhook = refuse_stdin("breakpoint()")
        threading.excepthook = print_thread_error
        self.runs.follow_threads()
        os.register_at_fork(after_in_child=after_fork)


def print_thread_error(args: threading.ExceptHookArgs) -> None:
    """Print what a thread raised, without the worker's own frames."""
    if args.exc_value is None or isinstance(args.exc_value, (SystemExit, InterruptedTask, OutputLimitError)):
        return
    report = traceback.TracebackException(args.exc_type, args.exc_value, args.exc_traceback)
    frames = [frame for frame in report.stack if not is_worker_file(frame.filename)]
    report.stack = traceback.StackSummary.from_list(frames)
    name = "a thread" if args.thread is None else args.thread.name
    sys.stderr.write(f"Exception in thread {name}:\n{''.join(report.format())}")


def after_fork() -> None:
    """Give a forked child ordinary signals, and streams that end in its parent's fd 1 and 2."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def run_hosted_kernel(fds: Descriptors, hello: dict[str, Any]) -> None:
    """Serve the host until it shuts this kernel down or ends; does not return."""
    for fd in fds:
        os.set_inheritable(fd, False)
    selfcheck.check_internals({**RELIED_ON, IOPubThread: ("schedule", "_run_event_pipe_gc", "_event_pipe")})
    argv, sys.argv = sys.argv[1:], [""]
    sys.path.insert(0, "")
    become_subreaper()
    limit_memory(hello["max_memory_mb"])
    app = HostedApp.instance()
    app.adopt(fds, hello)
    app.update_config(
        Config(
            HistoryManager={"enabled": False, "hist_file": ":memory:"},
            InteractiveShell={"cache_size": 0, "colors": "nocolor", "autocall": 0},
            IPKernelApp={"log_level": logging.ERROR},
        )
    )
    try:
        app.initialize(argv)
        app.settle_in()
        app.kernel.start()
    except BaseException:  # noqa: BLE001 - fd 2 may be our own pipe by now: the log must have it
        os.write(app.reader.saved_stderr if hasattr(app, "reader") else 2, traceback.format_exc().encode())
        os._exit(1)
    private.keep_modules()
    os.write(fds.ready, b"1")
    os.close(fds.ready)
    while not app.kernel._shutdown_message:
        try:
            app.kernel.io_loop.start()
        except BaseException:  # noqa: BLE001, S112 - what left a task of the program must not end the kernel
            continue
    os._exit(0)
