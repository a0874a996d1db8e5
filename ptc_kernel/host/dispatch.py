"""Answers the binding calls of one run: ids once, caps, authority, records."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Final, Literal, final

from ptc_kernel.context import CURRENT_CALL, PtcCallContext
from ptc_kernel.protocol.frames import Answer, ProtocolViolationError
from ptc_kernel.protocol.lossless import LossyValueError, decode, encode
from ptc_kernel.protocol.messages import whole_text
from ptc_kernel.types import CallEvent, PtcCallRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from ptc_kernel.protocol.frames import CallFrame, CallsFrame, PlacedImage
    from ptc_kernel.types import PtcBindingFunction, PtcJsonValue

__all__ = ("Dispatch", "Functions", "Handlers")

logger = logging.getLogger(__name__)

RECORDS: Final = 1000
STOPPED: Final = "the run is being stopped, so no further call is made"
UNPRINTABLE: Final = "the binding failed with an error that cannot be printed"
Functions = dict[str, dict[str, "PtcBindingFunction"]]


@final
class Handlers:
    """Every handler task of a runtime, so that none outlives it."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], str] = {}
        self.closing = False

    def start(self, serve: Coroutine[None, None, None], name: str) -> None:
        """Run a handler in a task of its own."""
        task = asyncio.get_running_loop().create_task(serve)
        self._tasks[task] = name
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # retrieved: a KeyboardInterrupt has ended the loop by itself

    async def aclose(self, grace: float) -> None:
        """Cancel what still runs and wait for it, at most `grace` seconds; logs who does not end."""
        self.closing = True
        tasks = dict(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=grace)
            for task in stuck:
                logger.warning("handler ignores its cancellation binding=%s grace_s=%g", tasks[task], grace)


class _Record:
    __slots__ = ("began", "ended", "member", "namespace", "outcome")

    def __init__(self, namespace: str, member: str, began: float) -> None:
        self.namespace = namespace
        self.member = member
        self.began = began
        self.ended: float | None = None
        self.outcome: Literal["ok", "rejected", "open"] = "open"

    def freeze(self, now: float) -> PtcCallRecord:
        spent = ((now if self.ended is None else self.ended) - self.began) * 1000
        return PtcCallRecord(
            namespace=self.namespace, member=self.member, outcome=self.outcome, milliseconds=spent
        )


@final
class Dispatch:
    """The calls of one run.

    Attributes:
        total: calls that were dispatched.
    """

    def __init__(
        self,
        functions: Functions,
        handlers: Handlers,
        *,
        owner: object | None,
        max_calls: int,
        max_bytes: int,
        encode_resolution: Callable[[object], tuple[str, tuple[PlacedImage, ...]]],
        answer: Callable[[Answer], None],
        on_event: Callable[[CallEvent], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        self._functions = functions
        self._handlers = handlers
        self._owner = owner
        self._max_calls, self._max_bytes = max_calls, max_bytes
        self._encode = encode_resolution
        self._answer, self._on_event, self._on_fatal = answer, on_event, on_fatal
        self._outer = CURRENT_CALL.get()
        self._open: dict[int, PtcCallContext] = {}
        self._bytes = 0
        self._records: list[_Record] = []
        self._stopped = self._ended = False
        self._loop = asyncio.get_running_loop()
        self.total = 0

    @property
    def names(self) -> Mapping[str, list[str]]:
        """The members of each namespace, for the worker."""
        return {name: list(members) for name, members in self._functions.items()}

    def take(self, frame: CallsFrame, first_id: int) -> int:
        """Start the handlers of a frame, in order; returns the id that the next call must have.

        Raises:
            ProtocolViolationError: an id, a name, an argument or a cap is violated; the calls
                before it were dispatched.
        """
        for expected, call in enumerate(frame.calls, first_id):
            if call.id != expected:
                msg = f"call id {call.id} came where {expected} was due"
                raise ProtocolViolationError(msg)
            if self._stopped:
                self._answer(Answer(call.id, False, STOPPED))
            else:
                self._start(call)
        return first_id + len(frame.calls)

    def _start(self, call: CallFrame) -> None:
        function = self._functions.get(call.namespace, {}).get(call.member)
        if function is None:
            raise ProtocolViolationError("a call of a function that the run does not declare")
        try:
            argument = decode(call.text)
            size = len(encode(argument).encode())  # checks what decode lets through: -0.0, 1e400, big ints
        except LossyValueError:
            raise ProtocolViolationError("a call with an argument that is not lossless JSON") from None
        if len(self._open) >= self._max_calls:
            msg = f"more calls at once than max_pending_calls ({self._max_calls})"
            raise ProtocolViolationError(msg)
        if self._bytes + size > self._max_bytes:
            msg = f"more argument bytes at once than max_message_bytes ({self._max_bytes})"
            raise ProtocolViolationError(msg)
        self._bytes += size
        self.total += 1
        record = _Record(call.namespace, call.member, self._loop.time())
        if len(self._records) < RECORDS:
            self._records.append(record)
        context = self._open[call.id] = PtcCallContext(
            namespace=call.namespace,
            member=call.member,
            call_id=call.id,
            state_owner=self._owner,
            outer=self._outer,
        )
        self._event(context, "started")

        async def serve() -> None:
            CURRENT_CALL.set(context)
            answer = await self._outcome(call.id, function, argument)
            self._bytes -= size
            self._end_call(context, record, answer)

        self._handlers.start(serve(), f"{call.namespace}.{call.member}")

    def _event(self, call: PtcCallContext, phase: Literal["started", "ok", "rejected"]) -> None:
        if not self._ended:
            event = CallEvent(call_id=call.call_id, namespace=call.namespace, member=call.member, phase=phase)
            self._on_event(event)

    def _end_call(self, context: PtcCallContext, record: _Record, answer: Answer) -> None:
        del self._open[context.call_id]
        if self._ended:  # nobody waits for it any more
            return
        record.ended = self._loop.time()
        record.outcome = "ok" if answer.ok else "rejected"
        self._event(context, record.outcome)
        self._answer(answer)

    async def _outcome(self, ident: int, function: PtcBindingFunction, argument: PtcJsonValue) -> Answer:
        try:
            result = function(argument)
            if inspect.isawaitable(result):
                result = await result
        except asyncio.CancelledError:
            if self._handlers.closing:
                raise
            return Answer(ident, False, "the binding was cancelled")
        except Exception as error:  # noqa: BLE001 - a handler's failure is the program's to handle
            return Answer(ident, False, _failure_text(error, self._max_bytes))
        except BaseException:  # KeyboardInterrupt and SystemExit are the host's own
            self._on_fatal("the host is being interrupted")
            raise
        try:
            text, images = self._encode(result)
        except LossyValueError as error:
            return Answer(ident, False, f"the binding's resolution must be lossless JSON: {error}")
        if len(text) > self._max_bytes or len(text.encode()) > self._max_bytes:
            problem = f"the binding's resolution is over max_message_bytes ({self._max_bytes})"
            return Answer(ident, False, problem)
        return Answer(ident, True, text, images)

    def abandon(self, ids: tuple[int, ...]) -> None:
        """The tasks that waited for these calls were cancelled."""
        for ident in ids:
            if ident in self._open:
                self._open[ident].abandoned = True

    def stop(self) -> None:
        """It is settled how the run ends: dispatch nothing more (contract 7)."""
        self._stopped = True

    def end(self) -> None:
        """The run is over: dispatch nothing more, swallow what still comes."""
        self._ended = True
        for context in self._open.values():
            context.run_ended = True

    def records(self) -> tuple[PtcCallRecord, ...]:
        """The first calls, in order."""
        now = self._loop.time()
        return tuple(record.freeze(now) for record in self._records)


def _failure_text(error: Exception, most: int) -> str:
    try:
        text = str(error)
        if type(text) is not str:
            text = str.__getitem__(text, slice(None))
    except BaseException:  # noqa: BLE001 - __str__ is foreign code
        return UNPRINTABLE
    if len(text) > most:
        return f"{type(error).__name__}: its text is over max_message_bytes ({most})"
    return whole_text(text) or type(error).__name__
