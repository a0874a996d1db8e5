"""The seam, `PtcRuntime`, and its implementation on Jupyter kernels of this machine."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from abc import ABC, abstractmethod
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, final

from ptc_kernel.abort import AbortSignal
from ptc_kernel.attachments import AttachmentStore, LocalAttachmentStore
from ptc_kernel.config import JupyterPtcConfig
from ptc_kernel.context import PtcCallContext
from ptc_kernel.errors import ConfigError, ReleaseError, UsageError, UsageTypeError, UsageValueError
from ptc_kernel.host.dispatch import Handlers
from ptc_kernel.host.instructions import EXECUTION_INSTRUCTIONS
from ptc_kernel.host.owners import Owners
from ptc_kernel.host.run import Run
from ptc_kernel.host.sinks import Fold, Queue
from ptc_kernel.host.transport import new_context
from ptc_kernel.protocol.names import check_namespaces
from ptc_kernel.types import (
    UNSET,
    PtcRunRequest,
    PtcRunResult,
    PtcRunSpec,
    ResultEvent,
    TimeoutLimits,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType
    from typing import Self

    from ptc_kernel.host.sinks import Sink
    from ptc_kernel.types import PtcBindingFunction, PtcEvent

__all__ = ("JupyterPtcRuntime", "PtcRuntime")

DISPOSED: Final = "runtime disposed"
PRIMITIVE_OWNERS: Final = (int, str, bytes, bytearray, float, complex, tuple, frozenset, type(None))


class PtcRuntime(ABC):
    """Runs programs against host functions; what a program does is data, only misuse raises."""

    language: str
    isolation: str
    program_format: str
    retains_state: bool
    sandbox_mode: str | None

    @property
    @abstractmethod
    def execution_instructions(self) -> str:
        """What a model must know to write programs for this runtime."""

    @property
    @abstractmethod
    def timeout(self) -> TimeoutLimits | None:
        """The default and the largest elapsed budget, or None when runs cannot choose one."""

    @abstractmethod
    def resolve(self, request: PtcRunRequest) -> PtcRunSpec:
        """Decide what a request leaves open; raises on a choice that is invalid here."""

    @abstractmethod
    async def run(self, spec: PtcRunSpec) -> PtcRunResult:
        """Run a program to its outcome."""

    @abstractmethod
    async def release(self, owner: object) -> None:
        """End the environment of a state owner; returns when all of it is gone."""

    @abstractmethod
    async def aclose(self) -> None:
        """Abort what runs, release every owner, and end."""


class _Driver:
    """One run in a task of its own, so that nothing that happens to its caller cuts its clean-up."""

    def __init__(self, run: Run, owners: Owners) -> None:
        self.run = run
        self.task = asyncio.get_running_loop().create_task(owners.admit(run))

    async def result(self) -> PtcRunResult:
        """The result; a cancelled caller stops the program and waits until it is cleaned up."""
        cancelled: asyncio.CancelledError | None = None
        while not self.task.done():
            try:
                await asyncio.wait({self.task})
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                self.run.abort("the caller was cancelled")
        if cancelled is not None:
            raise cancelled
        return self.task.result()


@final
class JupyterPtcRuntime(PtcRuntime):
    """Runs Python programs in Jupyter kernels on this machine, one kernel per state owner.

    Keyword arguments are fields of `JupyterPtcConfig`. Kernels start with the first run;
    `aclose`, or leaving `async with`, ends them. A runtime belongs to the event loop of its
    first run.

    Example:
        async with JupyterPtcRuntime(timeout_ms=30_000) as runtime:
            spec = runtime.resolve(PtcRunRequest(program="6 * 7"))
            result = await runtime.run(spec)
            assert result.value == 42

    Raises:
        ConfigError: a configuration field is not usable, or this platform is not Linux.
    """

    language: str = "python"
    isolation: str = "process"
    program_format: str = "repl"
    retains_state: bool = True
    sandbox_mode: str | None = None

    def __init__(self, config: JupyterPtcConfig | None = None, **options: Any) -> None:
        if not hasattr(os, "pidfd_open"):
            raise ConfigError("JupyterPtcRuntime needs Linux: it relies on pidfd, memfd and process groups")
        unknown = options.keys() - set(JupyterPtcConfig.names())
        if unknown:
            known = ", ".join(JupyterPtcConfig.names())
            msg = f"unknown configuration {', '.join(sorted(unknown))}; known is {known}"
            raise ConfigError(msg)
        if config is None:
            config = JupyterPtcConfig(**options)
        elif options:
            config = replace(config, **options)
        self._config = config
        self._context = new_context()
        self._handlers = Handlers()
        self._own_images = LocalAttachmentStore()
        self._images = config.attachments or self._own_images
        self._owners = Owners(config, self._context, self._images)
        self._drivers: set[_Driver] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._disposed = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def config(self) -> JupyterPtcConfig:
        """The validated configuration."""
        return self._config

    @property
    def attachments(self) -> AttachmentStore:
        """The store of the images that runs showed; ends with the runtime unless one was configured."""
        return self._images

    @property
    def execution_instructions(self) -> str:
        """A few lines for a model: how to write programs for this runtime."""
        return EXECUTION_INSTRUCTIONS.format(max_pending_calls=self._config.max_pending_calls)

    @property
    def timeout(self) -> TimeoutLimits:
        """The default and the largest elapsed budget of a run."""
        most = self._config.max_timeout_ms
        return TimeoutLimits(default_ms=min(self._config.timeout_ms, most), max_ms=most)

    # ------------------------------------------------------------------ resolve and run

    def resolve(self, request: PtcRunRequest) -> PtcRunSpec:
        """Decide the working directory and the deadline of a request, which is left as it is.

        Raises:
            UsageError: the runtime is disposed, or the request names a relative `cwd`, a
                `timeout_ms` that is not a positive finite number, or a sandbox policy.
        """
        self._check_open()
        if not isinstance(request, PtcRunRequest):
            msg = f"resolve takes a PtcRunRequest, not {type(request).__name__}"
            raise UsageTypeError(msg)
        chosen = {item.name: getattr(request, item.name) for item in fields(PtcRunRequest)}
        _check_policy(request)
        _check_owner(request.state_owner)
        _check_signal(request.signal)
        chosen["cwd"] = _check_cwd(self._config.cwd or os.getcwd() if request.cwd is None else request.cwd)
        limits = self.timeout
        if request.timeout_ms is UNSET:
            chosen["timeout_ms"] = limits.default_ms
        elif request.timeout_ms is not None:
            chosen["timeout_ms"] = min(_check_timeout(request.timeout_ms), limits.max_ms)
        return PtcRunSpec(**chosen)

    async def run(self, spec: PtcRunSpec) -> PtcRunResult:
        """Run a program; its outcome, whatever it is, is in the result.

        Cancelling the calling task stops the program like an abort, cleans up, and is raised
        again.

        Raises:
            UsageError: the runtime is disposed, the spec is not resolved, a binding is invalid,
                or the call comes from a handler of the same owner's run.
        """
        fold = Fold()
        driver = self._start(spec, fold)
        result = await driver.result()
        return replace(result, output=fold.output())

    def stream(self, spec: PtcRunSpec) -> AsyncIterator[PtcEvent]:
        """Run a program and yield its events as they happen, a `ResultEvent` last.

        A reader that does not read holds the program back; no event is dropped. Closing the
        iterator early stops the program. `run` is the fold of this stream.

        Raises:
            UsageError: at this call, for the reasons that `run` has.
        """
        queue = Queue()
        driver = self._start(spec, queue)
        driver.task.add_done_callback(lambda task: _put_result(task, queue))
        return _EventStream(driver, queue)

    def _start(self, spec: PtcRunSpec, sink: Sink) -> _Driver:
        self._check_open()
        self._check_loop()
        functions, errors = self._check_spec(spec)
        run = Run(
            spec, functions=functions, errors=errors, config=self._config, handlers=self._handlers, sink=sink
        )
        driver = _Driver(run, self._owners)
        self._drivers.add(driver)
        driver.task.add_done_callback(lambda _: self._drivers.discard(driver))
        return driver

    def _check_spec(
        self, spec: PtcRunSpec
    ) -> tuple[dict[str, dict[str, PtcBindingFunction]], dict[str, tuple[str, str]]]:
        if not isinstance(spec, PtcRunSpec):
            msg = f"run takes a PtcRunSpec from resolve, not {type(spec).__name__}"
            raise UsageTypeError(msg)
        _check_policy(spec)
        _check_cwd(spec.cwd)
        if spec.timeout_ms is not None and _check_timeout(spec.timeout_ms) > self._config.max_timeout_ms:
            most = self._config.max_timeout_ms
            msg = f"timeout_ms of a spec must be at most max_timeout_ms ({most:g}); use resolve"
            raise UsageValueError(msg)
        _check_owner(spec.state_owner)
        _check_signal(spec.signal)
        if spec.state_owner is not None:
            _check_reentry(lambda owner: owner is spec.state_owner, "run a program of")
        captured = check_namespaces(spec.bindings)
        functions = {name: members for name, (_, members) in captured.items()}
        errors = {
            name: (error_class.name, error_class.member_name_property)
            for name, (error_class, _) in captured.items()
            if error_class is not None
        }
        return functions, errors

    # ------------------------------------------------------------------ release and disposal

    async def release(self, owner: object) -> None:
        """End an owner's kernel and everything of it; a no-op for an unknown owner.

        Running and queued runs of the owner end as `abort`. The same owner starts fresh
        afterwards.

        Raises:
            UsageError: called from a handler of the owner's own run.
            ReleaseError: something could not be cleaned up; may be called again.
        """
        if self._disposed:
            return
        _check_reentry(lambda other: other is owner, "release")
        await self._owners.release(owner)

    async def aclose(self) -> None:
        """Abort every run as "runtime disposed", release every owner, and end; idempotent.

        Raises:
            UsageError: called from inside a handler.
            ReleaseError: something could not be cleaned up.
        """
        _check_reentry(lambda _: True, "close the runtime of")
        self._disposed = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        drivers = list(self._drivers)
        for driver in drivers:
            driver.run.abort(DISPOSED)
        if drivers:
            await asyncio.wait({driver.task for driver in drivers})
        failures = await self._owners.release_all(DISPOSED)
        await self._handlers.aclose(self._config.grace_ms / 1000)
        self._context.destroy(linger=0)
        self._own_images.close()
        if failures:
            raise ReleaseError("; ".join(str(failure) for failure in failures))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _is_fresh(self, owner: object) -> bool:
        """Whether the owner's next program would begin in a new environment."""
        return self._owners.is_fresh(owner)

    # ------------------------------------------------------------------ misuse

    def _check_open(self) -> None:
        if self._disposed:
            raise UsageError("the runtime is disposed")

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise UsageError("a runtime belongs to the event loop of its first run; make one per loop")


def _check_policy(request: PtcRunRequest) -> None:
    if request.sandbox_policy is not None:
        raise UsageValueError("sandbox_policy: this runtime does not confine programs, so it takes no policy")


def _check_cwd(cwd: object) -> str:
    if type(cwd) is not str:
        msg = f"cwd must be a str, not {type(cwd).__name__}"
        raise UsageTypeError(msg)
    if not os.path.isabs(cwd) or "\0" in cwd:
        msg = f"cwd must be an absolute path without NUL, not {cwd!r}"
        raise UsageValueError(msg)
    return cwd


def _check_timeout(timeout_ms: object) -> float:
    if not isinstance(timeout_ms, (int, float)) or isinstance(timeout_ms, bool):
        msg = f"timeout_ms must be a number of milliseconds, None or UNSET, not {type(timeout_ms).__name__}"
        raise UsageTypeError(msg)
    if not 0 < timeout_ms < math.inf:  # false for nan; an int may be larger than every float
        msg = "timeout_ms must be above 0 and finite; None is no deadline"
        raise UsageValueError(msg)
    return timeout_ms


def _check_owner(owner: object) -> None:
    kind = type(owner).__name__
    if owner is not None and issubclass(type(owner), PRIMITIVE_OWNERS):
        msg = f"state_owner is told apart by identity, which a {kind} does not have: use StateOwner(label)"
        raise UsageTypeError(msg)


def _check_signal(signal: object) -> None:
    if signal is None or isinstance(signal, AbortSignal):
        return
    if isinstance(signal, threading.Event):
        raise UsageTypeError(
            "signal cannot be a threading.Event: use AbortController().signal, which any thread can fire"
        )
    if not (callable(getattr(signal, "wait", None)) and callable(getattr(signal, "is_set", None))):
        msg = (
            f"signal must be an AbortSignal, an asyncio.Event or an anyio.Event, not {type(signal).__name__}"
        )
        raise UsageTypeError(msg)


def _check_reentry(concerns: Callable[[object], bool], what: str) -> None:
    """Refuse what would wait for the very call that asks for it."""
    call = PtcCallContext.current()
    while call is not None:
        if not call.run_ended and call.state_owner is not None and concerns(call.state_owner):
            name = f"{call.namespace}.{call.member}"
            msg = f"a handler ({name}) cannot {what} the owner whose program is waiting for it"
            raise UsageError(msg)
        call = call.outer


def _put_result(task: asyncio.Task[PtcRunResult], queue: Queue) -> None:
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is None:
        queue.put(ResultEvent(task.result()), lambda: None)
    else:
        queue.fail(error)


class _EventStream:
    """The events of one run; leaving it early, in whatever way, stops the program."""

    def __init__(self, driver: _Driver, queue: Queue) -> None:
        self._driver = driver
        self._queue = queue
        self._ended = False
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> _EventStream:
        return self

    async def __anext__(self) -> PtcEvent:
        if self._ended:
            raise StopAsyncIteration
        try:
            event = await self._queue.next()
        except BaseException:
            await self.aclose()
            raise
        self._ended = isinstance(event, ResultEvent)
        return event

    async def aclose(self) -> None:
        """Stop the program unless it has ended, and wait until that is done."""
        if not self._ended:
            self._ended = True
            self._leave()
            await self._driver.result()

    def _leave(self) -> None:
        self._queue.close()
        self._driver.run.abort("the reader of the stream left")

    def __del__(self) -> None:
        if not self._ended and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._leave)
