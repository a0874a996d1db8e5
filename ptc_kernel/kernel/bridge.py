"""The worker's end of the comm: calls go out on iopub, answers come in on the control channel.

Calls may come from the main task, other tasks, threads with a loop of their own, and blocking
code in any thread. Calls of one loop turn travel in one message. A run has `max_pending_calls`
slots and `max_message_bytes` of arguments; what does not fit waits here, so that an honest
program never trips the host's caps.
"""

from __future__ import annotations

import collections
import itertools
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Final

from ptc_kernel.protocol.frames import COMM_TARGET, PROTOCOL_VERSION, CallFrame, encode_calls, unpack_text

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from ptc_kernel.kernel.interrupts import Interrupts
    from ptc_kernel.kernel.runs import Run, Runs
    from ptc_kernel.kernel.streams import Output

__all__ = ("OVER", "Bridge", "Call", "RefusedCallError")

OVER: Final = "the run that made this call is over"
SEND_FRAMES: Final = 80  # more than a call needs, so that no RecursionError cuts a message in two


class RefusedCallError(Exception):
    """The worker refuses a call; the host never hears of it."""


class Call:
    """One call: waiting for a slot, in the outbox, or with the host.

    Attributes:
        id: given when the call is sent, so that ids have no gaps.
        answer: whether it went well, and the JSON text or the failure's text.
        images: those in the value, as the frame has them.
        gate: held until the answer is here, for a caller that blocks.
    """

    __slots__ = (
        "answer",
        "future",
        "gate",
        "id",
        "images",
        "loop",
        "member",
        "namespace",
        "run",
        "size",
        "text",
    )

    def __init__(
        self, run: Run, namespace: str, member: str, text: str, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.id = 0
        self.run = run
        self.namespace = namespace
        self.member = member
        self.text = text
        self.size = len(text) if text.isascii() else len(text.encode())
        self.loop = loop
        self.answer: tuple[bool, str] = (False, OVER)
        self.images: list[Any] = []
        self.future = None if loop is None else loop.create_future()
        self.gate = Lock()
        self.gate.acquire()


class _Account:
    """The slots and the argument bytes that the calls of one run hold."""

    def __init__(self) -> None:
        self.calls: dict[Call, None] = {}
        self.size = 0
        self.waiting: collections.deque[Call] = collections.deque()


class Bridge:
    """Sends calls, takes answers, and hands acknowledgements and cancels to whom they concern."""

    def __init__(
        self,
        hello: dict[str, Any],
        runs: Runs,
        interrupts: Interrupts,
        output: Output,
        send: Callable[[str, dict[str, Any], Run, list[bytes]], None],
    ) -> None:
        self.comm_id: str = hello["comm_id"]
        self._max_calls: int = hello["max_pending_calls"]
        self._max_bytes: int = hello["max_message_bytes"]
        self._runs = runs
        self._interrupts = interrupts
        self._output = output
        self._send = send
        self._lock = RLock()
        self._next_id = 1
        self._accounts: dict[Run, _Account] = {}
        self._sent: dict[int, Call] = {}
        self._outbox: list[Call] = []
        self._flushing: set[asyncio.AbstractEventLoop] = set()
        self._opened = False

    # ------------------------------------------------------------------ runs

    def begin_run(self, run: Run) -> None:
        """Open the comm with the first run, and an account for this one."""
        if not self._opened:
            self._opened = True
            content = {"target_name": COMM_TARGET, "data": {"version": PROTOCOL_VERSION}}
            self._send("comm_open", {"comm_id": self.comm_id, **content}, run, [])
        with self._lock:
            self._accounts[run] = _Account()

    def end_run(self, run: Run) -> None:
        """Reject the calls of a run that is over, and free their slots."""
        with self._lock:
            account = self._accounts.pop(run, None)
            if account is None:
                return
            gone = [*account.calls, *account.waiting]
            for call in gone:
                self._sent.pop(call.id, None)
            self._outbox = [call for call in self._outbox if call.run is not run]
        for call in gone:
            call.answer = (False, OVER)
        self._deliver(gone)

    def tell_over(self, run: Run) -> None:
        """Tell the host that a run crossed its output cap."""
        self._post({"over": run.id}, run)

    def show_image(self, number: int) -> None:
        """Show an image of the host's at this place of the output."""
        run = self._runs.current()
        if run is None or run is not self._runs.active or not run.owned:
            raise RuntimeError("an image can be shown while the run that shows it is going on")
        self._output.show_image(run, lambda: self._post({"inspect": number, "run": run.id}, run))

    # ------------------------------------------------------------------ calls out

    def call(self, namespace: str, member: str, text: str, loop: asyncio.AbstractEventLoop | None) -> Call:
        """Issue a call; without a loop the caller waits on the call's gate.

        Raises:
            RefusedCallError: the calling run is over, does not declare the member, or the
                argument can never be sent.
        """
        require_stack(SEND_FRAMES)
        run = self._runs.current()
        if run is None or run is not self._runs.active:
            raise RefusedCallError(OVER)
        if member not in run.names.get(namespace, ()):
            msg = f"this run does not declare {namespace}[{member!r}]"
            raise RefusedCallError(msg)
        call = Call(run, namespace, member, text, loop)
        if call.size > self._max_bytes:
            msg = f"the argument has {call.size} bytes; max_message_bytes is {self._max_bytes}"
            raise RefusedCallError(msg)
        with self._lock:
            account = self._accounts.get(run)
            if account is None:
                raise RefusedCallError(OVER)
            if account.waiting or not self._has_room(account, call):
                account.waiting.append(call)
            else:
                self._admit(account, call)
        if call.future is not None:
            call.future.add_done_callback(lambda future: self._abandon(call) if future.cancelled() else None)
        self._flush_soon(loop)
        return call

    def _has_room(self, account: _Account, call: Call) -> bool:
        return len(account.calls) < self._max_calls and account.size + call.size <= self._max_bytes

    def _admit(self, account: _Account, call: Call) -> None:
        account.calls[call] = None
        account.size += call.size
        self._outbox.append(call)

    def _release(self, call: Call) -> None:
        """Free the slot of a call, and let waiting ones in."""
        account = self._accounts.get(call.run)
        if account is None or call not in account.calls:
            return
        del account.calls[call]
        account.size -= call.size
        while account.waiting and self._has_room(account, account.waiting[0]):
            self._admit(account, account.waiting.popleft())

    def _flush_soon(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if loop is None:
            self.flush()
        elif loop not in self._flushing:
            self._flushing.add(loop)
            loop.call_soon(self._flush_on, loop)

    def _flush_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flushing.discard(loop)
        self.flush()

    def flush(self) -> None:
        """Send the calls of the outbox, after the output that came before them."""
        with self._lock:
            if self._outbox:
                self._output.flush()
            while self._outbox:
                run, group = next(itertools.groupby(self._outbox, key=lambda call: call.run))
                calls = list(group)
                self._send_calls(run, calls)
                del self._outbox[: len(calls)]

    def _send_calls(self, run: Run, calls: list[Call]) -> None:
        """Send calls in one message; nothing is changed when that fails."""
        frames = [
            CallFrame(ident, call.namespace, call.member, call.text)
            for ident, call in enumerate(calls, self._next_id)
        ]
        data, buffers = encode_calls(run.id, frames)
        self._post(data, run, buffers)
        self._next_id += len(calls)
        for call, frame in zip(calls, frames, strict=True):
            call.id, call.text = frame.id, ""
            self._sent[call.id] = call

    def _abandon(self, call: Call) -> None:
        """The waiting task was cancelled: drop a call that was not sent, tell the host of one that was."""
        with self._lock:
            account = self._accounts.get(call.run)
            if account is None:
                return
            if call in account.waiting:
                account.waiting.remove(call)
            elif call in self._outbox:
                self._outbox.remove(call)
                self._release(call)
            elif call.id in self._sent:
                self._post({"abandoned": [call.id], "run": call.run.id}, call.run)

    def _post(self, data: dict[str, object], run: Run, buffers: list[bytes] | None = None) -> None:
        self._send("comm_msg", {"comm_id": self.comm_id, "data": data}, run, buffers or [])

    # ------------------------------------------------------------------ answers in (control thread)

    def on_message(self, data: dict[str, Any], buffers: list[bytes | memoryview]) -> None:
        """Take one message of the host; runs in the control thread."""
        if "answers" in data:
            self._on_answers(data["answers"], buffers)
        if "ack" in data:
            self._output.acknowledge(data["ack"])
        if "cancel" in data:
            self._interrupts.on_message(data["cancel"])

    def _on_answers(self, answers: Iterable[list[Any]], buffers: list[bytes | memoryview]) -> None:
        answered = []
        with self._lock:
            for ident, ok, packed, *images in answers:
                text = unpack_text(packed, buffers)
                call = self._sent.pop(ident, None)
                if call is not None:
                    call.answer, call.images = (ok, text), images[0] if images else []
                    answered.append(call)
                    self._release(call)
        self._deliver(answered)
        self.flush()

    @staticmethod
    def _deliver(calls: Iterable[Call]) -> None:
        """Wake the callers, each loop once."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Call]] = {}
        for call in calls:
            if call.loop is None:
                call.gate.release()
            else:
                by_loop.setdefault(call.loop, []).append(call)
        for loop, group in by_loop.items():
            try:
                loop.call_soon_threadsafe(_settle_futures, group)
            except RuntimeError:  # the program closed its own loop
                continue


def require_stack(frames: int) -> None:
    """Raise RecursionError now, when fewer frames than this are left."""
    if frames:
        require_stack(frames - 1)


def _settle_futures(calls: list[Call]) -> None:
    for call in calls:
        if call.future is not None and not call.future.done():
            call.future.set_result(None)
