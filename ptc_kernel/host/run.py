"""One run on the host: drives its state machine with events, time and stop requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, final

from anyio import to_thread

from ptc_kernel.abort import AbortSignal, reason_text
from ptc_kernel.host.dispatch import Dispatch
from ptc_kernel.host.sinks import nothing
from ptc_kernel.protocol.events import (
    Abort,
    Emit,
    EmitImage,
    Finish,
    Interrupt,
    Kill,
    Over,
    Shown,
    Violation,
)
from ptc_kernel.protocol.execution import Execution, Limits, Outcome, unstarted
from ptc_kernel.protocol.frames import (
    AbandonFrame,
    CallsFrame,
    InspectFrame,
    OverFrame,
    ProtocolViolationError,
)
from ptc_kernel.protocol.messages import Picture, Text
from ptc_kernel.types import CallEvent, OutputEvent, TextOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ptc_kernel.config import JupyterPtcConfig
    from ptc_kernel.host.dispatch import Functions, Handlers
    from ptc_kernel.host.environment import Environment
    from ptc_kernel.host.sinks import Sink
    from ptc_kernel.protocol.events import Action, Died, Event
    from ptc_kernel.protocol.frames import Answer, KernelFrame, PlacedImage
    from ptc_kernel.protocol.messages import Began, Busy, Idle, Reply
    from ptc_kernel.types import PtcRunSpec

    Ordered = Text | Shown | Busy | Began | Idle | Reply | Died

__all__ = ("Run",)


@final
class Run:
    """One run, from the call to its outcome.

    Attributes:
        id: the id of its request, once it was sent.
        over: done with the outcome.
        stop_text: why the run must stop, when that was asked before it began.
    """

    def __init__(
        self,
        spec: PtcRunSpec,
        *,
        functions: Functions,
        errors: Mapping[str, tuple[str, str]],
        config: JupyterPtcConfig,
        handlers: Handlers,
        sink: Sink,
    ) -> None:
        self.spec = spec
        self.errors = errors
        self.id = ""
        self._config = config
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._execution: Execution | None = None
        self._environment: Environment | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._storing: asyncio.Task[None] | None = None
        self._behind: list[Ordered | Picture] = []
        self.stop_text: str | None = None
        self.stopped = asyncio.Event()
        self.over: asyncio.Future[Outcome] = self._loop.create_future()
        self.dispatch = Dispatch(
            functions,
            handlers,
            owner=spec.state_owner,
            max_calls=config.max_pending_calls,
            max_bytes=config.max_message_bytes,
            encode_resolution=self._encode,
            answer=self._answer,
            on_event=self._call_event,
            on_fatal=self.abort,
        )
        self._unlisten = self._listen(spec.signal)

    # ------------------------------------------------------------------ asked to stop

    def _listen(self, signal: Any) -> Callable[[], object]:
        if signal is None:
            return nothing
        if isinstance(signal, AbortSignal):
            if signal.aborted:
                self.abort(reason_text(signal.reason))
            return signal.add_listener(lambda: self._abort_from_anywhere(signal))
        if signal.is_set():
            self.abort("aborted")
            return nothing
        return self._loop.create_task(self._watch(signal)).cancel

    def _abort_from_anywhere(self, signal: AbortSignal) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self.abort(reason_text(signal.reason)))

    async def _watch(self, event: asyncio.Event) -> None:
        await event.wait()
        self.abort("aborted")

    def abort(self, text: str) -> None:
        """Stop the run: by the ladder when it has begun, at once when it has not."""
        if self._execution is not None:
            self.feed(Abort(text))
        elif self.stop_text is None:
            self.stop_text = text
            self.stopped.set()

    # ------------------------------------------------------------------ life

    @property
    def started(self) -> bool:
        """Whether the program is known to have begun."""
        return self._execution is not None and self._execution.started

    def begin(self, environment: Environment) -> None:
        """The run is at the head of its queue: its clock starts."""
        spec, config = self.spec, self._config
        budget = spec.timeout_ms
        assert isinstance(budget, (int, float, type(None)))
        limits = Limits(
            max_output_bytes=config.max_output_bytes,
            grace_ms=config.grace_ms,
            deadline=None if budget is None else self._loop.time() + budget / 1000,
            timeout_ms=budget,
            retained=spec.state_owner is not None,
            interrupt_first=config.stop == "interrupt",
        )
        self._environment = environment
        self._execution = Execution(environment.label, limits)
        self._arm()

    def end_unstarted(self) -> None:
        """End a run for which nothing was started."""
        text = self.stop_text or "aborted"
        self._finish(unstarted("abort", text, self._config.max_output_bytes))

    def take(self, event: Ordered | Picture) -> None:
        """Take what must keep its order: behind an image that is being stored, it waits."""
        if self._storing is not None:
            self._behind.append(event)
        elif isinstance(event, Picture):
            self._storing = self._loop.create_task(self._store(event))
        else:
            self.feed(event)

    async def _store(self, picture: Picture) -> None:
        assert self._environment is not None
        stored = await to_thread.run_sync(self._environment.images.store, picture)
        self.feed(stored)
        if isinstance(stored, Shown):
            self._environment.window.read(picture.count)
        self._storing = None
        waiting, self._behind = self._behind, []
        for event in waiting:
            self.take(event)

    def feed(self, event: Event) -> None:
        """Give the state machine an event, and do what it says."""
        execution = self._execution
        if execution is None or self.over.done():
            return
        mark = event.count if isinstance(event, Text) else 0
        self._do(execution.receive(event, self._loop.time()), mark)

    def _tick(self) -> None:
        self._timer_at = None
        if self._execution is not None:
            self._do(self._execution.tick(self._loop.time()), 0)

    def _do(self, actions: list[Action], mark: int) -> None:
        environment = self._environment
        assert environment is not None
        for action in actions:
            match action:
                case Emit(channel, text):
                    taken, mark = self._acknowledge(mark), 0
                    self._sink.put(OutputEvent(TextOutput(text, channel)), taken)
                case EmitImage(image):
                    self._sink.put(OutputEvent(image), nothing)
                case Interrupt():
                    environment.interrupt(self)
                case Kill():
                    environment.kill()
                case Finish():
                    assert self._execution is not None
                    assert self._execution.outcome is not None
                    self._finish(self._execution.outcome)
        if mark:
            environment.window.read(mark)
        if self._execution is not None and self._execution.settled:
            self.dispatch.stop()
        if not self.over.done():
            self._arm()

    def _acknowledge(self, mark: int) -> Callable[[], None]:
        environment = self._environment
        if not mark or environment is None:
            return nothing
        return environment.window.arrived(mark)

    def _arm(self) -> None:
        at = None if self._execution is None else self._execution.next_wakeup
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else self._loop.call_at(at, self._tick)
        self._timer_at = at

    def _finish(self, outcome: Outcome) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unlisten()
        self.dispatch.end()
        self._sink.end()
        if self._environment is not None:
            self._environment.leave(self)
        self.over.set_result(outcome)

    # ------------------------------------------------------------------ bindings

    def on_frame(self, frame: KernelFrame, next_id: int) -> int:
        """Take a frame of this run; returns the id that the next call must have."""
        match frame:
            case CallsFrame():
                try:
                    return self.dispatch.take(frame, next_id)
                except ProtocolViolationError as error:
                    self.feed(Violation(str(error)))
            case AbandonFrame(_, ids):
                self.dispatch.abandon(ids)
            case InspectFrame(_, number):
                assert self._environment is not None
                try:
                    self.take(self._environment.images.numbered(number))
                except ProtocolViolationError as error:
                    self.feed(Violation(str(error)))
            case OverFrame():
                self.feed(Over())
        return next_id

    def _encode(self, value: object) -> tuple[str, tuple[PlacedImage, ...]]:
        assert self._environment is not None
        return self._environment.images.encode(value)

    def _answer(self, answer: Answer) -> None:
        if self._environment is not None:
            self._environment.answer(answer)

    def _call_event(self, event: CallEvent) -> None:
        self._sink.put(event, nothing)
