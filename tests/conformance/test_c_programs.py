"""Area C: programs in REPL form, their completion, and what an uncaught exception says."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile

import pytest

from ptc_kernel import ABSENT, PtcRunRequest, UsageTypeError
from tests.support import children, echo, entries, kind, namespace, text

ABSENT_VALUE = "no value"


def outcome(result):
    """The failure kind, the value in a list, or that there is none."""
    if result.error is not None:
        return kind(result)
    return [result.value] if result.has_value else ABSENT_VALUE


async def outcomes(session, programs, *bindings, **fields):
    """The outcome of each program, run one after the other by one owner."""
    return {program: outcome(await session.run(program, *bindings, **fields)) for program in programs}


async def failure(session, program, *bindings, **fields):
    """The message of a program that must end as an exception."""
    result = await session.run(program, *bindings, **fields)
    assert "exception" == kind(result)
    assert result.error.message.strip()
    return result.error.message


# ---------------------------------------------------------------------- completion


@pytest.mark.core
async def test_last_expression_is_the_value(session):
    """C01: the last expression is the value, and nothing is output."""
    result = await session.run("x=40\nx+2")
    assert 42 == result.value
    assert [] == list(result.output)
    assert result.error is None
    assert result.started
    assert "kept" == result.state
    assert 42 == await session.value("x+2")


@pytest.mark.core
async def test_programs_without_a_completion(session):
    """C02, C05: what ends in no expression, or is empty, ends well and has no value."""
    programs = [
        "x = 1",
        "",
        " ",
        " \t \n\n  \n",
        "\n",
        "# only a comment",
        "# one\n\n   # two\n",
        "x = y = 1;",
        "x += 1",
        "x: int",
        "x: int = 5",
        "5\nx = 1",
        "def f(): return 5",
        "@staticmethod\ndef f(): return 5",
        "class C:\n    5",
        "async def g(): return 5",
        "import sys",
        "pass",
        "...\npass",
        "del x",
        "if True:\n    5",
        "for n in [1]: n",
        "while False: 1\nelse: 2",
        "with open('/dev/null') as file:\n    file.name",
        "try:\n    5\nfinally:\n    6",
        "assert True",
        "global x",
        "match 1:\n    case 1: 5",
        "(a, b) = 1, 2",
    ]
    result = await session.run("x = 1")
    assert result.value is ABSENT
    assert not result.has_value
    assert [] == list(result.output)
    assert dict.fromkeys(programs, ABSENT_VALUE) == await outcomes(session, programs)


@pytest.mark.core
async def test_completion_that_is_none(session):
    """C03: a completion of None is a value that is present and null."""
    result = await session.run("None")
    assert result.has_value
    assert result.value is None
    assert result.error is None


@pytest.mark.core
async def test_print_as_the_last_line(session):
    """C04: print as the last line outputs its text, and its None is the value."""
    result = await session.run("print('a')")
    assert [("stdout", "a\n")] == entries(result)
    assert result.has_value
    assert result.value is None


@pytest.mark.core
async def test_completions_of_every_shape(session):
    """C01, C12: each form of expression is a completion; a semicolon and a comment have no effect."""
    expected = {
        "40+2;": 42,
        "40+2 ;": 42,
        "40+2; # done": 42,
        "40+2;\n\n": 42,
        "x = 40; x + 2": 42,
        "x = 40; x + 2;": 42,
        "42 # comment": 42,
        "42\n# comment\n\n": 42,
        "(\n    40\n    +\n    2\n)": 42,
        "40 \\\n+ 2": 42,
        "'only a string'": "only a string",
        "'''\nlines\n'''": "\nlines\n",
        "'a' 'b'": "ab",
        "f'{1 + 1}'": "2",
        "(y := 5)": 5,
        "1 if True else 2": 1,
        "1 < 2 < 3": True,
        "[n for n in range(3)]": [0, 1, 2],
        "{'a': {'b': [None]}}": {"a": {"b": [None]}},
        "(lambda: 7)()": 7,
        "def f():\n    return 8\nf()": 8,
        "def f():\n    yield 9\nnext(f())": 9,
        "x = [1]\nx.append(2)\nx": [1, 2],
        "if True:\n    x = 5\nx": 5,
        "not 1": False,
        "-1": -1,
        "print": "invalid-output",
        "...": "invalid-output",
        "1,": "invalid-output",
        "lambda: 1": "invalid-output",
        "*[1], 2": "invalid-output",
    }
    expected = {
        program: value if value == "invalid-output" else [value] for program, value in expected.items()
    }
    assert expected == await outcomes(session, list(expected))


@pytest.mark.core
async def test_top_level_await(session):
    """C06: await works at the top level, also after names of earlier runs."""
    assert "done" == await session.value("import asyncio\nawait asyncio.sleep(0)\n'done'")
    assert [1, 2] == await session.value("await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))")
    assert 3 == await session.value("x = await asyncio.sleep(0, 3)\nx")
    assert "value: 4" == await session.value("f'value: {await asyncio.sleep(0, 4)}'")
    assert 5 == await session.value("if await asyncio.sleep(0, True):\n    x = await asyncio.sleep(0, 5)\nx")


ASYNC_FORMS = """\
import asyncio, contextlib
seen = []

@contextlib.asynccontextmanager
async def manager():
    seen.append('in')
    yield 'held'
    seen.append('out')

async def numbers():
    for n in range(3):
        await asyncio.sleep(0)
        yield n
"""


@pytest.mark.core
async def test_top_level_async_forms(session):
    """C07: async with, async for and async comprehensions work at the top level."""
    await session.value(f"{ASYNC_FORMS}None")
    program = (
        "async with manager() as x:\n    seen.append(x)\nasync for n in numbers():\n    seen.append(n)\nseen"
    )
    assert ["in", "held", "out", 0, 1, 2] == await session.value(program)
    assert [0, 1, 4] == await session.value("[n * n async for n in numbers()]")
    assert {"a0": 0, "a1": 1, "a2": 2} == await session.value("{f'a{n}': n async for n in numbers()}")
    assert 3 == await session.value("sum([n async for n in numbers()])")
    assert [1, 2] == await session.value("[n async for n in numbers() if n and await asyncio.sleep(0, True)]")
    assert "async generator" == await session.value(
        "g = (n async for n in numbers())\n'async generator' if [n async for n in g] == [0, 1, 2] else 'no'"
    )
    program = (
        "async with asyncio.TaskGroup() as group:\n    t = group.create_task(asyncio.sleep(0, 6))\nt.result()"
    )
    assert 6 == await session.value(program)
    assert 7 == await session.value("async with asyncio.timeout(60):\n    x = await asyncio.sleep(0, 7)\nx")


@pytest.mark.core
async def test_top_level_return(session):
    """C08: a top-level return is a syntax error that says how a REPL program ends; nothing of it ran."""
    for program in (
        "return 5",
        "ran = True\nreturn",
        "ran = True\nif ran:\n    return 5",
        "ran = True\nwith open('/dev/null'):\n    try:\n        pass\n    finally:\n        return 5",
        "ran = True\nmatch 1:\n    case 1:\n        return 5",
        "import asyncio\nran = await asyncio.sleep(0, True)\nreturn ran",
        "for n in range(3):\n    return n",
    ):
        message = await failure(session, program)
        assert "SyntaxError" in message
        assert "REPL" in message
        assert "expression" in message
        assert f"line {program.count(chr(10)) + 1}" in message
    assert "ran" not in await session.value("list(globals())")
    message = await failure(session, "class C:\n    return 5")
    assert "SyntaxError" in message
    assert 5 == await session.value("def f():\n    return 5\nf()")


@pytest.mark.core
async def test_top_level_yield(session):
    """C09: a top-level yield is an exception, and so is what else needs a function or a loop."""
    for program in (
        "yield 1",
        "x = yield",
        "yield from []",
        "break",
        "continue",
        "nonlocal x",
        "[(yield) for _ in 'a']",
    ):
        assert "SyntaxError" in await failure(session, program)


@pytest.mark.core
async def test_syntax_errors(session):
    """C10: a program that does not parse is an exception; none of it ran and the names are unchanged."""
    await session.value("x = [1]\nx")
    for program, line in {
        "1+": 1,
        "x = 2\n1+": 2,
        "x.append(2)\ndef f(:\n    pass": 2,
        "x = (": 1,
        "x = 3\n  x = 4": 2,
        "x = 'open": 1,
        "if True:\nx = 5": 2,
        "x = 6\n\x00": None,
        "x = 7\n\x03": 2,
        "x = 8\nfoo bar baz": 2,
        "x = 9\n1 = x": 2,
        "x = 10\nf(a=1, a=2)": 2,
        "x = 11\ndef f():\n    nonlocal zzz": 3,
    }.items():
        result = await session.run(program)
        assert "exception" == kind(result)
        assert "Error: " in result.error.message
        assert line is None or f"line {line}" in result.error.message
        assert not result.started
        assert "kept" == result.state
        assert [] == list(result.output)
    assert [1] == await session.value("x")


async def test_programs_too_deep_for_the_compiler(session):
    """C10: a program that is too deep or too large for the compiler is an exception; the kernel survives."""
    await session.value("x = 1\nx")
    programs = [
        "(" * 1_000 + ")" * 1_000,
        "-" * 100_000 + "1",
        "+".join(["1"] * 100_000),
        "[" * 100_000,
        "1" * 5_000,
    ]
    for program in programs:
        assert "Error" in await failure(session, program)
    assert 1 == await session.value("x")


@pytest.mark.core
async def test_uncaught_exception(session):
    """C11: the message has the type, the text, and the program's own line numbers and lines."""
    message = await failure(session, "raise ValueError('kaboom')")
    assert "ValueError: kaboom" in message
    assert "line 1" in message
    message = await failure(session, "x = 1\n\ndef inner():\n    raise KeyError('lost')\n\ninner()\n")
    assert "KeyError: 'lost'" in message
    assert "line 6, in <module>" in message
    assert "line 4, in inner" in message
    assert "    raise KeyError('lost')" in message
    assert message.index("line 6") < message.index("line 4")


async def test_traceback_over_several_programs(session):
    """C11: a function of an earlier program is shown with the lines of that program."""
    await session.value("\n\ndef earlier():\n    return 1 / 0 # the earlier line\n\nTrue")
    message = await failure(session, "# now\nearlier()")
    assert "line 2, in <module>" in message
    assert "line 4, in earlier" in message
    assert "# the earlier line" in message
    assert "ZeroDivisionError: division by zero" in message


async def test_chained_exceptions(session):
    """C11: causes, contexts, notes and the members of a group are part of the message."""
    message = await failure(
        session, "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e"
    )
    assert "ZeroDivisionError" in message
    assert "direct cause" in message
    assert "KeyError: 'k'" in message
    message = await failure(session, "try:\n    1 / 0\nexcept ZeroDivisionError:\n    {}['k']")
    assert "During handling" in message
    message = await failure(
        session, "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError('k') from None"
    )
    assert "ZeroDivisionError" not in message
    message = await failure(session, "e = ValueError('x')\ne.add_note('a note')\nraise e")
    assert "ValueError: x\na note" in message
    program = "raise ExceptionGroup('several', [ValueError('one'), ExceptionGroup('in', [TypeError('two')])])"
    message = await failure(session, program)
    for part in ("ExceptionGroup: several (2 sub-exceptions)", "ValueError: one", "TypeError: two"):
        assert part in message
    message = await failure(session, "e = ValueError('loop')\ne.__cause__ = e\nraise e")
    assert 1 == message.count("ValueError: loop")


@pytest.mark.core
async def test_forgotten_await(session):
    """C13: a completion that is awaitable is awaited: a call, a coroutine, a task, a future, an object."""
    tools = namespace(echo=echo)
    assert {"n": 1} == await session.value("tools.echo({'n':1})", tools)
    expected = {
        "import asyncio\nasync def f(): return 5\nf()": [5],
        "asyncio.create_task(f())": [5],
        "asyncio.ensure_future(f());": [5],
        "asyncio.gather(f(), tools.echo(2))": [[5, 2]],
        "x = asyncio.get_running_loop().create_future()\nx.set_result(6)\nx": [6],
        "class A:\n    def __await__(self):\n        yield from asyncio.sleep(0).__await__()\n"
        "        return 7\nA()": [7],
        "asyncio.sleep(0)": [None],
        "async def g(): raise KeyError('late')\ng()": "exception",
        "async def h(): return {1}\nh()": "invalid-output",
        "[f()]": "invalid-output",
    }
    assert expected == await outcomes(session, list(expected), tools)
    message = await failure(session, "async def g():\n    raise KeyError('late')\ng()")
    assert "KeyError: 'late'" in message
    assert "line 2, in g" in message


async def test_forgotten_await_counts_for_the_deadline(session):
    """C13: a completion that is awaited is inside the deadline."""
    result = await session.run("import asyncio\nasyncio.sleep(60)", timeout_ms=500)
    assert "timeout" == kind(result)
    assert "kept" == result.state


# ---------------------------------------------------------------------- IPython's syntax


async def test_ipython_syntax(session):
    """C14: what does not parse as Python runs as IPython's syntax."""
    result = await session.run("!echo hi")
    assert (None, [("stdout", "hi\n")]) == (result.error, entries(result))
    result = await session.run("%time 1")
    assert result.error is None
    assert "CPU times" in text(result, "stdout")
    result = await session.run("len?")
    assert result.error is None
    assert "number of items" in text(result, "display")
    result = await session.run("%%bash\necho one\necho two >&2")
    assert result.error is None
    assert ("one\n", "two\n") == (text(result, "stdout"), text(result, "stderr"))
    assert ["hi", "there"] == await session.value("out = !printf 'hi\\nthere'\nlist(out)")
    assert "x5" == await session.value("n = 5\nout = !echo x{n}\nout[0]")
    assert 3 == await session.value("x = 1\n!true\nx + 2")


async def test_shell_commands(session):
    """C14: a shell command has no stdin and no terminal, and leaves no name behind."""
    before = await session.value("sorted(globals())")
    result = await session.run("!cat; test -t 0 || echo no terminal in; test -t 1 || echo no terminal out")
    assert result.error is None
    assert "no terminal in\nno terminal out\n" == text(result, "stdout")
    result = await session.run("!exit 3")
    assert result.error is None
    assert "3" in text(result, "stderr")
    assert before == await session.value("sorted(globals())")
    assert "_exit_code" not in before


async def test_plain_python_is_never_transformed(session):
    """C14: a program that parses runs exactly as written; only the others reach IPython's transformers."""
    program = (
        "seen = []\n"
        "get_ipython().input_transformers_cleanup.append(lambda lines: seen.append(lines) or lines)\n"
    )
    await session.run(program)
    literal = "'''\n%time\n!ls\n>>> x?\n  In [1]: y\n'''"
    assert "\n%time\n!ls\n>>> x?\n  In [1]: y\n" == await session.value(literal)
    assert 1 == await session.value("a = 5\nb = 2\n(a\n%b)")
    assert "  >>> 1" == await session.value("'  >>> 1'")
    large = "x" * 1_000_000
    assert 1_000_000 == await session.value(f"len('{large}')")
    assert "SyntaxError" in await failure(session, "return 5")
    assert [] == await session.value("seen")
    await session.run("%time 1")
    assert 1 <= await session.value("len(seen)")


async def test_errors_of_ipython_syntax(session):
    """C14: what is neither Python nor IPython's syntax is a syntax error; a failing magic is an exception."""
    for program in (
        "%no_such_magic",
        "%%no_such_magic\nx",
        "!echo hi\n1+",
        "%time 1/0",
        "obj.does.not.exist(",
    ):
        message = await failure(session, program)
        assert "\x1b" not in message
    assert "ZeroDivisionError" in await failure(session, "x = 1\n%time 1/0")
    assert 1 == await session.value("x")


async def test_magics_that_cannot_work(session):
    """C14: a magic that needs stdin, or another event loop, fails with a message that says why."""
    messages = {}
    for program in ("%debug", "x = 1\n%debug", "1 / 0", "%debug", "%gui qt"):
        result = await session.run(program)
        messages[program] = result.error.message if result.error else f"no error, {entries(result)}"
    assert "ZeroDivisionError" in messages.pop("1 / 0")
    reasons = ("stdin", "terminal", "event loop")
    assert {} == {
        key: text for key, text in messages.items() if not any(reason in text for reason in reasons)
    }


async def test_magics_over_await(session):
    """C14: a magic that would have to await either awaits, or fails with a message that says why."""
    result = await session.run("import asyncio\n%time await asyncio.sleep(0, 5)")
    assert result.error is None or "await" in result.error.message
    assert 5 == await session.value("await asyncio.sleep(0, 5)")


async def test_nothing_reads_a_terminal(session):
    """C15: what would ask a person is an exception at once that says that there is no stdin."""
    for program in (
        "input()",
        "input('name? ')",
        "breakpoint()",
        "import getpass\ngetpass.getpass()",
        "import builtins\nbuiltins.input()",
        "import pdb\npdb.set_trace()",
        "import asyncio\nawait asyncio.to_thread(input)",
    ):
        assert "stdin" in await failure(session, program)
    assert ["", "", []] == await session.value(
        "import sys\n[sys.stdin.read(), sys.stdin.readline(), list(sys.stdin)]"
    )
    assert 0 == await session.value("import os\nlen(os.read(0, 10))")


# ---------------------------------------------------------------------- ways to end


async def test_system_exit(session):
    """C16: leaving by SystemExit is an exception with no advice in the output; the kernel lives on."""
    await session.value("x = 1\nx")
    pid = await session.pid()
    for program in (
        "import sys\nsys.exit(3)",
        "import sys\nsys.exit()",
        "import sys\nsys.exit('bye')",
        "exit()",
        "exit(0)",
        "quit()",
        "quit(3)",
        "raise SystemExit",
        "raise SystemExit(3)",
        "import asyncio\nawait asyncio.sleep(0)\nexit()",
        "def f(): exit()\nf()",
        "import asyncio\nasync def f(): exit(4)\nawait asyncio.create_task(f())",
    ):
        result = await session.run(program)
        assert "exception" == kind(result)
        assert "SystemExit" in result.error.message
        assert "kept" == result.state
        assert [] == list(result.output)
    assert "3" in (await session.run("import sys\nsys.exit(3)")).error.message
    assert "bye" in (await session.run("import sys\nsys.exit('bye')")).error.message
    assert 1 == await session.value("x")
    assert pid == await session.pid()


ENDS = {
    "import os\nos._exit(7)": ["7"],
    "import os\nos._exit(0)": ["0"],
    "import os,signal\nos.kill(os.getpid(),9)": ["SIGKILL", "memory"],
    "import os,signal\nos.kill(os.getpid(),signal.SIGTERM)": ["SIGTERM"],
    "import os\nos.abort()": ["SIGABRT"],
    "import ctypes\nctypes.string_at(0)": ["SIGSEGV"],
    "import os,threading\nthreading.Thread(target=os._exit,args=(9,)).start()\nwhile True: pass": ["9"],
}


@pytest.mark.parametrize(("program", "parts"), ENDS.items(), ids=ascii)
async def test_process_that_ends(session, program, parts):
    """C18, C19: a process that ends is a worker-exit that names code or signal; the next run is fresh."""
    result = await session.run(f"x = 1\nprint('before')\n{program}")
    assert "worker-exit" == kind(result)
    for part in parts:
        assert part in result.error.message
    assert "before\n" == text(result, "stdout")
    assert "lost" == result.state
    result = await session.run("'x' in globals()")
    assert [False] == outcome(result)
    assert result.reset_reason
    assert (await session.run("1")).reset_reason is None


async def test_process_that_ends_has_begun(session):
    """C18, C19: a program that ended its process has begun, however soon it did so."""
    programs = [*ENDS, "__import__('os')._exit(7)", "print('before')\n__import__('os')._exit(7)"]
    started = {}
    for program in programs:
        started[program] = (await session.run(program)).started
    assert dict.fromkeys(programs, True) == started


async def test_stored_exception(session):
    """C11, 8.2: an exception that a program kept and raised again still has its traceback in the next run."""
    program = (
        "def f():\n    local = 5\n    1 / 0\ntry:\n    f()\nexcept ZeroDivisionError as e:\n"
        "    saved = e\n    raise"
    )
    await failure(session, program)
    program = "import traceback\n[frame.name for frame in traceback.extract_tb(saved.__traceback__)]"
    assert ["<module>", "f"] == await session.value(program)


async def test_base_exceptions(session):
    """C20: every exception that leaves a program is an exception of the run, and the kernel survives."""
    await session.value("x = 1\nx")
    pid = await session.pid()
    expected = {
        "raise KeyboardInterrupt": "KeyboardInterrupt",
        "raise KeyboardInterrupt('why')": "KeyboardInterrupt: why",
        "raise GeneratorExit": "GeneratorExit",
        "import asyncio\nraise asyncio.CancelledError": "CancelledError",
        "import asyncio\nasyncio.current_task().cancel()\nawait asyncio.sleep(0)": "CancelledError",
        "import asyncio\nasyncio.current_task().cancel('why')\nawait asyncio.sleep(60)": "CancelledError",
        "import asyncio\nt = asyncio.create_task(asyncio.sleep(60))\nt.cancel()\nawait t": "CancelledError",
        "raise BaseException('bare')": "BaseException: bare",
        "class Mine(BaseException): pass\nraise Mine('own')": "Mine: own",
        "raise BaseExceptionGroup('group', [KeyboardInterrupt()])": "KeyboardInterrupt",
        "raise StopIteration(5)": "StopIteration: 5",
        "import asyncio\nawait asyncio.sleep(0)\nraise StopIteration(5)": "StopIteration",
        "raise StopAsyncIteration": "StopAsyncIteration",
        "import asyncio\nasync def f(): raise KeyboardInterrupt\n"
        "await asyncio.gather(f(), asyncio.sleep(60))": "Keyboard",
        "import asyncio\nasync def f(): raise SystemExit(2)\n"
        "await asyncio.gather(f(), asyncio.sleep(60))": "SystemExit: 2",
        "raise MemoryError": "MemoryError",
        "assert False, 'no'": "AssertionError: no",
        "raise 5": "TypeError",
        "import signal\nsignal.raise_signal(signal.SIGINT)": "KeyboardInterrupt",
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
        "for n in range(10**9): pass": "KeyboardInterrupt",
    }
    for program, part in expected.items():
        assert part in await failure(session, program)
        assert 1 == await session.value("x")
    assert pid == await session.pid()
    assert 6 == await session.value("import asyncio\nawait asyncio.sleep(0, 6)")


HOSTILE = {
    "str-and-repr-raise": (
        "class E(Exception):\n    def __str__(self): 1 / 0\n    __repr__ = __str__\nraise E"
    ),
    "str-exits": "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E",
    "str-interrupts": "class E(Exception):\n    def __str__(self): raise KeyboardInterrupt\nraise E",
    "str-raises-itself": "class E(Exception):\n    def __str__(self): raise E\nraise E",
    "str-recurses": "class E(Exception):\n    def __str__(self): return str(self)\nraise E",
    "str-is-no-str": "class E(Exception):\n    def __str__(self): return 5\nraise E",
    "str-is-a-subclass": (
        "class T(str):\n    def __str__(self): return 1 / 0\n    __format__ = __repr__ = __add__ = __str__\n"
        "class E(Exception):\n    def __str__(self): return T('t')\nraise E"
    ),
    "notes-raise": "class E(Exception):\n    @property\n    def __notes__(self): 1 / 0\nraise E",
    "notes-are-no-list": "e = ValueError('x')\ne.__notes__ = 5\nraise e",
    "note-is-hostile": (
        "class N:\n    def __str__(self): raise SystemExit\n    __repr__ = __str__\n"
        "e = ValueError('x')\ne.__notes__ = [N()]\nraise e"
    ),
    "cause-raises": "class E(Exception):\n    __cause__ = property(lambda s: 1 / 0)\nraise E",
    "traceback-raises": "class E(Exception):\n    __traceback__ = property(lambda s: 1 / 0)\nraise E",
    "traceback-is-no-traceback": "class E(Exception):\n    __traceback__ = 5\nraise E",
    "every-attribute-raises": "class E(Exception):\n    def __getattribute__(self, n): 1 / 0\nraise E",
    "every-attribute-exits": (
        "class E(Exception):\n    def __getattribute__(self, n): raise SystemExit\nraise E"
    ),
    "class-lies": "class E(Exception):\n    __class__ = property(lambda s: 1 / 0)\nraise E",
    "hash-and-eq-raise": (
        "class E(Exception):\n    def __hash__(self): 1 / 0\n    def __eq__(self, other): 1 / 0\n"
        "try:\n    raise E\nexcept E as e:\n    raise E from e"
    ),
    "metaclass-is-hostile": (
        "class M(type):\n    def __getattribute__(self, n): 1 / 0\n    __str__ = __repr__ = lambda s: 1 / 0\n"
        "class E(Exception, metaclass=M): pass\nraise E"
    ),
    "module-is-no-str": "class E(Exception): pass\nE.__module__ = 5\nraise E",
    "name-is-huge": "raise type('N' * 1_000_000, (Exception,), {})('x')",
    "syntax-error-with-odd-parts": "e = SyntaxError('x')\ne.lineno = e.offset = e.text = object()\nraise e",
    "name-error-with-odd-name": "e = NameError('x')\ne.name = object()\nraise e",
    "lone-surrogate": "raise ValueError('\\ud800')",
}


async def test_exceptions_that_cannot_be_printed(session):
    """C21: an exception whose parts raise, lie or are odd gives a readable text, never a worker's failure."""
    await session.value("x = 1\nx")
    pid = await session.pid()
    wrong = {}
    for name, program in HOSTILE.items():
        result = await session.run(program)
        message = result.error.message if kind(result) == "exception" else ""
        good = message.strip() and "worker" not in message and "ptc_kernel" not in message
        if not good or list(result.output) or result.state != "kept":
            wrong[name] = result
    assert {} == wrong
    assert 1 == await session.value("x")
    assert pid == await session.pid()


async def test_exception_placeholder(session):
    """C21: where the text of an exception cannot be had, a placeholder says so."""
    message = await failure(session, HOSTILE["str-and-repr-raise"])
    assert "failed" in message or "cannot be printed" in message


async def test_exception_whose_text_never_ends(session):
    """C21: a __str__ that does not return is stopped by the deadline, and the kernel survives."""
    await session.value("x = 1\nx")
    result = await session.run(
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E", timeout_ms=500
    )
    assert "timeout" == kind(result)
    assert "kept" == result.state
    assert 1 == await session.value("x")


PLACES = [
    "import json\njson.loads('{')",
    "import asyncio\nasync def f(): 1 / 0\nawait asyncio.gather(f())",
    (
        "import asyncio\nasync with asyncio.TaskGroup() as group:\n"
        "    group.create_task(asyncio.wait_for(f(), 5))"
    ),
    "import subprocess\nsubprocess.run(['false'], check=True)",
    (
        "import concurrent.futures as c\nwith c.ThreadPoolExecutor() as pool:\n"
        "    pool.submit(lambda: 1 / 0).result()"
    ),
    "import numpy\nnumpy.zeros((2, 3)) @ numpy.zeros((2, 3))",
    "import re\nre.compile('(')",
    "import importlib\nimportlib.import_module('no_such_module')",
    "exec('def g(): 1 / 0\\ng()')",
    "1+",
    "return 5",
    "exec('1+')",
    "import collections\ncollections.namedtuple('A', 'def')",
    "await tools.fail()",
    "tools.nope",
    "await tools.echo({1})",
    "await tools.echo(1, 2)",
    "f()\ninput()",
    "%time 1/0",
    "%no_such_magic",
    "from json import no_such_name",
    "from numpy import no_such_name",
]


async def fail(_):
    """A handler that rejects from a frame of the host."""
    raise ValueError("nope")


async def test_messages_hold_no_host_path(make_session):
    """C22: a traceback has no escape byte, no path of packages, of a temporary folder or of the home."""
    session = make_session(env={"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "PYTHON_COLORS": "1"})
    await session.run("async def f(): 1 / 0")
    hidden = [
        "\x1b",
        "site-packages",
        "ptc_kernel",
        "ipykernel",
        tempfile.gettempdir(),
        os.path.expanduser("~"),
    ]
    hidden += [sys.prefix, sys.base_prefix, os.getcwd()]
    shown = {}
    for program in PLACES:
        message = await failure(session, program, namespace(echo=echo, fail=fail))
        if found := [part for part in hidden if part in message]:
            shown[program] = found
    assert {} == shown


async def test_future_flags(session):
    """C23: the provider's future flags do not reach a program, the program's own do their work."""
    program = "def f(a: int): ...\nstr(f.__annotations__['a'])"
    assert "<class 'int'>" == await session.value(program)
    assert "int" == await session.value(f"from __future__ import annotations\n{program}")


async def test_recursion(session):
    """C24: endless recursion is a RecursionError with a bounded text, and the kernel survives."""
    await session.value("x = 1\nx")
    for program in (
        "def f(): f()\nf()",
        "class C:\n    def __repr__(self): return repr(self)\nrepr(C())",
        "def a(): b()\ndef b(): a()\na()",
        "async def f(): await f()\nawait f()",
    ):
        message = await failure(session, program)
        assert "RecursionError" in message
        assert len(message) < 100_000
    assert 1 == await session.value("x")


async def test_asyncio_run(session):
    """C25: asyncio.run is the ordinary error of a running loop, and the loop lives on."""
    for program in (
        "import asyncio\nasyncio.run(asyncio.sleep(0))",
        "import asyncio\nasyncio.get_running_loop().run_until_complete(asyncio.sleep(0))",
        "import asyncio\nwith asyncio.Runner() as runner:\n    runner.run(asyncio.sleep(0))",
    ):
        message = await failure(session, program)
        assert "RuntimeError" in message
        assert "running" in message
    assert 5 == await session.value("await asyncio.sleep(0, 5)")
    assert 6 == await session.value("await asyncio.to_thread(asyncio.run, asyncio.sleep(0, 6))")


async def test_loop_that_a_program_stops(session):
    """C25: a program that stops or closes the loop that runs it does not take the kernel with it."""
    await session.value("x = 1\nx")
    for program in (
        "import asyncio\nasyncio.get_running_loop().stop()\nawait asyncio.sleep(0)\n5",
        "import asyncio\nasyncio.get_running_loop().stop()",
        "import asyncio\nasyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)\n5",
    ):
        result = await session.run(program, timeout_ms=20_000)
        assert result.error is None
        assert 1 == await session.value("x")


async def test_no_stray_output_of_failures(session):
    """C25: a failing program adds nothing to its output that it did not write."""
    for program in (
        "1 / 0",
        "import asyncio\nawait asyncio.wait_for(asyncio.sleep(60), 0)",
        "return 5",
        "1+",
    ):
        result = await session.run(program)
        assert "exception" == kind(result)
        assert [] == list(result.output)
        assert [] == list(result.background)


# ---------------------------------------------------------------------- discard and display


async def test_discarded_completions(session):
    """C26, C27: with discard_completion the value is absent, lossy or not, and exceptions still count."""
    expected = {
        "object()": ABSENT_VALUE,
        "float('nan')": ABSENT_VALUE,
        "42": ABSENT_VALUE,
        "None": ABSENT_VALUE,
        "a = []\na.append(a)\na": ABSENT_VALUE,
        "'x' * 1_000": ABSENT_VALUE,
        "x = 1": ABSENT_VALUE,
        "": ABSENT_VALUE,
        "class E(Exception): pass\nraise E": "exception",
        "1 / 0": "exception",
        "1+": "exception",
    }
    assert expected == await outcomes(session, list(expected), discard_completion=True)
    assert 1 == await session.value("x")


async def test_discarded_completion_is_awaited(session):
    """C26: an awaitable completion is awaited for its effects before it is dropped."""
    result = await session.run(
        "async def f():\n    print('effect')\n    seen.append(1)\n    return {1}\nseen = []\nf()",
        discard_completion=True,
    )
    assert ABSENT_VALUE == outcome(result)
    assert [("stdout", "effect\n")] == entries(result)
    assert [1] == await session.value("seen")
    program = "async def g(): raise KeyError('late')\ng()"
    assert "exception" == kind(await session.run(program, discard_completion=True))


async def test_discarded_completion_does_not_count(make_session):
    """C26: a discarded completion is not in the ledger; text is."""
    session = make_session(max_output_bytes=64)
    assert ABSENT_VALUE == outcome(await session.run("'x' * 1_000", discard_completion=True))
    assert "output-limit" == outcome(await session.run("print('x' * 1_000)", discard_completion=True))


@pytest.mark.parametrize("field", ["discard_completion", "display_completion"])
@pytest.mark.parametrize("flag", ["yes", 1, 0, None, "", [True]])
async def test_flags_are_bools(field, flag):
    """C29: a flag that is no bool raises, and nothing is started."""
    before = children()
    with pytest.raises(UsageTypeError, match=field):
        PtcRunRequest(program="1", **{field: flag})
    assert before == children()


async def test_displayed_completions(session):
    """C26, 5: with display_completion a lossy completion is shown as text and does not fail the run."""
    result = await session.run("print('first')\n{1}", display_completion=True)
    assert ABSENT_VALUE == outcome(result)
    assert "{1}" == text(result, "display").strip()
    assert ["stdout", "display"] == [channel for channel, _ in entries(result)]
    for program, value in {"[1, 2]": [1, 2], "None": None, "'text'": "text"}.items():
        result = await session.run(program, display_completion=True)
        assert [value] == outcome(result)
        assert [] == list(result.output)
    result = await session.run("import numpy\nnumpy.arange(3)", display_completion=True)
    assert ABSENT_VALUE == outcome(result)
    assert "array([0, 1, 2])" in text(result, "display")
    assert ABSENT_VALUE == outcome(await session.run("x = {1}", display_completion=True))
    assert "exception" == outcome(await session.run("1 / 0", display_completion=True))


async def test_displayed_completion_with_a_repr_that_raises(session):
    """C26, 5: a completion that cannot be shown is an outcome of the run, and the kernel survives."""
    for error in ("1 / 0", "raise SystemExit", "raise KeyboardInterrupt"):
        program = f"class C:\n    def __repr__(self): {error}\nC()"
        result = await session.run(program, display_completion=True)
        assert outcome(result) in ("exception", ABSENT_VALUE)
        assert "kept" == result.state
    assert await session.value("isinstance(C, type)")


async def test_discard_beats_display(session):
    """C26: a completion that is discarded is not displayed."""
    result = await session.run("{1}", discard_completion=True, display_completion=True)
    assert ABSENT_VALUE == outcome(result)
    assert [] == list(result.output)


# ---------------------------------------------------------------------- the text of programs


async def test_text_of_programs(session):
    """C31: CRLF and CR line ends, a BOM, other scripts, tabs, form feeds and coding cookies are all fine."""
    expected = {
        "x = 1\r\nif x:\r\n    x = 2\r\nx\r\n": [2],
        "x = 1\rx + 2\r": [3],
        "x = 1\r\nx + 2\rx + 3\n": [4],
        "'''a\r\nb'''": ["a\nb"],
        "\ufeffx = 5\nx": [5],
        "\ufeff": ABSENT_VALUE,
        "\ufeff# comment\n6": [6],
        "größe = 7\ngröße": [7],
        "π = 3\n名前 = 'こんにちは'\n[π, 名前]": [[3, "こんにちは"]],
        "ﬁ = 8\nfi": [8],
        "'\U0001f600\u2028\u0301'": ["\U0001f600\u2028\u0301"],
        "# -*- coding: latin-1 -*-\n'é'": ["é"],
        "# coding: no-such-codec\n'é'": ["é"],
        "if True:\n\tx = 9\nx": [9],
        "\x0cx = 10\n\x0c\nx": [10],
        "\n\n\nx = 11\nx\n\n\n": [11],
        "x = 12\nx\n   ": [12],
        "#!/usr/bin/env python\n14": [14],
    }
    assert expected == await outcomes(session, list(expected))


async def test_line_ends_and_line_numbers(session):
    """C31: line numbers of a program with CRLF line ends, or a BOM, are the program's own."""
    assert "line 3" in await failure(session, "x = 1\r\n\r\nraise ValueError('x')\r\n")
    assert "line 2" in await failure(session, "\ufeff\nraise ValueError('x')")
    assert "line 2" in await failure(session, "é = 1\n1+")
    assert "größe" in await failure(session, "größe = 1\nraise ValueError(größe) # größe")


async def test_lone_surrogate_in_the_source(session):
    """C32: a lone surrogate in the source gives that string or an exception, in literal, comment or name."""
    assert outcome(await session.run("'a\ud800b'")) in (["a\ud800b"], "exception")
    for program in (
        "# \udfff\n1",
        "\ud83d = 1",
        "f'{1}\udc00'",
        "!echo \ud800",
        "1+ # \ud800",
        "'\ud83d\ude00'",
    ):
        result = await session.run(program)
        assert result.error is None or "exception" == kind(result)
        assert "kept" == result.state
    assert ["a\ud800b"] == outcome(await session.run("'a\\ud800b'"))


async def test_the_module(session):
    """C33: programs are the module __main__, with names that are theirs alone."""
    assert "__main__" == await session.value("'__name__' in globals() and __name__")
    assert await session.value("import sys\nsys.modules['__main__'].__dict__ is globals()") is True
    assert await session.value("globals() is locals()") is True
    program = "import pickle\nclass P:\n    pass\n[P.__module__, type(pickle.loads(pickle.dumps(P()))) is P]"
    assert ["__main__", True] == await session.value(program)
    program = "import inspect\ndef f():\n    return 1 # here\ninspect.getsource(f)"
    assert "def f():\n    return 1 # here\n" == await session.value(program)
    assert [""] == await session.value("sys.argv")


async def test_the_names_at_the_start(session):
    """C33: a fresh environment has no names but Python's own and those that IPython needs."""
    names = await session.value("[name for name in globals() if not name.startswith('_')]")
    assert [] == names
    assert [False, False, False] == await session.value(
        "[name in globals() for name in ('In', 'Out', 'ptc_kernel')]"
    )


async def test_ordinary_idioms(session):
    """C33: dataclasses, enums, type hints, match, closures and generators survive from program to program."""
    await session.run(
        "import dataclasses, enum, typing\n"
        "@dataclasses.dataclass\nclass Point:\n    x: int\n    y: 'int' = 2\n"
        "class Color(enum.Enum):\n    RED = 1\n"
        "def counter():\n    n = 0\n    def more():\n        nonlocal n\n        n += 1\n"
        "        return n\n    return more\n"
        "more = counter()\ng = (n for n in range(10))\nnext(g)"
    )
    assert {"x": 1, "y": 2} == await session.value("dataclasses.asdict(Point(1))")
    assert {"x": "<class 'int'>", "y": "<class 'int'>"} == await session.value(
        "{k: str(v) for k, v in typing.get_type_hints(Point).items()}"
    )
    assert ["RED", 1] == await session.value("[Color.RED.name, Color(1).value]")
    assert [1, 2, 1] == await session.value("[more(), more(), next(g)]")
    assert "one" == await session.value("match Point(1):\n    case Point(x=1):\n        r = 'one'\nr")


async def test_syntax_warnings_are_output(session):
    """C10, F16: a warning of the compiler is text on stderr of the run whose program it is about."""
    result = await session.run("x = 1\nx is 1")
    assert result.value is True
    assert "SyntaxWarning" in text(result, "stderr")
    assert [] == list(result.background)
    assert [] == list((await session.run("1")).background)


async def test_values_of_awaits_in_order(session):
    """C06: a program's awaits let its other tasks run, and tasks of the program end in their own time."""
    reached = asyncio.Event()

    async def signal(_):
        reached.set()

    async def wait(_):
        await reached.wait()
        return "reached"

    program = (
        "import asyncio\nt = asyncio.create_task(tools.wait())\nawait asyncio.sleep(0)\n"
        "await tools.signal()\nawait t"
    )
    assert "reached" == await session.value(program, namespace(signal=signal, wait=wait))
