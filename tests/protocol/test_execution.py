"""The state machine of one run: contract 3, 8.2 and 10.2; areas F, G, H, I and M without a process."""

# The test law asks for `assert expected == actual`.

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptc_kernel.protocol.events import (
    Abort,
    Died,
    Emit,
    Finish,
    Interrupt,
    Kill,
    LaunchFailed,
    Over,
    Ready,
    Violation,
)
from ptc_kernel.protocol.execution import TRANSITIONS, Execution, Limits, Phase, unstarted
from ptc_kernel.protocol.ledger import LOST
from ptc_kernel.protocol.lossless import encode
from ptc_kernel.protocol.messages import Began, Busy, Idle, Reply, Text
from ptc_kernel.types import ABSENT, FAILURE_KINDS
from tests.protocol.json_strategies import FAST, THOROUGH, encode_size, json_values, texts

RUN = "r"
READY, BUSY, BEGAN, IDLE, OVER, DIED = Ready(), Busy(RUN), Began(RUN), Idle(RUN), Over(), Died("exit code 7.")
LAUNCH, SANDBOX = LaunchFailed("no kernel."), LaunchFailed("no bubblewrap.", "sandbox-unavailable")
ABORT, VIOLATION, TICK = Abort("stop please"), Violation("a bad frame"), "tick"
GRACE = 3.0
DEFAULT_CAP = 67_108_864


def out(text, channel="stdout"):
    """Output text."""
    return Text(RUN, channel, text, 0, 0)


def value(text):
    """A reply with this JSON text as the completion."""
    return Reply(RUN, "value", text)


def failed(text="Traceback: KeyboardInterrupt"):
    """A reply of a program that raised."""
    return Reply(RUN, "exception", text)


NONE = Reply(RUN, "none", "")
LOSSY = Reply(RUN, "lossy", "tuple is not a JSON value")
LIMIT = Reply(RUN, "limit", "")
CWD = Reply(RUN, "cwd", "cannot enter the directory")


class Play:
    """One run, what it was told and what it wanted."""

    def __init__(self, cap=DEFAULT_CAP, deadline=None, **fields):
        defaults = {"grace_ms": GRACE * 1000, "timeout_ms": 600, "retained": True, "interrupt_first": True}
        self.cap = cap
        self.run = Execution(RUN, Limits(max_output_bytes=cap, deadline=deadline, **{**defaults, **fields}))
        self.now = 0.0
        self.actions: list = []

    def send(self, *events, at=None):
        """Send events, or ticks, at one time; returns the actions that they caused."""
        self.now = self.now if at is None else at
        actions = []
        for event in events:
            actions += self.run.tick(self.now) if event is TICK else self.run.receive(event, self.now)
        self.actions += actions
        return actions

    def wait(self, until):
        """Tick whenever the run asks for it, up to a time; returns when each action came."""
        timed = []
        while (at := self.run.next_wakeup) is not None and at <= until:
            timed += [(at, type(action)) for action in self.send(TICK, at=at)]
        self.now = until
        return timed

    def count(self, kind):
        """How many actions of this kind there were."""
        return sum(type(action) is kind for action in self.actions)

    @property
    def output(self):
        """The entries of the result: neighbours of one channel are one entry."""
        return merge((action.channel, action.text) for action in self.actions if type(action) is Emit)

    @property
    def kind(self):
        """The failure kind of the outcome, or None."""
        error = self.run.outcome.error
        return None if error is None else error.kind

    @property
    def message(self):
        """The failure message of the outcome."""
        return self.run.outcome.error.message

    @property
    def total(self):
        """What the result weighs by contract 10.2."""
        outcome = self.run.outcome
        tail = 0 if outcome.value is ABSENT else len(encode(outcome.value).encode())
        return text_size(self.output) + (tail if outcome.error is None else encode_size(self.message))


def merge(pieces):
    """The entries of these pieces."""
    entries: list[tuple[str, str]] = []
    for channel, text in pieces:
        if entries and entries[-1][0] == channel:
            entries[-1] = (channel, entries[-1][1] + text)
        else:
            entries.append((channel, text))
    return entries


def text_size(entries):
    """The size of a list of entries as JSON."""
    return 2 + max(len(entries) - 1, 0) + sum(encode_size(text) for _, text in entries)


def play(*events, **limits):
    """A run that was sent these events at time zero."""
    run = Play(**limits)
    run.send(*events)
    return run


PATHS = {
    Phase.STARTING: [],
    Phase.SENT: [READY],
    Phase.RUNNING: [READY, BEGAN],
    Phase.REPLIED: [READY, BEGAN, value("1")],
    Phase.IDLED: [READY, BEGAN, IDLE],
    Phase.KILLING: [READY, BEGAN, VIOLATION],
    Phase.DONE: [READY, BEGAN, value("1"), IDLE],
}
EVENTS = {Ready: READY, LaunchFailed: LAUNCH, Died: DIED, Began: BEGAN, Idle: IDLE, Reply: value("1")}
OTHERS = [BUSY, out("x"), OVER, ABORT, VIOLATION, TICK]

# ---------------------------------------------------------------------- the table

LEGAL = [(phase, event, after) for phase, row in TRANSITIONS.items() for event, after in row.items()]
ILLEGAL = [(phase, event) for phase in Phase for event in EVENTS if event not in TRANSITIONS[phase]]


def test_table_is_the_contract():
    """The table has every phase, and moves a run exactly as the contract says."""
    p = Phase
    assert set(Phase) == set(TRANSITIONS) == set(PATHS)
    ends = {Died: p.DONE}
    assert {**ends, Ready: p.SENT, LaunchFailed: p.DONE} == TRANSITIONS[p.STARTING]
    assert {**ends, Began: p.RUNNING, Reply: p.REPLIED, Idle: p.IDLED} == TRANSITIONS[p.SENT]
    assert {**ends, Reply: p.REPLIED, Idle: p.IDLED} == TRANSITIONS[p.RUNNING]
    assert {**ends, Began: p.REPLIED, Idle: p.DONE} == TRANSITIONS[p.REPLIED]
    assert {**ends, Reply: p.DONE} == TRANSITIONS[p.IDLED]
    assert {} == TRANSITIONS[p.DONE]
    assert {p.KILLING, p.DONE} == set(TRANSITIONS[p.KILLING].values())


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
def test_paths(phase):
    """Each phase is reached by its path."""
    assert phase is play(*PATHS[phase]).run.phase


@pytest.mark.parametrize(
    ("phase", "event", "after"), LEGAL, ids=lambda x: x.value if isinstance(x, Phase) else x.__name__
)
def test_legal_transitions(phase, event, after):
    """An event of the table moves the run as the table says, and ends it exactly when that is DONE."""
    run = play(*PATHS[phase])
    actions = run.send(EVENTS[event])
    assert after is run.run.phase
    assert (after is Phase.DONE) == (Finish() in actions) == (run.run.outcome is not None)
    assert Kill() not in actions


@pytest.mark.parametrize(
    ("phase", "event"), ILLEGAL, ids=lambda x: x.value if isinstance(x, Phase) else x.__name__
)
def test_illegal_transitions(phase, event):
    """M01: an event that is not in the table is a violation: the kernel is killed, once, and the run ends."""
    run = play(*PATHS[phase])
    actions = run.send(EVENTS[event])
    if phase in (Phase.KILLING, Phase.DONE):
        assert [] == actions
        assert phase is run.run.phase
        return
    assert [Kill()] == actions
    assert Phase.KILLING is run.run.phase
    assert Finish() in run.send(DIED)
    assert run.run.outcome.lost
    assert "protocol" == run.kind or phase is Phase.REPLIED


@pytest.mark.parametrize(
    "event", [*EVENTS.values(), *OTHERS], ids=lambda event: getattr(event, "message", str(event))
)
def test_nothing_after_the_end(event):
    """After Finish no event and no tick does anything."""
    run = play(*PATHS[Phase.DONE])
    before = run.run.outcome
    assert [] == run.send(event, at=1e9)
    assert before is run.run.outcome
    assert run.run.next_wakeup is None


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
def test_busy_means_nothing(phase):
    """A busy message changes nothing in any phase."""
    run = play(*PATHS[phase])
    assert [] == run.send(BUSY)
    assert phase is run.run.phase


# ---------------------------------------------------------------------- ordinary ends


@pytest.mark.parametrize(
    "order", [[BEGAN, "reply", IDLE], ["reply", BEGAN, IDLE], [BEGAN, IDLE, "reply"], ["reply", IDLE]]
)
@pytest.mark.parametrize(
    ("reply", "kind", "completion"),
    [
        pytest.param(value("42"), None, 42, id="C01-value"),
        pytest.param(value("null"), None, None, id="C03-null"),
        pytest.param(
            value('{"b":[1.0],"a":"\\ud800"}'), None, {"b": [1.0], "a": "\ud800"}, id="D13-surrogate"
        ),
        pytest.param(NONE, None, ABSENT, id="C02-no-completion"),
        pytest.param(failed(), "exception", ABSENT, id="C11-exception"),
        pytest.param(LOSSY, "invalid-output", ABSENT, id="D06-lossy"),
        pytest.param(LIMIT, "output-limit", ABSENT, id="I10-limit"),
        pytest.param(CWD, "worker-exit", ABSENT, id="I19-cwd"),
    ],
)
def test_replies(reply, kind, completion, order):
    """Each reply gives its kind, in whatever order reply, idle and begin come, and keeps the environment."""
    run = play(READY, BUSY, *(reply if event == "reply" else event for event in order))
    assert (kind, repr(completion)) == (run.kind, repr(run.run.outcome.value))
    assert not run.run.outcome.lost
    assert [Finish()] == run.actions


@pytest.mark.parametrize(
    ("events", "started"),
    [
        ([READY, BEGAN, NONE, IDLE], True),
        ([READY, NONE, BEGAN, IDLE], True),
        ([READY, BEGAN, DIED], True),
        ([READY, DIED], False),
        ([LAUNCH], False),
        ([READY, CWD, IDLE], False),
        ([READY, BEGAN, CWD, IDLE], False),
        ([READY, CWD, BEGAN, IDLE], False),
        ([ABORT, DIED], False),
    ],
)
def test_started(events, started):
    """Contract 8.2, 8.3: started says whether the program began; an unusable cwd starts nothing."""
    assert started == play(*events).run.outcome.started


@pytest.mark.parametrize("retained", [True, False])
@pytest.mark.parametrize(
    ("events", "kind", "text"),
    [
        pytest.param([READY, BEGAN, DIED], "worker-exit", "exit code 7", id="C18-running"),
        pytest.param([READY, DIED], "worker-exit", "exit code 7", id="sent"),
        pytest.param([DIED], "worker-exit", "exit code 7", id="starting"),
        pytest.param([READY, BEGAN, IDLE, DIED], "worker-exit", "exit code 7", id="idled"),
        pytest.param([LAUNCH], "worker-exit", "no kernel", id="A17-launch"),
        pytest.param([READY, BEGAN, VIOLATION, DIED], "protocol", "a bad frame", id="M01-violation"),
        pytest.param([VIOLATION, DIED], "protocol", "a bad frame", id="M01-frame-before-ready"),
        pytest.param([READY, BEGAN, OVER, DIED], "output-limit", str(DEFAULT_CAP), id="I14-flood"),
        pytest.param([ABORT, DIED], "abort", "stop please", id="H04-starting"),
        pytest.param([ABORT, LAUNCH], "abort", "stop please", id="H04-launch-fails-then"),
        pytest.param([ABORT, READY, DIED], "abort", "stop please", id="H04-launch-ends-then"),
    ],
)
def test_lost_environments(events, kind, text, retained):
    """Contract 8.3: where the environment of an owner is lost, the message ends by saying so."""
    run = play(*events, retained=retained)
    assert kind == run.kind
    assert text in run.message
    assert run.run.outcome.lost
    assert retained == run.message.endswith(LOST)
    assert retained == (LOST in run.message)


def test_sandbox_failure_touches_nothing():
    """Contract 8.2: where confinement could not be had nothing was started, so nothing is lost."""
    run = play(SANDBOX)
    assert "sandbox-unavailable" == run.kind
    assert not run.run.outcome.lost
    assert SANDBOX.message == run.message


# ---------------------------------------------------------------------- precedence


@pytest.mark.parametrize(
    ("events", "kind", "lost"),
    [
        pytest.param([READY, BEGAN, NONE, ABORT, IDLE], None, False, id="H05-reply-beats-abort"),
        pytest.param([READY, BEGAN, NONE, IDLE, ABORT], None, False, id="H05-abort-after-the-end"),
        pytest.param([READY, BEGAN, failed(), ABORT, IDLE], "exception", False, id="exception-beats-abort"),
        pytest.param([READY, BEGAN, ABORT, NONE, IDLE], "abort", False, id="abort-beats-reply"),
        pytest.param([READY, BEGAN, ABORT, value("1"), IDLE], "abort", False, id="abort-beats-value"),
        pytest.param([READY, BEGAN, ABORT, LOSSY, IDLE], "abort", False, id="abort-beats-lossy"),
        pytest.param([READY, BEGAN, ABORT, IDLE, failed()], "abort", False, id="I12-abort-interrupted"),
        pytest.param([READY, ABORT, NONE, IDLE], "abort", False, id="abort-before-the-first-line"),
        pytest.param([READY, BEGAN, IDLE, ABORT, NONE], "abort", False, id="abort-between-idle-and-reply"),
        pytest.param([READY, BEGAN, ABORT, DIED], "abort", True, id="abort-beats-death"),
        pytest.param([READY, BEGAN, NONE, DIED], None, True, id="reply-beats-death"),
        pytest.param([READY, BEGAN, ABORT, VIOLATION, DIED], "abort", True, id="abort-beats-violation"),
        pytest.param([READY, BEGAN, VIOLATION, ABORT, DIED], "protocol", True, id="violation-beats-abort"),
        pytest.param(
            [READY, BEGAN, VIOLATION, NONE, IDLE, DIED], "protocol", True, id="violation-beats-reply"
        ),
        pytest.param([READY, BEGAN, VIOLATION, VIOLATION, DIED], "protocol", True, id="violation-twice"),
        pytest.param([READY, BEGAN, ABORT, Abort("again"), NONE, IDLE], "abort", False, id="abort-twice"),
        pytest.param([READY, BEGAN, OVER, ABORT, DIED], "output-limit", True, id="overflow-beats-abort"),
        pytest.param([READY, BEGAN, ABORT, OVER, DIED], "output-limit", True, id="3c-overflow-after-abort"),
        pytest.param(
            [READY, BEGAN, VIOLATION, OVER, DIED], "output-limit", True, id="3c-overflow-after-violation"
        ),
        pytest.param(
            [READY, BEGAN, ABORT, NONE, OVER, DIED], "output-limit", True, id="3c-overflow-in-the-drain"
        ),
        pytest.param(
            [READY, BEGAN, value("1"), OVER, DIED], "output-limit", True, id="3c-overflow-after-reply"
        ),
        pytest.param(
            [READY, BEGAN, NONE, OVER, DIED], "output-limit", True, id="3c-overflow-after-empty-reply"
        ),
        pytest.param(
            [READY, BEGAN, failed(), OVER, DIED], "output-limit", True, id="3c-overflow-after-exception"
        ),
        pytest.param([READY, BEGAN, IDLE, OVER, DIED], "output-limit", True, id="overflow-after-idle"),
    ],
)
def test_first_settled_outcome_wins(events, kind, lost):
    """Contract 3: the first settled outcome wins, and overflow has the last word."""
    run = play(*events)
    assert (kind, lost) == (run.kind, run.run.outcome.lost)
    assert kind is None or run.run.outcome.value is ABSENT


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "1e400", "-0.0", "9007199254740993", "[1", "", "x", "1 2"]
)
@pytest.mark.parametrize("wrap", ["{}", '[{{"a":{}}}]'], ids=["flat", "nested"])
def test_forged_completions(text, wrap):
    """M08: a terminal of a lossy value, or of no JSON, is invalid-output."""
    run = play(READY, BEGAN, value(wrap.format(text)), IDLE)
    assert "invalid-output" == run.kind
    assert run.run.outcome.value is ABSENT
    assert not run.run.outcome.lost


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        pytest.param([(4.9, ABORT), (5.1, TICK)], "abort", id="H11-abort-first"),
        pytest.param([(5.0, ABORT), (5.0, TICK)], "abort", id="H11-same-tick-abort-first"),
        pytest.param([(5.0, TICK), (5.0, ABORT)], "timeout", id="H11-same-tick-deadline-first"),
        pytest.param([(5.1, TICK), (5.2, ABORT)], "timeout", id="H11-deadline-first"),
        pytest.param([(4.9, NONE), (5.1, TICK)], None, id="G12-reply-before-the-deadline"),
        pytest.param([(5.0, NONE), (5.0, TICK)], None, id="G12-same-tick-reply-first"),
        pytest.param([(5.0, TICK), (5.0, NONE)], "timeout", id="G12-same-tick-deadline-first"),
        pytest.param([(5.0, TICK), (5.1, value("1"))], "timeout", id="G12-value-after-the-deadline"),
        pytest.param([(5.0, TICK), (5.1, failed())], "timeout", id="I11-interrupted"),
        pytest.param([(5.0, TICK), (5.1, VIOLATION)], "timeout", id="violation-after-the-deadline"),
        pytest.param([(5.0, TICK), (5.1, DIED)], "timeout", id="death-after-the-deadline"),
        pytest.param([(5.0, TICK), (5.1, OVER)], "output-limit", id="3c-overflow-after-the-deadline"),
        pytest.param(
            [(4.9, IDLE), (5.0, TICK), (5.1, NONE)], "timeout", id="deadline-between-idle-and-reply"
        ),
    ],
)
def test_deadline_against_everything(steps, kind):
    """Contract 3: of a deadline and anything else, whichever came first decides, and the message matches."""
    run = play(READY, BEGAN, deadline=5.0)
    for now, event in steps:
        run.send(event, at=now)
    run.send(IDLE, DIED)
    assert kind == run.kind
    expected = {"abort": "stop please", "timeout": "600", "output-limit": str(DEFAULT_CAP)}.get(kind, "")
    assert expected in ("" if kind is None else run.message)


# ---------------------------------------------------------------------- messages


@pytest.mark.parametrize("ms", [1, 600, 120_000, 600_000, 1_234_567, 2_147_483_647, 0.5, 1234.5], ids=str)
def test_timeout_message_names_the_budget(ms):
    """G01: the text of a timeout has the milliseconds, spelled out."""
    run = play(READY, BEGAN, deadline=ms / 1000, timeout_ms=ms)
    run.send(TICK, at=ms / 1000)
    run.send(failed(), IDLE)
    assert "timeout" == run.kind
    assert f"{ms} ms" in run.message


def test_timeout_before_the_program_began():
    """G11: a deadline that passes while the kernel starts kills at once, and the text tells the two apart."""
    run = play(deadline=0.001, timeout_ms=1)
    assert [Kill()] == run.send(TICK, at=0.002)
    run.send(DIED)
    assert "timeout" == run.kind
    assert not run.run.outcome.started
    assert "1 ms" in run.message
    assert "before the program began" in run.message


@pytest.mark.parametrize("retained", [True, False])
def test_message_of_an_interrupted_run(retained):
    """I11, I12: where the program stopped in time, variables are kept, and an owner is not told otherwise."""
    run = play(READY, BEGAN, ABORT, failed(), IDLE, retained=retained)
    assert run.message.startswith("stop please")
    assert not run.run.outcome.lost
    assert LOST not in run.message
    assert "KeyboardInterrupt" not in run.message


def test_message_of_a_killed_run():
    """I11: where the program did not stop within grace_ms, the text says so and how much that was."""
    run = play(READY, BEGAN, ABORT)
    run.wait(100.0)
    run.send(DIED)
    assert "abort" == run.kind
    assert run.message.startswith("stop please")
    assert "3000 ms" in run.message
    assert run.message.endswith(LOST)


def test_output_limit_names_the_cap():
    """Contract 3: the text of an overflow has the cap."""
    assert "1234567" in play(READY, BEGAN, LIMIT, IDLE, cap=1_234_567).message


# ---------------------------------------------------------------------- the stop ladder

STOP, KILL = Interrupt, Kill


@pytest.mark.parametrize(
    ("grace_ms", "steps"),
    [
        (3000, [(10.0, STOP), (10.25, STOP), (11.25, STOP), (12.25, STOP), (13.0, KILL)]),
        (1000, [(10.0, STOP), (10.25, STOP), (11.0, KILL)]),
        (1250, [(10.0, STOP), (10.25, STOP), (11.25, KILL)]),
        (250, [(10.0, STOP), (10.25, KILL)]),
        (125, [(10.0, STOP), (10.125, KILL)]),
        (
            5000,
            [
                (10.0, STOP),
                (10.25, STOP),
                (11.25, STOP),
                (12.25, STOP),
                (13.25, STOP),
                (14.25, STOP),
                (15.0, KILL),
            ],
        ),
    ],
)
@pytest.mark.parametrize("cause", ["abort", "timeout"])
@pytest.mark.parametrize("path", [[READY], [READY, BEGAN]], ids=["sent", "running"])
def test_stop_ladder(cause, grace_ms, steps, path):
    """G05, G07, H02: interrupt, again after 250 ms, then every second, and a kill at grace_ms."""
    run = play(*path, grace_ms=grace_ms, deadline=10.0 if cause == "timeout" else None)
    timed = [(10.0, type(action)) for action in run.send(ABORT, at=10.0)] if cause == "abort" else []
    assert steps == timed + run.wait(100.0)
    assert [Finish()] == run.send(DIED)
    assert cause == run.kind
    assert run.run.outcome.lost


@pytest.mark.parametrize("cause", ["abort", "timeout"])
def test_kill_at_once(cause):
    """Contract 8.2: a deployment can go straight to the kill."""
    run = play(READY, BEGAN, interrupt_first=False, deadline=10.0 if cause == "timeout" else None)
    assert [Kill()] == run.send(ABORT if cause == "abort" else TICK, at=10.0)
    run.send(DIED)
    assert cause == run.kind
    assert run.message.endswith(LOST)


def test_abort_while_starting():
    """H04: there is nothing to interrupt while the kernel starts: it is killed."""
    run = Play()
    assert [Kill()] == run.send(ABORT)
    assert run.run.next_wakeup is None


@pytest.mark.parametrize("end", [failed(), NONE, value("1")], ids=["raised", "none", "value"])
def test_ladder_ends_with_the_program(end):
    """I11: a program that settles within grace is not killed and keeps its variables."""
    run = play(READY, BEGAN)
    run.send(ABORT, at=10.0)
    run.wait(12.9)
    before = run.count(Interrupt)
    run.send(end, at=12.9)
    run.send(IDLE, at=12.95)
    assert ("abort", False) == (run.kind, run.run.outcome.lost)
    assert [] == run.wait(100.0)
    assert (before, 0) == (run.count(Interrupt), run.count(Kill))


def test_second_abort_starts_no_second_ladder():
    """Aborting again neither interrupts at once nor moves the kill."""
    run = play(READY, BEGAN)
    run.send(ABORT, at=10.0)
    assert [] == run.send(Abort("again"), at=10.1)
    assert [(10.25, STOP), (11.25, STOP), (12.25, STOP), (13.0, KILL)] == run.wait(100.0)


def test_deadline_does_not_disturb_the_ladder():
    """After an abort the deadline is detached."""
    run = play(READY, BEGAN, deadline=10.1)
    run.send(ABORT, at=10.0)
    assert [(10.25, STOP), (11.25, STOP), (12.25, STOP), (13.0, KILL)] == run.wait(100.0)


def test_late_ticks():
    """A host that was held up does each step once, and the kill when it is due."""
    run = play(READY, BEGAN, deadline=5.0)
    assert [Interrupt()] == run.send(TICK, at=6.0)
    assert [Interrupt()] == run.send(TICK, at=8.5)
    assert [] == run.send(TICK, at=8.6)
    assert [Kill()] == run.send(TICK, at=9.5)
    assert [] == run.send(TICK, at=20.0)


@pytest.mark.parametrize("path", [[], [READY], [READY, BEGAN]], ids=["starting", "sent", "running"])
def test_ticks_before_anything_is_due(path):
    """G08, G09: without a deadline time does nothing, and before it neither."""
    assert play(*path).run.next_wakeup is None
    assert [] == play(*path).send(TICK, at=1e9)
    run = play(*path, deadline=5.0)
    assert 5.0 == run.run.next_wakeup
    assert [] == run.send(TICK, at=4.999)
    assert not run.run.settled


def test_deadline_is_detached_by_a_reply():
    """A reply takes the deadline away: what is left is the wait for idle."""
    run = play(READY, BEGAN, deadline=5.0)
    run.send(NONE, at=4.0)
    assert run.run.settled
    assert 4.0 + GRACE == run.run.next_wakeup


# ---------------------------------------------------------------------- half settled


@pytest.mark.parametrize("path", [[READY], [READY, BEGAN]], ids=["sent", "running"])
@pytest.mark.parametrize(
    "half", [NONE, value("1"), failed(), LOSSY, CWD, IDLE], ids=lambda event: getattr(event, "status", "idle")
)
def test_half_settled(half, path):
    """Contract 3: a reply without idle, or an idle without reply, past grace_ms is a protocol failure."""
    run = play(*path)
    run.send(half, at=10.0)
    assert [] == run.send(TICK, at=12.999)
    assert [(13.0, KILL)] == run.wait(100.0)
    assert [Finish()] == run.send(DIED)
    assert ("protocol", True) == (run.kind, run.run.outcome.lost)
    assert run.run.outcome.value is ABSENT
    assert "3000 ms" in run.message


@pytest.mark.parametrize(
    "half", [NONE, value("1"), failed(), IDLE], ids=lambda event: getattr(event, "status", "idle")
)
@pytest.mark.parametrize("cause", ["abort", "timeout"])
def test_half_settled_after_a_stop(cause, half):
    """A run that was stopped and is then half settled keeps its kind and loses its environment."""
    run = play(READY, BEGAN, deadline=10.0 if cause == "timeout" else None)
    run.send(ABORT if cause == "abort" else TICK, at=10.0)
    run.send(half, at=10.1)
    assert [KILL] == [kind for _, kind in run.wait(100.0)]
    run.send(DIED)
    assert (cause, True) == (run.kind, run.run.outcome.lost)


@pytest.mark.parametrize(("first", "second"), [(NONE, IDLE), (IDLE, NONE)], ids=["reply-first", "idle-first"])
def test_other_half_in_time(first, second):
    """The other half may come at any time within grace_ms."""
    run = play(READY, BEGAN)
    run.send(first, at=10.0)
    run.send(second, at=12.999)
    assert run.kind is None
    assert not run.run.outcome.lost


def test_death_while_half_settled():
    """A kernel that dies between idle and reply is a worker-exit, not a protocol failure."""
    assert "worker-exit" == play(READY, BEGAN, IDLE, DIED).kind


# ---------------------------------------------------------------------- output and the cap


def finish(texts, reply, cap):
    """A run without an owner that printed these texts, and was killed if it wanted that."""
    run = play(READY, BEGAN, *texts, reply, IDLE, cap=cap, retained=False)
    if run.run.outcome is None:
        run.send(DIED)
    assert run.total <= cap
    return run


@pytest.mark.parametrize(
    ("texts", "reply", "cap", "kind"),
    [
        pytest.param([], value('"\u20ac"'), 7, None, id="F17-at-the-cap"),
        pytest.param([], value('"\u20ac"'), 6, "output-limit", id="F17-over"),
        pytest.param([out("abc")], value('"xy"'), 11, None, id="F18-at-the-cap"),
        pytest.param([out("abc")], value('"xy"'), 10, "output-limit", id="F18-over"),
        pytest.param([out("abc")], failed("boom"), 13, "exception", id="F19-at-the-cap"),
        pytest.param([out("abc")], failed("boom"), 12, "output-limit", id="F19-over"),
        pytest.param([], value(json.dumps("y" * 10_000)), 64, "output-limit", id="F22"),
        pytest.param([], failed("x" * 1_000_000), 64, "output-limit", id="F23"),
        pytest.param([out("\x00" * 100)], NONE, 604, None, id="F26-at-the-cap"),
        pytest.param([out("\x00" * 100)], NONE, 603, "output-limit", id="F26-over"),
        pytest.param([], NONE, 4, None, id="nothing-at-all"),
        pytest.param([], value("12"), 4, None, id="F33-two-digits"),
        pytest.param([], value("1.0"), 4, "output-limit", id="three-bytes-of-float"),
        pytest.param([], value(" [ 1 , 2 ] "), 7, None, id="the-compact-form-counts"),
        pytest.param([], value('"\\u20ac"'), 7, None, id="no-escape-of-non-ascii-counts"),
        pytest.param([], value('"\\ud800"'), 10, None, id="lone-surrogate-at-the-cap"),
        pytest.param([], value('"\\ud800"'), 9, "output-limit", id="lone-surrogate-over"),
        pytest.param([out("a"), out("b", "stderr"), out("c")], NONE, 13, None, id="three-entries"),
        pytest.param(
            [out("a"), out("b", "stderr"), out("c")], NONE, 12, "output-limit", id="three-entries-over"
        ),
        pytest.param([out("a"), out("b", "display")], value("1"), 10, None, id="display-is-output"),
        pytest.param([out("a"), out("", "stderr")], NONE, 5, None, id="an-empty-write-is-nothing"),
    ],
)
def test_exact_caps(texts, reply, cap, kind):
    """F17 to F33: at the cap is fine, one byte over is output-limit."""
    run = finish(texts, reply, cap)
    assert kind == run.kind
    if kind != "output-limit":
        assert [(event.channel, event.text) for event in texts if event.text] == run.output
    if kind is None and reply.status == "value":
        assert json.loads(reply.text) == run.run.outcome.value


@pytest.mark.parametrize("late", [[out("abc")], [out("a"), out("bc")]], ids=["one-text", "two-texts"])
@pytest.mark.parametrize(
    ("reply", "cap", "kind"),
    [
        pytest.param(value('"xy"'), 11, None, id="F18-at-the-cap"),
        pytest.param(value('"xy"'), 10, "output-limit", id="F18-over"),
        pytest.param(failed("boom"), 13, "exception", id="F19-at-the-cap"),
        pytest.param(failed("boom"), 12, "output-limit", id="F19-over"),
        pytest.param(NONE, 7, None, id="text-alone"),
        pytest.param(NONE, 6, "output-limit", id="text-alone-over"),
    ],
)
def test_output_that_the_reply_overtook(reply, cap, kind, late):
    """F12, 3c, 3e: output that arrives after the reply counts like any other."""
    run = play(READY, BEGAN, reply, *late, IDLE, cap=cap)
    assert kind == run.kind
    assert run.total <= cap
    assert not run.run.outcome.lost
    assert kind == "output-limit" or [("stdout", "abc")] == run.output


def test_many_lines():
    """F20: 1,000 lines under a cap of 300 keep a prefix, name the cap and stay under it."""
    lines = [f"line {n}\n" for n in range(1000)]
    run = finish([out(line) for line in lines], NONE, 300)
    assert "output-limit" == run.kind
    assert "300" in run.message
    [(_, text)] = run.output
    assert "".join(lines).startswith(text)
    assert run.total == 300 or len(text) > 50


def test_one_huge_line():
    """F21: one huge line is one text, a true prefix, cut on a code point, and as long as fits."""
    line = '\U0001f600"\\\U0001f4a9' * 1000
    run = finish([out(line)], NONE, 96)
    [(channel, text)] = run.output
    assert "stdout" == channel
    assert "" != text
    assert line.startswith(text)
    assert 96 - 4 < run.total <= 96


def test_limit_without_output():
    """F22, F23: a value or a traceback that does not fit leaves no output and no trace of itself."""
    for reply in (value(json.dumps("y" * 10_000)), failed("y" * 1_000_000), LIMIT):
        run = finish([], reply, 64)
        assert ("output-limit", [], ABSENT) == (run.kind, run.output, run.run.outcome.value)
        assert "yyy" not in run.message


def test_abort_reason_over_the_cap():
    """F28: a reason of 1,000 characters does not fit under a cap of 64."""
    run = play(Abort("r" * 1000), DIED, cap=64)
    assert ("output-limit", []) == (run.kind, run.output)
    assert run.total <= 64


@pytest.mark.parametrize(
    ("kind", "message", "cap", "expected"),
    [
        pytest.param("abort", "too-late", DEFAULT_CAP, "abort", id="H01"),
        pytest.param("abort", "too-late", 12, "abort", id="at-the-cap"),
        pytest.param("abort", "too-late", 11, "output-limit", id="one-under"),
        pytest.param("abort", "r" * 1000, 64, "output-limit", id="F28"),
        pytest.param("worker-exit", "x", 4, "output-limit", id="smallest-cap"),
        pytest.param("sandbox-unavailable", "no bubblewrap", 100, "sandbox-unavailable", id="sandbox"),
    ],
)
def test_runs_that_never_started(kind, message, cap, expected):
    """H01, F28: a run that never started has its kind, where the text fits, and lost nothing."""
    outcome = unstarted(kind, message, cap)
    assert (expected, ABSENT, False, False) == (
        outcome.error.kind,
        outcome.value,
        outcome.lost,
        outcome.started,
    )
    assert 2 + encode_size(outcome.error.message) <= cap
    assert expected == "output-limit" or message == outcome.error.message


def test_smallest_cap():
    """Contract 10.2: under a cap of 4 the message is empty and so is the output."""
    run = finish([out("x")], NONE, 4)
    assert ("output-limit", "", []) == (run.kind, run.message, run.output)


@pytest.mark.parametrize(
    ("text", "cap"),
    [pytest.param("\n", 64, id="F29-blank-prints"), pytest.param("x", 1000, id="F30-one-char-per-write")],
)
def test_flood_is_killed_at_once(text, cap):
    """F29, F30, I14: a flood is stopped while it runs, by a kill, as soon as it is over the cap."""
    run = play(READY, BEGAN, cap=cap)
    writes = 0
    while not run.count(Kill):
        run.send(out(text))
        writes += 1
        assert writes <= cap
    assert run.run.next_wakeup is None
    run.send(*[out(text)] * 100, DIED)
    assert ("output-limit", True, 1) == (run.kind, run.run.outcome.lost, run.count(Kill))
    assert run.total <= cap


def test_over_is_a_flood():
    """I14: a kernel that says it is over the cap is killed."""
    run = play(READY, BEGAN)
    assert [Kill()] == run.send(OVER)


def test_overflow_after_the_program_ended_keeps_it():
    """I10: an overflow that is found after the program finished keeps the environment."""
    run = play(READY, BEGAN, NONE, out("x" * 100), IDLE, cap=50)
    assert ("output-limit", False, 0) == (run.kind, run.run.outcome.lost, run.count(Kill))
    assert LOST not in run.message


def test_output_survives_every_end():
    """F08, F09: what was printed before a failure is kept."""
    for end in ([failed(), IDLE], [DIED], [ABORT, failed(), IDLE], [VIOLATION, DIED], [LOSSY, IDLE]):
        assert [("stdout", "before\n")] == play(READY, BEGAN, out("before\n"), *end).output


def test_output_during_the_kill_is_kept():
    """Contract 10.1: what a dying kernel had written is handed on, before the end."""
    run = play(READY, BEGAN, VIOLATION, out("late"), DIED)
    assert [Kill(), Emit("stdout", "late"), Finish()] == run.actions


@pytest.mark.parametrize("cap", range(150, 320, 7))
def test_every_cap_holds(cap):
    """Contract 10.2: output that fills the cap beside a value that does not fit is cut, whatever the cap."""
    run = play(READY, BEGAN, out("x" * (cap - 4)), value('"more"'), IDLE, cap=cap)
    assert "output-limit" == run.kind
    assert run.total <= cap


# ---------------------------------------------------------------------- any sequence at any time

channels = st.sampled_from(["stdout", "stderr", "display"])
short = st.text(st.sampled_from('ab"\n\x00\u20ac\U0001f600\udfff'), max_size=30)
outputs = st.builds(out, short | st.sampled_from(["", "x" * 300]), channels)
replies = st.one_of(
    st.builds(Reply, st.just(RUN), st.sampled_from(["none", "lossy", "exception", "limit", "cwd"]), short),
    st.builds(lambda found: value(encode(found)), json_values),
    st.builds(value, short),
)
stops = st.one_of(st.builds(Abort, short), st.builds(Violation, short), st.just(OVER), st.builds(Died, short))
launches = st.just(READY) | st.builds(
    LaunchFailed, short, st.sampled_from(["worker-exit", "sandbox-unavailable"])
)
events = st.one_of(
    st.just(TICK),
    st.just(TICK),
    outputs,
    outputs,
    replies,
    stops,
    launches,
    st.sampled_from([BEGAN, IDLE, BUSY]),
)
delays = st.sampled_from([0.0, 0.0, 0.1, 0.25, 1.0, 3.0]) | st.floats(0, 5)
sequences = st.builds(
    lambda path, rest: [*((0.0, event) for event in path), *rest],
    st.sampled_from([[], [READY], [READY, BEGAN], [READY, BEGAN], [READY, BEGAN, IDLE]]),
    st.lists(st.tuples(delays, events), max_size=12),
)
limits = st.fixed_dictionaries(
    {
        "cap": st.integers(4, 60) | st.integers(150, 400) | st.just(DEFAULT_CAP),
        "grace_ms": st.sampled_from([1, 250, 1000, 3000]) | st.floats(0.001, 10_000),
        "deadline": st.none() | st.floats(0, 6),
        "timeout_ms": st.floats(1, 1e9),
        "retained": st.booleans(),
        "interrupt_first": st.booleans(),
    }
)


def check_outcome(run):
    """The promises that hold for every outcome."""
    outcome = run.run.outcome
    assert outcome.error is None or outcome.value is ABSENT
    assert outcome.error is None or outcome.error.kind in FAILURE_KINDS
    assert run.total <= run.cap
    assert outcome.lost or not run.count(Kill)
    assert Finish() == run.actions[-1]


def check_step(run, actions):
    """The promises that hold after every step."""
    assert run.count(Kill) <= 1
    assert run.count(Finish) <= 1
    kinds = [type(action) for action in run.actions]
    if Kill in kinds:
        assert Interrupt not in kinds[kinds.index(Kill) :]
    assert (Finish in kinds) == (run.run.phase is Phase.DONE) == (run.run.outcome is not None)
    assert all(action.text for action in actions if type(action) is Emit)
    if any(type(action) in (Interrupt, Kill, Finish) for action in actions):
        assert run.run.settled or run.kind is None


def check_prefix(run, sent):
    """What was handed out is a prefix of what was written; all of it, unless the run is over the cap."""
    written = [(event.channel, char) for event in sent if isinstance(event, Text) for char in event.text]
    handed = [(channel, char) for channel, text in run.output for char in text]
    assert handed == written[: len(handed)]
    assert "output-limit" == run.kind or handed == written


@THOROUGH
@given(sequences, limits)
def test_any_sequence(steps, fields):
    """Whatever comes, whenever: one end, at most one kill, a kind of the eight, a total under the cap."""
    run, sent = Play(**fields), []
    for delay, event in steps:
        over = run.run.phase is Phase.DONE
        actions = run.send(event, at=run.now + delay)
        if not over:
            sent.append(event)
        assert not (over and actions)
        check_step(run, actions)
        if event is TICK and run.run.next_wakeup is not None:
            assert run.run.next_wakeup > run.now
    if run.run.outcome is None:
        check_step(run, run.send(Died("the end")))
    check_outcome(run)
    check_prefix(run, sent)


@FAST
@given(sequences, limits.filter(lambda fields: fields["deadline"] is not None))
def test_every_run_with_a_deadline_ends(steps, fields):
    """G05: with a deadline, a host that does what it is told sees the end within grace."""
    run = Play(**fields)
    for delay, event in steps:
        run.send(event, at=run.now + delay)
        if run.count(Kill):
            break
    start = max(run.now, fields["deadline"])
    while run.run.outcome is None and not run.count(Kill):
        assert run.run.next_wakeup <= start + fields["grace_ms"] / 1000
        run.send(TICK, at=max(run.now, run.run.next_wakeup))
    run.send(DIED)
    check_outcome(run)


@FAST
@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from([TICK, BUSY])), max_size=12), st.integers(1, 5000))
def test_ladder_at_any_times(steps, grace_ms):
    """Interrupts are at least 250 ms, then a second apart, and the kill comes no sooner than grace_ms."""
    run = play(READY, BEGAN, ABORT, grace_ms=grace_ms)
    interrupted = [0.0]
    for delay, event in steps:
        for action in run.send(event, at=run.now + delay):
            if type(action) is Interrupt:
                assert run.now - interrupted[-1] >= (0.25 if len(interrupted) == 1 else 1.0) - 1e-9
                interrupted.append(run.now)
            else:
                assert Kill() == action
                assert run.now >= grace_ms / 1000
        assert event is not TICK or run.now < grace_ms / 1000 or run.count(Kill) == 1


@FAST
@given(json_values, st.lists(outputs, max_size=4), st.integers(4, 200))
def test_success_is_exact(completion, written, cap):
    """A run that ends well has all its output and its exact value, precisely when they fit together."""
    run = play(READY, BEGAN, *written, value(encode(completion)), IDLE, cap=cap)
    pieces = [(event.channel, event.text) for event in written if event.text]
    total = text_size(merge(pieces)) + len(encode(completion).encode())
    if run.run.outcome is None:
        run.send(DIED)
    assert (total <= cap) == (run.kind is None)
    if total <= cap:
        assert merge(pieces) == run.output
        assert encode(completion) == encode(run.run.outcome.value)
    else:
        assert "output-limit" == run.kind


@FAST
@given(texts)
def test_any_failure_text(text):
    """A failure's text is delivered whole when it fits."""
    run = play(READY, BEGAN, failed(text), IDLE)
    assert ("exception", text) == (run.kind, run.message)
