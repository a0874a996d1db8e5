"""Area G: budgets in elapsed time, what counts into them, and what a run says when one is used up."""

from __future__ import annotations

import asyncio

import pytest

from ptc_kernel import AbortController, OutputEvent, PtcCallContext, PtcRunRequest, ResultEvent
from tests.support import Session, alive, kind, namespace, text

pytestmark = pytest.mark.live

LOST = "Variables are gone; the next run starts fresh."
SWALLOW = """
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
"""


class Handlers:
    """A binding that answers when the test says so, and tells what became of it."""

    def __init__(self):
        self.called = asyncio.Event()
        self.answer = asyncio.Event()
        self.ended = asyncio.Event()
        self.cancelled = False
        self.context = None
        self.namespace = namespace(slow=self._slow)

    async def _slow(self, argument):
        self.context = PtcCallContext.current()
        self.called.set()
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.ended.set()
        return argument


BUDGETED = {
    "busy": "while True: pass",
    "sleep": "import asyncio; await asyncio.sleep(60)",
    "blocking sleep": "import time; time.sleep(60)",
    "completion": "import asyncio; asyncio.sleep(60)",
}


@pytest.mark.core
async def test_a_budget_that_runs_out_is_a_timeout(runtime):
    """G01, G02: a program over its budget ends as `timeout`, which names the budget; variables stay."""

    async def check(program):
        session = Session(runtime)
        assert 41 == await session.value("x = 41\nx")
        result = await session.run(program, timeout_ms=600)
        assert ("timeout", True, "kept") == (kind(result), result.started, result.state), program
        assert "600" in result.error.message
        assert 42 == await session.value("x + 1")

    await asyncio.gather(*map(check, BUDGETED.values()))


@pytest.mark.core
async def test_a_call_that_never_answers_is_a_timeout(session):
    """G03: awaiting a binding does not stop the clock, and the deadline does not cancel its handler."""
    handlers = Handlers()
    result = await session.run("await tools.slow({'n': 1})", handlers.namespace, timeout_ms=800)
    assert "timeout" == kind(result)
    assert "800" in result.error.message
    assert ["open"] == [call.outcome for call in result.calls]
    assert not handlers.ended.is_set()
    assert handlers.context.run_ended
    handlers.answer.set()
    await handlers.ended.wait()
    assert not handlers.cancelled
    assert 2 == await session.value("1 + 1")


@pytest.mark.core
async def test_a_call_that_is_not_awaited_does_not_stop_the_clock(session):
    """G04: a call in flight gives a busy program no extra time."""
    handlers = Handlers()
    program = "import asyncio\ncall = asyncio.ensure_future(tools.slow({}))\nawait asyncio.sleep(0.05)\n"
    result = await session.run(program + "while True: pass", handlers.namespace, timeout_ms=800)
    assert "timeout" == kind(result)
    assert handlers.called.is_set()
    assert not handlers.ended.is_set()
    result = await session.run("call = tools.slow({})\nwhile True: pass", handlers.namespace, timeout_ms=300)
    assert "timeout" == kind(result)
    assert 2 == await session.value("1 + 1")


@pytest.mark.core
async def test_a_program_that_swallows_everything_is_killed(make_session):
    """G05: `except BaseException` only delays the end until `grace_ms`, and costs the variables."""
    session = make_session(grace_ms=500)
    pid = await session.pid()
    result = await session.run(SWALLOW, timeout_ms=300)
    assert ("timeout", "lost") == (kind(result), result.state)
    assert "300" in result.error.message
    assert result.error.message.endswith(LOST)
    assert not alive(pid)
    result = await session.run("1 + 1")
    assert (2, "kept") == (result.value, result.state)
    assert result.reset_reason


async def test_a_program_that_ignores_signals_is_really_gone(make_session):
    """G07: a program that ignores SIGINT and SIGTERM ends as `timeout`, and its process does not live on."""
    session = make_session(grace_ms=500)
    program = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid())
while True:
    pass
"""
    one_shot = Session(session.runtime, None)
    runs = (each.run(program, timeout_ms=1000) for each in (session, one_shot))
    results = await asyncio.gather(*runs)
    assert ["timeout"] * 2 == [kind(result) for result in results]
    assert ["lost", "none"] == [result.state for result in results]
    assert [False] * 2 == [alive(int(text(result))) for result in results]


async def test_no_deadline_is_not_capped(make_session):
    """G08: `timeout_ms=None` outlives both the default and the largest budget."""
    session = make_session(timeout_ms=400, max_timeout_ms=400)
    result = await session.run("import asyncio\nawait asyncio.sleep(1.2)\n'done'", timeout_ms=None)
    assert (None, "done") == (kind(result), result.value)


async def test_no_deadline_can_be_aborted(session):
    """G09: a run without a deadline still ends when its signal fires."""
    handlers, controller = Handlers(), AbortController()
    run = asyncio.create_task(
        session.run("await tools.slow()", handlers.namespace, timeout_ms=None, signal=controller.signal)
    )
    await handlers.called.wait()
    controller.abort("enough")
    result = await run
    assert "abort" == kind(result)
    assert "enough" in result.error.message


async def test_a_huge_budget_is_the_largest_one(runtime, session):
    """G10: a budget over the cap is the cap, and does not expire at once."""
    spec = runtime.resolve(PtcRunRequest(program="1 + 1", timeout_ms=10**9, state_owner=session.owner))
    assert 600_000 == spec.timeout_ms
    assert 2 == (await runtime.run(spec)).value


async def test_the_start_of_a_kernel_counts(make_runtime):
    """G11: a budget shorter than the start of a kernel is a `timeout` of a program that never began."""
    runtime = make_runtime()
    for owner in (object(), None):
        session = Session(runtime, owner)
        for budget in (1, 0.001):
            result = await session.run("print('ran')", timeout_ms=budget)
            assert ("timeout", False, []) == (kind(result), result.started, list(result.output))
            assert f"{budget:g} ms" in result.error.message
        assert 2 == await session.value("1 + 1")


async def test_a_tiny_budget_in_a_warm_kernel(session):
    """G11: with the kernel there, a budget of one millisecond stops the program and keeps the variables."""
    await session.value("x = 41\nx")
    for _ in range(20):
        result = await session.run("while True: pass", timeout_ms=1)
        assert ("timeout", "kept") == (kind(result), result.state)
    assert 41 == await session.value("x")


async def test_an_answer_at_the_moment_of_the_deadline(session):
    """G12: when an answer and the deadline meet, there is one outcome, and the next run is right."""

    async def answer(delay):
        await asyncio.sleep(delay)
        return "answer"

    tools = namespace(answer=answer)
    await session.value("ready = True\nready")
    for turn in range(50):
        delay = 0.025 + turn * 0.0002  # sweeps over the deadline
        result = await session.run(f"await tools.answer({delay})", tools, timeout_ms=30)
        assert kind(result) in (None, "timeout")
        assert (kind(result) is None) == result.has_value
        assert not result.has_value or result.value == "answer"
        assert "kept" == result.state
    assert await session.value("ready")


@pytest.mark.parametrize("retained", [True, False], ids=["owner", "no owner"])
async def test_a_slow_clean_up_does_not_change_the_kind(make_session, retained):
    """G13: a child that ignores TERM delays the return of `run`, which stays a `timeout`."""
    session = make_session(grace_ms=500)
    session.owner = session.owner if retained else None
    program = """
import subprocess, time
child = subprocess.Popen(["sh", "-c", "trap '' INT TERM; echo $$; exec sleep 60"], stdout=subprocess.PIPE)
print(int(child.stdout.readline()))
time.sleep(60)
"""
    result = await session.run(program, timeout_ms=800)
    assert "timeout" == kind(result)
    assert "800" in result.error.message
    assert not alive(int(text(result)))


async def test_a_queued_run_spends_nothing(session):
    """G14: the clock of a queued run starts when it is at the head of its owner's queue."""
    await session.value("1")
    slow = asyncio.create_task(session.run("import time\ntime.sleep(1.5)\n'slow'", timeout_ms=60_000))
    quick = asyncio.create_task(session.run("'quick'", timeout_ms=1000))
    assert ["slow", "quick"] == [(await slow).value, (await quick).value]


async def test_the_default_budget_holds(make_session):
    """A03, G01: a run that chooses no budget has the configured one."""
    session = make_session(timeout_ms=700)
    result = await session.run("while True: pass")
    assert "timeout" == kind(result)
    assert "700" in result.error.message


async def test_a_fractional_budget(session):
    """G01: a budget need not be a whole number, and is named as it was given."""
    await session.value("1")
    result = await session.run("while True: pass", timeout_ms=250.5)
    assert "timeout" == kind(result)
    assert "250.5" in result.error.message


async def test_what_came_before_the_deadline_is_kept(session):
    """F09, 10.1: output printed before the deadline, and in the clean-up after it, is in the result."""
    program = """
import sys
print("before")
try:
    while True:
        pass
finally:
    print("after", file=sys.stderr)
"""
    result = await session.run(program, timeout_ms=600)
    assert "timeout" == kind(result)
    assert ("before\n", "after\n") == (text(result, "stdout"), text(result, "stderr"))


async def test_a_program_that_ends_itself_after_the_deadline_has_timed_out(session):
    """3.1: once the deadline has fired, neither a value nor an exception of the program changes the kind."""
    for ending in ("'value'", "raise ValueError('mine')", "import os"):
        program = f"import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    pass\n{ending}"
        result = await session.run(program, timeout_ms=300)
        assert ("timeout", "kept") == (kind(result), result.state)
        assert "300" in result.error.message


@pytest.mark.parametrize("first", ["timeout", "abort"])
async def test_deadline_and_abort_the_first_wins(make_runtime, first):
    """3.2: of a deadline and an abort, the one that fired first names the kind."""
    runtime, controller = make_runtime(grace_ms=1200), AbortController()
    program = """
print("began")
while True:
    try:
        while True:
            pass
    except BaseException:
        print("caught")
"""
    budget = 600 if first == "timeout" else 1000
    request = PtcRunRequest(
        program=program, state_owner=object(), timeout_ms=budget, signal=controller.signal
    )
    await runtime.run(runtime.resolve(PtcRunRequest(program="1", state_owner=request.state_owner)))
    awaited, seen = "began" if first == "abort" else "caught", ""
    async for event in runtime.stream(runtime.resolve(request)):
        if isinstance(event, OutputEvent):
            seen += event.output.text
            if awaited in seen:
                controller.abort("the other one")
        elif isinstance(event, ResultEvent):
            result = event.result
    assert (first, "lost") == (kind(result), result.state)
    assert ("the other one" in result.error.message) == (first == "abort")


async def test_a_timeout_without_an_owner_says_nothing_of_variables(runtime):
    """8.3: a one-shot run has no variables that its message could speak of."""
    result = await Session(runtime, None).run("print('began')\nwhile True: pass", timeout_ms=900)
    assert ("timeout", "none", "began\n") == (kind(result), result.state, text(result))
    assert "ariables" not in result.error.message


async def test_many_timeouts_in_a_row(session):
    """G01: an owner whose programs time out again and again keeps its variables, and runs right."""
    await session.value("log = []\n1")
    for turn in range(6):
        assert "timeout" == kind(await session.run(f"log.append({turn})\nwhile True: pass", timeout_ms=150))
    assert list(range(6)) == await session.value("log")


async def test_owners_time_out_side_by_side(runtime):
    """8.5, G01: deadlines of different owners do not touch each other."""
    sessions = [Session(runtime) for _ in range(3)]
    for session in sessions:
        await session.value("x = 41\nx")
    budgets = (300, 400, 60_000)
    programs = (
        "while True: pass",
        "import asyncio; await asyncio.sleep(60)",
        "import time; time.sleep(0.6)\nx",
    )
    runs = (s.run(p, timeout_ms=b) for s, p, b in zip(sessions, programs, budgets, strict=True))
    assert ["timeout", "timeout", None] == [kind(result) for result in await asyncio.gather(*runs)]
    assert [41] * 3 == [await session.value("x") for session in sessions]
