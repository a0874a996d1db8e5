"""Area H: stopping a run by its signal, in every state that it can be in, and by cancelling its caller."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import threading

import anyio
import pytest

from ptc_kernel import AbortController, OutputEvent, PtcCallContext, PtcRunRequest
from tests.support import Session, alive, children, kind, namespace, text

pytestmark = pytest.mark.live

LOST = "Variables are gone; the next run starts fresh."
SWALLOW = """
told = False
while True:
    try:
        if not told:
            told = True
            await tools.began({"pid": __import__("os").getpid()})
        while True:
            pass
    except BaseException:
        pass
"""
BUSY = """
await tools.began({"pid": __import__("os").getpid()})
while True:
    pass
"""


class Tools:
    """The binding `began` tells the test where a program is; `slow` answers when the test says so."""

    def __init__(self, error=None):
        self.began = asyncio.Event()
        self.called = asyncio.Event()
        self.answer = asyncio.Event()
        self.ended = asyncio.Event()
        self.error = error
        self.cancelled = False
        self.pid = 0
        self.context = None
        self.namespace = namespace(began=self._began, slow=self._slow)

    async def _began(self, argument):
        self.pid = argument["pid"]
        self.began.set()

    async def _slow(self, _):
        self.context = PtcCallContext.current()
        self.called.set()
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.ended.set()
        if self.error is not None:
            raise self.error
        return "late"


class Source:
    """A signal of one of the three kinds, and the way to fire it."""

    def __init__(self, name):
        self.controller = AbortController() if name == "AbortSignal" else None
        event = asyncio.Event() if name == "asyncio.Event" else anyio.Event()
        self.signal = event if self.controller is None else self.controller.signal
        self.text = "aborted" if self.controller is None else "too-late"

    def fire(self):
        if self.controller is None:
            self.signal.set()
        else:
            self.controller.abort("too-late")


@pytest.fixture(params=["AbortSignal", "asyncio.Event", "anyio.Event"])
async def source(request):
    """A signal of each kind that a request takes."""
    return Source(request.param)


@pytest.fixture
async def loop_errors():
    """What reaches the loop's exception handler: tasks whose failure nobody took."""
    loop, found = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: found.append(context))
    yield found
    loop.set_exception_handler(None)


def request_of(session, program, *bindings, **fields):
    """A spec of a program of this session's owner."""
    request = PtcRunRequest(program=program, bindings=bindings, state_owner=session.owner, **fields)
    return session.runtime.resolve(request)


# ---------------------------------------------------------------------- before and after


@pytest.mark.core
@pytest.mark.parametrize("retained", [True, False], ids=["owner", "no owner"])
async def test_a_signal_that_fired_before_stops_everything(session, source, retained):
    """H01: a run whose signal has fired ends as `abort`; nothing is spawned and no handler is called."""
    session.owner = session.owner if retained else None
    tools, before = Tools(), children()
    source.fire()
    result = await session.run("print('ran')\nawait tools.slow()", tools.namespace, signal=source.signal)
    assert "abort" == kind(result)
    assert source.text in result.error.message
    assert ([], False, 0) == (list(result.output), result.started, result.calls_total)
    assert ("kept" if retained else "none") == result.state
    assert before == children()
    assert not tools.called.is_set()


async def test_a_signal_that_fired_before_keeps_what_there_is(session, source):
    """H01, 8.2: a pre-aborted run does not touch an environment that is there."""
    pid = await session.value("import os\nx = 41\nos.getpid()")
    source.fire()
    result = await session.run("x = 0", signal=source.signal)
    assert ("abort", "kept", False) == (kind(result), result.state, result.started)
    assert [41, pid] == await session.value("[x, os.getpid()]")


async def test_a_signal_that_fired_before_beats_a_syntax_error(session, source):
    """3.5: a pre-aborted program is not even parsed."""
    source.fire()
    assert "abort" == kind(await session.run("1 +", signal=source.signal))


async def test_misuse_beats_a_signal_that_fired_before(session, source):
    """2: an invalid binding raises even when the signal has fired already."""
    source.fire()
    with pytest.raises(ValueError, match="console"):
        await session.run("1", namespace("console"), signal=source.signal)


async def test_a_signal_after_the_end_has_no_effect(session, source):
    """H05: a signal that fires after the run changes neither its result nor the owner's variables."""
    result = await session.run("x = 41\nx", signal=source.signal)
    source.fire()
    await asyncio.sleep(0)
    assert (None, 41, "kept") == (kind(result), result.value, result.state)
    assert 42 == await session.value("x + 1")
    assert "abort" == kind(await session.run("1", signal=source.signal))


async def test_a_signal_in_the_last_moment_has_one_outcome(session):
    """3.1: a signal that fires as the program ends gives its value or an `abort`, and keeps the variables."""
    await session.value("x = 41\nx")
    for turn in range(40):
        controller = AbortController()
        asyncio.get_running_loop().call_later(turn * 0.0002, controller.abort, "now")
        result = await session.run("x + 1", signal=controller.signal)
        controller.abort("late")
        assert (kind(result), result.value if result.has_value else "now" in result.error.message) in (
            (None, 42),
            ("abort", True),
        )
        assert "kept" == result.state
    assert 42 == await session.value("x + 1")


# ---------------------------------------------------------------------- during


@pytest.mark.core
async def test_a_signal_stops_a_hot_loop(session, source):
    """H02: a signal that fires during a busy loop ends it as `abort` with its reason; variables stay."""
    tools = Tools()
    run = asyncio.create_task(session.run(f"x = 41\n{BUSY}", tools.namespace, signal=source.signal))
    await tools.began.wait()
    source.fire()
    result = await run
    assert ("abort", True, "kept") == (kind(result), result.started, result.state)
    assert source.text in result.error.message
    assert [41, tools.pid] == await session.value("[x, __import__('os').getpid()]")


@pytest.mark.core
@pytest.mark.parametrize("error", [None, ValueError("late")], ids=["answer", "error"])
async def test_a_signal_while_a_binding_is_awaited(session, source, error, loop_errors):
    """H03: the handler of an aborted run goes on undisturbed, and nobody hears of its late result."""
    tools = Tools(error)
    run = asyncio.create_task(
        session.run("print('a')\nawait tools.slow()\nprint('b')", tools.namespace, signal=source.signal)
    )
    await tools.called.wait()
    source.fire()
    result = await run
    assert ("abort", "kept", "a\n") == (kind(result), result.state, text(result))
    assert [("tools", "slow", "open")] == [(c.namespace, c.member, c.outcome) for c in result.calls]
    assert tools.context.run_ended
    assert not tools.ended.is_set()
    tools.answer.set()
    await tools.ended.wait()
    assert not tools.cancelled
    assert (2, "") == ((after := await session.run("1 + 1")).value, text(after))
    gc.collect()
    await asyncio.sleep(0)
    assert [] == loop_errors


@pytest.mark.parametrize("retained", [True, False], ids=["owner", "no owner"])
async def test_a_signal_during_the_start_of_a_kernel(session, source, retained):
    """H04: a run that is aborted while its kernel starts ends as `abort`, and no process is left."""
    session.owner = session.owner if retained else None
    before = children()
    run = asyncio.create_task(session.run("print('ran')", signal=source.signal))
    while children() == before:  # once the process is there, the kernel cannot be ready yet
        await asyncio.sleep(0)
    source.fire()
    result = await run
    assert ("abort", False, []) == (kind(result), result.started, list(result.output))
    assert source.text in result.error.message
    assert before == children()
    assert 2 == await session.value("1 + 1")


@pytest.mark.parametrize("begin", [BUSY, SWALLOW], ids=["soft", "hard"])
async def test_a_signal_from_another_thread(make_session, begin):
    """H08: a controller aborts a run from any thread."""
    session, tools, controller = make_session(grace_ms=500), Tools(), AbortController()
    run = asyncio.create_task(session.run(begin, tools.namespace, signal=controller.signal))
    await tools.began.wait()
    thread = threading.Thread(target=controller.abort, args=("from a thread",))
    thread.start()
    result = await run
    thread.join()
    assert ("abort", "kept" if begin is BUSY else "lost") == (kind(result), result.state)
    assert "from a thread" in result.error.message


async def test_a_program_that_cannot_be_stopped_is_killed(make_session, source):
    """H02, 8.2: a program that swallows the stop is killed at `grace_ms`, and the message says so."""
    session, tools = make_session(grace_ms=500), Tools()
    run = asyncio.create_task(session.run(SWALLOW, tools.namespace, signal=source.signal))
    await tools.began.wait()
    source.fire()
    result = await run
    assert ("abort", "lost") == (kind(result), result.state)
    assert result.error.message.startswith(source.text)
    assert result.error.message.endswith(LOST)
    assert not alive(tools.pid)
    assert (await session.run("1")).reset_reason


@pytest.mark.parametrize("call", ["await tools.began({'pid': 1})", "tools.began.sync({'pid': 1})"])
@pytest.mark.parametrize("expected", ["abort", "timeout"])
async def test_a_stopped_program_makes_no_further_calls(session, call, expected):
    """7: after an abort or a timeout no call of the program's clean-up is dispatched, and none hangs."""
    tools, controller = Tools(), AbortController()
    program = f"x = 41\ntry:\n    await tools.slow()\nfinally:\n    {call}"
    budget = 1000 if expected == "timeout" else None
    run = asyncio.create_task(
        session.run(program, tools.namespace, signal=controller.signal, timeout_ms=budget)
    )
    await tools.called.wait()
    if expected == "abort":
        controller.abort()
    result = await run
    assert (expected, "kept") == (kind(result), result.state)
    assert not tools.began.is_set()
    assert 1 == result.calls_total
    assert 41 == await session.value("x")


# ---------------------------------------------------------------------- reasons


class Unprintable:
    """A reason whose text cannot be made."""

    def __str__(self):
        raise RuntimeError("no text")


class NoText:
    """A reason whose text is not a text."""

    def __str__(self):
        return 5  # noqa: PLE0307


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param((), "", id="no reason"),
        pytest.param((None,), "", id="None"),
        pytest.param(("",), "", id="empty"),
        pytest.param((5,), "5", id="number"),
        pytest.param((ValueError("enough"),), "enough", id="exception"),
        pytest.param((Unprintable(),), "", id="unprintable"),
        pytest.param((NoText(),), "", id="text that is none"),
        pytest.param(("é \ud800 \x00",), "é", id="odd characters"),
    ],
)
async def test_every_reason_gives_a_text(runtime, session, arguments, expected):
    """H07, 2: whatever the reason is, `run` does not raise, and the failure has a text."""
    controller = AbortController()
    controller.abort(*arguments)
    result = await session.run("1", signal=controller.signal)
    assert "abort" == kind(result)
    assert result.error.message.strip()
    assert expected in result.error.message


async def test_the_first_abort_names_the_reason(session):
    """H02: a controller aborts once; a second reason is not heard."""
    tools, controller = Tools(), AbortController()
    run = asyncio.create_task(session.run(BUSY, tools.namespace, signal=controller.signal))
    await tools.began.wait()
    controller.abort("first")
    controller.abort("second")
    result = await run
    assert "first" in result.error.message
    assert "second" not in result.error.message


# ---------------------------------------------------------------------- queues and races


async def test_a_queued_run_is_aborted_at_once(session, source):
    """H09: an abort of a queued run ends it while the first one is active, which it does not touch."""
    first, second = Tools(), Tools()
    active = asyncio.create_task(session.run("x = [await tools.slow()]\nx", first.namespace))
    await first.called.wait()
    queued = asyncio.create_task(
        session.run("x = 'ran'\nawait tools.slow()", second.namespace, signal=source.signal)
    )
    third = asyncio.create_task(session.run("x + ['third']"))
    await asyncio.sleep(0)
    source.fire()
    result = await queued
    assert not active.done()
    assert ("abort", False, "kept") == (kind(result), result.started, result.state)
    assert ([], 0) == (list(result.output), result.calls_total)
    assert source.text in result.error.message
    assert not second.called.is_set()
    first.answer.set()
    assert ["late"] == (await active).value
    assert ["late", "third"] == (await third).value


async def test_one_signal_stops_active_and_queued_runs(runtime, source):
    """H09, 8.5: a signal that many runs share stops the active and the queued ones, of all owners."""
    sessions, tools = [Session(runtime), Session(runtime)], [Tools(), Tools()]
    runs = [
        asyncio.create_task(
            session.run(BUSY if turn == 0 else "ran = True", tool.namespace, signal=source.signal)
        )
        for session, tool in zip(sessions, tools, strict=True)
        for turn in range(3)
    ]
    for tool in tools:
        await tool.began.wait()
    source.fire()
    results = await asyncio.gather(*runs)
    assert ["abort"] * 6 == [kind(result) for result in results]
    assert [True, False, False] * 2 == [result.started for result in results]
    for session in sessions:
        assert not await session.value("'ran' in globals()")


async def test_a_shared_signal_spares_other_runs(runtime):
    """8.5: aborting a run of one owner leaves the run of another one alone."""
    one, two, controller = Tools(), Tools(), AbortController()
    stopped = asyncio.create_task(Session(runtime).run(BUSY, one.namespace, signal=controller.signal))
    spared = asyncio.create_task(Session(runtime).run("await tools.slow()", two.namespace))
    await asyncio.gather(one.began.wait(), two.called.wait())
    controller.abort()
    assert "abort" == kind(await stopped)
    two.answer.set()
    assert "late" == (await spared).value


async def test_abort_and_deadline_in_the_same_tick(session):
    """H11: whichever fires first names the kind, and the message fits the kind."""
    await session.value("x = 41\nx")
    for turn in range(30):
        controller = AbortController()
        delay = 0.0285 + turn * 0.0001  # sweeps over the deadline
        asyncio.get_running_loop().call_later(delay, controller.abort, "the reason")
        result = await session.run("while True: pass", timeout_ms=30, signal=controller.signal)
        controller.abort("the reason")
        assert (kind(result), "the reason" in result.error.message, "timeout_ms" in result.error.message) in (
            ("abort", True, False),
            ("timeout", False, True),
        )
        assert "kept" == result.state
    assert 41 == await session.value("x")


async def test_many_runs_leave_nothing_on_a_signal(session):
    """H12: 500 runs that share a signal leave no listener on it, and its late fire disturbs nobody."""
    controller = AbortController()
    results = await asyncio.gather(*(session.run(f"{n}", signal=controller.signal) for n in range(500)))
    assert list(range(500)) == [result.value for result in results]
    assert "0 listeners" in repr(controller.signal)
    controller.abort()
    assert 2 == await session.value("1 + 1")


@pytest.mark.parametrize("make", [asyncio.Event, anyio.Event], ids=["asyncio", "anyio"])
async def test_many_runs_leave_nothing_on_an_event(session, make):
    """H12: runs that share an event leave no waiting task behind."""
    event, before = make(), asyncio.all_tasks()
    for turn in range(50):
        assert turn == await session.value(f"{turn}", signal=event)
    await asyncio.sleep(0)
    assert set() == asyncio.all_tasks() - before


# ---------------------------------------------------------------------- what is no signal


async def test_a_threading_event_is_refused(runtime):
    """1.1: a `threading.Event` is a TypeError that names AbortController, at resolve and at run."""
    with pytest.raises(TypeError, match="AbortController"):
        runtime.resolve(PtcRunRequest(program="1", signal=threading.Event()))
    spec = dataclasses.replace(runtime.resolve(PtcRunRequest(program="1")), signal=threading.Event())
    before = children()
    with pytest.raises(TypeError, match="AbortController"):
        await runtime.run(spec)
    with pytest.raises(TypeError, match="AbortController"):
        runtime.stream(spec)
    assert before == children()


@pytest.mark.parametrize("signal", [object(), True, "abort", AbortController(), asyncio.Lock], ids=repr)
async def test_what_is_no_signal_is_refused(runtime, signal):
    """1.1: a signal of any other type is a TypeError."""
    with pytest.raises(TypeError, match="signal"):
        runtime.resolve(PtcRunRequest(program="1", signal=signal))


# ---------------------------------------------------------------------- the caller is cancelled


async def test_a_cancelled_caller_stops_its_program(session):
    """2: cancelling the caller stops the program by the ladder, keeps the variables, and is raised again."""
    tools = Tools()
    run = asyncio.create_task(session.run(f"x = 41\n{BUSY}", tools.namespace))
    await tools.began.wait()
    run.cancel("no longer needed")
    with pytest.raises(asyncio.CancelledError, match="no longer needed"):
        await run
    result = await session.run("[x, __import__('os').getpid()]")
    assert ([41, tools.pid], None) == (result.value, result.reset_reason)


async def test_a_cancelled_caller_of_a_one_shot_leaves_no_process(runtime):
    """2: when the cancellation of an owner-less run is raised, its process is gone."""
    tools, before = Tools(), children()
    run = asyncio.create_task(Session(runtime, None).run(BUSY, tools.namespace))
    await tools.began.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not alive(tools.pid)
    assert before == children()


async def test_a_cancelled_caller_of_a_program_that_cannot_be_stopped(make_session):
    """2, 8.3: the kernel is killed at `grace_ms`, and the owner's next run says why it starts fresh."""
    session, tools = make_session(grace_ms=500), Tools()
    run = asyncio.create_task(session.run(SWALLOW, tools.namespace))
    await tools.began.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not alive(tools.pid)
    result = await session.run("1 + 1")
    assert (2, "kept") == (result.value, result.state)
    assert result.reset_reason


async def test_a_second_cancellation_does_not_cut_the_clean_up(make_session):
    """2: the clean-up is shielded: however often the caller is cancelled, it returns when all is gone."""
    session, tools = make_session(grace_ms=500), Tools()
    run = asyncio.create_task(session.run(SWALLOW, tools.namespace))
    await tools.began.wait()
    while not run.done():
        run.cancel()
        await asyncio.sleep(0.01)
    assert run.cancelled()
    assert not alive(tools.pid)


async def test_a_cancelled_caller_in_the_queue(session):
    """2, 8.5: a queued run whose caller is cancelled never runs, and the active one is not touched."""
    tools = Tools()
    active = asyncio.create_task(session.run("x = await tools.slow()\nx", tools.namespace))
    await tools.called.wait()
    queued = asyncio.create_task(session.run("x = 'ran'"))
    await asyncio.sleep(0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    assert not active.done()
    tools.answer.set()
    assert "late" == (await active).value
    assert "late" == await session.value("x")


async def test_a_cancelled_caller_during_the_start(make_runtime):
    """2: a caller that is cancelled while a kernel starts leaves no process."""
    runtime, before = make_runtime(), children()
    for owner in (None, object()):
        run = asyncio.create_task(Session(runtime, owner).run("print('ran')"))
        while children() == before:
            await asyncio.sleep(0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert before == children()
        assert 2 == await Session(runtime, owner).value("1 + 1")
        await runtime.release(owner)


async def test_a_caller_that_is_cancelled_before_it_begins(runtime):
    """2: a call that is cancelled before its first step starts nothing."""
    before = children()
    run = asyncio.create_task(Session(runtime).run("print('ran')"))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert before == children()


async def test_a_cancelled_handler_task_stays_alive(session):
    """2, 7: cancelling the caller does not cancel the handler that its program waits for."""
    tools = Tools()
    run = asyncio.create_task(session.run("await tools.slow()", tools.namespace))
    await tools.called.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not tools.ended.is_set()
    assert tools.context.run_ended
    tools.answer.set()
    await tools.ended.wait()
    assert not tools.cancelled


@pytest.mark.parametrize("how", ["asyncio.timeout", "wait_for", "anyio", "TaskGroup"])
async def test_structured_cancellation(session, how):
    """2: the run is cut by whatever scope its caller is in, and that scope ends as it always does."""
    tools = Tools()
    program = f"x = 41\n{BUSY}"

    async def run():
        await session.run(program, tools.namespace)

    if how == "asyncio.timeout":
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                task = asyncio.create_task(tools.began.wait())
                task.add_done_callback(lambda _: limit.reschedule(asyncio.get_running_loop().time()))
                await run()
    elif how == "wait_for":
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run(), 0.9)
    elif how == "anyio":
        with anyio.CancelScope() as scope:
            task = asyncio.create_task(tools.began.wait())
            task.add_done_callback(lambda _: scope.cancel())
            await run()
        assert scope.cancelled_caught
    else:
        with pytest.raises(ExceptionGroup, match="unhandled errors"):
            async with asyncio.TaskGroup() as group:
                group.create_task(run())
                await tools.began.wait()
                raise ValueError("a sibling failed")
    assert [41, tools.pid] == await session.value("[x, __import__('os').getpid()]")
    assert 0 == asyncio.current_task().cancelling()


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_a_reader_that_leaves_stops_its_program(session, how):
    """10.1, 2: closing a stream early, or cancelling its reader, stops the program by the ladder."""
    spec = request_of(session, "import os\nx = 41\nprint(os.getpid(), flush=True)\nwhile True:\n    pass")
    seen = asyncio.Event()
    stream = session.runtime.stream(spec)

    async def read():
        async for event in stream:
            assert isinstance(event, OutputEvent)
            seen.set()
            if how == "close":
                break
        await stream.aclose()

    reader = asyncio.create_task(read())
    await seen.wait()
    if how == "cancel":
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
    await asyncio.wait({reader})
    result = await session.run("[x, __import__('os').getpid()]", timeout_ms=5000)
    assert (None, 41, None) == (kind(result), result.value[0], result.reset_reason)


async def test_a_stream_that_is_closed_before_it_is_read(session):
    """10.1: closing a stream stops its program even when no event was read."""
    tools = Tools()
    spec = request_of(session, "await tools.slow()", tools.namespace, timeout_ms=5000)
    stream = session.runtime.stream(spec)
    await tools.called.wait()
    await stream.aclose()
    assert tools.context.run_ended
    assert 2 == await session.value("1 + 1")


async def test_the_signal_stops_a_streamed_run(session, source):
    """H02, 10.1: a signal ends a streamed run, whose last event is the result."""
    spec = request_of(session, "print('a')\nwhile True:\n    pass", signal=source.signal)
    events = []
    async for event in session.runtime.stream(spec):
        events.append(event)
        source.fire()
    assert "a\n" == events[0].output.text
    assert ("abort", "kept") == (kind(events[-1].result), events[-1].result.state)
    assert source.text in events[-1].result.error.message
