"""Area J: release of an owner, disposal of a runtime, and what is left of either: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import threading
import types

import pytest

import ptc_kernel.host.launch
from ptc_kernel import AbortController, JupyterPtcRuntime, PtcRunRequest, ReleaseError
from tests.support import Session, alive, children, kind, namespace, text

pytestmark = pytest.mark.live

DISPOSED = "runtime disposed"
BUSY = "await tools.began({'pid': __import__('os').getpid()})\nwhile True:\n    pass"
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
IMMUNE = "trap '' INT TERM; echo $$; exec sleep 60"
CHILD = f"""
import subprocess
child = subprocess.Popen(["sh", "-c", "{IMMUNE}"], stdout=subprocess.PIPE)
int(child.stdout.readline())
"""


class Tools:
    """The binding `began` tells the test that a program runs, `slow` never answers."""

    def __init__(self):
        self.began = asyncio.Event()
        self.called = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.pid = 0
        self.namespace = namespace(began=self._began, slow=self._slow)

    async def _began(self, argument):
        self.pid = argument["pid"]
        self.began.set()

    async def _slow(self, _):
        self.called.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder in which kernels get their private folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


class Clean:
    """Stands in for `shutil` in the launcher: removing some folders fails while `failing` says so."""

    def __init__(self, monkeypatch):
        self.failing = None
        self.calls = []
        stand_in = types.SimpleNamespace(rmtree=self._rmtree)
        monkeypatch.setattr(ptc_kernel.host.launch, "shutil", stand_in)

    def _rmtree(self, path):
        self.calls.append(path)
        if self.failing is not None and self.failing(path):
            raise OSError(16, "Device or resource busy")
        shutil.rmtree(path)


@pytest.fixture
def clean(monkeypatch, folder):
    """A way to make the clean-up fail."""
    return Clean(monkeypatch)


def request_of(session, program, *bindings, **fields):
    """A spec of a program of this session's owner."""
    request = PtcRunRequest(program=program, bindings=bindings, state_owner=session.owner, **fields)
    return session.runtime.resolve(request)


# ---------------------------------------------------------------------- release


@pytest.mark.core
async def test_a_released_owner_starts_fresh(session, folder):
    """J01: release ends the process and removes its files before it returns; the owner starts fresh."""
    before = children()
    pid = await session.value("import os\nx = 1\nos.getpid()")
    assert list(folder.iterdir())
    await session.runtime.release(session.owner)
    assert not alive(pid)
    assert (before, []) == (children(), list(folder.iterdir()))
    result = await session.run("'x' in globals()")
    assert (False, "kept", None) == (result.value, result.state, result.reset_reason)
    assert pid != await session.pid()


async def test_release_of_an_unknown_owner(runtime):
    """J02: releasing an owner that has nothing, twice, or after it was released, does nothing."""
    owner = object()
    assert None is await runtime.release(owner)
    assert None is await runtime.release(owner)
    assert None is await runtime.release(None)
    session = Session(runtime, owner)
    await session.value("1")
    await runtime.release(owner)
    await runtime.release(owner)
    assert 2 == await session.value("1 + 1")


@pytest.mark.parametrize("program", [BUSY, SWALLOW], ids=["soft", "hard"])
async def test_release_during_a_hot_loop(make_session, program):
    """J03: a running program of a released owner ends as `abort`, and its process is gone on return."""
    session, tools = make_session(grace_ms=500), Tools()
    run = asyncio.create_task(session.run(program, tools.namespace))
    await tools.began.wait()
    await session.runtime.release(session.owner)
    assert not alive(tools.pid)
    result = await run
    assert ("abort", True) == (kind(result), result.started)
    assert "released" in result.error.message
    assert 2 == await session.value("1 + 1")


async def test_release_with_queued_runs(session):
    """J04: the queued runs of a released owner end as `abort`, and their programs never ran."""
    tools, ran = Tools(), Tools()
    active = asyncio.create_task(session.run("await tools.slow()", tools.namespace))
    await tools.called.wait()
    queued = [asyncio.create_task(session.run("await tools.slow()", ran.namespace)) for _ in range(3)]
    other = Session(session.runtime)
    assert 2 == await other.value("1 + 1")  # by then they are in the queue
    await session.runtime.release(session.owner)
    results = await asyncio.gather(active, *queued)
    assert ["abort"] * 4 == [kind(result) for result in results]
    assert [True, False, False, False] == [result.started for result in results]
    assert [[]] * 4 == [list(result.output) for result in results]
    assert not ran.called.is_set()


async def test_release_right_after_a_run_was_called(session):
    """J04, 8.6: a run that was called before the release is aborted, however fresh it is."""
    await session.value("1")
    spec = request_of(session, "print('ran')", timeout_ms=5000)
    run = asyncio.create_task(session.runtime.run(spec))
    await asyncio.sleep(0)  # run was called, the release comes next
    await session.runtime.release(session.owner)
    result = await run
    assert "abort" == kind(result)


async def test_concurrent_releases(session, clean):
    """J05: concurrent releases of one owner share one clean-up, and all return when it is done."""
    pid = await session.pid()
    await asyncio.gather(*(session.runtime.release(session.owner) for _ in range(5)))
    assert not alive(pid)
    assert 1 == len(clean.calls)


async def test_a_release_whose_caller_is_cancelled_goes_on(session):
    """J05, 8.6: cancelling one of two callers of a release ends neither the release nor the other caller."""
    pid = await session.pid()
    first = asyncio.create_task(session.runtime.release(session.owner))
    second = asyncio.create_task(session.runtime.release(session.owner))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()
    assert not alive(pid)


async def test_a_run_during_a_release_waits(session):
    """8.6: a run that is issued while its owner is released waits for that, and starts fresh."""
    pid = await session.value("import os\nx = 1\nos.getpid()")
    release = asyncio.create_task(session.runtime.release(session.owner))
    await asyncio.sleep(0)
    result = await session.run("import os\n['x' in globals(), os.getpid()]")
    assert release.done()
    assert (None, False, None) == (kind(result), result.value[0], result.reset_reason)
    assert pid != result.value[1]
    assert not alive(pid)


async def test_release_of_a_starting_kernel(runtime, session):
    """8.6: releasing an owner whose kernel is starting ends the run as `abort`, and leaves no process."""
    before = children()
    run = asyncio.create_task(session.run("print('ran')"))
    while children() == before:
        await asyncio.sleep(0)
    await runtime.release(session.owner)
    assert before == children()
    result = await run
    assert ("abort", False, "") == (kind(result), result.started, text(result))


async def test_release_ends_every_child(make_session):
    """J01, 8.8: with a kernel go its children, in any session, even those that ignore TERM."""
    session = make_session(grace_ms=300)
    orphan = "import subprocess\nint(subprocess.check_output(['sh', '-c', shell]))"
    shell = "(trap '' INT TERM; exec sleep 60) >&- & echo $!"
    pids = [
        await session.value(CHILD),
        await session.value(CHILD.replace("stdout=", "start_new_session=True, stdout=")),
        await session.value(f"shell = {shell!r}\n{orphan}"),
    ]
    assert [True] * 3 == [alive(pid) for pid in pids]
    await session.runtime.release(session.owner)
    assert [False] * 3 == [alive(pid) for pid in pids]


async def test_a_failed_release(make_runtime, clean):
    """J07: a release whose clean-up fails raises; other owners are untouched; a later release succeeds."""
    runtime = make_runtime()
    a, b = Session(runtime), Session(runtime)
    pid, _ = await a.pid(), await b.run("x = 'b'")
    clean.failing = lambda path: True
    with pytest.raises(ReleaseError) as caught:
        await runtime.release(a.owner)
    assert isinstance(caught.value, RuntimeError)
    assert not alive(pid)
    assert "b" == await b.value("x")
    folders = len(list(os.scandir(tempfile.gettempdir())))
    clean.failing = None
    await runtime.release(a.owner)
    assert folders - 1 == len(list(os.scandir(tempfile.gettempdir())))
    assert "b" == await b.value("x")
    assert 2 == await a.value("1 + 1")


async def test_an_owner_can_run_after_a_failed_release(make_runtime, clean):
    """J07, 8.6: an owner whose release failed can run programs again, and everything goes in the end."""
    runtime = make_runtime()
    session = Session(runtime)
    await session.run("x = 1")
    clean.failing = lambda path: True
    with pytest.raises(ReleaseError):
        await runtime.release(session.owner)
    clean.failing = None
    result = await session.run("'x' in globals()")
    assert (None, False) == (kind(result), result.value)
    await runtime.release(session.owner)
    assert [] == os.listdir(tempfile.gettempdir())


async def test_disposal_after_a_failed_release(clean):
    """J07: disposal finishes though one owner's files cannot be removed: nothing else is left."""
    before, runtime = children(), JupyterPtcRuntime()
    a, b = Session(runtime), Session(runtime)
    await a.value("1")
    (stuck,) = os.listdir(tempfile.gettempdir())
    await b.value("1")
    clean.failing = lambda path: path.endswith(stuck)
    with pytest.raises(ReleaseError):
        await runtime.release(a.owner)
    with contextlib.suppress(ReleaseError):
        await runtime.aclose()
    assert before == children()
    assert [stuck] == os.listdir(tempfile.gettempdir())
    with pytest.raises(RuntimeError, match="disposed"):
        runtime.resolve(PtcRunRequest(program="1"))


async def test_disposal_tries_a_failed_release_again(clean):
    """J07: what a release could not remove is removed by the disposal when that can."""
    runtime = JupyterPtcRuntime()
    session = Session(runtime)
    await session.value("1")
    clean.failing = lambda path: True
    with pytest.raises(ReleaseError):
        await runtime.release(session.owner)
    clean.failing = None
    await runtime.aclose()
    assert [] == os.listdir(tempfile.gettempdir())


async def test_release_leaves_others_alone(runtime):
    """J08: releasing one owner changes nothing for another, whether idle or running."""
    a, b, c, tools = Session(runtime), Session(runtime), Session(runtime), Tools()
    await a.run("x = 'a'")
    await b.run("x = 'b'")
    run = asyncio.create_task(c.run("x = 'c'\nawait tools.began({'pid': 1})\nx", tools.namespace))
    await tools.began.wait()
    await runtime.release(a.owner)
    assert ["b", None] == [await b.value("x"), kind(await run)]
    assert "c" == await c.value("x")
    assert "exception" == kind(await a.run("x"))


# ---------------------------------------------------------------------- disposal


@pytest.mark.core
async def test_disposal_aborts_what_runs(make_runtime, folder):
    """J09: disposal ends active and queued runs as `abort`, waits for them, and leaves no process or file."""
    before, runtime = children(), make_runtime(grace_ms=500)
    tools = [Tools() for _ in range(4)]
    sessions = [Session(runtime), Session(runtime), Session(runtime, None), Session(runtime)]
    programs = [BUSY, SWALLOW, BUSY, "await tools.began({'pid': 1})\nawait tools.slow()"]
    runs = [
        asyncio.create_task(session.run(program, tool.namespace, timeout_ms=None))
        for session, program, tool in zip(sessions, programs, tools, strict=True)
    ]
    runs.append(asyncio.create_task(sessions[0].run("await tools.slow()", tools[0].namespace)))
    for tool in tools:
        await tool.began.wait()
    await tools[3].called.wait()
    await runtime.aclose()
    assert [True] * 5 == [run.done() for run in runs]
    results = [run.result() for run in runs]
    assert ["abort"] * 5 == [kind(result) for result in results]
    assert [True] * 5 == [DISPOSED in result.error.message for result in results]
    assert [True, True, True, True, False] == [result.started for result in results]
    assert tools[3].cancelled.is_set()
    assert not tools[0].called.is_set()
    assert (before, []) == (children(), list(folder.iterdir()))


async def test_after_disposal(session):
    """J10: after disposal, resolve, run and stream raise, and release does nothing."""
    spec = request_of(session, "1")
    await session.runtime.run(spec)
    await session.runtime.aclose()
    with pytest.raises(RuntimeError, match="disposed"):
        session.runtime.resolve(PtcRunRequest(program="1"))
    with pytest.raises(RuntimeError, match="disposed"):
        await session.runtime.run(spec)
    with pytest.raises(RuntimeError, match="disposed"):
        session.runtime.stream(spec)
    assert None is await session.runtime.release(session.owner)
    assert None is await session.runtime.release(object())


async def test_misuse_is_refused_from_the_first_moment_of_a_disposal(session):
    """8.7: a runtime counts as disposed as soon as disposal is asked for, not when it is done."""
    spec = request_of(session, "1")
    await session.runtime.run(spec)
    closing = asyncio.create_task(session.runtime.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    with pytest.raises(RuntimeError, match="disposed"):
        session.runtime.resolve(PtcRunRequest(program="1"))
    with pytest.raises(RuntimeError, match="disposed"):
        await session.runtime.run(spec)
    await closing


async def test_disposal_twice(session, clean):
    """J11: concurrent and repeated disposals share one clean-up, and each returns when it is done."""
    pid = await session.pid()
    await asyncio.gather(*(session.runtime.aclose() for _ in range(4)))
    assert not alive(pid)
    await session.runtime.aclose()
    assert 1 == len(clean.calls)


async def test_disposal_of_an_unused_runtime(make_runtime):
    """J11: a runtime that never ran anything is closed at once, and leaving `async with` closes it."""
    await make_runtime().aclose()
    async with JupyterPtcRuntime() as runtime:
        session = Session(runtime)
        pid = await session.pid()
    assert not alive(pid)
    with pytest.raises(RuntimeError, match="disposed"):
        await session.run("1")


async def test_a_disposal_whose_caller_is_cancelled_goes_on(session):
    """J11: cancelling one caller of a disposal does not cut it; another one waits for all of it."""
    pid = await session.pid()
    first = asyncio.create_task(session.runtime.aclose())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    await session.runtime.aclose()
    assert not alive(pid)


async def test_disposal_during_a_start(make_runtime, folder):
    """J12: disposal while kernels start leaves no process and no file."""
    before, runtime = children(), make_runtime()
    runs = [asyncio.create_task(Session(runtime, owner).run("print('ran')")) for owner in (object(), None)]
    while len(children() - before) < 2:
        await asyncio.sleep(0)
    await runtime.aclose()
    assert (before, []) == (children(), list(folder.iterdir()))
    results = [run.result() for run in runs]
    assert [("abort", False, "")] * 2 == [(kind(result), result.started, text(result)) for result in results]
    assert [True] * 2 == [DISPOSED in result.error.message for result in results]


async def test_disposal_before_the_first_step_of_a_run(make_runtime):
    """J12: a run that was called and has not taken a step is aborted as well, and nothing is spawned."""
    before, runtime = children(), make_runtime()
    run = asyncio.create_task(Session(runtime).run("print('ran')"))
    await asyncio.sleep(0)
    await runtime.aclose()
    result = await run
    assert ("abort", False) == (kind(result), result.started)
    assert before == children()


async def test_disposal_during_a_release(session):
    """8.7: a disposal during a release waits for it."""
    pid = await session.pid()
    release = asyncio.create_task(session.runtime.release(session.owner))
    await asyncio.sleep(0)
    await session.runtime.aclose()
    assert not alive(pid)
    await release


async def test_a_stream_ends_with_its_runtime(session):
    """J09, 10.1: a stream whose runtime is disposed ends with an `abort` result."""
    tools = Tools()
    stream = session.runtime.stream(request_of(session, f"print('a')\n{BUSY}", tools.namespace))
    await tools.began.wait()
    await session.runtime.aclose()
    events = [event async for event in stream]
    assert "a\n" == events[0].output.text
    assert "abort" == kind(events[-1].result)
    assert DISPOSED in events[-1].result.error.message


# ---------------------------------------------------------------------- what one-shot runs leave


async def test_a_child_of_a_one_shot_run(make_session):
    """J14: a child that an owner-less program leaves behind is dead when `run` returns its value."""
    session = make_session(grace_ms=500)
    session.owner = None
    for child in (CHILD, CHILD.replace("stdout=", "start_new_session=True, stdout=")):
        result = await session.run(f"{child}\nprint(child.pid)\n42")
        assert (None, 42) == (kind(result), result.value)
        assert not alive(int(text(result)))


async def test_a_polite_child_of_a_one_shot_run(runtime):
    """J14: an ordinary child is gone as well, and what it printed meanwhile is in the output."""
    program = """
import subprocess
child = subprocess.Popen(["sh", "-c", "echo from the child; exec sleep 60"])
while not child.poll() and open(f"/proc/{child.pid}/comm").read().strip() != "sleep":
    pass
print(child.pid)
"""
    result = await Session(runtime, None).run(program)
    assert None is kind(result)
    first, pid = text(result).splitlines()
    assert "from the child" == first
    assert not alive(int(pid))


def resources():
    """What this process holds: descriptors, threads, and children of any state."""
    fds = sorted(os.listdir("/proc/self/fd"))
    with open(f"/proc/self/task/{threading.main_thread().native_id}/children") as file:
        return len(fds), threading.active_count(), file.read().split()


async def test_thirty_one_shot_runs_leave_nothing(make_runtime, folder):
    """J16: after 30 owner-less runs no descriptor, file, thread, task or zombie is left."""
    runtime = make_runtime(grace_ms=500)
    session = Session(runtime, None)
    await session.value("1")
    before, tasks = resources(), asyncio.all_tasks()
    endings = ("1", "1 / 0", "import os; os._exit(3)", "import subprocess; subprocess.Popen(['sleep', '60'])")
    for start in range(0, 30, 3):
        programs = [endings[n % 4] for n in range(start, start + 3)]
        await asyncio.gather(*(session.run(program, discard_completion=True) for program in programs))
    await asyncio.sleep(0)
    assert before == resources()
    assert set() == asyncio.all_tasks() - tasks
    assert [] == list(folder.iterdir())


async def test_owners_leave_nothing(make_runtime, folder):
    """J16: after owners that were released, died or timed out, no descriptor, file or zombie is left."""
    runtime = make_runtime(grace_ms=300)
    await Session(runtime, None).value("1")
    before = resources()
    programs = ("x = 1", "import os; os._exit(3)", "while True: pass", "import os; os.kill(os.getpid(), 9)")
    for program in programs:
        session = Session(runtime)
        await session.run(program, timeout_ms=600)
        await session.run("1")
        await runtime.release(session.owner)
    await asyncio.sleep(0)
    assert before == resources()
    assert [] == list(folder.iterdir())


async def test_a_closed_runtime_leaves_nothing(folder):
    """J16: opening, using and closing runtimes again and again grows nothing."""

    async def use():
        async with JupyterPtcRuntime(grace_ms=300) as runtime:
            await asyncio.gather(Session(runtime).run("1"), Session(runtime, None).run("1"))
            controller = AbortController()
            controller.abort()
            await Session(runtime).run("1", signal=controller.signal)

    await use()
    before = resources()
    for _ in range(3):
        await use()
    assert before == resources()
    assert [] == list(folder.iterdir())


async def test_a_failed_clean_up_replaces_a_success(make_runtime, clean):
    """J17: a one-shot run whose clean-up fails is a `worker-exit` without value; disposal tries again."""
    runtime = make_runtime()
    clean.failing = lambda path: len(clean.calls) == 1
    result = await Session(runtime, None).run("print('kept')\n42")
    assert ("worker-exit", False, "none") == (kind(result), result.has_value, result.state)
    assert "kept\n" == text(result)
    assert True is result.started
    assert 2 == (await Session(runtime, None).run("1 + 1")).value
    await runtime.aclose()
    assert [] == os.listdir(tempfile.gettempdir())


async def test_a_failed_clean_up_replaces_a_failure(make_runtime, clean):
    """J17, 3.3: a failed clean-up has the last word over an exception and a timeout, too."""
    runtime = make_runtime(grace_ms=300)
    for program in ("1 / 0", "while True: pass"):
        clean.calls.clear()
        clean.failing = lambda path: len(clean.calls) == 1
        result = await Session(runtime, None).run(program, timeout_ms=1500)
        assert "worker-exit" == kind(result)
    await runtime.aclose()
    assert [] == os.listdir(tempfile.gettempdir())


async def test_a_failed_clean_up_of_a_lost_environment(make_runtime, clean):
    """J17, 8.2: the same when an owner's kernel died: `worker-exit`, lost, and the next run is fresh."""
    runtime = make_runtime()
    session = Session(runtime)
    await session.run("x = 1")
    clean.failing = lambda path: len(clean.calls) == 1
    result = await session.run("import os\nos._exit(3)")
    assert ("worker-exit", "lost") == (kind(result), result.state)
    assert result.error.message.endswith("Variables are gone; the next run starts fresh.")
    result = await session.run("'x' in globals()")
    assert (None, False) == (kind(result), result.value)
    assert result.reset_reason
    await runtime.release(session.owner)
    assert [] == os.listdir(tempfile.gettempdir())
