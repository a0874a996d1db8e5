"""Area B: names of bindings. What is invalid raises at run and starts no process; what is legal works."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ptc_kernel import (
    AbortController,
    PtcBindingErrorClass,
    PtcBindingNamespace,
    PtcRunRequest,
    UsageError,
    UsageTypeError,
    UsageValueError,
)
from ptc_kernel.protocol.names import PORTABLE_RESERVED_WORDS
from tests.support import children, echo, entries, kind, namespace, text


def words(listing):
    """The words of a listing."""
    return listing.split()


ECMASCRIPT = words(
    "await break case catch class const continue debugger default delete do else enum export extends "
    "false finally for function if import in instanceof new null return super switch this throw true try "
    "typeof var void while with yield let static implements interface package private protected public "
    "arguments eval"
)
PYTHON = words(
    "False None True and as assert async def del elif except from global is lambda nonlocal not or pass "
    "raise match type _"
)
BACKEND = ["console", "inspect", "Image", "__dsh_main__", "__builtins__", "__name__", "__debug__"]
MALFORMED = [
    "not valid!",
    "1bad",
    "",
    "$tools",
    "a$b",
    "a-b",
    "\u00e9",
    "\u30c4",
    "tools\n",
    " a",
    "a.b",
    "\uff41",
    "a\0",
]
PORTABLE = [
    "None_",
    "Await",
    "self",
    "undefined",
    "get",
    "image",
    "__x__",
    "NaN",
    "of",
    "set",
    "exec",
    "object",
    "a1_B",
]
PYTHONIC = [
    "print",
    "asyncio",
    "json",
    "dict",
    "list",
    "len",
    "str",
    "type_",
    "Exception",
    "RuntimeError",
    "sys",
]
IPYTHONIC = words(
    "In Out get_ipython exit quit __ ___ _1 _i _ii _ih _oh _dh __doc__ __spec__ __file__ __loader__ display"
)
LEGAL = PORTABLE + PYTHONIC + IPYTHONIC
MEMBERS = [
    "",
    "name",
    "message",
    "stack",
    "args",
    "with_traceback",
    "add_note",
    "__dict__",
    "__x__",
    "_____",
    "__ __",
]
USABLE = [
    "__",
    "____",
    "__mid",
    "mid__",
    "_p",
    "tool-name",
    " ",
    "code",
    "toolName",
    "class",
    "__x__\n",
    "\u00e9",
    "1",
    "a.b",
]


CATCHES = """\
try:
    1 / 0
except Exception:
    seen = 'the injected class'
except ArithmeticError:
    seen = 'own'
seen
"""

CATCHES_VALUE_ERROR = """\
try:
    await tools.f({})
except ValueError as e:
    seen = [e.toolName, str(e), type(e).__name__]
seen
"""


def error_class(name="ToolCallError", member="toolName", owner="tools"):
    """A namespace whose error class has this name and this property."""
    return namespace(owner, (name, member), echo=echo)


async def refused(runtime, *namespaces, **fields):
    """The exception with which run and stream refuse these bindings; checks that nothing was started."""
    before = children()
    spec = runtime.resolve(PtcRunRequest(program="1", bindings=namespaces, **fields))
    with pytest.raises(UsageError) as caught:
        await runtime.run(spec)
    with pytest.raises(type(caught.value)) as again:
        runtime.stream(spec)
    assert str(caught.value) == str(again.value)
    assert before == children()
    return caught.value


async def fail(_):
    """A handler that rejects."""
    raise ValueError("nope")


# ---------------------------------------------------------------------- refused


@pytest.mark.core
@pytest.mark.parametrize("name", MALFORMED, ids=lambda name: f"B01-{name!a}")
async def test_malformed_names(runtime, name):
    """B01: what is no ASCII identifier is refused as global and as error class."""
    for bindings in (namespace(name), error_class(name)):
        error = await refused(runtime, bindings)
        assert isinstance(error, UsageValueError)
        assert repr(name) in str(error)


@pytest.mark.core
def test_reserved_words_of_both_languages():
    """B05: the 48 words of ECMAScript and the 23 of Python are all that is reserved."""
    assert (48, 23) == (len(ECMASCRIPT), len(PYTHON))
    assert {*ECMASCRIPT, *PYTHON} == PORTABLE_RESERVED_WORDS


@pytest.mark.core
@pytest.mark.parametrize("name", ECMASCRIPT + PYTHON, ids=lambda name: f"B03-B05-{name}")
async def test_reserved_words(runtime, name):
    """B03, B05: each reserved word of either language is refused as global and as error class."""
    for bindings in (namespace(name), error_class(name)):
        error = await refused(runtime, bindings)
        assert isinstance(error, UsageValueError)
        assert repr(name) in str(error)


@pytest.mark.core
@pytest.mark.parametrize("name", BACKEND, ids=lambda name: f"B04-{name}")
async def test_globals_of_the_backend(runtime, name):
    """B04: the seven names of the backend are refused as global and as error class."""
    for bindings in (namespace(name), error_class(name)):
        error = await refused(runtime, bindings)
        assert isinstance(error, UsageValueError)
        assert repr(name) in str(error)


@pytest.mark.core
async def test_a_global_is_declared_once(runtime):
    """B07: two namespaces cannot have one name, whatever is between them."""
    assert "'tools'" in str(await refused(runtime, namespace(error=None), namespace(error=None)))
    bindings = namespace(error=None), namespace("other"), namespace(error=("Other", "x"))
    assert "'tools'" in str(await refused(runtime, *bindings))


@pytest.mark.core
@pytest.mark.parametrize(
    "namespaces",
    [
        pytest.param([error_class("tools")], id="B08-its-own-global"),
        pytest.param([error_class("later"), namespace("later", None)], id="B08-a-later-global"),
        pytest.param([namespace("earlier", None), error_class("earlier")], id="B08-an-earlier-global"),
        pytest.param([error_class(), error_class(owner="other")], id="B08-one-class-twice"),
    ],
)
async def test_an_error_class_has_a_name_of_its_own(runtime, namespaces):
    """B08: an error class is named like no global and like no other error class."""
    assert "error class" in str(await refused(runtime, *namespaces))


@pytest.mark.core
@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: f"B10-{member!a}")
async def test_unusable_member_properties(runtime, member):
    """B10, B11: a property that is empty, a dunder, or an attribute that errors have is refused."""
    error = await refused(runtime, error_class(member=member))
    assert isinstance(error, UsageValueError)
    assert repr(member) in str(error)


async def test_order_of_checks(runtime):
    """B13: names come in the order of the namespaces, globals before error classes before functions."""
    broken = namespace("console", ("await", ""), f=5)
    assert "'1bad'" in str(await refused(runtime, namespace("1bad"), broken))
    assert "'console'" in str(await refused(runtime, broken, namespace("1bad")))
    assert "'1bad'" in str(await refused(runtime, error_class("await"), namespace("1bad")))
    assert "'await'" in str(await refused(runtime, namespace("a", ("await", ""), f=5)))
    assert "'name'" in str(await refused(runtime, namespace("a", ("Error", "name"), f=5)))


async def test_misuse_beats_abort(runtime):
    """B13: an invalid name raises even when the signal has fired already."""
    controller = AbortController()
    controller.abort("too late")
    assert "'console'" in str(await refused(runtime, namespace("console"), signal=controller.signal))


class Hostile(Mapping):
    """A mapping that raises when a member, or the list of members, is read."""

    def __init__(self, on_iteration):
        self.problem = OSError("the accessor is broken")
        self.on_iteration = on_iteration

    def __iter__(self):
        if self.on_iteration:
            raise self.problem
        return iter(["f"])

    def __len__(self):
        return 1

    def __getitem__(self, name):
        raise self.problem


@pytest.mark.parametrize("on_iteration", [False, True])
async def test_accessor_that_raises(runtime, on_iteration):
    """B14: run raises what an accessor of the functions raises, and starts nothing."""
    functions = Hostile(on_iteration)
    before = children()
    bindings = [namespace("good", None, f=echo), PtcBindingNamespace(global_name="bad", functions=functions)]
    with pytest.raises(OSError, match="the accessor is broken") as caught:
        await runtime.run(runtime.resolve(PtcRunRequest(program="1", bindings=bindings)))
    assert functions.problem is caught.value
    assert before == children()


@pytest.mark.parametrize("member", [5, None, "echo", [], object()])
async def test_member_that_is_not_callable(runtime, member):
    """B17: a member that cannot be called raises a TypeError that names it."""
    error = await refused(runtime, namespace("tools", f=echo, broken=member))
    assert isinstance(error, TypeError)
    assert "broken" in str(error)


@pytest.mark.parametrize(
    "bindings",
    [
        pytest.param(PtcBindingNamespace(global_name=5, functions={}), id="global"),
        pytest.param(PtcBindingNamespace(global_name="tools", functions={5: echo}), id="member"),
        pytest.param(
            PtcBindingNamespace(global_name="tools", functions={}, error_class=ValueError), id="class"
        ),
        pytest.param(
            PtcBindingNamespace(
                global_name="tools",
                functions={},
                error_class=PtcBindingErrorClass(name=None, member_name_property="x"),
            ),
            id="class-name",
        ),
        pytest.param(
            PtcBindingNamespace(
                global_name="tools",
                functions={},
                error_class=PtcBindingErrorClass(name="E", member_name_property=1),
            ),
            id="property",
        ),
        pytest.param({"tools": {}}, id="namespace"),
    ],
)
async def test_wrong_types(runtime, bindings):
    """B17: a name that is no str, and a namespace or error class of another type, raise a TypeError."""
    assert isinstance(await refused(runtime, bindings), UsageTypeError)


async def test_runtime_works_after_misuse(session):
    """B14: a run that raised leaves the owner's environment as it was."""
    assert 1 == await session.value("x = 1\nx")
    pid = await session.pid()
    with pytest.raises(UsageValueError):
        await session.run("x = 2", namespace("console"))
    assert 1 == await session.value("x")
    assert pid == await session.pid()


# ---------------------------------------------------------------------- legal


@pytest.mark.core
async def test_legal_globals(session):
    """B06, 4.8: a name that is legal elsewhere is a working global here, whatever it means in Python."""
    bindings = [namespace(name, None, echo=echo) for name in LEGAL]
    program = "".join(f"assert {name!r} == await {name}.echo({name!r})\n" for name in LEGAL) + "True"
    assert await session.value(program, *bindings)
    result = await session.run("['print' in globals(), 'In' in globals(), print('x'), len([1])]")
    assert [False, False, None, 1] == result.value
    assert [("stdout", "x\n")] == entries(result)


async def test_legal_error_classes(session):
    """B06, 4.8: each of these names is as good for an error class, and is gone in the next run."""
    bindings = [namespace(f"n{index}", (name, "toolName"), fail=fail) for index, name in enumerate(LEGAL)]
    program = "seen = []\n" + "".join(
        f"try:\n    await n{index}.fail()\n"
        f"except {name} as error:\n    seen += [[{name}.__name__, error.toolName]]\n"
        for index, name in enumerate(LEGAL)
    )
    assert [[name, "fail"] for name in LEGAL] == await session.value(f"{program}seen", *bindings)
    assert await session.value("Exception is __import__('builtins').Exception and 'self' not in globals()")


@pytest.mark.core
async def test_namespace_called_like_an_error_class(session):
    """B09: a namespace may be called ToolCallError when no error class is."""
    program = "type(ToolCallError).__name__ != 'type'"
    assert await session.value(program, namespace("ToolCallError", None, echo=echo)) is True
    assert (
        await session.value("type(ToolCallError).__name__ == 'type'", namespace("tools", echo=echo)) is True
    )


async def test_usable_member_properties(session):
    """B11, B12: every other property carries the member's name, readable through getattr."""
    bindings = [
        namespace(f"n{index}", (f"E{index}", member), fail=fail) for index, member in enumerate(USABLE)
    ]
    program = "seen = []\n" + "".join(
        f"try:\n    await n{index}.fail()\nexcept E{index} as error:\n"
        f"    seen += [[getattr(error, {member!r}), str(error), vars(error) == {{{member!r}: 'fail'}}]]\n"
        for index, member in enumerate(USABLE)
    )
    assert [["fail", "nope", True]] * len(USABLE) == await session.value(f"{program}seen", *bindings)


async def test_namespace_without_functions(session):
    """B16: an empty namespace exists, has nothing, and a missing member is an attribute or key error."""
    empty = namespace()
    program = "[tools is not None, bool(tools), len(tools), list(tools), dir(tools), 'x' in tools]"
    assert [True, True, 0, [], [], False] == await session.value(program, empty)
    result = await session.run("tools.x", empty)
    assert "exception" == kind(result)
    assert "AttributeError" in result.error.message
    assert "'x'" in result.error.message
    result = await session.run("tools['x']", empty)
    assert "exception" == kind(result)
    assert "KeyError" in result.error.message


async def test_builtins_and_modules_as_names(session):
    """B19: namespaces called print, json, asyncio and len, and a class Exception, break nothing."""
    bindings = [
        namespace("print", ("Exception", "toolName"), echo=echo, fail=fail),
        *(namespace(name, None, echo=echo) for name in ("json", "asyncio", "len")),
    ]
    assert {"a": 1} == await session.value("await print.echo({'a':1})", *bindings)
    program = "[await json.echo({'b': [1.5]}), await asyncio.echo('c'), await len.echo(None)]"
    assert [{"b": [1.5]}, "c", None] == await session.value(program, *bindings)

    result = await session.run(
        "import sys\nsys.stdout.write('out')\ndef f():\n    return 1 / 0\nf()", *bindings
    )
    assert "exception" == kind(result)
    assert "ZeroDivisionError: division by zero" in result.error.message
    assert "line 4, in f" in result.error.message
    assert "out" == text(result, "stdout")

    result = await session.run("await print.fail()", *bindings)
    assert "exception" == kind(result)
    assert "Exception: nope" in result.error.message

    assert "own" == await session.value(CATCHES, *bindings)
    result = await session.run("{1, 2}", *bindings)
    assert "invalid-output" == kind(result)
    assert "set" in result.error.message

    program = "import json, asyncio\nawait asyncio.sleep(0)\nprint(len(json.dumps([1])))\n"
    result = await session.run(f"{program}issubclass(ValueError, Exception)")
    assert result.value is True
    assert [("stdout", "3\n")] == entries(result)


async def test_error_class_called_like_a_builtin(session):
    """B20: an injected class called ValueError is what `except ValueError` catches, in that run only."""
    bindings = namespace("tools", ("ValueError", "toolName"), f=fail)
    assert ["f", "nope", "ValueError"] == await session.value(CATCHES_VALUE_ERROR, bindings)
    program = (
        "import builtins\n[ValueError is builtins.ValueError, issubclass(ValueError, builtins.Exception)]"
    )
    assert [False, True] == await session.value(program, bindings)
    assert [True, True] == await session.value(program)


# ---------------------------------------------------------------------- captured once


class Counted(Mapping):
    """A mapping that counts how often it is listed and how often each member is read."""

    def __init__(self, **functions):
        self.functions = functions
        self.listed = 0
        self.reads = []

    def __iter__(self):
        self.listed += 1
        return iter(list(self.functions))

    def __len__(self):
        return len(self.functions)

    def __getitem__(self, name):
        self.reads.append(name)
        return self.functions[name]


async def test_functions_are_read_once(session):
    """B14, 4.7: the mapping is listed once and each member read once; later calls use what was read."""
    functions = Counted(echo=echo, other=echo)
    bindings = PtcBindingNamespace(global_name="tools", functions=functions)
    assert [1, 2, 3] == await session.value("[await tools.echo(n) for n in (1, 2, 3)]", bindings)
    assert 1 == functions.listed
    assert ["echo", "other"] == functions.reads


async def test_functions_are_read_by_stream_at_its_call(runtime):
    """B14, 4.7: what the caller does to the mapping after stream was called changes nothing."""
    functions = {"echo": echo}
    bindings = [PtcBindingNamespace(global_name="tools", functions=functions)]
    program = "[await tools.echo(1), list(tools)]"
    events = runtime.stream(runtime.resolve(PtcRunRequest(program=program, bindings=bindings)))
    functions.clear()
    functions["other"] = fail
    assert [1, ["echo"]] == [event async for event in events][-1].result.value


async def test_functions_changed_during_the_run(session):
    """B14, 4.7: a handler that changes the mapping changes nothing for the run that it serves."""
    functions = {"echo": echo}

    async def change(_):
        functions.clear()
        functions["late"] = echo

    functions["change"] = change
    bindings = PtcBindingNamespace(global_name="tools", functions=functions)
    program = "await tools.change()\n[await tools.echo(1), sorted(tools), hasattr(tools, 'late')]"
    assert [1, ["change", "echo"], False] == await session.value(program, bindings)
    assert ["late"] == await session.value("sorted(tools)", bindings)
