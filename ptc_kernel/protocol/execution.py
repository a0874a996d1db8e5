"""The state machine of one run: events go in, actions and the outcome come out.

Rule 1: everything that decides how a run ends is in this file. Rule 2: this file does no I/O and
reads no clock; the time, in seconds of any monotonic clock, is an argument.

A run is over when its reply and the kernel's idle are both here, or when the kernel is dead. The
first settled outcome wins (contract 3): a deadline that fires first makes a `timeout` whatever
the program answers to the interrupt, and a reply that arrives first takes the deadline away. The
account of the output has the last word.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast, final

from ptc_kernel.protocol.events import (
    Abort,
    Action,
    Died,
    Emit,
    EmitImage,
    Event,
    Finish,
    Interrupt,
    Kill,
    LaunchFailed,
    Over,
    Ready,
    Shown,
    Violation,
)
from ptc_kernel.protocol.ledger import LOST, Ledger, json_size
from ptc_kernel.protocol.lossless import LossyValueError, decode, encode
from ptc_kernel.protocol.messages import Began, Busy, Idle, Reply, Text
from ptc_kernel.types import ABSENT, Absent, ImageOutput, PtcJsonValue, PtcRunFailure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ptc_kernel.types import Channel, FailureKind

__all__ = ("TRANSITIONS", "Execution", "Limits", "Outcome", "Phase", "unstarted")

FIRST_REPEAT: Final = 0.25  # seconds from the first interrupt to the second (contract 8.2)
NEXT_REPEATS: Final = 1.0


class Phase(enum.Enum):
    """Where a run stands."""

    STARTING = "starting"  # the kernel is not there yet
    SENT = "sent"  # the request is with the kernel, the program has not begun
    RUNNING = "running"
    REPLIED = "replied"  # the reply is here, the last output may not be
    IDLED = "idled"  # the kernel is idle, its reply is not here
    KILLING = "killing"  # the kernel was told to die
    DONE = "done"


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        lost: whether the environment is gone.
        started: whether the program began to run.
    """

    error: PtcRunFailure | None
    value: PtcJsonValue | Absent
    lost: bool
    started: bool


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The budgets of one run.

    Attributes:
        deadline: the time at which the budget is used up; None is no deadline.
        timeout_ms: the size of the budget, for the message.
        interrupt_first: False goes straight to the kill.
        retained: whether variables live on after the run.
    """

    max_output_bytes: int
    grace_ms: float
    deadline: float | None
    timeout_ms: float | None
    retained: bool
    interrupt_first: bool = True


def unstarted(kind: FailureKind, message: str, max_output_bytes: int) -> Outcome:
    """The outcome of a run that ended before anything was started for it."""
    ledger = Ledger(max_output_bytes)
    if not ledger.fits(json_size(message)):
        kind = "output-limit"
        _, message = ledger.cut_rest(lost=False)
    return Outcome(PtcRunFailure(kind, message), ABSENT, lost=False, started=False)


P: Final = Phase
TRANSITIONS: Final[dict[Phase, dict[type, Phase]]] = {
    P.STARTING: {Ready: P.SENT, LaunchFailed: P.DONE, Died: P.DONE},
    P.SENT: {Began: P.RUNNING, Reply: P.REPLIED, Idle: P.IDLED, Died: P.DONE},
    P.RUNNING: {Reply: P.REPLIED, Idle: P.IDLED, Died: P.DONE},
    P.REPLIED: {Began: P.REPLIED, Idle: P.DONE, Died: P.DONE},  # shell may overtake iopub
    P.IDLED: {Reply: P.DONE, Died: P.DONE},
    P.KILLING: {Began: P.KILLING, Reply: P.KILLING, Idle: P.KILLING, LaunchFailed: P.DONE, Died: P.DONE},
    P.DONE: {},
}
"""Which event moves a run from which phase to which; any other of these events is a violation."""

_Settled: TypeAlias = "tuple[FailureKind | None, str]"


@final
class Execution:
    """One run, from its turn at the head of the queue to its outcome.

    Attributes:
        phase: where the run stands.
        outcome: set with the `Finish` action.
        started: whether the program began to run.
    """

    def __init__(self, run: str, limits: Limits) -> None:
        self.run = run
        self.phase = Phase.STARTING
        self.outcome: Outcome | None = None
        self.started = False
        self._limits = limits
        self._ledger = Ledger(limits.max_output_bytes)
        self._settled: _Settled | None = None
        self._value: PtcJsonValue | Absent = ABSENT
        self._value_size = 0
        self._over = False
        self._entered = True
        self._next_step: float | None = None  # of the stop ladder
        self._kill_at: float | None = None
        self._interrupts = 0
        self._killed = False

    # ------------------------------------------------------------------ in and out

    @property
    def settled(self) -> bool:
        """Whether it is decided how the run ends, though it may not be over."""
        return self._settled is not None

    @property
    def next_wakeup(self) -> float | None:
        """The time at which `tick` has something to do, or None."""
        times = [at for at in (self._next_step, self._kill_at) if at is not None]
        if self._settled is None and self._limits.deadline is not None:
            times.append(self._limits.deadline)
        return min(times) if times and self.phase not in (P.KILLING, P.DONE) else None

    def receive(self, event: Event, now: float) -> list[Action]:
        """Take one event; returns what the host must do, in order."""
        if self.phase is Phase.DONE:
            return []
        return list(self._receive(event, now))

    def tick(self, now: float) -> list[Action]:
        """Do what time asks for; returns what the host must do, in order."""
        if self.phase in (P.KILLING, P.DONE):
            return []
        return list(self._tick(now))

    def _receive(self, event: Event, now: float) -> Iterator[Action]:
        match event:
            case Text():
                yield from self._text(event)
            case Shown():
                yield from self._image(event.image)
            case Abort():
                yield from self._stop("abort", event.message, now)
            case Violation():
                yield from self._break(event.message)
            case Over():
                yield from self._flood()
            case Busy():
                pass
            case _:
                yield from self._step(event, now)

    def _step(
        self, event: Ready | LaunchFailed | Died | Began | Idle | Reply, now: float
    ) -> Iterator[Action]:
        phase = TRANSITIONS[self.phase].get(type(event))
        if phase is None:
            yield from self._break(
                f"{type(event).__name__} is out of order while the run is {self.phase.value}"
            )
            return
        before, self.phase = self.phase, phase
        match event:
            case Ready():
                return
            case Began():
                self.started = True
            case Reply():
                self._reply(event)
            case LaunchFailed():
                self._settle(event.kind, event.message)
            case Died():
                self._settle("worker-exit", event.message)
            case Idle():
                pass
        if phase is P.DONE:
            refused = isinstance(event, LaunchFailed) and event.kind == "sandbox-unavailable"
            gone = isinstance(event, (Died, LaunchFailed)) and not refused
            yield from self._finish(lost=self._killed or gone)
        elif phase in (P.REPLIED, P.IDLED) and before is not phase:
            self._next_step = None
            self._kill_at = now + self._limits.grace_ms / 1000

    # ------------------------------------------------------------------ output

    def _text(self, event: Text) -> Iterator[Action]:
        piece = self._ledger.admit_text(event.channel, event.text)
        if piece:
            yield Emit(event.channel, piece)
        if self._ledger.over and self.phase in (P.SENT, P.RUNNING, P.STARTING):
            yield from self._flood()

    def _image(self, image: ImageOutput) -> Iterator[Action]:
        size = len(encode(image.attachment.to_json()).encode())
        if self._ledger.admit_image(size, image):
            yield EmitImage(image)
        if self._ledger.over and self.phase in (P.SENT, P.RUNNING, P.STARTING):
            yield from self._flood()

    def _flood(self) -> Iterator[Action]:
        """The program wrote more than its cap, though its reply may have overtaken that."""
        self._over = True
        self._settle("output-limit", "")
        yield from self._kill()

    # ------------------------------------------------------------------ how it ends

    def _settle(self, kind: FailureKind | None, message: str) -> None:
        if self._settled is None:
            self._settled = (kind, message)

    def _reply(self, reply: Reply) -> None:
        match reply.status:
            case "none":
                self._settle(None, "")
            case "value":
                self._complete(reply.text)
            case "exception":
                self._settle("exception", reply.text)
            case "lossy":
                self._settle("invalid-output", f"the completion is not lossless JSON: {reply.text}")
            case "limit":
                self._settle("output-limit", "")
            case "cwd":
                self._settle("worker-exit", reply.text)
                self._entered = False

    def _complete(self, text: str) -> None:
        """Rebuild the value: what the worker checked may have been forged since."""
        if self._settled is not None:
            return
        try:
            value = decode(text)
            size = len(encode(value).encode())
        except LossyValueError as error:
            self._settle("invalid-output", f"the completion is not lossless JSON: {error}")
            return
        if self._ledger.fits(size):
            self._settle(None, "")
            self._value, self._value_size = value, size
        else:
            self._settle("output-limit", "")

    def _break(self, message: str) -> Iterator[Action]:
        """The peer is hostile or broken: what its reply said before the run was over does not count."""
        if self.phase in (P.REPLIED, P.IDLED) and (self._settled or ("",))[0] not in ("timeout", "abort"):
            self._settled, self._value = None, ABSENT
        self._settle("protocol", f"the kernel broke the protocol: {message}.")
        yield from self._kill()

    def _kill(self) -> Iterator[Action]:
        if self.phase in (P.KILLING, P.DONE):
            return
        self.phase, self._killed = P.KILLING, True
        yield Kill()

    def _stop(self, kind: Literal["timeout", "abort"], message: str, now: float) -> Iterator[Action]:
        if self._settled is not None:
            return
        self._settle(kind, message)
        if self.phase is P.STARTING or not self._limits.interrupt_first:
            yield from self._kill()
        elif self.phase in (P.SENT, P.RUNNING):
            self._kill_at = now + self._limits.grace_ms / 1000
            yield from self._interrupt(now)

    def _interrupt(self, now: float) -> Iterator[Action]:
        self._interrupts += 1
        self._next_step = now + (FIRST_REPEAT if self._interrupts == 1 else NEXT_REPEATS)
        yield Interrupt()

    def _tick(self, now: float) -> Iterator[Action]:
        deadline = self._limits.deadline
        if self._settled is None and deadline is not None and now >= deadline:
            yield from self._stop("timeout", self._timeout_message(), now)
        if self._kill_at is not None and now >= self._kill_at:
            if self.phase in (P.REPLIED, P.IDLED):
                yield from self._half_settled()
            else:
                yield from self._kill()
        elif self._next_step is not None and now >= self._next_step:
            yield from self._interrupt(now)

    def _half_settled(self) -> Iterator[Action]:
        """One of reply and idle is missing: how the run ended cannot be trusted."""
        have, missing = ("a reply", "idle") if self.phase is P.REPLIED else ("idle", "a reply")
        yield from self._break(
            f"{have} came without {missing} within grace_ms ({self._limits.grace_ms:.15g} ms)"
        )

    def _timeout_message(self) -> str:
        return f"timed out after timeout_ms = {cast('float', self._limits.timeout_ms):.15g} ms."

    # ------------------------------------------------------------------ the outcome

    def _finish(self, *, lost: bool) -> Iterator[Action]:
        kind, message = self._settled or (None, "")
        told = lost and self._limits.retained
        if kind == "timeout" and not self.started:
            message = f"{message[:-1]} before the program began."
        if kind in ("timeout", "abort"):
            message = self._stopped_message(message, lost=lost)
        if kind is not None and kind != "output-limit" and told:
            message = f"{message.rstrip()} {LOST}"
        size = self._value_size if kind is None else json_size(message)
        if self._over or not self._ledger.fits(size):
            kind = "output-limit"
        if kind == "output-limit":
            held, message = self._ledger.cut_rest(lost=told)
        else:
            held = self._ledger.rest()
        for key, content in held:
            if isinstance(content, ImageOutput):
                yield EmitImage(content)
            else:
                yield Emit(cast("Channel", key), cast("str", content))
        error = None if kind is None else PtcRunFailure(kind, message)
        started = self.started and self._entered
        self.outcome = Outcome(error, self._value if error is None else ABSENT, lost, started)
        yield Finish()

    def _stopped_message(self, message: str, *, lost: bool) -> str:
        if not self._limits.retained or not self._interrupts:
            return message
        if lost:
            grace = f"grace_ms ({self._limits.grace_ms:.15g} ms)"
            return f"{message.rstrip('.')}. The program did not stop within {grace}; its kernel was killed."
        return f"{message.rstrip('.')}. The program was interrupted; variables are kept."
