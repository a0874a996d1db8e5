"""Bindings: conformance area E and section 7 of the contract, with real kernels."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ptc_kernel import (
    AbortController,
    CallEvent,
    OutputEvent,
    PtcCallContext,
    PtcRunRequest,
    ResultEvent,
    StateOwner,
)
from tests.support import Session, echo, entries, kind, namespace, text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from ptc_kernel import JupyterPtcRuntime, PtcRunResult

CAUGHT = """\
try:
    await tools.f({})
except ToolCallError as e:
    caught = [str(e), e.toolName, type(e).__name__]
else:
    caught = 'no rejection'
caught
"""


class Gate:
    """A handler that says when it began, and ends when it is told to."""

    def __init__(self, answer: Any = "late") -> None:
        self.answer = answer
        self.began = asyncio.Event()
        self.opened = asyncio.Event()
        self.ended = asyncio.Event()
        self.cancelled = False
        self.context: PtcCallContext | None = None

    async def __call__(self, argument: Any) -> Any:
        """Wait for `opened`."""
        self.context = PtcCallContext.current()
        self.began.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.ended.set()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Counter:
    """A handler that answers its argument and counts how many of it run at a time.

    The first `hold` calls wait until as many run, which shows that so many can.
    """

    def __init__(self, hold: int = 1) -> None:
        self.hold = hold
        self.running = self.peak = 0
        self.full = asyncio.Event()
        self.seen: list[Any] = []

    async def __call__(self, argument: Any) -> Any:
        """Answer the argument."""
        self.seen.append(argument)
        self.running += 1
        self.peak = max(self.peak, self.running)
        if self.running >= self.hold:
            self.full.set()
        await self.full.wait()
        await asyncio.sleep(0)
        self.running -= 1
        return argument


def recording() -> tuple[list[Any], Callable[[Any], Coroutine[Any, Any, Any]]]:
    """A list, and a handler that appends its arguments to it and answers them."""
    seen: list[Any] = []

    async def record(argument: Any) -> Any:
        seen.append(argument)
        return argument

    return seen, record


def raising(error: BaseException) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    """A handler that raises this."""

    async def fail(argument: Any) -> Any:
        raise error

    return fail


def loop_errors() -> list[dict[str, Any]]:
    """What asyncio reports from now on to the exception handler of the test's loop."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    return reported


# ---------------------------------------------------------------------- calls and answers


@pytest.mark.core
async def test_call_and_answer(session: Session) -> None:
    """E01: a call reaches its handler once, with its argument, and returns the answer."""
    seen, record = recording()

    assert {"n": 1} == await session.value("await tools.echo({'n':1})", namespace(echo=record))
    assert [{"n": 1}] == seen


async def test_any_json_value_crosses_both_ways(session: Session) -> None:
    """E01: every kind of JSON value arrives as it is at the handler, and comes back."""
    values = [None, True, False, 0, -7, 2**60, 0.0, 1.5, 1e300, "", "\ud800", "é\0\U0001f600", [], {}]
    values += [[1, [2, {"a": None}]], {"": {}, "b": [], "a": [[]]}]
    seen, record = recording()
    program = f"""\
values = {values!r}
answers = [await tools.f(value) for value in values] + [tools.f.sync(value) for value in values]
[repr(answers) == repr(values * 2), answers]
"""

    assert repr([True, values * 2]) == repr(await session.value(program, namespace(f=record)))
    assert repr(values * 2) == repr(seen)


@pytest.mark.core
async def test_typed_rejection(session: Session) -> None:
    """E02: a failing handler raises the namespace's class, with its name, text and member."""
    program = """\
try:
    await tools.f({})
except ToolCallError as e:
    facts = [isinstance(e, ToolCallError), isinstance(e, Exception), type(e).__name__, e.toolName, str(e)]
facts
"""
    tools = namespace(f=raising(ValueError("nope")))

    assert [True, True, "ToolCallError", "f", "nope"] == await session.value(program, tools)


@pytest.mark.core
async def test_error_class_is_generic(session: Session) -> None:
    """E03: any namespace, class and property name behave alike, side by side."""
    program = """\
facts = []
for call in (helpers.broken, tools.f, helpers['my-tool']):
    try:
        await call({})
    except HelperError as e:
        facts.append(['helpers', type(e).__name__, e.helperName, str(e), hasattr(e, 'toolName')])
    except ToolCallError as e:
        facts.append(['tools', type(e).__name__, e.toolName, str(e), hasattr(e, 'helperName')])
facts
"""
    helpers = namespace(
        "helpers",
        ("HelperError", "helperName"),
        **{"broken": raising(OSError("disk")), "my-tool": raising(OSError("odd"))},
    )

    assert [
        ["helpers", "HelperError", "broken", "disk", False],
        ["tools", "ToolCallError", "f", "nope", False],
        ["helpers", "HelperError", "my-tool", "odd", False],
    ] == await session.value(program, helpers, namespace(f=raising(ValueError("nope"))))


async def test_error_property_need_not_be_an_identifier(session: Session) -> None:
    """E03: a property such as `tool-name` carries the member, read through getattr."""
    program = "try:\n    await tools.f({})\nexcept Failed as e:\n    got = getattr(e, 'tool-name')\ngot"
    tools = namespace("tools", ("Failed", "tool-name"), f=raising(ValueError("x")))

    assert "f" == await session.value(program, tools)


@pytest.mark.core
async def test_rejection_without_error_class(session: Session) -> None:
    """E04: without an error class a rejection is a plain RuntimeError without a member."""
    program = """\
facts = []
for argument in ({}, object()):
    try:
        await tools.f(argument)
    except Exception as e:
        facts.append([type(e) is RuntimeError, hasattr(e, 'toolName'), vars(e), str(e)])
facts[0], facts[1][3] = facts[0], 'lossless JSON' in facts[1][3]
facts
"""
    tools = namespace(error=None, f=raising(ValueError("nope")))

    assert [[True, False, {}, "nope"], [True, False, {}, True]] == await session.value(program, tools)


@pytest.mark.core
async def test_uncaught_rejection(session: Session) -> None:
    """E05: an uncaught rejection is an exception that shows class, text and line, and no host frame."""
    program = "x = 1\nawait tools.f({})\n"

    result = await session.run(program, namespace(f=raising(ValueError("kaboom"))))

    assert "exception" == kind(result)
    assert result.error is not None
    message = result.error.message
    assert "ToolCallError: kaboom" in message
    assert "line 2" in message
    for foreign in (
        "ValueError",
        "test_e_bindings",
        "dispatch",
        "ptc_kernel",
        "site-packages",
        "\x1b",
        "await self",
    ):
        assert foreign not in message
    assert "kept" == result.state
    assert "" == text(result)


class Unprintable(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class OddText(str):
    """A text that is more than a text."""

    __slots__ = ()

    def __str__(self) -> str:
        return self


class OddlyPrinted(Exception):
    """An exception whose text is a subclass of str."""

    def __str__(self) -> str:
        return OddText("odd")


REJECTIONS: list[tuple[BaseException, str]] = [
    (ValueError(""), "ValueError"),
    (ValueError(), "ValueError"),
    (KeyError("k"), "'k'"),
    (ValueError(1, {"a": 2}), "(1, {'a': 2})"),
    (ValueError(object), "<class 'object'>"),
    (OddlyPrinted(), "odd"),
    (ValueError("line 1\nline 2 \N{SNOWMAN} \0"), "line 1\nline 2 \N{SNOWMAN} \0"),
    (ExceptionGroup("two", [ValueError("a"), OSError("b")]), "two (2 sub-exceptions)"),
    (StopAsyncIteration("stop"), "stop"),
    (TimeoutError(), "TimeoutError"),
    (ValueError("x" * 10_000_000), "x" * 10_000_000),
]


async def test_rejection_texts(session: Session) -> None:
    """E06, E07: every failure of a handler becomes a rejection with a text, whatever its exception."""
    errors = [error for error, _ in REJECTIONS]

    async def fail(index: int) -> Any:
        raise errors[index]

    program = f"""\
texts = []
for index in range({len(errors)}):
    try:
        await tools.fail(index)
    except ToolCallError as e:
        texts.append(str(e))
texts
"""

    assert [wanted for _, wanted in REJECTIONS] == await session.value(program, namespace(fail=fail))


async def test_unprintable_rejection(session: Session) -> None:
    """E06: an exception that cannot be printed gives a placeholder, and the run completes."""
    caught = await session.value(CAUGHT, namespace(f=raising(Unprintable())))

    assert ["f", "ToolCallError"] == caught[1:]
    assert caught[0]
    assert "no text" not in caught[0]


async def test_lone_surrogate_in_a_rejection(session: Session) -> None:
    """E07: a lone surrogate in the text of a failure is no crash."""
    caught = await session.value(CAUGHT, namespace(f=raising(ValueError("a\ud800b"))))

    assert caught[0].startswith("a")
    assert caught[0].endswith("b")


async def test_plain_and_awaitable_answers(session: Session) -> None:
    """E08: a handler may return a plain value, a coroutine, a future, a task or any awaitable."""

    class Later:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            return "awaitable"

    def future(argument: Any) -> asyncio.Future[str]:
        made: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(made.set_result, "future")
        return made

    def fail(argument: Any) -> Any:
        raise StopIteration("plain failure")

    tools = namespace(
        plain=lambda argument: [argument],
        nothing=lambda argument: None,
        coroutine=lambda argument: echo("coroutine"),
        future=future,
        task=lambda argument: asyncio.create_task(echo("task")),
        awaitable=lambda argument: Later(),
        f=fail,
    )
    program = (
        "[await tools.plain(1), await tools.nothing(1), await tools.coroutine({}), await tools.future({}),"
        " await tools.task({}), await tools.awaitable({})]"
    )

    assert [[1], None, "coroutine", "future", "task", "awaitable"] == await session.value(program, tools)
    assert ["plain failure", "f", "ToolCallError"] == await session.value(CAUGHT, tools)


async def test_cancelled_handler(session: Session) -> None:
    """E09: CancelledError from a handler rejects that call only; the run completes."""
    program = f"{CAUGHT[: -len('caught') - 1]}\n[caught[1:], bool(caught[0]), await tools.echo(2)]"
    tools = namespace(f=raising(asyncio.CancelledError()), echo=echo)

    assert [["f", "ToolCallError"], True, 2] == await session.value(program, tools)


async def test_none_is_an_answer(session: Session) -> None:
    """E33: a handler that returns None answers None."""

    async def nothing(argument: Any) -> None:
        return None

    assert [True] == await session.value("[await tools.f({}) is None]", namespace(f=nothing))


# ---------------------------------------------------------------------- names

EXOTIC = [
    "__class__",
    "__dict__",
    "__proto__",
    "constructor",
    "toString",
    "my-tool",
    "class",
    "",
    "__getattribute__",
    "__getitem__",
    "__iter__",
    "__len__",
    "__dir__",
    "__repr__",
    "__await__",
    "__call__",
    "_name",
    "_members",
    "sync",
    "self",
    "a b\n",
    "\N{SNOWMAN}",
    "\U0001f600",
    "x" * 5000,
]


async def test_exotic_member_names(session: Session) -> None:
    """E10: any string is a member name, by subscript, by getattr, and as itself at the host."""
    tools = namespace(**{name: (lambda _, name=name: f"I am {name}") for name in EXOTIC})
    program = f"""\
names = {EXOTIC!r}
answers = []
for name in names:
    answers.append([await tools[name]({{}}), await getattr(tools, name)({{}}), tools[name].sync({{}})])
[answers, await tools.__class__({{}}), await tools.__dict__({{}}), await tools.sync({{}})]
"""

    assert [
        [[f"I am {name}"] * 3 for name in EXOTIC],
        "I am __class__",
        "I am __dict__",
        "I am sync",
    ] == await session.value(program, tools)


async def test_rejection_carries_an_exotic_name(session: Session) -> None:
    """E10: the rejection of an exotic member carries exactly its name."""
    names = ["", "__class__", "a b\n", "\U0001f600"]
    program = f"""\
got = []
for name in {names!r}:
    try:
        await tools[name]({{}})
    except ToolCallError as e:
        got.append(e.toolName)
got
"""

    assert names == await session.value(
        program, namespace(**{name: raising(ValueError("x")) for name in names})
    )


async def test_undeclared_members(session: Session) -> None:
    """E11: what is not declared is missing: AttributeError by attribute, KeyError by subscript."""
    program = """\
facts = []
for look in (
    lambda: tools.nope, lambda: tools['hasOwnProperty'], lambda: tools['__class__'],
    lambda: tools['__init__'], lambda: tools._members, lambda: tools._name, lambda: tools.__nope__,
    lambda: tools.keys, lambda: tools[''], lambda: tools[0], lambda: tools[None], lambda: tools['Echo'],
):
    try:
        look()
    except Exception as e:
        facts.append(type(e).__name__)
    else:
        facts.append('found')
[facts, hasattr(tools, 'nope'), getattr(tools, 'nope', 7)]
"""
    attribute, key = "AttributeError", "KeyError"

    assert [
        [attribute, key, key, key, attribute, attribute, attribute, attribute, key, key, key, key],
        False,
        7,
    ] == await session.value(program, namespace(echo=echo))


async def test_undeclared_member_is_explained(session: Session) -> None:
    """E11: the text of an undeclared attribute names it, so that a model can correct itself."""
    result = await session.run("await tools.nope({})", namespace(echo=echo))

    assert "exception" == kind(result)
    assert result.error is not None
    assert "AttributeError" in result.error.message
    assert "nope" in result.error.message


@pytest.mark.core
async def test_call_forms(session: Session) -> None:
    """E12: one JSON value or keyword arguments; anything else is a TypeError and no call."""
    seen, record = recording()
    program = """\
good = [await tools.echo(), await tools.echo(a=1), await tools.echo({'x': 1}), await tools.echo([1, 2]),
        await tools.echo(None), await tools.echo(a=1, b={'c': [2]}), await tools.echo(**{'odd key': 1})]
good += [tools.echo.sync(), tools.echo.sync(a=1), tools.echo.sync('x')]
bad = []
for call in (
    lambda: tools.echo(1, 2), lambda: tools.echo({'x': 1}, a=1), lambda: tools.echo({}, {}, {}),
    lambda: tools.echo.sync(1, 2), lambda: tools.echo.sync({'x': 1}, a=1),
):
    try:
        result = call()
        if hasattr(result, '__await__'):
            await result
    except TypeError as e:
        bad.append([type(e).__name__, 'tools.echo' in str(e), 'keyword' in str(e), '({' in str(e)])
[good, bad]
"""
    good = [
        {},
        {"a": 1},
        {"x": 1},
        [1, 2],
        None,
        {"a": 1, "b": {"c": [2]}},
        {"odd key": 1},
        {},
        {"a": 1},
        "x",
    ]

    assert [good, [["TypeError", True, True, True]] * 5] == await session.value(
        program, namespace(echo=record)
    )
    assert good == seen


async def test_any_keyword_is_an_argument(session: Session) -> None:
    """E12: every keyword argument belongs to the object that is sent, whatever it is called."""
    words = ["self", "args", "kwargs", "name", "argument", "loop", "timeout", "member", "cls", "sync"]
    calls = "\n".join(
        f"answers += [lambda: tools.echo({word}=1), lambda: tools.echo.sync({word}=1)]" for word in words
    )
    program = f"""\
answers = []
{calls}
got = []
for call in answers:
    try:
        answer = call()
        got.append(answer if isinstance(answer, dict) else await answer)
    except TypeError as e:
        got.append(str(e))
got
"""

    assert [{word: 1} for word in words for _ in range(2)] == await session.value(
        program, namespace(echo=echo)
    )


async def test_lossy_keyword_argument(session: Session) -> None:
    """E12: a keyword argument that is not JSON rejects the call, typed, and the host is not called."""
    seen, record = recording()
    program = """\
try:
    await tools.echo(a=(1, 2))
except ToolCallError as e:
    caught = [e.toolName, 'tuple' in str(e)]
[caught, await tools.echo(a=1)]
"""

    assert [["echo", True], {"a": 1}] == await session.value(program, namespace(echo=record))
    assert [{"a": 1}] == seen


async def test_namespace_is_read_only(session: Session) -> None:
    """E29: assignment to and deletion of members are refused in the program."""
    program = """\
facts = []
for statement in ('tools.x = 1', 'tools.echo = 1', 'del tools.echo', "tools['echo'] = 1", "del tools['echo']",
                  'tools.__class__ = dict', 'tools._members = {}'):
    try:
        exec(statement)
    except (AttributeError, TypeError) as e:
        facts.append(True)
    else:
        facts.append(statement)
[facts, await tools.echo(3)]
"""

    assert [[True] * 7, 3] == await session.value(program, namespace(echo=echo))


async def test_namespace_lists_its_members(session: Session) -> None:
    """Contract 7: dir, in, iteration, len and repr show exactly the declared names."""
    program = """\
[sorted(dir(tools)), sorted(tools), 'echo' in tools, 'nope' in tools, '__class__' in tools, 3 in tools,
 len(list(tools)), bool(tools), 'echo' in repr(tools), 'my-tool' in repr(tools),
 'my-tool' in repr(tools['my-tool']),
 bool(empty), list(empty), dir(empty), len(repr(many)) < 2000]
"""
    names = ["class", "echo", "my-tool"]
    bindings = (
        namespace(**dict.fromkeys(names, echo)),
        namespace("empty", None),
        namespace("many", None, **{f"member{index}": echo for index in range(5000)}),
    )

    assert [
        *(names, names, True, False, False, False),
        *(3, True, True, True, True),
        *(True, [], [], True),
    ] == await session.value(program, *bindings)


async def test_help_of_bindings(session: Session) -> None:
    """Contract 7: help() of a namespace, a member and the error class prints something and raises nothing."""
    program = (
        "for thing in (tools, tools.echo, ToolCallError, tools['my-tool']):\n    help(thing)\ndone = True"
    )

    result = await session.run(program, namespace(**{"echo": echo, "my-tool": echo}))

    assert kind(result) is None
    assert "ToolCallError" in text(result, "stdout")
    assert len(text(result, "stdout")) > 100


# ---------------------------------------------------------------------- order, concurrency and caps


@pytest.mark.core
async def test_answers_out_of_order(session: Session) -> None:
    """E13: handlers start in issue order, end in reverse, and each answer is in its own slot."""
    started: list[int] = []
    ended: list[int] = []
    done = [asyncio.Event() for _ in range(4)]
    done[3].set()

    async def slow(index: int) -> str:
        started.append(index)
        await done[index + 1].wait()
        ended.append(index)
        done[index].set()
        return f"answer {index}"

    program = "import asyncio\nawait asyncio.gather(*[tools.slow(i) for i in range(3)])"

    assert ["answer 0", "answer 1", "answer 2"] == await session.value(program, namespace(slow=slow))
    assert [0, 1, 2] == started
    assert [2, 1, 0] == ended


@pytest.mark.core
async def test_gathered_handlers_overlap(session: Session) -> None:
    """E14: two gathered calls run at the same time: both handlers meet at a barrier."""
    barrier = asyncio.Barrier(2)

    async def meet(argument: Any) -> Any:
        await barrier.wait()
        return argument

    program = "import asyncio\nawait asyncio.gather(tools.meet(1), tools.meet(2))"

    assert [1, 2] == await session.value(program, namespace(meet=meet))


@pytest.mark.core
async def test_one_pending_call(make_session: Callable[..., Session]) -> None:
    """E15: with max_pending_calls 1 all calls are answered, one handler at a time, in issue order."""
    counter = Counter()
    program = "import asyncio\nawait asyncio.gather(*[tools.count(i) for i in range(5)])"

    session = make_session(max_pending_calls=1)

    assert [0, 1, 2, 3, 4] == await session.value(program, namespace(count=counter))
    assert [0, 1, 2, 3, 4] == counter.seen
    assert 1 == counter.peak


@pytest.mark.core
@pytest.mark.parametrize("count", [1_000, 10_000])
async def test_many_gathered_calls(count: int, session: Session) -> None:
    """E16: every gathered call gets its own answer; 128 handlers run at a time, and never more."""
    counter = Counter(hold=128)
    program = f"""\
import asyncio
answers = await asyncio.gather(*[tools.count({{'i': i}}) for i in range({count})])
answers == [{{'i': i}} for i in range({count})]
"""

    result = await session.run(program, namespace(count=counter))

    assert result.error is None
    assert result.value is True
    assert 128 == counter.peak
    assert [{"i": index} for index in range(count)] == counter.seen
    assert count == result.calls_total
    assert 1_000 == len(result.calls)


async def test_argument_bytes_wait(make_session: Callable[..., Session]) -> None:
    """E18: arguments over max_message_bytes together wait for each other; one over it alone is refused."""
    gate = Gate()
    begun: list[int] = []

    async def hold(argument: str) -> int:
        begun.append(len(argument))
        await gate(argument)
        return len(argument)

    program = """\
import asyncio
both = asyncio.gather(tools.hold('a' * 300), tools.hold('b' * 301))
await asyncio.sleep(0.1)
print('both are issued')
answers = await both
try:
    await tools.hold('c' * 600)
except ToolCallError as e:
    refused = [e.toolName, '512' in str(e), 'max_message_bytes' in str(e)]
[answers, refused, await tools.hold('d' * 500)]
"""
    session = make_session(max_message_bytes=512)
    request = PtcRunRequest(program=program, bindings=(namespace(hold=hold),), state_owner=session.owner)
    result = None
    async for event in session.runtime.stream(session.runtime.resolve(request)):
        if isinstance(event, OutputEvent):
            assert [300] == begun
            gate.opened.set()
        if isinstance(event, ResultEvent):
            result = event.result

    assert result is not None
    assert result.error is None
    assert [[300, 301], ["hold", True, True], 500] == result.value
    assert [300, 301, 500] == begun


async def test_argument_bytes_of_many_calls(make_session: Callable[..., Session]) -> None:
    """E18: a gather whose arguments are far over the cap together is answered whole."""
    program = """\
import asyncio
arguments = [str(i) * 100 for i in range(300)]
arguments == await asyncio.gather(*map(tools.echo, arguments))
"""
    session = make_session(max_message_bytes=1000)

    assert await session.value(program, namespace(echo=echo)) is True


async def test_refused_argument_leaves_no_gap(make_session: Callable[..., Session]) -> None:
    """E18: a refused argument uses up no id: calls before and after it, gathered, are answered."""
    program = """\
import asyncio
answers = await asyncio.gather(
    tools.echo(1), tools.echo('x' * 600), tools.echo(2), tools.echo(object()), tools.echo(3),
    return_exceptions=True,
)
[answer if isinstance(answer, int) else type(answer).__name__ for answer in answers]
"""
    session = make_session(max_message_bytes=512)

    result = await session.run(program, namespace(echo=echo))

    assert [1, "ToolCallError", 2, "ToolCallError", 3] == result.value
    assert 3 == result.calls_total


async def test_answer_over_the_cap(make_session: Callable[..., Session]) -> None:
    """E19: an answer over max_message_bytes rejects that call, naming the cap; the run goes on."""
    answers = ["x" * 600, "x" * 511, ["\N{SNOWMAN}" * 180], {"key": ["y" * 600]}]
    session = make_session(max_message_bytes=512)
    program = f"""\
caught = []
for index in range({len(answers)}):
    try:
        await tools.f(index)
    except ToolCallError as e:
        caught.append([e.toolName, 'max_message_bytes' in str(e), '512' in str(e)])
[caught, await tools.echo('z' * 510)]
"""
    tools = namespace(f=lambda index: answers[index], echo=echo)

    assert [[["f", True, True]] * len(answers), "z" * 510] == await session.value(program, tools)


async def test_rejection_text_over_the_cap(make_session: Callable[..., Session]) -> None:
    """E19: a failure whose text is over max_message_bytes still rejects the call; the run goes on."""
    session = make_session(max_message_bytes=512)
    program = f"{CAUGHT[: -len('caught') - 1]}\n[caught[1:], len(caught[0]) < 600, await tools.echo(1)]"
    tools = namespace(f=raising(ValueError("\N{SNOWMAN}" * 400)), echo=echo)

    assert [["f", "ToolCallError"], True, 1] == await session.value(program, tools)


async def test_binding_traffic_is_not_output(make_session: Callable[..., Session]) -> None:
    """Contract 7: arguments and answers of any size never count as output."""
    session = make_session(max_output_bytes=64)
    program = "n = len(await tools.echo('x' * 1_000_000))\nn"

    assert 1_000_000 == await session.value(program, namespace(echo=echo))


async def test_ten_megabytes_each_way(session: Session) -> None:
    """Contract 7: a 10 MB argument and its answer cross whole."""
    program = (
        "big = [list(range(1000)), 'x' * 10_000_000, '\\U0001f600' * 1000]\nbig == await tools.echo(big)"
    )

    assert await session.value(program, namespace(echo=echo)) is True


# ---------------------------------------------------------------------- ways to wait for a call


async def test_ways_to_wait(session: Session) -> None:
    """Contract 7: a call works with create_task, gather, wait, shield, TaskGroup and so on."""
    program = """\
import asyncio
answers = [await asyncio.create_task(tools.echo(1)), await asyncio.ensure_future(tools.echo(2))]
answers += await asyncio.gather(tools.echo(3), tools.echo(4))
async with asyncio.TaskGroup() as group:
    task = group.create_task(tools.echo(5))
answers.append(task.result())
answers.append(await asyncio.shield(tools.echo(6)))
answers.append(await asyncio.wait_for(tools.echo(7), 30))
done, _ = await asyncio.wait({asyncio.create_task(tools.echo(8))})
answers.append(done.pop().result())
for future in asyncio.as_completed([tools.echo(9)]):
    answers.append(await future)
async with asyncio.timeout(30):
    answers.append(await tools.echo(10))
async def nested(n):
    return await tools.echo(n)
answers.append(await nested(11))
answers += [await tools.echo(n) for n in (12, 13)]
call = tools.echo(14)
answers += [await call]
answers += [item async for item in (await tools.echo(n) for n in (15, 16))]
answers
"""

    assert list(range(1, 17)) == await session.value(program, namespace(echo=echo))


async def test_call_is_issued_when_called(session: Session) -> None:
    """Contract 7: calls are issued where they are called, so handlers start in that order."""
    seen, record = recording()
    program = "a, b, c = tools.f('a'), tools.f('b'), tools.f('c')\n[await c, await b, await a]"

    assert ["c", "b", "a"] == await session.value(program, namespace(f=record))
    assert ["a", "b", "c"] == seen


async def test_forgotten_await_of_a_rejection(session: Session) -> None:
    """Contract 5: a rejected call as last expression, not awaited, is the exception of the run."""
    result = await session.run("tools.f({})", namespace(f=raising(ValueError("nope"))))

    assert "exception" == kind(result)
    assert result.error is not None
    assert "ToolCallError: nope" in result.error.message


async def test_gather_with_failures(session: Session) -> None:
    """Contract 7: failures of gathered calls stay with their own callers."""

    async def odd(number: int) -> int:
        if number % 2:
            return number
        raise ValueError(f"even {number}")

    program = """\
import asyncio
got = await asyncio.gather(*[tools.odd(n) for n in range(200)], return_exceptions=True)
[g if isinstance(g, int) else str(g) for g in got]
"""
    wanted = [number if number % 2 else f"even {number}" for number in range(200)]

    assert wanted == await session.value(program, namespace(odd=odd))


async def test_failing_task_group(session: Session) -> None:
    """Contract 7: one rejection in a TaskGroup cancels its siblings; the run goes on after except*."""
    gate = Gate()
    program = """\
import asyncio
caught = []
try:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(tools.never({}))
        group.create_task(tools.f({}))
except* ToolCallError as errors:
    caught = [str(e) for e in errors.exceptions]
[caught, waiting.cancelled(), await tools.echo(1)]
"""
    tools = namespace(never=gate, f=raising(ValueError("nope")), echo=echo)

    assert [["nope"], True, 1] == await session.value(program, tools)
    gate.opened.set()


# ---------------------------------------------------------------------- sync and threads

SYNC_PLACES = {
    "main": "got = call()",
    "task": "import asyncio\nasync def job():\n    return call()\ngot = await asyncio.create_task(job())",
    "to_thread": "import asyncio\ngot = await asyncio.to_thread(call)",
    "executor": "import asyncio\ngot = await asyncio.get_running_loop().run_in_executor(None, call)",
    "pool": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(1) as pool:\n    got = pool.submit(call).result()"
    ),
    "pool map": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(2) as pool:\n    got = list(pool.map(lambda _: call(), [1]))[0]"
    ),
    "thread": (
        "import threading\nbox = []\nthread = threading.Thread(target=lambda: box.append(call()))\n"
        "thread.start()\nthread.join()\ngot = box[0]"
    ),
    "thread in a thread": (
        "import threading\nbox = []\ndef outer():\n"
        "    inner = threading.Thread(target=lambda: box.append(call()))\n"
        "    inner.start()\n    inner.join()\nthread = threading.Thread(target=outer)\nthread.start()\n"
        "thread.join()\ngot = box[0]"
    ),
    "low-level thread": (
        "import _thread\nbox, lock = [], _thread.allocate_lock()\nlock.acquire()\n"
        "def outer():\n    box.append(call())\n    lock.release()\n"
        "_thread.start_new_thread(outer, ())\nlock.acquire()\ngot = box[0]"
    ),
    "timer": (
        "import threading\nbox = []\nthread = threading.Timer(0, lambda: box.append(call()))\n"
        "thread.start()\nthread.join()\ngot = box[0]"
    ),
    "callback": (
        "import asyncio\nloop = asyncio.get_running_loop()\nfuture = loop.create_future()\n"
        "loop.call_soon(lambda: future.set_result(call()))\ngot = await future"
    ),
    "generator": "def numbers():\n    yield call()\ngot = next(numbers())",
}


async def test_sync_everywhere(session: Session) -> None:
    """Contract 7: `.sync` answers, and rejects typed, in the main thread, tasks, callbacks and threads."""
    tools = namespace(echo=echo, f=raising(ValueError("nope")))
    call = """\
def call():
    try:
        tools.f.sync({})
    except ToolCallError as e:
        return [tools.echo.sync({'n': 1}), tools.echo.sync(a=2), str(e), e.toolName]
"""
    wanted = [{"n": 1}, {"a": 2}, "nope", "f"]

    assert dict.fromkeys(SYNC_PLACES, wanted) == {
        place: await session.value(f"{call}\n{program}\ngot", tools) for place, program in SYNC_PLACES.items()
    }


async def test_main_loop_stands_still_during_sync(session: Session) -> None:
    """Contract 7: while the main thread is in `.sync`, no other task of the program runs."""
    program = """\
import asyncio
log = []
async def other():
    log.append('other')
task = asyncio.create_task(other())
log.append(tools.echo.sync('sync'))
log.append('after')
await task
log
"""

    assert ["sync", "after", "other"] == await session.value(program, namespace(echo=echo))


async def test_sync_while_the_main_task_awaits(session: Session) -> None:
    """Contract 7: awaited calls of the main task and `.sync` of a thread overlap at a barrier."""
    barrier = asyncio.Barrier(2)

    async def meet(argument: Any) -> Any:
        await barrier.wait()
        return argument

    program = """\
import asyncio
await asyncio.gather(tools.meet('task'), asyncio.to_thread(tools.meet.sync, 'thread'))
"""

    assert ["task", "thread"] == await session.value(program, namespace(meet=meet))


async def test_sync_refusals(session: Session) -> None:
    """Contract 7: `.sync` rejects a lossy argument, and a bare call without a loop says how to call."""
    program = """\
import threading
caught = []
def job():
    try:
        tools.echo.sync(object())
    except ToolCallError as e:
        caught.append([e.toolName, 'lossless' in str(e)])
    try:
        tools.echo({})
    except RuntimeError as e:
        caught.append('sync' in str(e))
thread = threading.Thread(target=job)
thread.start()
thread.join()
caught
"""

    assert [["echo", True], True] == await session.value(program, namespace(echo=echo))


@pytest.mark.parametrize("threads", [100, 300])
async def test_many_sync_calls(threads: int, session: Session) -> None:
    """Contract 7: `.sync` from many threads at once: as many handlers as slots run together, none more."""
    counter = Counter(hold=min(threads, 128))
    program = f"""\
import threading
box = [None] * {threads}
def job(i):
    box[i] = tools.count.sync(i)
threads = [threading.Thread(target=job, args=(i,)) for i in range({threads})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
box
"""

    assert list(range(threads)) == await session.value(program, namespace(count=counter))
    assert min(threads, 128) == counter.peak


async def test_thread_with_a_loop_of_its_own(session: Session) -> None:
    """E27: awaited calls work in a thread with its own event loop, while the main task awaits or blocks."""
    program = """\
import asyncio, threading
async def main():
    return await asyncio.gather(*[tools.echo(i) for i in range(20)], tools.f({}), return_exceptions=True)
def job():
    return asyncio.run(main())
def shown(answers):
    return [a if isinstance(a, int) else [type(a).__name__, str(a), a.toolName] for a in answers]
box = []
thread = threading.Thread(target=lambda: box.append(job()))
thread.start()
thread.join()
[shown(await asyncio.to_thread(job)), shown(box[0])]
"""
    wanted = [*range(20), ["ToolCallError", "nope", "f"]]

    assert [wanted, wanted] == await session.value(
        program, namespace(echo=echo, f=raising(ValueError("nope")))
    )


async def test_two_threads(session: Session) -> None:
    """E28: two threads with 50 calls each, awaited and blocking, get 100 answers, each its own."""
    program = """\
import asyncio, threading
box = {}
async def gather(name):
    return await asyncio.gather(*[tools.echo([name, i]) for i in range(50)])
def awaiting():
    box['a'] = asyncio.run(gather('a'))
def blocking():
    box['b'] = [tools.echo.sync(['b', i]) for i in range(50)]
threads = [threading.Thread(target=awaiting), threading.Thread(target=blocking)]
for thread in threads:
    thread.start()
main = await gather('main')
for thread in threads:
    thread.join()
[box['a'], box['b'], main]
"""

    result = await session.run(program, namespace(echo=echo))

    assert [[[name, i] for i in range(50)] for name in ("a", "b", "main")] == result.value
    assert 150 == result.calls_total


async def test_answer_to_a_closed_loop(session: Session) -> None:
    """Contract 7: an answer for a thread whose loop is closed already disturbs nobody."""
    gate = Gate()

    async def open_gate(argument: Any) -> Any:
        gate.opened.set()
        await gate.ended.wait()
        return argument

    program = """\
import asyncio
async def hurried():
    call = tools.slow({})
    await tools.begun({})
    return 'left'
def job():
    return asyncio.run(hurried())
left = await asyncio.to_thread(job)
[left, await tools.open_gate(1), await tools.open_gate(2)]
"""

    async def begun(argument: Any) -> None:
        await gate.began.wait()

    assert ["left", 1, 2] == await session.value(
        program, namespace(slow=gate, begun=begun, open_gate=open_gate)
    )


@pytest.mark.parametrize(
    "program",
    [
        "tools.never.sync({})",
        "import asyncio\nawait asyncio.to_thread(tools.never.sync, {})",
        "import threading\nt = threading.Thread(target=tools.never.sync, args=({},))\nt.start()\nt.join()",
        "import asyncio\nasync def job():\n    tools.never.sync({})\nawait asyncio.create_task(job())",
        "await tools.never({})",
        "import asyncio\nawait asyncio.gather(tools.never({}), asyncio.sleep(1000))",
    ],
)
async def test_waiting_calls_are_broken_by_an_abort(program: str, session: Session) -> None:
    """Contract 7: an abort breaks a waiting call; variables are kept, the handler runs on."""
    gate, controller = Gate(), AbortController()
    await session.run("kept = 41")
    running = asyncio.create_task(session.run(program, namespace(never=gate), signal=controller.signal))
    await gate.began.wait()
    controller.abort("enough")

    result = await running

    assert "abort" == kind(result)
    assert result.error is not None
    assert "enough" in result.error.message
    assert "kept" == result.state
    assert ["open"] == [call.outcome for call in result.calls]
    assert not gate.ended.is_set()
    assert gate.context is not None
    assert gate.context.run_ended
    gate.opened.set()
    await gate.ended.wait()
    assert not gate.cancelled
    assert 42 == await session.value("kept + 1")


# ---------------------------------------------------------------------- the end of a run


@pytest.mark.parametrize("answer", ["late", ValueError("late"), object()])
async def test_never_ending_handler(answer: Any, session: Session) -> None:
    """E20: a run does not wait for a call that nobody awaits; its later outcome is ignored, silently."""
    reported = loop_errors()
    gate = Gate(answer)

    async def begun(argument: Any) -> None:
        await gate.began.wait()

    program = "import asyncio\nt = tools.slow({})\nasyncio.ensure_future(t)\nawait tools.begun({})\n'done'"
    tools = namespace(slow=gate, begun=begun)

    result = await session.run(program, tools)

    assert "done" == result.value
    assert [] == entries(result)
    assert [("slow", "open"), ("begun", "ok")] == [(call.member, call.outcome) for call in result.calls]
    assert not gate.ended.is_set()
    assert gate.context is not None
    assert gate.context.run_ended
    gate.opened.set()
    await gate.ended.wait()
    following = await session.run("1 + 1", tools)
    assert 2 == following.value
    assert ((), 0, ()) == (following.calls, following.calls_total, following.background)
    assert [] == reported
    assert not gate.cancelled


async def test_held_back_calls_are_not_dispatched(make_session: Callable[..., Session]) -> None:
    """Contract 7: calls that wait for a slot when the run ends are rejected, not dispatched."""
    gate = Gate()
    seen, record = recording()

    async def begun(argument: Any) -> None:
        await gate.began.wait()

    session = make_session(max_pending_calls=2)
    program = """\
import asyncio
first = asyncio.ensure_future(tools.slow({}))
await tools.begun({})
second = asyncio.ensure_future(tools.begun({}))
await second
blocker = asyncio.ensure_future(tools.slow({}))
held = [asyncio.ensure_future(tools.record(i)) for i in range(3)]
await asyncio.sleep(0)
'done'
"""
    tools = namespace(slow=gate, begun=begun, record=record)

    assert "done" == await session.value(program, tools)
    gate.opened.set()
    outcomes = await session.value(
        "[type(e).__name__ for e in await asyncio.gather(first, blocker, *held, return_exceptions=True)]",
        tools,
    )
    assert ["ToolCallError"] * 5 == outcomes
    assert [] == seen
    assert "fresh" == await session.value("await tools.record('fresh')", tools)
    assert ["fresh"] == seen


async def test_thread_blocked_in_sync_at_the_end(session: Session) -> None:
    """Contract 7: a thread that is blocked in `.sync` when its run ends gets the rejection."""
    gate = Gate()

    async def begun(argument: Any) -> None:
        await gate.began.wait()

    program = """\
import threading
box = []
def job():
    try:
        tools.slow.sync({})
    except ToolCallError as e:
        box.append([e.toolName, bool(str(e))])
thread = threading.Thread(target=job)
thread.start()
await tools.begun({})
'done'
"""
    assert "done" == await session.value(program, namespace(slow=gate, begun=begun))
    assert [["slow", True]] == await session.value("thread.join()\nbox")
    gate.opened.set()


LEFTOVERS = {
    "task": """\
async def late():
    await gate.wait()
    return await tools.echo('late')
leftover = asyncio.create_task(late())
async def finish():
    gate.set()
    return await leftover
""",
    "task of a leftover task": """\
async def late():
    await gate.wait()
    return await asyncio.create_task(tools.echo('late'))
leftover = asyncio.create_task(late())
async def finish():
    gate.set()
    return await leftover
""",
    "sync in a task": """\
async def late():
    await gate.wait()
    return tools.echo.sync('late')
leftover = asyncio.create_task(late())
async def finish():
    gate.set()
    return await leftover
""",
    "to_thread of a leftover task": """\
async def late():
    await gate.wait()
    return await asyncio.to_thread(tools.echo.sync, 'late')
leftover = asyncio.create_task(late())
async def finish():
    gate.set()
    return await leftover
""",
    "stored call": """\
leftover = tools.never('late')
async def finish():
    return await leftover
""",
    "timer callback": """\
leftover = asyncio.get_running_loop().create_future()
def fire():
    async def late():
        try:
            leftover.set_result(await tools.echo('late'))
        except Exception as e:
            leftover.set_exception(e)
    asyncio.create_task(late())
async def waiting():
    await gate.wait()
    fire()
keep = asyncio.create_task(waiting())
async def finish():
    gate.set()
    return await leftover
""",
    "thread": """\
box = Future()
def late():
    thread_gate.wait()
    try:
        box.set_result(tools.echo.sync('late'))
    except Exception as e:
        box.set_exception(e)
threading.Thread(target=late).start()
async def finish():
    thread_gate.set()
    return await asyncio.wrap_future(box)
""",
    "thread with its own loop": """\
box = Future()
async def call():
    return await tools.echo('late')
def late():
    thread_gate.wait()
    try:
        box.set_result(asyncio.run(call()))
    except Exception as e:
        box.set_exception(e)
threading.Thread(target=late).start()
async def finish():
    thread_gate.set()
    return await asyncio.wrap_future(box)
""",
    "thread of a leftover thread": """\
box = Future()
def inner():
    try:
        box.set_result(tools.echo.sync('late'))
    except Exception as e:
        box.set_exception(e)
def late():
    thread_gate.wait()
    threading.Thread(target=inner).start()
threading.Thread(target=late).start()
async def finish():
    thread_gate.set()
    return await asyncio.wrap_future(box)
""",
    "executor": """\
pool = ThreadPoolExecutor(1)
def late():
    thread_gate.wait()
    return tools.echo.sync('late')
box = pool.submit(late)
async def finish():
    thread_gate.set()
    return await asyncio.wrap_future(box)
""",
    "queued work of an executor": """\
pool = ThreadPoolExecutor(1)
pool.submit(thread_gate.wait)
box = pool.submit(tools.echo.sync, 'late')
async def finish():
    thread_gate.set()
    return await asyncio.wrap_future(box)
""",
    "to_thread": """\
def late():
    thread_gate.wait()
    return tools.echo.sync('late')
leftover = asyncio.create_task(asyncio.to_thread(late))
await asyncio.sleep(0)
async def finish():
    thread_gate.set()
    return await leftover
""",
    "timer thread": """\
box = Future()
def late():
    thread_gate.wait()
    try:
        box.set_result(tools.echo.sync('late'))
    except Exception as e:
        box.set_exception(e)
threading.Timer(0, late).start()
async def finish():
    thread_gate.set()
    return await asyncio.wrap_future(box)
""",
}


async def test_leftovers_have_no_authority(session: Session) -> None:
    """Contract 7: what run 1 left behind is refused when it calls during run 2; no handler runs."""
    seen, record = recording()
    never = Gate()
    tools = namespace(echo=record, never=never)
    before = """\
import asyncio, threading
from concurrent.futures import Future, ThreadPoolExecutor
gate, thread_gate = asyncio.Event(), threading.Event()
"""
    after = """\
try:
    outcome = ['answered', await finish()]
except ToolCallError as e:
    outcome = ['refused', e.toolName, 'over' in str(e)]
[outcome, await tools.echo('mine')]
"""
    wanted = {name: [["refused", "echo", True], "mine"] for name in LEFTOVERS}
    wanted["stored call"] = [["refused", "never", True], "mine"]

    outcomes = {}
    for name, program in LEFTOVERS.items():
        await session.run(f"{before}{program}done = True", tools)
        outcomes[name] = await session.value(after, tools)

    assert wanted == outcomes
    assert ["mine"] * len(LEFTOVERS) == seen
    never.opened.set()


async def test_new_work_on_old_threads(session: Session) -> None:
    """Contract 7: work that run 2 hands to run 1's executor, loop or thread pool has run 2's authority."""
    seen, record = recording()
    tools = namespace(echo=record)
    await session.run(
        "from concurrent.futures import ThreadPoolExecutor\nimport asyncio\n"
        "pool = ThreadPoolExecutor(1)\npool.submit(int).result()\nawait asyncio.to_thread(int)\ndone = True",
        tools,
    )
    program = """\
loop = asyncio.get_running_loop()
[pool.submit(tools.echo.sync, 1).result(), await asyncio.to_thread(tools.echo.sync, 2),
 await loop.run_in_executor(pool, tools.echo.sync, 3), list(pool.map(tools.echo.sync, [4, 5]))]
"""

    assert [1, 2, 3, [4, 5]] == await session.value(program, tools)
    assert [1, 2, 3, 4, 5] == seen


async def test_call_between_runs(session: Session, tmp_path: Path) -> None:
    """Contract 7: a call that is made while no run is active is rejected, and the environment lives on."""
    called = asyncio.Event()
    seen, record = recording()
    never = Gate()

    async def begun(argument: Any) -> None:
        await never.began.wait()

    path = str(tmp_path / "bell")

    def ring(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        writer.close()

    server = await asyncio.start_unix_server(ring, path)
    program = f"""\
import asyncio, socket, threading
box = []
async def awaiting():
    return await tools.echo('late')
def job():
    calls = lambda: tools.never.sync({{}}), lambda: tools.echo.sync('late'), lambda: asyncio.run(awaiting())
    for call in calls:
        try:
            box.append(call())
        except ToolCallError as e:
            box.append([e.toolName, bool(str(e))])
    bell = socket.socket(socket.AF_UNIX)
    bell.connect({path!r})
    bell.close()
thread = threading.Thread(target=job)
thread.start()
await tools.begun({{}})
x = 41
"""
    tools = namespace(echo=record, never=never, begun=begun)
    try:
        await session.run(program, tools)
        await called.wait()
        result = await session.run("thread.join()\n[box, x + 1, await tools.echo('mine')]", tools)
    finally:
        server.close()
        never.opened.set()

    assert result.error is None
    assert [[["never", True], ["echo", True], ["echo", True]], 42, "mine"] == result.value
    assert result.reset_reason is None
    assert ["mine"] == seen


async def test_stored_members(session: Session) -> None:
    """E21: a stored member and a saved namespace work in a run that declares them, in no other."""
    seen, record = recording()
    first, second = recording(), namespace(echo=record)
    await session.run(
        "f = tools.echo\nns = tools\ng = tools.echo.sync\ndone = True", namespace(echo=first[1])
    )

    assert [{"a": 1}, {"b": 2}, {"c": 3}] == await session.value(
        "[await f({'a': 1}), await ns.echo({'b': 2}), g({'c': 3})]", second
    )
    assert [{"a": 1}, {"b": 2}, {"c": 3}] == seen
    refused = """\
caught = []
for call in (lambda: f({}), lambda: ns.echo({}), lambda: ns['echo']({})):
    try:
        await call()
    except Exception as e:
        caught.append(['echo' in str(e), bool(str(e))])
try:
    g({})
except Exception as e:
    caught.append(['echo' in str(e), bool(str(e))])
caught
"""
    assert [[True, True]] * 4 == await session.value(refused)
    assert [[True, True]] * 4 == await session.value(refused, namespace(other=echo))
    assert [[True, True]] * 4 == await session.value(refused, namespace("other", None, echo=record))
    assert 3 == len(seen)
    assert [] == first[0]
    assert {"d": 4} == await session.value("await f({'d': 4})", second)


async def test_uncaught_refusal_of_a_stored_member(session: Session) -> None:
    """E21: without bindings, the text of a stored member's failure says that it is not declared."""
    await session.run("f = tools.echo\ndone = True", namespace(echo=echo))

    result = await session.run("await f({})")

    assert "exception" == kind(result)
    assert result.error is not None
    assert "declare" in result.error.message
    assert "tools" in result.error.message
    assert "echo" in result.error.message
    assert ((), 0) == (result.calls, result.calls_total)


async def test_stored_helper(session: Session) -> None:
    """E22: a helper of an earlier run calls through the bindings of the run that calls it."""
    seen, record = recording()
    old, old_handler = recording()
    await session.run(
        "async def go():\n    return await tools.echo({'n':2})\n"
        "def go_sync():\n    return tools.echo.sync(3)",
        namespace(echo=old_handler),
    )

    assert [{"n": 2}, 3] == await session.value("[await go(), go_sync()]", namespace(echo=record))
    assert [{"n": 2}, 3] == seen
    assert [] == old


async def test_names_of_an_earlier_run_are_gone(session: Session) -> None:
    """E24: names that the current run does not declare are removed, the error class too."""
    await session.run("done = True", namespace(echo=echo), namespace("more", ("MoreError", "m"), echo=echo))
    present = "[name in globals() for name in ('tools', 'ToolCallError', 'more', 'MoreError')]"

    assert [False, False, True, True] == await session.value(
        present, namespace("more", ("MoreError", "m"), echo=echo)
    )
    assert [False] * 4 == await session.value(present)
    result = await session.run("tools")
    assert result.error is not None
    assert "NameError" in result.error.message


async def test_error_class_is_dropped_with_its_declaration(session: Session) -> None:
    """E24: a namespace that is declared without an error class any more raises RuntimeError."""
    fail = raising(ValueError("nope"))
    await session.run("done = True", namespace(f=fail))
    program = """\
try:
    await tools.f({})
except Exception as e:
    caught = [type(e).__name__, vars(e)]
['ToolCallError' in globals(), caught]
"""

    assert [False, ["RuntimeError", {}]] == await session.value(program, namespace(error=None, f=fail))


async def test_program_names_win_until_declared(session: Session) -> None:
    """E25: what a program puts in the place of a binding stays its own, until a run declares the name."""
    tools = namespace(echo=echo)
    await session.run("tools = 5\nToolCallError = 6\ndone = True", tools)

    assert [5, 6] == await session.value("[tools, ToolCallError]")
    assert 1 == await session.value("await tools.echo(1)", tools)
    await session.run("del tools\ndel ToolCallError", tools)
    assert [2, True] == await session.value("[await tools.echo(2), isinstance(ToolCallError, type)]", tools)


async def test_error_class_identity(session: Session) -> None:
    """Contract 7: the error class is the same object while global, name and property stay the same."""
    fail = raising(ValueError("nope"))
    store = "try:\n    await tools.f({})\nexcept ToolCallError as e:\n    stored, cls = e, ToolCallError\n"
    await session.run(store, namespace(f=fail))
    await session.run("between = True")

    assert [True, True, "f"] == await session.value(
        "[cls is ToolCallError, isinstance(stored, ToolCallError), stored.toolName]",
        namespace(g=echo, f=fail),
    )
    program = """\
try:
    await tools.f({})
except ToolCallError as e:
    caught = [type(e).__name__, getattr(e, 'member', None), hasattr(e, 'toolName')]
caught
"""
    changed = namespace("tools", ("ToolCallError", "member"), f=fail)
    assert ["ToolCallError", "f", False] == await session.value(program, changed)
    assert await session.value(
        "cls is ToolCallError and isinstance(stored, ToolCallError)", namespace(f=fail)
    )


async def test_error_class_is_an_ordinary_exception(session: Session) -> None:
    """Contract 7: the injected class can be raised, subclassed, chained and caught by the program itself."""
    program = """\
class Mine(ToolCallError):
    pass
try:
    raise Mine('x') from ToolCallError('y')
except ToolCallError as e:
    caught = [str(e), str(e.__cause__), ToolCallError.__name__, issubclass(ToolCallError, Exception)]
caught
"""

    assert ["x", "y", "ToolCallError", True] == await session.value(program, namespace(f=echo))


async def test_chained_rejections(session: Session) -> None:
    """E32: a rejection that another exception replaces shows both, bounded, and no host frames."""
    program = """\
for _ in range(3):
    try:
        await tools.f({})
    except Exception as e:
        error = e
try:
    await tools.f({})
except Exception as e:
    raise KeyError('mine') from e
"""

    result = await session.run(program, namespace(f=raising(ValueError("nope"))))

    assert "exception" == kind(result)
    assert result.error is not None
    message = result.error.message
    assert "ToolCallError: nope" in message
    assert "KeyError: 'mine'" in message
    assert message.index("nope") < message.index("mine")
    for foreign in ("ValueError", "test_e_bindings", "ptc_kernel", "site-packages", "\x1b"):
        assert foreign not in message
    assert len(message) < 3000


# ---------------------------------------------------------------------- what a handler knows and may do


async def test_call_context(session: Session) -> None:
    """Contract 7: a handler reads its call in PtcCallContext.current(), in tasks that it starts too."""
    contexts: list[PtcCallContext | None] = []

    async def note(argument: Any) -> None:
        contexts.append(PtcCallContext.current())
        contexts.append(await asyncio.create_task(current()))

    async def current() -> PtcCallContext | None:
        return PtcCallContext.current()

    await session.run(
        "await tools.note({})\nawait tools['my-tool']({})", namespace(**{"note": note, "my-tool": note})
    )

    assert PtcCallContext.current() is None
    assert contexts[0] is contexts[1]
    assert [("tools", "note"), ("tools", "my-tool")] == [
        (context.namespace, context.member) for context in contexts[::2] if context is not None
    ]
    first, second = contexts[0], contexts[2]
    assert first is not None
    assert second is not None
    assert (1, 2) == (first.call_id, second.call_id)
    assert first.state_owner is session.owner
    assert [False, False] == [first.abandoned, second.abandoned]


async def test_call_ids_go_on(session: Session) -> None:
    """Contract 7: call ids are consecutive in one environment, over its runs."""
    ids: list[int] = []

    async def note(argument: Any) -> None:
        context = PtcCallContext.current()
        assert context is not None
        ids.append(context.call_id)

    for _ in range(3):
        await session.run(
            "import asyncio\nawait asyncio.gather(*[tools.note(i) for i in range(4)])", namespace(note=note)
        )

    assert list(range(1, 13)) == ids


async def test_abandoned_call(session: Session) -> None:
    """Contract 7: cancelling the waiting task abandons the call; its handler runs on and can read that."""
    gate = Gate()

    async def begun(argument: Any) -> None:
        await gate.began.wait()

    async def check(argument: Any) -> list[Any]:
        assert gate.context is not None
        state = [gate.context.abandoned, gate.context.run_ended, gate.ended.is_set()]
        gate.opened.set()
        await gate.ended.wait()
        return state

    program = """\
import asyncio
task = asyncio.create_task(tools.slow({}))
await tools.begun({})
task.cancel()
outcome = await asyncio.gather(task, return_exceptions=True)
[type(outcome[0]).__name__, await tools.check({}), await tools.echo(1)]
"""
    tools = namespace(slow=gate, begun=begun, check=check, echo=echo)

    result = await session.run(program, tools)

    assert ["CancelledError", [True, False, False], 1] == result.value
    assert not gate.cancelled
    assert ["slow", "begun", "check", "echo"] == [call.member for call in result.calls]


@pytest.mark.parametrize(
    "wait",
    [
        "asyncio.wait_for(tools.slow({}), 0.05)",
        "asyncio.wait_for(asyncio.gather(tools.slow({}), asyncio.sleep(100)), 0.05)",
    ],
)
async def test_timeout_in_the_program_abandons(wait: str, session: Session) -> None:
    """Contract 7: a call that the program gives up on by wait_for is abandoned; the run goes on."""
    gate = Gate()

    async def check(argument: Any) -> bool:
        assert gate.context is not None
        return gate.context.abandoned

    program = f"""\
import asyncio
try:
    await {wait}
except TimeoutError:
    timed_out = True
[timed_out, await tools.check({{}})]
"""

    assert [True, True] == await session.value(program, namespace(slow=gate, check=check))
    gate.opened.set()


async def test_slot_of_an_abandoned_call(make_session: Callable[..., Session]) -> None:
    """Contract 7: the slot of an abandoned call is free when its handler ends, not before."""
    order: list[str] = []
    began = asyncio.Event()

    async def slow(argument: Any) -> None:
        context = PtcCallContext.current()
        assert context is not None
        began.set()
        while not context.abandoned:
            await asyncio.sleep(0)
        order.append("slow sees that it is abandoned")

    async def fast(argument: Any) -> Any:
        order.append("fast")
        return argument

    program = """\
import asyncio
task = asyncio.create_task(tools.slow({}))
held = asyncio.create_task(tools.fast('held'))
await asyncio.sleep(0.1)
print('cancel')
task.cancel()
await held
"""
    session = make_session(max_pending_calls=1)

    assert "held" == await session.value(program, namespace(slow=slow, fast=fast))
    assert ["slow sees that it is abandoned", "fast"] == order


async def test_cancelled_before_it_is_sent(make_session: Callable[..., Session]) -> None:
    """Contract 7: a call that is cancelled while it waits for a slot never reaches the host."""
    gate = Gate()
    seen, record = recording()

    async def begun(argument: Any) -> None:
        await gate.began.wait()

    program = """\
import asyncio
slow = asyncio.create_task(tools.slow({}))
await tools.begun({})
second = asyncio.create_task(tools.slow({}))
held = [asyncio.create_task(tools.record(i)) for i in range(6)]
await asyncio.sleep(0)
for task in held[1::2]:
    task.cancel()
slow.cancel()
second.cancel()
await asyncio.gather(slow, second, *held[1::2], return_exceptions=True)
print('go')
[await task for task in held[::2]]
"""
    session = make_session(max_pending_calls=2)
    request = PtcRunRequest(program=program, bindings=(namespace(slow=gate, begun=begun, record=record),))
    result = None
    async for event in session.runtime.stream(session.runtime.resolve(request)):
        if isinstance(event, OutputEvent):
            gate.opened.set()
        if isinstance(event, ResultEvent):
            result = event.result

    assert result is not None
    assert result.error is None
    assert [0, 2, 4] == result.value
    assert [0, 2, 4] == seen


async def test_call_records(session: Session) -> None:
    """Contract 8.3: `calls` has the dispatched calls in order, with outcome and duration."""
    gate = Gate()

    async def begun(argument: Any) -> None:
        await gate.began.wait()

    program = """\
import asyncio
await tools.echo(1)
for argument in ({}, object()):
    try:
        await tools.f(argument)
    except ToolCallError:
        pass
await helpers['my-tool']({})
asyncio.ensure_future(tools.slow({}))
await tools.begun({})
"""
    tools = namespace(echo=echo, f=raising(ValueError("nope")), slow=gate, begun=begun)

    result = await session.run(program, tools, namespace("helpers", None, **{"my-tool": echo}))
    gate.opened.set()

    assert [
        ("tools", "echo", "ok"),
        ("tools", "f", "rejected"),
        ("helpers", "my-tool", "ok"),
        ("tools", "slow", "open"),
        ("tools", "begun", "ok"),
    ] == [(call.namespace, call.member, call.outcome) for call in result.calls]
    assert all(call.milliseconds >= 0 for call in result.calls)
    assert 5 == result.calls_total
    assert ((), 0) == ((nothing := await session.run("1")).calls, nothing.calls_total)


async def test_call_records_of_failed_runs(session: Session) -> None:
    """Contract 8.3: a failed run tells its calls too, because side effects are not rolled back."""
    tools = namespace(echo=echo)

    results = [
        await session.run("await tools.echo(1)\nraise ValueError", tools),
        await session.run("await tools.echo(1)\nobject()", tools),
        await session.run("await tools.echo(1)\n__import__('os')._exit(3)", tools),
    ]

    assert ["exception", "invalid-output", "worker-exit"] == [kind(result) for result in results]
    assert [[("echo", "ok")]] * 3 == [
        [(call.member, call.outcome) for call in result.calls] for result in results
    ]
    assert [1, 1, 1] == [result.calls_total for result in results]


async def test_call_records_are_bounded(session: Session) -> None:
    """Contract 8.3: the first 1,000 calls are recorded, and all are counted."""
    program = """\
import asyncio
await tools.first(0)
await asyncio.gather(*[tools.echo(i) for i in range(1_500)])
await tools.last(0)
"""

    result = await session.run(program, namespace(first=echo, echo=echo, last=echo))

    assert 1_502 == result.calls_total
    assert ["first"] + ["echo"] * 999 == [call.member for call in result.calls]


@pytest.mark.parametrize("action", ["run", "stream", "release", "aclose"])
async def test_reentry_is_refused(action: str, session: Session) -> None:
    """E30: a handler that runs, releases or closes what waits for it gets a RuntimeError, and no deadlock."""
    runtime = session.runtime

    async def reenter(argument: Any) -> str:
        try:
            match action:
                case "run":
                    await session.run("1")
                case "stream":
                    runtime.stream(runtime.resolve(PtcRunRequest(program="1", state_owner=session.owner)))
                case "release":
                    await runtime.release(session.owner)
                case "aclose":
                    await runtime.aclose()
        except RuntimeError as error:
            return str(error)
        return "not refused"

    text_of_refusal = await session.value("await tools.f({})", namespace(f=reenter))

    assert "not refused" != text_of_refusal
    assert text_of_refusal
    assert 2 == await session.value("1 + 1")


async def test_reentry_through_another_owner(session: Session) -> None:
    """E30: a run of the same owner is refused through a chain of handlers of other owners too."""
    other = Session(session.runtime)

    async def inner(argument: Any) -> str:
        try:
            await session.run("1")
        except RuntimeError:
            return "refused"
        return "not refused"

    async def outer(argument: Any) -> Any:
        return await other.value("await tools.inner({})", namespace(inner=inner))

    assert "refused" == await session.value("await tools.outer({})", namespace(outer=outer))


async def test_run_after_the_waiting_run_is_over(session: Session) -> None:
    """E30: a handler that outlives its run may run the owner again: nothing waits for it any more."""
    gate = Gate()
    outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def patient(argument: Any) -> None:
        await gate(argument)
        outcome.set_result(await session.value("6 * 7"))

    async def begun(argument: Any) -> None:
        await gate.began.wait()

    program = "import asyncio\nasyncio.ensure_future(tools.patient({}))\nawait tools.begun({})\ndone = True"
    await session.run(program, namespace(patient=patient, begun=begun))
    gate.opened.set()

    assert 42 == await outcome


async def test_handler_runs_another_owner(runtime: JupyterPtcRuntime) -> None:
    """E31: a handler may run a program of another owner, of no owner, and both at once."""
    session, other, ownerless = Session(runtime), Session(runtime), Session(runtime, owner=None)

    async def sub(argument: Any) -> list[Any]:
        return await asyncio.gather(
            other.value("await tools.echo('other')", namespace(echo=echo)),
            ownerless.value("await tools.echo('none')", namespace(echo=echo)),
        )

    assert ["other", "none"] == await session.value("await tools.sub({})", namespace(sub=sub))


async def test_handler_releases_another_owner(runtime: JupyterPtcRuntime) -> None:
    """E31: a handler may release an owner that does not wait for it."""
    session, other = Session(runtime), Session(runtime)
    await other.run("x = 1")

    async def release(argument: Any) -> bool:
        await runtime.release(other.owner)
        return True

    assert await session.value("await tools.release({})", namespace(release=release))
    assert "exception" == kind(await other.run("x"))


async def test_owners_do_not_mix(runtime: JupyterPtcRuntime) -> None:
    """Contract 7: two owners with the same names call their own handlers, at the same time."""
    barrier = asyncio.Barrier(2)
    program = "import asyncio\nawait tools.meet({})\nawait asyncio.gather(*[tools.f(i) for i in range(200)])"

    async def meet(argument: Any) -> None:
        await barrier.wait()

    async def run(label: str) -> PtcRunResult:
        async def answer(argument: int) -> list[Any]:
            context = PtcCallContext.current()
            assert context is not None
            assert isinstance(context.state_owner, StateOwner)
            return [label, context.state_owner.label, argument]

        session = Session(runtime, StateOwner(label))
        return await session.run(program, namespace(meet=meet, f=answer))

    results = await asyncio.gather(run("a"), run("b"))

    assert [[[label, label, i] for i in range(200)] for label in ("a", "b")] == [r.value for r in results]


# ---------------------------------------------------------------------- the end of a runtime


async def test_aclose_cancels_handlers(make_runtime: Callable[..., JupyterPtcRuntime]) -> None:
    """Contract 7: aclose cancels handlers that still run and waits for their clean-up."""
    gate = Gate()
    cleaned = asyncio.Event()

    async def slow(argument: Any) -> Any:
        try:
            return await gate(argument)
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    async def begun(argument: Any) -> None:
        await gate.began.wait()

    reported = loop_errors()
    runtime = make_runtime()
    program = "import asyncio\nasyncio.ensure_future(tools.slow({}))\nawait tools.begun({})\n'done'"
    assert "done" == await Session(runtime).value(program, namespace(slow=slow, begun=begun))
    tasks = asyncio.all_tasks()
    assert not gate.cancelled
    await runtime.aclose()

    assert gate.cancelled
    assert cleaned.is_set()
    assert {asyncio.current_task()} == {task for task in tasks if not task.done()}
    assert [] == reported


async def test_aclose_during_a_call(make_runtime: Callable[..., JupyterPtcRuntime]) -> None:
    """Contract 8.7: aclose aborts a run that waits for a binding, and ends the binding's handler."""
    gate = Gate()
    runtime = make_runtime()
    running = asyncio.create_task(Session(runtime).run("await tools.slow({})", namespace(slow=gate)))
    await gate.began.wait()
    await runtime.aclose()

    result = await running

    assert "abort" == kind(result)
    assert result.error is not None
    assert "runtime disposed" in result.error.message
    assert gate.cancelled


async def test_aclose_names_stubborn_handlers(
    make_runtime: Callable[..., JupyterPtcRuntime], caplog: pytest.LogCaptureFixture
) -> None:
    """Contract 7: aclose does not wait for ever for a handler that ignores it; its name is logged."""
    release, ended = asyncio.Event(), asyncio.Event()
    began = asyncio.Event()

    async def stubborn(argument: Any) -> None:
        began.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        ended.set()

    async def begun(argument: Any) -> None:
        await began.wait()

    runtime = make_runtime(grace_ms=50)
    program = "import asyncio\nasyncio.ensure_future(tools.stubborn({}))\nawait tools.begun({})\ndone = True"
    await Session(runtime).run(program, namespace(stubborn=stubborn, begun=begun))
    with caplog.at_level(logging.WARNING, "ptc_kernel"):
        await runtime.aclose()

    assert not ended.is_set()
    assert ["tools.stubborn"] == [word for word in ("tools.stubborn", "tools.begun") if word in caplog.text]
    release.set()
    await ended.wait()


async def test_call_events(session: Session) -> None:
    """Contract 10.1: stream() tells each call when it starts and how it ends, with ids and names."""
    program = """\
await tools.echo(1)
try:
    await tools['my-tool']({})
except ToolCallError:
    pass
try:
    await tools.echo(object())
except ToolCallError:
    pass
"""
    tools = namespace(**{"echo": echo, "my-tool": raising(ValueError("nope"))})
    request = PtcRunRequest(program=program, bindings=(tools,), state_owner=session.owner)
    events = [event async for event in session.runtime.stream(session.runtime.resolve(request))]

    assert [
        CallEvent(call_id=1, namespace="tools", member="echo", phase="started"),
        CallEvent(call_id=1, namespace="tools", member="echo", phase="ok"),
        CallEvent(call_id=2, namespace="tools", member="my-tool", phase="started"),
        CallEvent(call_id=2, namespace="tools", member="my-tool", phase="rejected"),
    ] == events[:-1]
    assert isinstance(events[-1], ResultEvent)


async def test_functions_are_read_once(session: Session) -> None:
    """Contract 4.7: the mapping of functions is read when run is called; later changes have no effect."""
    functions: dict[str, Any] = {}

    async def change(argument: Any) -> None:
        functions["echo"] = raising(ValueError("changed"))
        functions.pop("other")

    functions |= {"echo": echo, "other": echo, "change": change}
    tools = namespace()
    object.__setattr__(tools, "functions", functions)
    program = "await tools.change({})\n[await tools.echo(1), await tools.other(2), sorted(tools)]"

    assert [1, 2, ["change", "echo", "other"]] == await session.value(program, tools)


REBOUND = [
    "asyncio.get_running_loop",
    "asyncio.get_event_loop",
    "builtins.open",
    "builtins.print",
    "itertools.count",
    "json.dumps",
    "json.loads",
    "threading.Lock",
    "threading.Thread",
    "time.time",
]


async def test_programs_that_rebind_what_bindings_stand_on(session: Session) -> None:
    """Contract 13: honest programs that rebind parts of the standard library still get answers."""
    program = """\
import asyncio, builtins, itertools, json, os, threading, time
module, name = globals()[{0!r}], {1!r}
saved = getattr(module, name)
setattr(module, name, None)
try:
    answers = [await tools.echo({{'n': [1]}}), tools.echo.sync(a=1)]
    try:
        await tools.f({{}})
    except ToolCallError as e:
        answers.append(e.toolName)
finally:
    setattr(module, name, saved)
answers
"""
    tools = namespace(echo=echo, f=raising(ValueError("nope")))
    results = {}
    for name in REBOUND:
        results[name] = await session.run(program.format(*name.split(".")), tools, timeout_ms=5_000)

    assert {name: [{"n": [1]}, {"a": 1}, "f"] for name in REBOUND} == {
        name: result.value if result.error is None else result.error.message
        for name, result in results.items()
    }


async def test_programs_that_shadow_builtins(session: Session) -> None:
    """Contract 13: globals of the program that shadow builtins do not disturb its bindings."""
    program = """\
object = type = dict = str = list = isinstance = len = Exception = print = None
RuntimeError = asyncio = json = None
answers = [await tools.echo({'n': [1]}), tools.echo.sync(a=1)]
try:
    await tools.f({})
except ToolCallError as e:
    answers.append(e.toolName)
answers
"""
    tools = namespace(echo=echo, f=raising(ValueError("nope")))

    assert [{"n": [1]}, {"a": 1}, "f"] == await session.value(program, tools)


async def test_deep_recursion_around_a_call(session: Session) -> None:
    """Contract 7: a call near the recursion limit answers or raises in the program, and costs no slot."""
    limit = sys.getrecursionlimit()
    program = f"""\
def dive(n):
    return tools.echo.sync(n) if n == 0 else dive(n - 1)
outcomes = []
for n in [*range({limit - 150}, {limit + 10})] * 4:
    try:
        outcomes.append(dive(n))
    except (RecursionError, ToolCallError):
        outcomes.append('refused')
[outcomes[0], outcomes[-1], set(outcomes) == {{0, 'refused'}}, await tools.echo('alive')]
"""
    result = await session.run(program, namespace(echo=echo))

    assert result.error is None
    assert [0, "refused", True, "alive"] == result.value
