"""The stop ladder: what a stopped program was doing, whether its variables survive, and the run after it.

Every program tells when it is where it should be stopped: through a FIFO in its working directory, or
through a call of a binding that never answers. Nothing here waits for a fixed time on the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from typing import Any

import pytest
import pytest_asyncio

from ptc_kernel import AbortController, JupyterPtcRuntime, PtcRunRequest, ResultEvent
from tests.support import Session, alive, children, kind, namespace, text

pytestmark = [pytest.mark.live, pytest.mark.asyncio(loop_scope="module")]

REASON = "the user pressed stop"
LOST = "Variables are gone; the next run starts fresh."
SETUP = """
import asyncio, concurrent.futures, functools, os, queue, re, select, signal, socket
import subprocess, sys, threading, time, timeit
from IPython.display import display
def ping():
    fd = os.open("ping", os.O_WRONLY)
    os.write(fd, b".")
    os.close(fd)
def soon():
    threading.Timer(0.05, ping).start()
def later():
    subprocess.Popen(["sh", "-c", "trap '' INT; sleep 0.1; echo . > ping"])
def watch(progress):
    def look():
        before = -1
        while progress() != before:
            before = progress()
            time.sleep(0.2)
        ping()
    threading.Thread(target=look).start()
async def busy():
    while True:
        pass
pinging = "echo . > ping; exec sleep 60"
immune = "trap '' INT; "
mark = {mark}
[os.getpid(), len(asyncio.all_tasks())]
"""
NEXT = """
print("quiet")
await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0.01))
[mark, os.getpid(), len(asyncio.all_tasks())]
"""


class Ladder:
    """One owner whose programs are stopped, and the ways in which they say where they are.

    Attributes:
        milliseconds: from the stop to the result of the last stopped run.
    """

    def __init__(self, runtime: JupyterPtcRuntime, folder: str) -> None:
        os.mkfifo(f"{folder}/ping")
        self._fifo = os.open(f"{folder}/ping", os.O_RDWR | os.O_NONBLOCK)
        asyncio.get_running_loop().add_reader(self._fifo, self._on_ping)
        self._marks = itertools.count(1)
        self.folder = folder
        self.reached = asyncio.Event()
        self.runtime = runtime
        self.session = Session(runtime, bindings=[namespace(never=self._never)])
        self.milliseconds = 0.0

    def _on_ping(self) -> None:
        os.read(self._fifo, 4096)
        self.reached.set()

    async def _never(self, _: Any) -> None:
        self.reached.set()
        await asyncio.Event().wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fifo)
        os.close(self._fifo)

    async def run(self, program: str, **fields: Any) -> Any:
        """Run a program in the folder of the FIFO."""
        return await self.session.run(program, cwd=self.folder, **{"timeout_ms": None, **fields})

    async def set_up(self) -> tuple[int, int, int]:
        """Give programs what they need; returns a new mark, the kernel's pid and its number of tasks."""
        mark = next(self._marks)
        result = await self.run(SETUP.format(mark=mark))
        assert None is kind(result), result.error
        return mark, *result.value

    async def reach(self, run: asyncio.Future[Any]) -> None:
        """Wait until the program says that it is there."""
        waiting = asyncio.ensure_future(self.reached.wait())
        await asyncio.wait({run, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert not run.done(), run.result()

    async def stop(self, program: str) -> Any:
        """Run a program, abort it where it says, and return its result."""
        self.reached.clear()
        controller = AbortController()
        run = asyncio.ensure_future(self.run(program, signal=controller.signal))
        await self.reach(run)
        began = time.perf_counter()
        controller.abort(REASON)
        result = await run
        self.milliseconds = round((time.perf_counter() - began) * 1000, 1)
        return result

    @contextlib.asynccontextmanager
    async def unread(self, program: str) -> Any:
        """A stream of a program that nobody reads, when the program says that it is there."""
        self.reached.clear()
        controller = AbortController()
        request = PtcRunRequest(
            program=program,
            state_owner=self.session.owner,
            cwd=self.folder,
            signal=controller.signal,
            timeout_ms=None,
        )
        stream = self.runtime.stream(self.runtime.resolve(request))
        after = asyncio.ensure_future(self.run("mark"))  # ends when the unread run does
        try:
            await self.reach(after)
            yield stream, controller
        finally:
            controller.abort("the test is over")
            async for _ in stream:
                pass
            await after


async def _ladder(runtime: JupyterPtcRuntime, folder: str) -> Any:
    before = children()
    ladder = Ladder(runtime, folder)
    yield ladder
    await runtime.aclose()
    ladder.close()
    assert set() == children() - before


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def patient(tmp_path_factory):
    """An owner with the default grace: programs that can be stopped."""
    async for ladder in _ladder(JupyterPtcRuntime(), str(tmp_path_factory.mktemp("patient"))):
        yield ladder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def strict(tmp_path_factory):
    """An owner with a grace of one second: programs that must be killed."""
    async for ladder in _ladder(JupyterPtcRuntime(grace_ms=1000), str(tmp_path_factory.mktemp("strict"))):
        yield ladder


async def ended(pid: int) -> None:
    """Wait for the end of a process; fails when it does not come."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(fd, gone.set)
    try:
        async with asyncio.timeout(10):
            await gone.wait()
    finally:
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)


def check_kept(result: Any) -> None:
    """The result of a run that was stopped and whose variables are there."""
    assert "abort" == kind(result)
    assert (True, "kept", None) == (result.started, result.state, result.reset_reason)
    assert REASON in result.error.message
    assert "gone" not in result.error.message


async def check_next_kept(ladder: Ladder, before: tuple[int, int, int]) -> None:
    """The next run has the variables, no task of the stopped run, and only its own output."""
    result = await ladder.run(NEXT)
    assert None is kind(result), result.error
    assert list(before) == result.value
    assert "quiet\n" == text(result)
    assert ("kept", None) == (result.state, result.reset_reason)
    assert "ptc_kernel" not in "".join(item.text for item in result.background)


async def check_lost(ladder: Ladder, result: Any, before: tuple[int, int, int]) -> None:
    """The run was killed, says so, and the next runs are fresh and right."""
    assert "abort" == kind(result)
    assert (True, "lost") == (result.started, result.state)
    assert result.error.message.startswith(REASON)
    assert result.error.message.endswith(LOST)
    assert not alive(before[1])
    result = await ladder.run("import os\nprint('quiet')\n['mark' in globals(), os.getpid()]")
    assert None is kind(result), result.error
    assert (False, "quiet\n") == (result.value[0], text(result))
    assert before[1] != result.value[1]
    assert "kept" == result.state
    assert result.reset_reason
    assert None is (await ladder.run("1")).reset_reason


STOPPED = {
    "time.sleep": "soon(); time.sleep(60)",
    "await sleep": "soon(); await asyncio.sleep(60)",
    "busy": """
soon()
while True:
    pass
""",
    "busy after await": """
await asyncio.sleep(0)
soon()
while True:
    pass
""",
    "gather of 5 busy": "soon(); await asyncio.gather(*(busy() for _ in range(5)))",
    "TaskGroup of 5 busy": """
soon()
async with asyncio.TaskGroup() as group:
    for _ in range(5):
        group.create_task(busy())
""",
    "500 sleeps": "soon(); await asyncio.gather(*(asyncio.sleep(60) for _ in range(500)))",
    "spinner": """
soon()
while True:
    await asyncio.sleep(0)
""",
    "100 spinners": """
async def spin():
    while True:
        await asyncio.sleep(0)
soon()
await asyncio.gather(*(spin() for _ in range(100)))
""",
    "subprocess.run": "subprocess.run(['sh', '-c', pinging])",
    "subprocess.run of a child that ignores SIGINT": "subprocess.run(['sh', '-c', immune + pinging])",
    "asyncio subprocess": "child = await asyncio.create_subprocess_shell(pinging); await child.wait()",
    "os.system": "os.system(pinging)",
    "os.system for ever": """
while True:
    os.system("echo . > ping; sleep 1")
""",
    "shell escape": "!echo . > ping; sleep 60",
    "thread.join": """
thread = threading.Thread(target=time.sleep, args=(60,))
thread.start()
soon()
thread.join()
""",
    "Lock": "lock = threading.Lock(); lock.acquire(); soon(); lock.acquire()",
    "Condition": """
condition = threading.Condition()
soon()
with condition:
    condition.wait()
""",
    "Event with a timeout": "soon(); threading.Event().wait(60)",
    "queue.get": "soon(); queue.Queue().get()",
    "to_thread": "soon(); await asyncio.to_thread(time.sleep, 60)",
    "result of a future": """
pool = concurrent.futures.ThreadPoolExecutor()
soon()
pool.submit(time.sleep, 60).result()
""",
    "os.read": "pipe = os.pipe(); soon(); os.read(pipe[0], 1)",
    "select": "soon(); select.select([], [], [], 60)",
    "accept": "server = socket.create_server(('127.0.0.1', 0)); soon(); server.accept()",
    "async iterator": """
async def ticks():
    while True:
        await asyncio.sleep(0.01)
        yield 1
soon()
async for tick in ticks():
    pass
""",
    "shield": "soon(); await asyncio.shield(asyncio.sleep(60))",
    "wait_for": "soon(); await asyncio.wait_for(asyncio.sleep(60), 120)",
    "asyncio lock": "lock = asyncio.Lock(); await lock.acquire(); soon(); await lock.acquire()",
    "future without a result": "soon(); await asyncio.get_running_loop().create_future()",
    "sync in main": "tools.never.sync()",
    "sync in a task": """
async def call():
    tools.never.sync()
await asyncio.create_task(call())
""",
    "sync in a thread": """
thread = threading.Thread(target=tools.never.sync)
thread.start()
thread.join()
""",
    "sync in to_thread": "await asyncio.to_thread(tools.never.sync)",
    "await of a binding": "await tools.never()",
    "binding and sleep in a gather": "await asyncio.gather(tools.never(), asyncio.sleep(60))",
    "print flood": """
soon()
while True:
    print("x" * 20)
""",
    "print flood of tasks": """
async def flood():
    while True:
        print("x" * 20)
        await asyncio.sleep(0)
soon()
await asyncio.gather(flood(), flood())
""",
    "stderr flood": """
soon()
while True:
    sys.stderr.write("x" * 20)
""",
    "display flood": """
soon()
while True:
    display("x")
""",
    "fd flood": """
soon()
while True:
    os.write(1, b"x" * 20)
""",
    "library function in call_soon, tight": """
soon()
forever = functools.partial(timeit.timeit, number=10**12)
asyncio.get_running_loop().call_soon(forever)
await asyncio.sleep(60)
""",
    "C function in call_soon": """
soon()
asyncio.get_running_loop().call_soon(time.sleep, 60)
await asyncio.sleep(60)
""",
    "own function in call_later": """
def spin():
    while True:
        pass
soon()
asyncio.get_running_loop().call_later(0.01, spin)
await asyncio.sleep(60)
""",
    "task of library code": "soon(); await asyncio.create_task(asyncio.wait_for(asyncio.Event().wait(), 60))",
    "own SIGINT handler, awaiting": """
signal.signal(signal.SIGINT, lambda *_: None)
soon()
await asyncio.sleep(60)
""",
    "SIGINT ignored, awaiting": """
signal.signal(signal.SIGINT, signal.SIG_IGN)
soon()
await asyncio.sleep(60)
""",
    "Python's SIGINT handler, busy": """
signal.signal(signal.SIGINT, signal.default_int_handler)
soon()
while True:
    pass
""",
    "re backtracking": "pattern = re.compile('(a+)+$'); later(); pattern.match('a' * 60 + 'b')",
    "big pow": "later(); x = 3 ** (10**9)",
    "except Exception": """
soon()
while True:
    try:
        time.sleep(60)
    except Exception:
        pass
""",
    "except Exception in tasks": """
async def stubborn():
    while True:
        try:
            await asyncio.sleep(60)
        except Exception:
            pass
soon()
await asyncio.gather(stubborn(), stubborn())
""",
    "catches the stop and completes": """
soon()
try:
    time.sleep(60)
except KeyboardInterrupt:
    pass
"done"
""",
    "catches the stop and raises": """
soon()
try:
    await asyncio.sleep(60)
finally:
    raise ValueError("mine")
""",
    "catches the stop and exits": """
soon()
try:
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(3)
""",
    "swallows the first stop": """
soon()
try:
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(60)
""",
    "generator": """
def numbers():
    try:
        while True:
            yield 1
    finally:
        pass
soon()
for number in numbers():
    pass
""",
    "exec of a string": """
soon()
exec("while True: pass")
""",
    "library code that calls back": "soon(); sorted(range(10**6), key=lambda _: time.sleep(0.001))",
    "forgotten await": "soon(); asyncio.sleep(60)",
}


@pytest.mark.parametrize("program", STOPPED.values(), ids=STOPPED.keys())
async def test_a_program_that_can_be_stopped_keeps_its_variables(patient, program, record_property):
    """I12, 8.2: a stopped program ends as `abort`, variables are kept, and the next run is right."""
    before = await patient.set_up()
    result = await patient.stop(program)
    record_property("milliseconds", patient.milliseconds)
    check_kept(result)
    assert "ptc_kernel" not in text(result, "stderr")
    await check_next_kept(patient, before)


KILLED = {
    "swallows BaseException, busy": """
soon()
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
""",
    "swallows BaseException, sleeping": """
soon()
while True:
    try:
        time.sleep(60)
    except BaseException:
        pass
""",
    "swallows CancelledError": """
soon()
while True:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        pass
""",
    "a task that swallows everything": """
async def stubborn():
    while True:
        try:
            await asyncio.sleep(60)
        except BaseException:
            pass
soon()
async with asyncio.TaskGroup() as group:
    group.create_task(stubborn())
""",
    "SIGINT ignored, busy": """
signal.signal(signal.SIGINT, signal.SIG_IGN)
soon()
while True:
    pass
""",
    "own SIGINT handler, busy": """
signal.signal(signal.SIGINT, lambda *_: None)
soon()
while True:
    pass
""",
    "C loop": "later(); sum(range(10**13))",
    "C loop in a thread": """
thread = threading.Thread(target=lambda: (later(), sum(range(10**13))))
thread.start()
thread.join()
""",
    "os.system of a child that ignores SIGINT": "os.system(immune + pinging)",
}


@pytest.mark.parametrize("program", KILLED.values(), ids=KILLED.keys())
async def test_a_program_that_cannot_be_stopped_is_killed(strict, program, record_property):
    """I11, I12, 8.2: after `grace_ms` the kernel is killed, the result says so, the next run is fresh."""
    before = await strict.set_up()
    result = await strict.stop(program)
    record_property("milliseconds", strict.milliseconds)
    await check_lost(strict, result, before)


async def test_a_c_loop_that_never_lets_go_has_begun(strict):
    """8.3: a program is `started` even when its first statement never lets another thread run."""
    before = await strict.set_up()
    result = await strict.run("sum(range(10**13))", timeout_ms=300)
    assert ("timeout", True, "lost") == (kind(result), result.started, result.state)
    assert "before the program began" not in result.error.message
    assert not alive(before[1])


async def test_stop_kill_goes_straight_to_the_kill(tmp_path, record_property):
    """8.2: with `stop="kill"` even a sleeping program costs the variables, and no clean-up code runs."""
    async for ladder in _ladder(JupyterPtcRuntime(stop="kill"), str(tmp_path)):
        before = await ladder.set_up()
        result = await ladder.stop("soon()\ntry:\n    time.sleep(60)\nfinally:\n    print('cleaned')")
        record_property("milliseconds", ladder.milliseconds)
        assert "" == text(result)
        await check_lost(ladder, result, before)


async def test_a_finally_that_awaits_completes(patient, record_property):
    """8.2 (2): the second step spares what unwinds already, so a clean-up that spans it completes."""
    before = await patient.set_up()
    result = await patient.stop(
        "done = []\n"
        "async def work(name):\n"
        "    try:\n        await asyncio.sleep(60)\n"
        "    finally:\n        await asyncio.sleep(0.27)\n        done.append(name)\n"
        "soon()\n"
        "try:\n    await asyncio.gather(work('a'), work('b'))\n"
        "finally:\n    await asyncio.sleep(0.27)\n    done.append('main')\n    print('cleaned')"
    )
    record_property("milliseconds", patient.milliseconds)
    check_kept(result)
    assert "cleaned\n" == text(result)
    assert ["a", "b", "main"] == (await patient.run("done")).value
    await check_next_kept(patient, before)


async def test_every_task_is_told_even_if_one_hogs(patient, record_property):
    """8.2 (1): one step ends the busy task and cancels the others, each of which runs its `finally`."""
    before = await patient.set_up()
    result = await patient.stop(
        "seen = []\n"
        "async def waits(name):\n"
        "    try:\n        await asyncio.sleep(60)\n"
        "    except asyncio.CancelledError:\n        seen.append(name)\n        raise\n"
        "async def hogs():\n    await asyncio.sleep(0.01)\n    soon()\n    while True:\n        pass\n"
        "await asyncio.gather(waits(1), waits(2), hogs())"
    )
    record_property("milliseconds", patient.milliseconds)
    check_kept(result)
    assert [1, 2] == sorted((await patient.run("seen")).value)
    await check_next_kept(patient, before)


async def test_a_stop_spares_the_tasks_of_earlier_runs(patient):
    """8.2 (1): the step cancels the tasks of the stopped run and leaves an earlier run's task alone."""
    before = await patient.set_up()
    start = "gate = asyncio.Event()\nold = asyncio.create_task(gate.wait())\nawait asyncio.sleep(0)"
    assert None is kind(await patient.run(start))
    check_kept(await patient.stop("soon()\nawait asyncio.sleep(60)"))
    assert [False, True] == (await patient.run("alive = old.done()\ngate.set()\n[alive, await old]")).value
    await check_next_kept(patient, before)


async def test_the_stopped_run_runs_nothing_more(patient):
    """8.2, 7: after a stop neither a task nor a held-back call of the stopped run goes on."""
    before = await patient.set_up()
    result = await patient.stop(
        "ticks = []\n"
        "async def tick():\n    while True:\n        ticks.append(1)\n        await asyncio.sleep(0)\n"
        "task = asyncio.create_task(tick())\n"
        "await asyncio.gather(*(tools.never() for _ in range(200)))"
    )
    check_kept(result)
    assert 128 == result.calls_total
    assert {"open"} == {call.outcome for call in result.calls}
    after = "count = len(ticks)\nawait asyncio.sleep(0.05)\n[task.done(), len(ticks) - count]"
    assert [True, 0] == (await patient.run(after)).value
    await check_next_kept(patient, before)


async def test_many_stops_in_a_row(patient):
    """8.2: twenty programs stopped one after the other all keep the variables."""
    before = await patient.set_up()
    for turn in range(20):
        check_kept(
            await patient.stop("ping()\nawait asyncio.sleep(60)" if turn % 2 else "ping()\ntime.sleep(60)")
        )
    await check_next_kept(patient, before)


async def test_no_step_of_a_task_is_lost(patient):
    """8.2 (1): whenever the signal comes, each of 100 tasks that yield all the time runs its `finally`."""
    before = await patient.set_up()
    program = """
cleaned = 0
async def spin(turns):
    global cleaned
    try:
        while True:
            await asyncio.sleep(0)
            turns -= 1
            if not turns:
                ping()
    finally:
        cleaned += 1
tasks = [asyncio.create_task(spin(50 * (n == 99))) for n in range(100)]
await asyncio.wait(tasks)
"""
    for _ in range(100):
        check_kept(await patient.stop(program))
        result = await patient.run("[cleaned, sum(task.done() for task in tasks)]")
        assert [100, 100] == result.value
    await check_next_kept(patient, before)


WRITERS = {
    "print": """
while True:
    print("x" * 1000)
    count += 1
""",
    "task": """
async def flood():
    global count
    while True:
        print("x" * 1000)
        count += 1
        await asyncio.sleep(0)
await asyncio.create_task(flood())
""",
    "thread": """
def flood():
    global count
    while writing:
        print("x" * 1000)
        count += 1
writer = threading.Thread(target=flood)
writer.start()
writer.join()
""",
    "display": """
while True:
    display("x" * 1000)
    count += 1
""",
    "os.write": """
while True:
    os.write(1, b"x" * 1000)
    count += 1
""",
    "child": """
child = subprocess.Popen(["yes", "x" * 100])
child.wait()
""",
}
CHILD_PROGRESS = """
def progress():
    if child is None:
        return time.monotonic()
    with open(f"/proc/{child.pid}/io") as file:
        return file.read().split("wchar: ")[1].split()[0]
"""


@pytest.mark.parametrize("writer", WRITERS)
async def test_a_writer_in_the_full_window_is_stopped(patient, writer, record_property):
    """10.1, 8.2: a writer that waits for a reader who does not read is stopped, variables are kept."""
    before = await patient.set_up()
    progress = CHILD_PROGRESS if writer == "child" else "def progress():\n    return count\n"
    program = f"count, child, writing = 0, None, True\n{progress}watch(progress)\n"
    async with patient.unread(program + WRITERS[writer]) as (stream, controller):
        began = time.perf_counter()
        controller.abort(REASON)
        after = await patient.run("writing = False\nmark")  # its turn comes when the stopped run is over
        assert before[0] == after.value
        record_property("milliseconds", round((time.perf_counter() - began) * 1000, 1))
        events = [event async for event in stream]
    assert isinstance(events[-1], ResultEvent)
    check_kept(events[-1].result)
    assert 4 * 1024 * 1024 < sum(len(event.output.text) for event in events[:-1])
    await check_next_kept(patient, before)


async def test_an_unread_stream_of_a_run_that_is_over_holds_nobody_back(patient):
    """10.1: a slow reader holds its own program back, not the output of the owner's next run."""
    before = await patient.set_up()
    progress = "count, child = 0, None\ndef progress():\n    return count\n"
    program = f"{progress}watch(progress)\n{WRITERS['print']}"
    async with patient.unread(program) as (stream, controller):
        controller.abort(REASON)
        assert before[0] == (await patient.run("mark")).value  # the stopped run is over
        result = await patient.run("print('quiet')", timeout_ms=5000)
        assert (None, "quiet\n") == (kind(result), text(result))
        check_kept([event async for event in stream][-1].result)
    await check_next_kept(patient, before)


async def test_late_output_of_an_earlier_run_does_not_open_the_window(patient):
    """10.1: while a thread of an earlier run prints, a slow reader still holds the program back."""
    before = await patient.set_up()
    late = """
chatting = True
def chat():
    while chatting:
        print("late" * 10)
        time.sleep(0.001)
chatter = threading.Thread(target=chat)
chatter.start()
"""
    assert None is kind(await patient.run(late))
    progress = "count = 0\ndef progress():\n    return count\n"
    program = f"{progress}watch(progress)\n{WRITERS['print']}"
    async with patient.unread(program) as (stream, controller):
        controller.abort(REASON)
        events = [event async for event in stream]
    assert (await patient.run("chatting = False\nchatter.join()")).background
    check_kept(events[-1].result)
    assert 16 * 1024 * 1024 > sum(len(event.output.text) for event in events[:-1])
    await check_next_kept(patient, before)


async def test_a_run_behind_a_hogging_task_is_aborted(patient, record_property):
    """8.2, C8: a run that waits behind an earlier run's busy task ends before its first line."""
    before = await patient.set_up()
    patient.reached.clear()
    hog = "async def hog():\n    await asyncio.sleep(0.05)\n    ping()\n    while True:\n        pass\n"
    result = await patient.run(hog + "task = asyncio.create_task(hog())\nran = False")
    assert None is kind(result)
    await patient.reached.wait()
    controller = AbortController()
    run = asyncio.ensure_future(patient.run("ran = True", signal=controller.signal))
    await asyncio.sleep(0)  # the run is on its way, and cannot begin
    began = time.perf_counter()
    controller.abort(REASON)
    result = await run
    record_property("milliseconds", round((time.perf_counter() - began) * 1000, 1))
    assert "abort" == kind(result)
    assert (False, "kept") == (result.started, result.state)
    assert REASON in result.error.message
    assert [False, True] == (await patient.run("[ran, task.done()]")).value
    await check_next_kept(patient, before)


CHILDREN = {
    "in the group": "pid = subprocess.Popen(['sh', '-c', immune + 'exec sleep 60']).pid",
    "in a session of its own": """
pid = subprocess.Popen(["sh", "-c", immune + "exec sleep 60"], start_new_session=True).pid
""",
    "an orphan": """
orphan = "(" + immune + "exec sleep 60) > /dev/null & echo $!"
pid = int(subprocess.check_output(["sh", "-c", orphan]))
""",
    "forked": """
pid = os.fork()
if not pid:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(60)
    os._exit(0)
""",
    "an asyncio subprocess": """
child = await asyncio.create_subprocess_shell(immune + "exec sleep 60")
pid = child.pid
""",
    "started by a thread": """
def start():
    global pid
    pid = subprocess.Popen(["sh", "-c", immune + "exec sleep 60"]).pid
thread = threading.Thread(target=start)
thread.start()
thread.join()
""",
}


@pytest.mark.parametrize("start", CHILDREN.values(), ids=CHILDREN.keys())
async def test_a_stop_ends_the_children_of_this_run_only(patient, start):
    """8.2: a stopped run's child is dead afterwards, an earlier run's child is alive and still a child."""
    before = await patient.set_up()
    old = (await patient.run(f"{start}\nold = pid\nold")).value
    result = await patient.stop(f"{start}\nprint(pid)\nsoon()\ntime.sleep(60)")
    check_kept(result)
    young = int(text(result))
    assert old != young
    await ended(young)
    assert alive(old)
    assert None is kind(await patient.run("os.kill(old, signal.SIGKILL)"))
    await ended(old)
    await check_next_kept(patient, before)


async def test_a_success_spares_the_children(patient):
    """8.2: a run that ends by itself, well or by an exception, leaves its children alive."""
    before = await patient.set_up()
    assert None is kind(await patient.run(f"{CHILDREN['in the group']}\nfirst = pid"))
    assert "exception" == kind(
        await patient.run(f"{CHILDREN['in a session of its own']}\nsecond = pid\n1 / 0")
    )
    pids = (await patient.run("[first, second]")).value
    assert [True, True] == [alive(pid) for pid in pids]
    await patient.run("for pid in (first, second):\n    os.kill(pid, signal.SIGKILL)")
    for pid in pids:
        await ended(pid)
    await check_next_kept(patient, before)


async def test_a_kill_ends_every_child(strict):
    """8.2 (3): with the kernel all its descendants die, of this run and of earlier ones, in any session."""
    before = await strict.set_up()
    kinds = ("in the group", "in a session of its own", "an orphan")
    pids = [(await strict.run(f"{CHILDREN[name]}\npid")).value for name in kinds]
    result = await strict.stop(f"{CHILDREN['forked']}\nprint(pid, flush=True)\nlater()\nsum(range(10**13))")
    pids.append(int(text(result)))
    await check_lost(strict, result, before)
    assert [False] * 4 == [alive(pid) for pid in pids]
