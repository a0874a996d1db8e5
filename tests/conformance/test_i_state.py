"""Area I: whose variables a program sees, what every outcome does to them, and in which order runs go."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import tempfile
import weakref

import pytest

from ptc_kernel import AbortController, PtcCallContext, PtcRunRequest, StateOwner
from tests.support import Session, alive, children, echo, entries, kind, namespace, text

pytestmark = pytest.mark.live

LOST = "Variables are gone; the next run starts fresh."
C_LOOP = "sum(range(10**13))"


async def ended(pid):
    """Wait for the end of a process; fails when it does not come."""
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        gone, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(fd, gone.set)
        try:
            async with asyncio.timeout(10):
                await gone.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)


# ---------------------------------------------------------------------- what survives


@pytest.mark.core
async def test_names_survive(session):
    """I01: a name that one run sets is there in the next run of the same owner."""
    result = await session.run("x = 41")
    assert (None, False, "kept", None, True) == (
        kind(result),
        result.has_value,
        result.state,
        result.reset_reason,
        result.started,
    )
    result = await session.run("x + 1")
    assert (42, "kept", None, True) == (result.value, result.state, result.reset_reason, result.started)


@pytest.mark.core
async def test_everything_of_python_survives(session):
    """I02: imports, functions, classes, instances and open generators live on."""
    await session.run(
        """
import collections as c
from math import floor
def twice(x):
    return 2 * x
class Point:
    def __init__(self, x):
        self.x = x
point = Point(5)
def numbers():
    yield from range(3)
generator = numbers()
first = next(generator)
async def later():
    for n in range(3):
        yield n
stream = later()
start = await anext(stream)
total: int = 3
"""
    )
    program = """
[c.Counter("aa")["a"], floor(1.5), twice(4), point.x, type(point) is Point, Point(6).x,
 first, next(generator), start, await anext(stream), total, __annotations__["total"] is int]
"""
    assert [2, 1, 8, 5, True, 6, 0, 1, 0, 1, 3, True] == await session.value(program)


@pytest.mark.core
async def test_without_an_owner_nothing_survives(runtime):
    """I03: a run without an owner starts fresh, keeps nothing, and says so in its state."""
    session = Session(runtime, None)
    result = await session.run("import os\nx = 1\nos.getpid()")
    assert (None, "none", None, True) == (kind(result), result.state, result.reset_reason, result.started)
    assert not alive(result.value)
    result = await session.run("x")
    assert ("exception", "none", None) == (kind(result), result.state, result.reset_reason)
    assert "NameError" in result.error.message


@pytest.mark.core
async def test_owners_are_apart(runtime):
    """I04: two owners have variables, and processes, of their own."""
    a, b = Session(runtime), Session(runtime)
    await asyncio.gather(a.run("x = 'a'"), b.run("x = 'b'"))
    assert ["a", "b"] == [await a.value("x"), await b.value("x")]
    assert await a.pid() != await b.pid()


@pytest.mark.core
async def test_an_exception_keeps_what_came_before(session):
    """I08: what a program did before its exception stays."""
    result = await session.run("y = 1\nraise ValueError('no')\ny = 2")
    assert ("exception", "kept", True) == (kind(result), result.state, result.started)
    assert 1 == await session.value("y")


async def test_a_lossy_completion_can_be_reduced(session):
    """I09: after an `invalid-output` the value is still there to be converted."""
    result = await session.run("v = (1, 2)\nv")
    assert ("invalid-output", "kept", True) == (kind(result), result.state, result.started)
    assert [1, 2] == await session.value("list(v)")


async def test_a_value_that_is_too_big_can_be_reduced(make_session):
    """I10: after an `output-limit` at the end of a program the value is still there to be cut."""
    session = make_session(max_output_bytes=1000)
    result = await session.run("big = ['x' * 100] * 100\nbig")
    assert ("output-limit", "kept") == (kind(result), result.state)
    result = await session.run("len(big)")
    assert (100, None) == (result.value, result.reset_reason)


@pytest.mark.core
@pytest.mark.parametrize("how", ["timeout", "abort"])
@pytest.mark.parametrize("program", ["while True:\n    pass", C_LOOP], ids=["soft", "hard"])
async def test_a_stopped_program(make_session, how, program):
    """I11, I12: a loop that can be interrupted keeps the variables; one that cannot loses them."""
    session, controller, began = make_session(grace_ms=500), AbortController(), asyncio.Event()
    pid = await session.value("import os\nx = 1\nos.getpid()")

    async def tell(_):
        began.set()

    fields = {"timeout_ms": 800} if how == "timeout" else {"signal": controller.signal}
    program = f"import asyncio\nawait tools.tell()\nawait asyncio.sleep(0.1)\n{program}"
    run = asyncio.create_task(session.run(program, namespace(tell=tell), **fields))
    await began.wait()
    if how == "abort":
        asyncio.get_running_loop().call_later(0.3, controller.abort, "the user pressed stop")
    result = await run
    kept = program.endswith("pass")
    assert (how, "kept" if kept else "lost", True) == (kind(result), result.state, result.started)
    assert ("800" if how == "timeout" else "the user pressed stop") in result.error.message
    assert kept != result.error.message.endswith(LOST)
    assert kept == alive(pid)
    result = await session.run("'x' in globals()")
    assert (kept, "kept", not kept) == (result.value, result.state, bool(result.reset_reason))


@pytest.mark.core
async def test_a_dead_kernel(session):
    """I13: after `os._exit` the owner starts fresh, the next run works and says why."""
    await session.run("x = 1")
    result = await session.run("print('last words')\nimport os\nos._exit(7)")
    assert ("worker-exit", "lost", True) == (kind(result), result.state, result.started)
    assert "7" in result.error.message
    assert result.error.message.endswith(LOST)
    assert "last words\n" == text(result)
    result = await session.run("'x' in globals()")
    assert (False, "kept") == (result.value, result.state)
    assert "7" in result.reset_reason
    assert [] == entries(result)
    assert None is (await session.run("1")).reset_reason


async def test_a_flood(make_session):
    """I14: a print flood over the cap costs the variables; the next run is fresh and says why."""
    session = make_session(max_output_bytes=2000)
    await session.run("x = 1")
    result = await session.run("while True:\n    print('x' * 50)")
    assert ("output-limit", "lost", True) == (kind(result), result.state, result.started)
    assert LOST in result.error.message
    result = await session.run("'x' in globals()")
    assert (False, "kept") == (result.value, result.state)
    assert result.reset_reason


async def test_a_kernel_that_dies_between_runs(session):
    """I16: a kernel that a background thread ends while no run is active is reported by the next run."""
    program = """
import os, threading, time
x = 1
def leave():
    time.sleep(0.2)
    os._exit(3)
threading.Thread(target=leave).start()
os.getpid()
"""
    pid = await session.value(program)
    await ended(pid)
    result = await session.run("'x' in globals()")
    assert (None, False, "kept") == (kind(result), result.value, result.state)
    assert "exit code 3" in result.reset_reason
    assert None is (await session.run("1")).reset_reason


async def test_a_kernel_that_is_killed_between_runs(session):
    """I16: a kernel that another process kills while idle is reported with its signal, and only once."""
    pid = await session.pid()
    os.kill(pid, 9)
    await ended(pid)
    results = await asyncio.gather(session.run("1"), session.run("2"), session.run("3"))
    assert [1, 2, 3] == [result.value for result in results]
    assert "SIGKILL" in results[0].reset_reason
    assert [None, None] == [result.reset_reason for result in results[1:]]


async def test_a_kernel_that_dies_as_the_next_run_comes(session):
    """I16: a run that meets a dying kernel fails as `worker-exit` or runs fresh; it never raises or hangs."""
    for _ in range(5):
        pid = await session.value("import os\nx = 1\nos.getpid()")
        os.kill(pid, 9)
        result = await session.run("'x' in globals()")
        assert kind(result) in (None, "worker-exit")
        assert ("lost" if result.error else "kept") == result.state
        result = result if result.error is None else await session.run("'x' in globals()")
        assert (None, False) == (kind(result), result.value)
        assert "SIGKILL" in result.reset_reason


# ---------------------------------------------------------------------- outcomes

CAP = {"max_output_bytes": 4000, "grace_ms": 500}
OUTCOMES = [
    pytest.param("x + 1", {}, (None, "kept", True), id="value"),
    pytest.param("y = 1", {}, (None, "kept", True), id="no value"),
    pytest.param("None", {}, (None, "kept", True), id="null"),
    pytest.param("object()", {"discard_completion": True}, (None, "kept", True), id="discarded"),
    pytest.param("object()", {"display_completion": True}, (None, "kept", True), id="displayed"),
    pytest.param("1 / 0", {}, ("exception", "kept", True), id="exception"),
    pytest.param("import sys; sys.exit(3)", {}, ("exception", "kept", True), id="exit"),
    pytest.param("raise KeyboardInterrupt", {}, ("exception", "kept", True), id="interrupts itself"),
    pytest.param(
        "import asyncio; raise asyncio.CancelledError", {}, ("exception", "kept", True), id="cancelled"
    ),
    pytest.param("1 +", {}, ("exception", "kept", False), id="syntax"),
    pytest.param("return 5", {}, ("exception", "kept", False), id="return"),
    pytest.param("object()", {}, ("invalid-output", "kept", True), id="lossy"),
    pytest.param("'v' * 5000", {}, ("output-limit", "kept", True), id="big value"),
    pytest.param("raise ValueError('v' * 5000)", {}, ("output-limit", "kept", True), id="big message"),
    pytest.param("while True: print('v' * 100)", {}, ("output-limit", "lost", True), id="flood"),
    pytest.param("while True: pass", {"timeout_ms": 300}, ("timeout", "kept", True), id="soft timeout"),
    pytest.param(
        "import time\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass",
        {"timeout_ms": 300},
        ("timeout", "lost", True),
        id="hard timeout",
    ),
    pytest.param("import os; os._exit(0)", {}, ("worker-exit", "lost", True), id="leaves well"),
    pytest.param("import os; os._exit(7)", {}, ("worker-exit", "lost", True), id="leaves"),
    pytest.param("import os; os.kill(os.getpid(), 9)", {}, ("worker-exit", "lost", True), id="killed"),
    pytest.param("import os; os.abort()", {}, ("worker-exit", "lost", True), id="aborts"),
    pytest.param("print('ran')", {"cwd": "/nowhere/at/all"}, ("worker-exit", "kept", False), id="no folder"),
]


@pytest.mark.parametrize(("program", "fields", "expected"), OUTCOMES)
async def test_every_outcome_says_what_became_of_the_variables(make_session, program, fields, expected):
    """8.1 to 8.3: state, `started`, the message, and what the next two runs find and say."""
    session = make_session(**CAP)
    await session.run("x = 41")
    result = await session.run(program, **fields)
    assert expected == (kind(result), result.state, result.started)
    assert None is result.reset_reason
    lost = expected[1] == "lost"
    if result.error is not None:
        assert lost == result.error.message.endswith(LOST)
    after = await session.run("globals().get('x')")
    assert (None, None if lost else 41, "kept") == (kind(after), after.value, after.state)
    assert lost == bool(after.reset_reason)
    assert [] == entries(after)
    assert None is (await session.run("1")).reset_reason


@pytest.mark.parametrize(
    ("program", "fields", "expected"),
    [row for row in OUTCOMES if row.id in ("exception", "syntax", "lossy", "flood", "leaves", "no folder")],
)
async def test_every_outcome_without_an_owner(make_session, program, fields, expected):
    """8.1, 8.3: without an owner the state is `none`, and no message speaks of variables."""
    session, before = make_session(**CAP), children()
    session.owner = None
    result = await session.run(program, **fields)
    assert (expected[0], "none", expected[2]) == (kind(result), result.state, result.started)
    assert None is result.reset_reason
    assert "ariables" not in result.error.message
    assert before == children()


async def test_a_lost_environment_is_reported_after_a_run_that_never_began(session):
    """8.3: the reason is kept for the first run that has the fresh environment, not for an aborted one."""
    await session.run("import os; os._exit(7)")
    controller = AbortController()
    controller.abort()
    assert None is (await session.run("1", signal=controller.signal)).reset_reason
    assert "7" in (await session.run("1")).reset_reason


# ---------------------------------------------------------------------- identity


async def test_an_owner_is_kept_until_it_is_released(runtime):
    """I06: an owner that nobody else holds keeps its identity, so that no new object sees its variables."""
    owner = StateOwner("first")
    await Session(runtime, owner).run("x = 'old'")
    known, watch = id(owner), weakref.ref(owner)
    del owner
    gc.collect()
    owners = [StateOwner(str(n)) for n in range(1000)]
    assert known not in map(id, owners)
    results = [await Session(runtime, owner).run("x") for owner in (*owners[:3], owners[-1])]
    assert ["exception"] * 4 == [kind(result) for result in results]
    assert "old" == await Session(runtime, watch()).value("x")
    await runtime.release(watch())
    gc.collect()
    assert None is watch()


@pytest.mark.parametrize("owner", [5, True, 1.5, "a", (), b"", bytearray(), frozenset(), 1j], ids=repr)
async def test_owners_without_an_identity_are_refused(runtime, owner):
    """I07: a primitive is a TypeError that names `StateOwner`."""
    with pytest.raises(TypeError, match="StateOwner"):
        runtime.resolve(PtcRunRequest(program="1", state_owner=owner))


class Awkward:
    """Equal to everything, and not hashable."""

    __hash__ = None

    def __eq__(self, other):
        return True

    def __bool__(self):
        return False


async def test_owners_are_told_apart_by_identity(runtime):
    """8.1: equality, hash and truth of an owner are never asked; equal owners are different ones."""
    owners = [Awkward(), Awkward(), [], [], {}, StateOwner("same"), StateOwner("same")]
    sessions = [Session(runtime, owner) for owner in owners]
    await asyncio.gather(*(session.run(f"x = {n}") for n, session in enumerate(sessions)))
    assert list(range(7)) == [await session.value("x") for session in sessions]
    await runtime.release(owners[0])
    assert "exception" == kind(await sessions[0].run("x"))
    assert 1 == await sessions[1].value("x")


# ---------------------------------------------------------------------- the working directory


async def test_chdir_does_not_leak(session, tmp_path):
    """I17: a program's own `chdir` is undone before the next run."""
    await session.run("import os\nos.chdir('/')", cwd=str(tmp_path))
    assert str(tmp_path) == await session.value("os.getcwd()", cwd=str(tmp_path))
    assert os.getcwd() == await session.value("os.getcwd()")


async def test_every_run_has_its_own_folder(session, tmp_path):
    """I18: each run of an owner sees the folder that its spec names, with the same variables."""
    for name in ("a", "b", "ä ö"):
        (tmp_path / name).mkdir()
        folder = str(tmp_path / name)
        result = await session.run(
            "import os\nseen = globals().get('seen', 0) + 1\n[os.getcwd(), seen]", cwd=folder
        )
        assert folder == result.value[0]
    assert 3 == result.value[1]


async def test_a_folder_that_cannot_be_used(session, tmp_path):
    """I19: an unusable folder is a `worker-exit` that runs nothing and costs nothing."""
    (tmp_path / "file").write_text("")
    assert 1 == await session.value("x = 1\nx")
    for folder in ("/nowhere/at/all", str(tmp_path / "file")):
        result = await session.run("x = 2\nprint('ran')", cwd=folder)
        assert ("worker-exit", "kept", False) == (kind(result), result.state, result.started)
        assert [] == entries(result)
        assert "directory" in result.error.message
    result = await session.run("x")
    assert (1, None) == (result.value, result.reset_reason)


async def test_the_first_run_in_a_folder_that_cannot_be_used(session):
    """I19: the same for the owner's first run: the second one works, and nothing was lost."""
    result = await session.run("print('ran')", cwd="/nowhere/at/all")
    assert ("worker-exit", "kept", False, []) == (kind(result), result.state, result.started, entries(result))
    result = await session.run("1 + 1")
    assert (2, None) == (result.value, result.reset_reason)


# ---------------------------------------------------------------------- nothing injected


async def test_no_history_is_injected(session):
    """I20: no result of a run becomes a name in the next one."""
    for program in ("1", "'two'", "[3]"):
        await session.run(program)
    names = ["_", "__", "___", "_1", "_2", "_i", "_ii", "_i1", "_ih", "_oh", "In", "Out", "exit", "quit"]
    assert [] == await session.value(f"[name for name in {names} if name in globals()]")


async def test_an_underscore_is_an_ordinary_name(session):
    """I21: a program's own `_`, `__` and `Out` stay what it made of them."""
    assert 6 == await session.value("_ = 5\n__ = 'two'\nOut = 'out'\n_ + 1")
    await session.run("'something else'")
    assert [5, "two", "out"] == await session.value("[_, __, Out]")


async def test_settings_of_the_process_survive(session):
    """8.4: variables of the environment, `sys.path`, random state and decimal context persist."""
    await session.run(
        "import decimal, os, random, sys\n"
        "os.environ['MINE'] = '1'\nsys.path.append('/mine')\nrandom.seed(1)\ndecimal.getcontext().prec = 5\n"
        "expected = random.Random(1).random()"
    )
    program = (
        "[os.environ['MINE'], '/mine' in sys.path, random.random() == expected, str(decimal.Decimal(1) / 3)]"
    )
    assert ["1", True, True, "0.33333"] == await session.value(program)


# ---------------------------------------------------------------------- order


async def test_runs_of_one_owner_are_serial(session):
    """I22: two runs that are started together run one after the other, in the order of the calls."""
    first = session.run("import time\ntime.sleep(.3)\nlog = ['A']")
    second = session.run("log.append('B')\nlog")
    results = await asyncio.gather(first, second)
    assert ["A", "B"] == results[1].value


@pytest.mark.parametrize("call", ["await tools.meet()", "tools.meet.sync()"])
async def test_runs_of_different_owners_overlap(runtime, call):
    """I23: programs of two owners, and one without an owner, run at the same time."""
    barrier = asyncio.Barrier(3)

    async def meet(_):
        await barrier.wait()
        return "met"

    sessions = [Session(runtime), Session(runtime), Session(runtime, None)]
    runs = (session.run(call, namespace(meet=meet), timeout_ms=20_000) for session in sessions)
    assert ["met"] * 3 == [result.value for result in await asyncio.gather(*runs)]


async def test_twenty_runs_keep_their_order(session):
    """I24: twenty runs that are started at once run in the order of the calls, whatever each outcome is."""
    await session.run("log = []")
    endings = ("", "\n1 / 0", "\nobject()", "\nimport asyncio\nawait asyncio.sleep(0.01)")
    programs = [f"log.append({n}){endings[n % 4]}" for n in range(20)]
    await asyncio.gather(*(session.run(program) for program in programs))
    assert list(range(20)) == await session.value("log")


async def test_a_syntax_error_disturbs_nothing(session):
    """I25: a program that does not parse leaves the names of the first run alone."""
    await session.run("x = 1\ndef f():\n    return x")
    for program in ("x = = 2", "def f(:", "x = 3\nreturn x", "'unclosed", "x = 2\n\x00"):
        assert "exception" == kind(await session.run(program))
    assert [1, 1] == await session.value("[x, f()]")


# ---------------------------------------------------------------------- programs that break things


PATCHES = {
    "the row": """
import asyncio, builtins, json
builtins.print = lambda *args: None
builtins.len = None
json.dumps = None
asyncio.get_running_loop = None
""",
    "json": "import json\njson.loads = json.JSONEncoder = json.JSONDecoder = json.encoder = None",
    "asyncio": """
import asyncio
for name in ("create_task", "wait", "ensure_future", "gather", "current_task", "all_tasks", "Future", "Task"):
    setattr(asyncio, name, None)
""",
    "os": """
import os
for name in ("read", "write", "listdir", "chdir", "getpid", "kill", "_exit", "close", "environ"):
    setattr(os, name, None)
""",
    "threading and time": """
import threading, time
threading.Lock = threading.Thread = threading.Event = time.time = time.monotonic = time.sleep = None
""",
    "streams": "import sys\nsys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = sys.stdin = None",
    "traceback": """
import sys, traceback
traceback.format_exception = traceback.print_exc = traceback.TracebackException = None
sys.excepthook = sys.displayhook = None
""",
    "linecache": "import linecache; linecache.checkcache = linecache.getline = linecache.getlines = None",
    "some builtins": """
import builtins
for name in ("print", "len", "repr", "open", "sorted", "list", "min", "max", "sum", "compile", "eval"):
    setattr(builtins, name, None)
""",
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES.keys())
async def test_patched_modules(session, patch):
    """I26, 13: what a program does to builtins and modules does not break the runs after it."""
    fields = {"timeout_ms": 5000}
    assert None is kind(await session.run(patch, **fields))
    result = await session.run("[1, 2][1]", **fields)
    assert (None, 2) == (kind(result), result.value)
    result = await session.run("await tools.echo({'a': 1})", namespace(echo=echo), **fields)
    assert (None, {"a": 1}) == (kind(result), result.value)
    result = await session.run("import sys\nsys.stdout.write('text')\n1 / 0", **fields)
    assert ("exception", "text", "kept") == (kind(result), text(result), result.state)
    assert "ZeroDivisionError" in result.error.message


async def test_destroyed_builtins(make_session):
    """I26, 13: after a program has taken what Python itself stands on, runs end, and end fresh or right."""
    session = make_session(grace_ms=500)
    await session.value("x = 41\nx")
    program = """
import builtins
for name in ("isinstance", "str", "dict", "type", "getattr", "Exception", "super", "__import__"):
    setattr(builtins, name, None)
"""
    result = await session.run(program, timeout_ms=1000)
    for _ in range(2):
        lost = result.state == "lost"
        result = await session.run("[1, 2][1]", timeout_ms=1000)
        assert not lost or (None, 2) == (kind(result), result.value)
    assert result.has_value or result.state == "lost"


@pytest.mark.parametrize(
    "program",
    ["del __builtins__", "__builtins__ = {}", "globals().clear()", "import builtins\nvars(builtins).clear()"],
)
async def test_a_broken_namespace(make_session, program):
    """I27: after a program has broken its own namespace, the next run works or says that it is fresh."""
    session = make_session(grace_ms=500)
    await session.run("x = 41")
    first = await session.run(program, timeout_ms=1500)
    assert kind(first) in (None, "exception", "worker-exit", "timeout")
    result = await session.run("len([1, 2])", timeout_ms=1500)
    result = result if result.state == "kept" else await session.run("len([1, 2])")
    assert (None, 2) == (kind(result), result.value)
    if program.startswith(("del", "__")):
        assert 41 == await session.value("x")


async def test_tasks_live_on(session):
    """I28: a task of the first run goes on while no program runs, and its effects are seen later."""
    program = """
import asyncio, subprocess
child = subprocess.Popen(["sleep", "60"])
async def later():
    global flag
    await asyncio.sleep(0.1)
    flag = True
    child.kill()
task = asyncio.create_task(later())
child.pid
"""
    await ended(await session.value(program))
    assert [True, True] == await session.value("await asyncio.wait({task})\n[flag, task.done()]")


async def test_threads_live_on(session):
    """I28, 10.1: a thread of the first run goes on; what it prints is background output, handed over once."""
    program = """
import subprocess, threading, time
child = subprocess.Popen(["sleep", "60"])
def later():
    global flag
    time.sleep(0.1)
    flag = True
    print("late")
    child.kill()
thread = threading.Thread(target=later)
thread.start()
child.pid
"""
    await ended(await session.value(program))
    result = await session.run("thread.join()\nprint('own')\nflag")
    assert (True, [("stdout", "own\n")]) == (result.value, entries(result))
    assert [("stdout", "late\n")] == [(item.channel, item.text) for item in result.background]
    assert () == (await session.run("1")).background


async def test_nothing_is_written_to_disk(make_runtime, tmp_path, monkeypatch):
    """I29: no file holds text of a program, while its kernel lives and after it was released."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    runtime = make_runtime()
    session = Session(runtime)
    await session.run("secret = 'marker-' + '7f3a'\n'marker-7f3a'\nprint(secret)")

    def found():
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return [path.name for path in files if b"marker-7f3a" in path.read_bytes()]

    assert list(tmp_path.iterdir())
    assert [] == found()
    await runtime.release(session.owner)
    assert [] == list(tmp_path.iterdir())


# ---------------------------------------------------------------------- re-entrant runs


@pytest.mark.parametrize("action", ["run", "stream", "release", "aclose"])
async def test_a_handler_cannot_wait_for_its_own_run(session, action):
    """8.5: run, stream, release and aclose of the same owner raise RuntimeError inside a handler."""
    runtime, errors = session.runtime, []

    async def act(_):
        spec = runtime.resolve(PtcRunRequest(program="x = 'ran'", state_owner=session.owner))
        try:
            if action == "run":
                await runtime.run(spec)
            elif action == "stream":
                runtime.stream(spec)
            elif action == "release":
                await runtime.release(session.owner)
            else:
                await runtime.aclose()
        except RuntimeError as error:
            errors.append(str(error))
            raise

    program = """
x = 1
try:
    await tools.act()
except ToolCallError as error:
    refused = str(error)
[x, refused]
"""
    result = await session.run(program, namespace(act=act), timeout_ms=20_000)
    assert [1, *errors] == result.value
    assert 1 == len(errors)
    assert 1 == await session.value("x")


async def test_a_handler_of_a_handler_cannot_either(runtime):
    """8.5: the same through another owner's program, and through a task that the handler starts."""
    outer, inner, errors = Session(runtime), Session(runtime), []

    async def back(_):
        try:
            await asyncio.create_task(outer.run("1"))
        except RuntimeError as error:
            errors.append(error)
        return "refused" if errors else "ran"

    async def across(_):
        return await inner.value("await tools.back()", namespace(back=back))

    result = await outer.run("await tools.across()", namespace(across=across), timeout_ms=20_000)
    assert (None, "refused") == (kind(result), result.value)


async def test_a_handler_may_use_other_owners(runtime):
    """8.5, E31: inside a handler, programs of another owner and of none run, and an owner can be released."""
    session, other = Session(runtime), Session(runtime)

    async def act(_):
        values = [await other.value("1"), await Session(runtime, None).value("2")]
        await runtime.release(other.owner)
        return values

    assert [1, 2] == await session.value("await tools.act()", namespace(act=act), timeout_ms=20_000)


async def test_a_handler_that_outlives_its_run_may_run_programs(session):
    """8.5: once its run is over, a handler waits for nobody, and may run a program of that owner."""
    over, done = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def act(_):
        await over.wait()
        assert PtcCallContext.current().run_ended
        done.set_result(await session.value("x + 1"))

    program = "import asyncio\nx = 41\ncall = asyncio.ensure_future(tools.act())\nawait asyncio.sleep(0.05)"
    assert None is kind(await session.run(program, namespace(act=act)))
    over.set()
    assert 42 == await done
