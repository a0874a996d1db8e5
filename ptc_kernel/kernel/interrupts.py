"""The worker's half of the stop ladder.

A SIGINT and a cancel message are one step, and each can do the whole of it: the tasks of the run
that wait are cancelled, and the code that runs gets an exception. While the worker's own code runs
the exception is held, and raised when that code returns to the program (contract 8.2).
"""

from __future__ import annotations

import _thread
import asyncio
import functools
import os
import threading
from _thread import interrupt_main
from asyncio import current_task
from signal import SIGINT
from signal import signal as set_signal_handler
from threading import get_ident
from time import monotonic
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from ptc_kernel.kernel.runs import Run, Runs

__all__ = ("PROGRAM_FILE", "WORKER_FOLDER", "InterruptedTask", "Interrupts", "block", "is_worker_file")

PROGRAM_FILE: Final = "<program"
WORKER_FOLDER: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
SAME_STEP: Final = 0.1  # seconds: a signal and a cancel message this close are one step
SPARING_STEP: Final = 2  # leaves alone what is already unwinding, so that a `finally` may await

_HANDLE_RUN: Final = asyncio.events.Handle._run.__code__


class InterruptedTask(BaseException):
    """Raised in running code of a stopped program that is not its main task."""


def block(gate: _thread.LockType) -> None:
    """Wait for a gate: the only place where worker code waits and an interrupt may raise."""
    gate.acquire()


def is_worker_file(name: str) -> bool:
    """Whether a code file is part of this worker."""
    return name.startswith(WORKER_FOLDER)


class Interrupts:
    """Applies the steps of the stop ladder to the active run."""

    def __init__(self, runs: Runs, infrastructure: tuple[str, ...]) -> None:
        self._runs = runs
        self._infrastructure = (WORKER_FOLDER, *infrastructure)
        self._main_thread = get_ident()
        self._handler_codes: frozenset[CodeType] = frozenset(
            function.__code__ for function in (Interrupts._on_signal, Interrupts._apply, Interrupts._where)
        )
        self._early: set[str] = set()
        self._told_early = threading.Event()
        self._idle_signal_at = float("-inf")
        self._loop: asyncio.AbstractEventLoop | None = None
        self.held = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop that the programs run on."""
        self._loop = loop

    def install(self) -> None:
        """Take SIGINT, which a program may have taken for itself."""
        set_signal_handler(SIGINT, self._on_signal)

    def take_early(self, run: Run) -> bool:
        """Whether this run was cancelled before it began."""
        self.held = False
        if monotonic() - self._idle_signal_at < SAME_STEP:  # the message of the same step is on its way
            self._told_early.wait(SAME_STEP)
        self._told_early.clear()
        early = run.id in self._early
        self._early.clear()
        return early

    def release(self) -> None:
        """Raise what is held; for worker code that is about to return to the program."""
        if self.held and get_ident() == self._main_thread:
            self._throw()

    def on_message(self, ident: str) -> None:
        """Apply the step that a cancel message asks for; runs in the control thread."""
        run, loop = self._runs.active, self._loop
        if loop is None or run is None or run.id != ident:
            self._early.add(ident)
            self._told_early.set()
        elif monotonic() - run.stepped_at >= SAME_STEP:
            interrupt_main(SIGINT)
            loop.call_soon_threadsafe(self._apply, run, None)  # the program may have its own handler

    def _on_signal(self, _signum: int, frame: FrameType | None) -> None:
        run, loop = self._runs.active, self._loop
        if loop is None:
            return
        current = current_task(loop)
        if run is None:
            self._idle_signal_at = monotonic()
        elif not self._apply(run, current):
            return
        loop.call_soon_threadsafe(int)  # wakes the selector
        where = self._where(frame)
        if where == "program":
            self._throw()
        mine = run is not None and current is not None and current in run.tasks
        if where == "loop" and mine and current is not None:
            current.cancel()  # the loop is between two lines of this task: nothing will return to it
        else:
            self.held = mine

    def _apply(self, run: Run, current: asyncio.Task[object] | None) -> bool:
        """Tell the run's waiting tasks. False when this step was applied already."""
        now = monotonic()
        if now - run.stepped_at < SAME_STEP:
            return False
        run.stepped_at = now
        run.step += 1
        for task in list(run.tasks):
            spared = run.step == SPARING_STEP and task.cancelling()
            if task is not current and not task.done() and not spared:
                task.cancel()
        return True

    def _throw(self) -> None:
        self.held = False
        run = self._runs.active
        if run is not None and self._loop is not None and current_task(self._loop) is run.main:
            raise KeyboardInterrupt
        raise InterruptedTask

    def _where(self, frame: FrameType | None) -> Literal["program", "worker", "loop"]:
        """Whose code this stack is in: the program's, the worker's, or the loop's around a task's step."""
        inner = ""
        while frame is not None:
            code = frame.f_code
            if code is block.__code__ or code.co_filename.startswith(PROGRAM_FILE):
                return "program"
            if code is _HANDLE_RUN:  # a callback or a task's step: of library code that the program uses?
                ours = inner.startswith(self._infrastructure) if inner else not _calls_c_function(frame)
                return "loop" if ours else "program"
            if is_worker_file(code.co_filename) and code not in self._handler_codes:
                return "worker"
            inner = code.co_filename
            frame = frame.f_back
        return "worker"


def _calls_c_function(handle_frame: FrameType) -> bool:
    """Whether a handle that has no Python frame inside it is in a C function, and not before a step."""
    callback = handle_frame.f_locals["self"]._callback
    while isinstance(callback, functools.partial):
        callback = callback.func
    return isinstance(callback, BuiltinFunctionType)
