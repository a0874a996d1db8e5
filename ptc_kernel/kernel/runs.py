"""Which run a task, a thread or a line of output belongs to.

Tasks find their run in a context variable that the main task of each run sets. Threads inherit no
context before Python 3.14, so the run is stored on the thread when it is started, and work that
is handed to an executor carries the run that submitted it.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import threading
import weakref
from asyncio import Task
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from ptc_kernel.protocol.ledger import Meter

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Coroutine

__all__ = ("Run", "Runs")

THREAD_RUN: Final = "_ptc_run"
_threads: Final[dict[int, threading.Thread]] = threading._active  # type: ignore[attr-defined]


class Run:
    """One execute_request, the owner's or a visitor's.

    Attributes:
        parent: what the messages of this run name as their parent.
        meter: counts the output while the owner's program runs.
        owned: whether the owner sent it; a visitor's run has no bindings and no cap.
        names: the members that each namespace declares for this run.
        step: steps of the stop ladder that were applied.
    """

    def __init__(self, ident: str, parent: dict[str, Any], *, owned: bool, cap: int) -> None:
        self.id = ident
        self.parent = parent
        self.owned = owned
        self.meter: Meter | None = Meter(cap) if owned else None
        self.names: dict[str, frozenset[str]] = {}
        self.main: Task[Any] | None = None
        self.tasks: weakref.WeakSet[Task[Any]] = weakref.WeakSet()
        self.step = 0
        self.stepped_at = float("-inf")

    @property
    def over(self) -> bool:
        """Whether the output cap was crossed."""
        return self.meter is not None and self.meter.over


class Runs:
    """The run that executes now, and the one before it."""

    def __init__(self) -> None:
        self.variable: contextvars.ContextVar[Run | None] = contextvars.ContextVar("ptc_run", default=None)
        self.active: Run | None = None
        self.last: Run | None = None

    def current(self) -> Run | None:
        """The run that the calling task or thread belongs to."""
        run = self.variable.get()
        if run is not None:
            return run
        thread = _threads.get(get_ident())
        return getattr(thread, THREAD_RUN, None) or self.active or self.last

    def task_factory(
        self,
        loop: AbstractEventLoop,
        coro: Coroutine[Any, Any, Any],
        **options: Any,
    ) -> Task[Any]:
        """Make a task and record it with the run that is in its context."""
        task = Task(coro, loop=loop, **options)
        context = options.get("context")
        run = self.variable.get() if context is None else context.get(self.variable)
        if run is not None:
            run.tasks.add(task)
        return task

    def follow_threads(self) -> None:
        """Record from now on which run starts a thread or submits work to an executor."""
        start, submit = threading.Thread.start, concurrent.futures.ThreadPoolExecutor.submit

        def start_thread(thread: threading.Thread) -> None:
            setattr(thread, THREAD_RUN, self.current())
            start(thread)

        def submit_work(
            executor: concurrent.futures.ThreadPoolExecutor,
            fn: Callable[..., Any],
            /,
            *args: Any,
            **kwargs: Any,
        ) -> concurrent.futures.Future[Any]:
            return submit(executor, self._carry(fn), *args, **kwargs)

        threading.Thread.start = start_thread  # type: ignore[method-assign, assignment]
        concurrent.futures.ThreadPoolExecutor.submit = submit_work  # type: ignore[method-assign, assignment]

    def _carry(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        run = self.current()

        def carried(*args: Any, **kwargs: Any) -> Any:
            token = self.variable.set(run)
            try:
                return fn(*args, **kwargs)
            finally:
                self.variable.reset(token)

        return carried
