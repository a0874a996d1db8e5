"""The text of an uncaught exception: program frames only, bounded, and nothing that it holds can break it."""

from __future__ import annotations

import json
import linecache
import os
import sys
import tempfile

import pytest

from ptc_kernel.kernel.render import MOST_FRAMES, program_traceback

FILE = "<program 1>"
HEAD = "Traceback (most recent call last):\n"
CAUSE = "\n\nThe above exception was the direct cause of the following exception:\n\n"
CONTEXT = "\n\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.fixture
def raised(monkeypatch):
    """Run a program and return what it raised."""

    def run(program, name=FILE, **globals_):
        lines = program.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, name, (len(program), None, lines, name))
        try:
            exec(compile(program, name, "exec"), {"__name__": "__main__", **globals_})
        except BaseException as error:
            return error
        raise AssertionError("the program raised nothing")

    return run


def frame(line, function, source, file=FILE):
    """One frame, as Python prints it."""
    return f'  File "{file}", line {line}, in {function}\n    {source}\n'


# ---------------------------------------------------------------------- frames


def test_a_traceback_is_what_python_prints(raised):
    """The text is Python's own: head, frames with their lines, type and message; without a last newline."""
    text = program_traceback(raised("x = 1\nraise ValueError('no')\n"))
    assert HEAD + frame(2, "<module>", "raise ValueError('no')") + "ValueError: no" == text


def test_functions_of_the_program_have_frames(raised):
    """Every frame of the program is there, the innermost last."""
    program = "def f():\n    raise KeyError('k')\ndef g():\n    f()\ng()\n"
    expected = frame(5, "<module>", "g()") + frame(4, "g", "f()") + frame(2, "f", "raise KeyError('k')")
    assert f"{HEAD}{expected}KeyError: 'k'" == program_traceback(raised(program))


def test_frames_of_libraries_are_left_out(raised):
    """Between the program's frames and below them, frames of other files are not shown."""
    text = program_traceback(raised("sorted([1], key=lambda _: json.loads('x'))", json=json))
    assert 2 == text.count(f'  File "{FILE}", line 1, in ')
    assert 2 == text.count("  File ")
    assert text.endswith("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)")


def test_frames_of_earlier_programs_are_shown(raised):
    """A function that an earlier program defined is the program's own code."""
    program = (
        "def f():\n    raise ValueError('no')\ntry:\n    f()\nexcept ValueError:\n    raise SystemExit(f)"
    )
    function = raised(program, "<program 1>").args[0]
    text = program_traceback(raised("f()", "<program 2>", f=function))
    expected = frame(1, "<module>", "f()", "<program 2>") + frame(2, "f", "raise ValueError('no')")
    assert f"{HEAD}{expected}ValueError: no" == text


def test_an_exception_that_was_never_raised():
    """An exception without a traceback is its type and message."""
    assert "ValueError: no" == program_traceback(ValueError("no"))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "SystemExit: 3"),
        (ValueError(), "ValueError"),
        (ValueError("two\nlines"), "ValueError: two\nlines"),
        (ValueError("\u20ac \U0001f600"), "ValueError: \u20ac \U0001f600"),
        (ValueError("a\ud800b"), "ValueError: a\ud800b"),
        (json.JSONDecodeError("bad", "x", 0), "json.decoder.JSONDecodeError: bad: line 1 column 1 (char 0)"),
    ],
    ids=repr,
)
def test_type_and_message(error, text):
    """The last line has the type, with its module when it is no builtin, and the message as it is."""
    assert text == program_traceback(error)


def test_notes_are_shown(raised):
    """Notes follow the message."""
    program = "e = ValueError('no')\ne.add_note('look at x')\ne.add_note('and y')\nraise e"
    assert program_traceback(raised(program)).endswith("ValueError: no\nlook at x\nand y")


def test_a_syntax_error_points_at_the_line():
    """A program that does not compile is shown with its place, and without a frame of the compiler."""
    with pytest.raises(SyntaxError) as caught:
        compile("x = 1\nx = = 2\n", FILE, "exec")
    text = program_traceback(caught.value)
    assert [f'  File "{FILE}", line 2', "    x = = 2", "        ^"] == text.splitlines()[-4:-1]
    assert text.endswith("SyntaxError: invalid syntax")
    assert "test_render" not in text


# ---------------------------------------------------------------------- chains and groups


def test_a_cause_is_shown(raised):
    """`raise ... from ...` shows both, each with program frames only."""
    program = "try:\n    json.loads('x')\nexcept ValueError as e:\n    raise RuntimeError('no') from e"
    first, second = program_traceback(raised(program, json=json)).split(CAUSE)
    assert [1, 1] == [first.count("  File "), second.count("  File ")]
    assert HEAD + frame(4, "<module>", "raise RuntimeError('no') from e") + "RuntimeError: no" == second


def test_a_context_is_shown(raised):
    """An exception in an `except` shows what was being handled."""
    program = "try:\n    raise KeyError(1)\nexcept KeyError:\n    raise ValueError(2)"
    first, second = program_traceback(raised(program)).split(CONTEXT)
    assert HEAD + frame(2, "<module>", "raise KeyError(1)") + "KeyError: 1" == first
    assert HEAD + frame(4, "<module>", "raise ValueError(2)") + "ValueError: 2" == second


def test_from_none_hides_the_context(raised):
    """`raise ... from None` shows the last exception alone."""
    program = "try:\n    raise KeyError(1)\nexcept KeyError:\n    raise ValueError(2) from None"
    expected = HEAD + frame(4, "<module>", "raise ValueError(2) from None") + "ValueError: 2"
    assert expected == program_traceback(raised(program))


def test_a_group_shows_its_members(raised):
    """Every member of a group is shown with its own frames, library frames left out."""
    program = (
        "errors = []\n"
        "for text in 'xy':\n"
        "    try:\n"
        "        json.loads(text)\n"
        "    except ValueError as e:\n"
        "        errors.append(e)\n"
        "raise ExceptionGroup('both', [*errors, ExceptionGroup('inner', [KeyError('k')])])"
    )
    text = program_traceback(raised(program, json=json))
    assert "ExceptionGroup: both (3 sub-exceptions)" in text
    assert "ExceptionGroup: inner (1 sub-exception)" in text
    assert (3, 3) == (text.count("  File "), text.count(f'  File "{FILE}"'))
    assert (2, 1) == (text.count("JSONDecodeError: Expecting value"), text.count("KeyError: 'k'"))


def test_an_exception_that_is_its_own_context(raised):
    """A circle of causes ends."""
    error = raised("raise ValueError('no')")
    error.__cause__ = error
    assert program_traceback(error).endswith("ValueError: no")


# ---------------------------------------------------------------------- bounds


def test_a_deep_recursion_is_bounded(raised):
    """Of a deep recursion the outermost and the innermost frames are shown."""
    program = "def even(n):\n    return odd(n + 1)\ndef odd(n):\n    return even(n + 1)\neven(0)"
    text = program_traceback(raised(program))
    assert MOST_FRAMES == text.count("  File ")
    assert text.startswith(HEAD + frame(5, "<module>", "even(0)"))
    assert "RecursionError: maximum recursion depth exceeded" == text.splitlines()[-1][:48]


def test_a_direct_recursion_is_short(raised):
    """A function that calls itself is shown three times, then counted, as Python does."""
    text = program_traceback(raised("def f():\n    f()\nf()"))
    assert "[Previous line repeated" in text
    assert text.count("  File ") <= 2 * 4


def test_a_long_chain_ends(raised):
    """A chain of thousands of contexts is no error, and the last exception is the last line."""
    program = (
        "error = None\n"
        "for number in range(5000):\n"
        "    new = ValueError(number)\n"
        "    new.__cause__ = error\n"
        "    error = new\n"
        "raise error"
    )
    assert program_traceback(raised(program)).endswith("\nValueError: 4999")


def test_deep_and_wide_groups_are_bounded():
    """Groups in groups, and groups of thousands, are cut by Python's own limits."""
    deep = wide = ExceptionGroup("wide", [ValueError(number) for number in range(10_000)])
    for _ in range(100):
        deep = ExceptionGroup("deep", [deep])
    assert [True, True] == [100 < len(program_traceback(group)) < 5000 for group in (deep, wide)]


# ---------------------------------------------------------------------- nothing of this machine


def test_no_escape_byte(raised, monkeypatch):
    """The text has no colours, whatever the environment asks for."""
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PYTHON_COLORS"):
        monkeypatch.setenv(name, "1")
    error = raised("def f():\n    return 1 / 0\nf()")
    syntax = SyntaxError("bad", (FILE, 1, 1, "x = ="))
    group = ExceptionGroup("both", [error, syntax])
    assert [] == [item for item in (error, syntax, group) if "\x1b" in program_traceback(item)]


def test_no_folder_of_the_interpreter(raised):
    """An exception that names a file of an installed module does not say where it is installed."""
    text = program_traceback(raised("from json import no_such_name", json=json))
    assert "ImportError: cannot import name 'no_such_name' from 'json'" in text
    assert [] == [folder for folder in (os.path.dirname(os.__file__), sys.prefix) if folder in text]


def test_worker_frames_are_left_out(raised):
    """A program that is called back from the worker shows its own frames only."""
    text = program_traceback(raised("f(1, 2)", f=lambda one, two: json.loads(5)))
    assert (1, True) == (text.count("  File "), f'  File "{FILE}", line 1' in text)
    assert tempfile.gettempdir() not in text


# ---------------------------------------------------------------------- hostile exceptions

HOSTILE = {
    "str-raises": "class E(Exception):\n    def __str__(self): raise ValueError('ha')",
    "str-is-no-str": "class E(Exception):\n    def __str__(self): return 5",
    "str-interrupts": "class E(Exception):\n    def __str__(self): raise KeyboardInterrupt",
    "str-exits": "class E(Exception):\n    def __str__(self): raise SystemExit(1)",
    "str-recurses": "class E(Exception):\n    def __str__(self): return str(self)",
    "repr-raises": "class E(Exception):\n    def __repr__(self): raise ValueError('ha')",
    "notes-raise": "class E(Exception):\n    @property\n    def __notes__(self): raise ValueError('ha')",
    "notes-exit": "class E(Exception):\n    @property\n    def __notes__(self): raise SystemExit(1)",
    "notes-are-no-list": "class E(Exception):\n    __notes__ = 5",
    "notes-are-no-texts": "class E(Exception):\n    __notes__ = [5, None, object()]",
    "cause-raises": "class E(Exception):\n    @property\n    def __cause__(self): raise ValueError('ha')",
    "cause-is-nothing": "class E(Exception):\n    __cause__ = 5",
    "traceback-raises": "class E(Exception):\n    @property\n    def __traceback__(self): raise ValueError",
    "traceback-is-nothing": "class E(Exception):\n    __traceback__ = 5",
    "module-is-no-text": "class E(Exception):\n    __module__ = 5",
    "class-lies": "class E(Exception):\n    __class__ = int",
    "getattribute-raises": "class E(Exception):\n    def __getattribute__(self, name): raise SystemExit(1)",
    "equality-raises": "class E(Exception):\n    def __eq__(self, other): raise E\n    __hash__ = None",
    "not-truthy": "class E(Exception):\n    def __bool__(self): raise ValueError('ha')",
    "group-lies": "class E(ExceptionGroup):\n    exceptions = 5\n    def __new__(cls):\n"
    "        return super().__new__(cls, 'g', [ValueError(1)])",
    "text-subclass": "class S(str):\n    def __format__(self, spec): raise ValueError\n"
    "class E(Exception):\n    def __str__(self): return S('sub')",
}


@pytest.mark.parametrize("program", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_exception_is_still_a_text(raised, program):
    """Whatever an exception does when it is looked at, there is a text, plain and not empty."""
    text = program_traceback(raised(f"{program}\nraise E()"))
    assert (str, True) == (type(text), len(text) > 0)


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("str-raises", "E: <exception str() failed>"),
        ("str-interrupts", "E: <exception str() failed>"),
        ("repr-raises", "E"),
        ("notes-are-no-list", "E\n5"),
        ("text-subclass", "E: sub"),
    ],
)
def test_what_can_be_told_is_told(raised, name, ending):
    """Where only a part of an exception cannot be printed, the rest of it is."""
    text = program_traceback(raised(f"{HOSTILE[name]}\nraise E()"))
    assert text.startswith(HEAD + f'  File "{FILE}", line ')
    assert text.endswith((f"\n{ending}", f"\n__main__.{ending}"))


def test_an_exception_of_another_type_than_it_says():
    """The type that is named is the real one."""

    class Disguised(ValueError):
        __class__ = property(lambda self: KeyError)

    assert program_traceback(Disguised("no")).endswith("Disguised: no")
