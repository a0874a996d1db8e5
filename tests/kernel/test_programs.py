"""Programs in REPL form: how they are compiled, what their completion is, and what they cannot break."""

from __future__ import annotations

import asyncio
import builtins
import linecache
import subprocess
import sys
import types

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from ptc_kernel.kernel.interrupts import InterruptedTask, Interrupts
from ptc_kernel.kernel.programs import (
    NO_RETURN,
    SOURCES_KEPT,
    Programs,
    is_awaitable,
    leave,
    refuse_stdin,
    repair_namespace,
)
from ptc_kernel.kernel.render import program_traceback
from ptc_kernel.kernel.runs import Runs

FORK = """
import asyncio, os, sys
from ptc_kernel.kernel.interrupts import Interrupts
from ptc_kernel.kernel.programs import Programs
from ptc_kernel.kernel.runs import Runs

class Shell:
    user_ns = {"__name__": "__main__"}

programs = Programs(Shell(), Interrupts(Runs(), ()))
program = '''
import os, sys
pid = os.fork()
if pid == 0:
    %s
os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
'''
print(asyncio.run(programs.run(programs.compile(program))))
"""


class Shell:
    """What programs need of an IPython shell: its globals, and IPython's own transformations."""

    def __init__(self):
        self.user_ns = {"__name__": "__main__", "__builtins__": builtins}
        self.transform_cell = TransformerManager().transform_cell


class Session:
    """Programs that run one after the other, each in a task, as in the kernel."""

    def __init__(self):
        runs = Runs()
        self.shell = Shell()
        self.globals = self.shell.user_ns
        self.interrupts = Interrupts(runs, ())
        self.programs = Programs(self.shell, self.interrupts)

    async def run(self, program):
        """The completion, as a tuple of none or one, and the error."""
        parsed = self.programs.compile(program)
        loop = asyncio.get_running_loop()
        return await loop.create_task(self.programs.run(parsed), context=self.programs.context)

    async def value(self, program):
        """The completion of a program that ends well; () when it has none."""
        completion, error = await self.run(program)
        assert error is None, error
        return completion

    async def error(self, program):
        """What a program raised."""
        completion, error = await self.run(program)
        assert (True, ()) == (isinstance(error, BaseException), completion)
        return error


@pytest.fixture
def session():
    """A namespace without a past."""
    kept = dict(linecache.cache)
    yield Session()
    linecache.cache.clear()
    linecache.cache.update(kept)


# ---------------------------------------------------------------------- completion

COMPLETIONS = [
    ("1 + 1", (2,)),
    ("x = 1", ()),
    ("x = 1\nx", (1,)),
    ("", ()),
    ("\n\n", ()),
    ("# nothing", ()),
    ("1  # one", (1,)),
    ("1;", (1,)),
    ("1; 2", (2,)),
    ("1; x = 2", ()),
    ("None", (None,)),
    ("'a text'", ("a text",)),
    ("if True: 5", ()),
    ("for x in [1]: x", ()),
    ("def f(): return 1", ()),
    ("(1,\n 2,\n 3)", ((1, 2, 3),)),
    ("\ufeff5", (5,)),
    ("x = 5\r\nx", (5,)),
    ("x = 5\rx", (5,)),
    ("\t\n  \n6", (6,)),
    ("...", (...,)),
    ("(y := 3)", (3,)),
    ("import asyncio\nawait asyncio.sleep(0, 'slept')", ("slept",)),
    ("async def f(): return 3\nf()", (3,)),
    ("async def f(): return 3\nawait f()", (3,)),
    ("import asyncio\nasyncio.sleep(0, 4)", (4,)),
    ("import asyncio\nasyncio.ensure_future(asyncio.sleep(0, 4))", (4,)),
    ("import asyncio\nasyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))", ([1, 2],)),
    ("async def f():\n    async def g(): return 1\n    return g\n(await f())()", (1,)),
    ("import types\n@types.coroutine\ndef f():\n    yield\n    return 7\nf()", (7,)),
    ("class A:\n    def __await__(self):\n        return 8\n        yield\nA()", (8,)),
    ("[x async for x in (y for y in [])] if False else 1", (1,)),
    ("async def g():\n    yield 1\n[x async for x in g()]", ([1],)),
    ("async with __import__('asyncio').Lock() as x: pass", ()),
    ("async with __import__('asyncio').Lock() as x: pass\nx", (None,)),
    ("lambda: (yield)", None),
    ("(x for x in 'ab')", None),
    ("class A:\n    def __await__(self): yield\nA", None),
]


@pytest.mark.parametrize(("program", "expected"), [item for item in COMPLETIONS if item[1] is not None])
async def test_the_completion(session, program, expected):
    """The last expression is the completion, awaited when it can be; anything else has none."""
    assert expected == await session.value(program)


@pytest.mark.parametrize("program", [item[0] for item in COMPLETIONS if item[1] is None])
async def test_what_is_not_awaitable_is_not_awaited(session, program):
    """Generators, and classes whose instances can be awaited, are completions as they are."""
    (value,) = await session.value(program)
    assert isinstance(value, (type, types.GeneratorType, types.FunctionType))


async def test_names_persist(session):
    """Each program sees what the ones before it defined, and its functions see what came later."""
    await session.value("def f(): return later")
    await session.value("later = 5")
    assert (5,) == await session.value("f()")


async def test_context_variables_persist(session):
    """A context variable, and the precision of decimals, stay for the next program."""
    await session.value("import contextvars, decimal\nv = contextvars.ContextVar('v')\n_t = v.set(1)")
    await session.value("decimal.getcontext().prec = 5")
    assert ((1, 5),) == await session.value("(v.get(), decimal.getcontext().prec)")


async def test_the_text_of_a_program_is_its_own(session):
    """Docstring, `__name__` and line numbers are those of the program."""
    assert ("__main__",) == await session.value("__name__")
    error = await session.error("\n\n\nraise ValueError")
    assert 4 == error.__traceback__.tb_lineno


# ---------------------------------------------------------------------- compile


def test_programs_are_numbered(session):
    """Each program has a file name of its own, one that failed to compile too."""
    first = session.programs.compile("1").name
    with pytest.raises(SyntaxError):
        session.programs.compile("1 +")
    assert ("<program 1>", "<program 3>") == (first, session.programs.compile("1").name)


def test_nothing_runs_while_it_is_compiled(session):
    """Compiling changes no name."""
    before = dict(session.globals)
    session.programs.compile("x = 1\nimport this_module_does_not_exist\nx")
    assert before == session.globals


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("1 +", 1),
        ("x = 1\n  y = 2", 2),
        ("x y", 1),
        ("f(", 1),
        ("'unfinished", 1),
        ("x = 1\nwhile True print(x)", 2),
        ("break", 1),
        ("yield 1", 1),
        ("class A:\n    return 1", 2),
        ("def f():\n    nonlocal x", 2),
    ],
)
def test_syntax_errors_name_the_program(session, program, line):
    """A program that is no Python and no IPython syntax is a SyntaxError at its own line."""
    with pytest.raises(SyntaxError) as caught:
        session.programs.compile(program)
    assert ("<program 1>", line) == (caught.value.filename, caught.value.lineno)


@pytest.mark.parametrize("program", ["a\0b", "'\ud800'", "x = '\udcff'"])
def test_texts_that_are_no_source(session, program):
    """A NUL, and a lone surrogate, are refused by the compiler and by nothing worse."""
    with pytest.raises((SyntaxError, ValueError)):
        session.programs.compile(program)


def test_a_program_of_any_depth(session):
    """An expression too deep for the compiler is an Exception, not the end of the process."""
    with pytest.raises((MemoryError, RecursionError, SyntaxError)):
        session.programs.compile("(" * 50_000 + ")" * 50_000)


@pytest.mark.parametrize(
    ("program", "python"),
    [
        ("!true", "get_ipython().system('true')"),
        ("%time 1", "get_ipython().run_line_magic('time', '1')"),
        ("x = !ls", "x = get_ipython().getoutput('ls')"),
        ("%%bash\nls", "get_ipython().run_cell_magic('bash', '', 'ls')"),
        ("len?", "get_ipython().run_line_magic('pinfo', 'len')"),
        (">>> 1 + 1", "1 + 1"),
    ],
)
def test_ipython_syntax(session, program, python):
    """What is no Python is read as IPython reads it, and the traceback shows the Python that it became."""
    name = session.programs.compile(program).name
    assert python == "".join(linecache.getlines(name)).strip().removesuffix("\\n").replace("\\n'", "'")


@pytest.mark.parametrize("program", ["x = 5\nx %2", "x = 5\n(x\n%x)", "ls = 1\nls", "_ = 1\n_", "'!ls'"])
def test_plain_python_is_never_transformed(session, program):
    """A program that parses is compiled exactly as it is written."""
    name = session.programs.compile(program).name
    assert program == "".join(linecache.getlines(name)).removesuffix("\n")


# ---------------------------------------------------------------------- return

RETURNS = [
    ("return 1", 1),
    ("return", 1),
    ("x = 1\nreturn x", 2),
    ("if True:\n    return 1", 2),
    ("if False:\n    pass\nelse:\n    return 1", 4),
    ("for x in []:\n    return x", 2),
    ("while False:\n    return", 2),
    ("try:\n    return 1\nfinally:\n    pass", 2),
    ("try:\n    pass\nexcept ValueError:\n    return 1", 4),
    ("with open('x') as f:\n    return 1", 2),
    ("async with x:\n    return 1", 2),
    ("match 1:\n    case 1:\n        return 1", 3),
    ("def f():\n    return 1\nreturn f()", 3),
    ("x = 'a\u2028b\x0c\x1c\x85'\nreturn x", 2),
    ("'''\n\x0c\n'''\r\nreturn 1", 4),
]


@pytest.mark.parametrize(("program", "line"), RETURNS)
def test_a_top_level_return(session, program, line):
    """A top-level `return` is a SyntaxError that shows the line and says what to do instead."""
    with pytest.raises(SyntaxError) as caught:
        session.programs.compile(program)
    error = caught.value
    assert (NO_RETURN, "<program 1>", line) == (error.msg, error.filename, error.lineno)
    assert "return" == error.text[error.offset - 1 :][:6]


@pytest.mark.parametrize(
    "program",
    [
        "def f():\n    return 1",
        "async def f():\n    return 1",
        "if True:\n    def f():\n        if True:\n            return 1",
        "class A:\n    def f(self):\n        return 1",
        "x = 'return'",
        "# return",
    ],
)
def test_other_returns_are_fine(session, program):
    """A `return` in a function, and the word anywhere else, is no error."""
    assert "<program 1>" == session.programs.compile(program).name


# ---------------------------------------------------------------------- future flags


async def test_future_imports_stay(session):
    """A `from __future__` import counts for the rest of its program and for the programs after it."""
    show = "def f(a: x.y.z): ...\nf.__annotations__['a']"
    assert ("x.y.z",) == await session.value(f"from __future__ import annotations\n{show}")
    assert ("x.y.z",) == await session.value(show)


async def test_our_own_future_flags_stay_out(session):
    """The worker's own `from __future__ import annotations` does not reach a program."""
    assert (int,) == await session.value("def f(a: int): ...\nf.__annotations__['a']")


async def test_a_program_that_failed_to_compile_sets_no_flags(session):
    """The flags of a program that never ran do not count."""
    with pytest.raises(SyntaxError):
        session.programs.compile("from __future__ import annotations\nx = = 1")
    assert (int,) == await session.value("def f(a: int): ...\nf.__annotations__['a']")


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("1 / 0", ZeroDivisionError),
        ("raise ValueError('no')", ValueError),
        ("raise SystemExit(3)", SystemExit),
        ("raise KeyboardInterrupt", KeyboardInterrupt),
        ("raise GeneratorExit", GeneratorExit),
        ("raise StopIteration", StopIteration),
        ("raise StopAsyncIteration", StopAsyncIteration),
        ("import asyncio\nraise asyncio.CancelledError", asyncio.CancelledError),
        ("raise BaseException", BaseException),
        ("raise BaseExceptionGroup('g', [SystemExit(1)])", BaseExceptionGroup),
        ("class A:\n    def __await__(self): raise KeyError\nA()", KeyError),
        ("class A:\n    def __await__(self): return 5\nA()", TypeError),
        ("undefined_name", NameError),
        ("import no_such_module_at_all", ModuleNotFoundError),
    ],
)
async def test_everything_is_caught(session, program, kind):
    """Whatever a program raises is returned: nothing may leave the task and end the loop."""
    assert kind is type(await session.error(program))


async def test_no_completion_with_an_error(session):
    """Names that were bound before the error stay."""
    await session.error("x = 1\n1 / 0\nx = 2")
    assert (1,) == await session.value("x")


async def test_the_traceback_begins_in_the_program(session):
    """The stored frames are the program's, so that the exception keeps nothing of the worker alive."""
    error = await session.error("def f(): raise ValueError\nf()")
    first = error.__traceback__
    assert ["<program 1>"] * 2 == [
        first.tb_frame.f_code.co_filename,
        first.tb_next.tb_frame.f_code.co_filename,
    ]


async def test_an_exception_that_hides_its_traceback(session):
    """A class that shadows `__traceback__` does not break the worker."""
    error = await session.error(
        "class E(Exception):\n    __traceback__ = property(lambda self: 1 / 0)\nraise E('no')"
    )
    assert "E" == type(error).__name__


async def test_a_held_interrupt_is_raised_in_the_program(session):
    """A stop that came while the worker was busy is raised before the first line."""
    session.interrupts.held = True
    assert InterruptedTask is type(await session.error("x = 1"))
    assert "x" not in session.globals
    assert () == await session.value("x = 1")


# ---------------------------------------------------------------------- source lines

SEPARATORS = {
    "form-feed": "\x0c",
    "file": "\x1c",
    "next-line": "\x85",
    "line": "\u2028",
    "paragraph": "\u2029",
}


@pytest.mark.parametrize("char", SEPARATORS.values(), ids=SEPARATORS)
async def test_tracebacks_show_the_right_line(session, char):
    """Characters that `str.splitlines` takes for line ends, and Python does not, move no source line."""
    error = await session.error(f"x = 'a{char}b'\ny = 2\nraise ValueError(x)\nz = 3")
    assert "\n    raise ValueError(x)\n" in program_traceback(error)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_every_kind_of_line_end(session, end):
    """Lines may end in any of Python's three ways."""
    error = await session.error(end.join(["x = 1", "y = 2", "raise ValueError(x)", "z = 3"]))
    assert "line 3, in <module>\n    raise ValueError(x)\n" in program_traceback(error)


async def test_sources_of_many_programs_are_kept(session):
    """The source lines of the last 200 programs are kept, those of older ones are dropped."""
    for _ in range(SOURCES_KEPT + 5):
        session.programs.compile("1")
    kept = [int(name.split()[1][:-1]) for name in linecache.cache if name.startswith("<program ")]
    assert list(range(6, SOURCES_KEPT + 6)) == sorted(kept)


async def test_source_lines_outlive_a_check_of_the_cache(session):
    """`linecache.checkcache`, which libraries call, drops no source of a program."""
    await session.value("def f():\n    raise ValueError('late')")
    linecache.checkcache()
    assert "    raise ValueError('late')\n" in program_traceback(await session.error("f()"))


# ---------------------------------------------------------------------- awaitable


class Evil(type):
    """A metaclass whose every look is an error."""

    def __getattribute__(cls, name):
        raise AssertionError(name)


class Silent(metaclass=Evil):
    """An object that must not be asked anything."""

    def __getattribute__(self, name):
        raise AssertionError(name)


class Awaitable:
    """Has `__await__`."""

    def __await__(self):
        yield


class Inherits(Awaitable):
    """Has it from its parent."""


class OnInstance:
    """Has it where Python does not look."""

    def __init__(self):
        self.__await__ = lambda: iter(())


@types.coroutine
def old_coroutine():
    """A coroutine made of a generator."""
    yield


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Awaitable(), True),
        (Inherits(), True),
        (old_coroutine(), True),
        (OnInstance(), False),
        (Awaitable, False),
        ((x for x in ""), False),
        (None, False),
        (5, False),
        (print, False),
    ],
)
def test_is_awaitable(value, expected):
    """What `await` takes is found by its type, as `await` finds it."""
    assert expected is is_awaitable(value)


def test_asking_runs_no_code():
    """To find out whether a value is awaitable, no code of the program is run."""
    assert [False, False] == [is_awaitable(Silent()), is_awaitable(Silent)]


# ---------------------------------------------------------------------- forks


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("pass", 10),
        ("sys.exit(7)", 7),
        ("sys.exit()", 0),
        ("sys.exit('a text')", 1),
        ("sys.exit(True)", 1),
        ("raise ValueError", 1),
        ("os._exit(5)", 5),
    ],
)
def test_a_forked_child_ends_with_the_program(line, code):
    """A forked child that comes back out of the program ends, with the code that Python would give it."""
    line = "sys.exit(10)" if line == "pass" else line
    command = [sys.executable, "-c", FORK % line]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"(({code},), None)\n" == done.stdout


# ---------------------------------------------------------------------- between programs


@pytest.mark.parametrize(
    "namespace",
    [
        {},
        {"__builtins__": None},
        {"__builtins__": {}},
        {"__builtins__": vars(builtins)},
        {"__builtins__": 5, "x": 1},
        {"__builtins__": builtins},
    ],
)
def test_a_namespace_is_repaired(namespace):
    """A namespace always has the builtins and a name; whatever else is in it stays."""
    expected = {**namespace, "__builtins__": builtins, "__name__": "__main__"}
    repair_namespace(namespace)
    assert expected == namespace


def test_a_name_of_the_programs_own_stays():
    """A program may call itself what it likes."""
    namespace = {"__name__": "mine"}
    repair_namespace(namespace)
    assert "mine" == namespace["__name__"]


@pytest.mark.parametrize("code", [None, 0, 3, "text"])
def test_leave_raises_system_exit(code):
    """`exit(code)` ends the program by SystemExit."""
    with pytest.raises(SystemExit) as caught:
        leave(code)
    assert code == caught.value.code


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), (("prompt",), {}), ((1, 2), {"stream": None})])
def test_stdin_is_refused(args, kwargs):
    """A function that would read from a terminal says what to do instead, whatever it is called with."""
    with pytest.raises(RuntimeError, match=r"input.. needs a person at a terminal.*use a binding"):
        refuse_stdin("input()")(*args, **kwargs)
