"""The ways in: `open_repl`, its blocking twin, and how a result shows itself."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ptc_kernel import OutputEvent, PtcRunError, ResultEvent, UsageValueError, blocking, open_repl
from tests.support import alive, echo, kind, namespace


async def test_first_contact():
    """A REPL of four lines keeps variables, calls tools, and leaves nothing behind."""
    async with open_repl(tools={"echo": echo}, namespaces=[namespace("more", None, echo=echo)]) as repl:
        await repl.run("x = await tools.echo({'a': 41})")
        assert 42 == (await repl.run("x['a'] + (await more.echo(1))")).value
        pid = await repl.get("pid") if kind(await repl.run("import os; pid = os.getpid()")) is None else 0
        assert alive(pid)
    assert not alive(pid)


async def test_put_and_get():
    """Values go in and come out without loss; what is none raises and says why."""
    value = {"a": [1, 2.5, None, "é\ud800", {"": True}]}
    async with open_repl() as repl:
        await repl.put("x", value)
        assert value == await repl.get("x")
        await repl.put("nothing", None)
        assert await repl.get("nothing") is None
        with pytest.raises(UsageValueError, match="lossless"):
            await repl.put("x", (1, 2))
        with pytest.raises(UsageValueError, match="not the name"):
            await repl.put("a b", 1)
        with pytest.raises(PtcRunError, match="NameError"):
            await repl.get("missing")
        await repl.run("s = {1}")
        with pytest.raises(PtcRunError, match="invalid-output"):
            await repl.get("s")


async def test_prelude():
    """P77: the prelude has run in every fresh environment, after a loss and a reset as well."""
    async with open_repl(prelude="def f(x):\n    return x + 1") as repl:
        assert 2 == (await repl.run("f(1)")).value
        assert "worker-exit" == kind(await repl.run("import os; os._exit(3)"))
        result = await repl.run("f(2)")
        assert (3, True) == (result.value, "exit code 3" in (result.reset_reason or ""))
        await repl.reset()
        assert [4, 5] == [r.value for r in await asyncio.gather(repl.run("f(3)"), repl.run("f(4)"))]


async def test_prelude_that_fails():
    """A prelude's failure is the result of the run that needed it, each time."""
    async with open_repl(prelude="1/0") as repl:
        for _ in range(2):
            result = await repl.run("print('never')")
            assert ("exception", []) == (kind(result), list(result.output))


async def test_display_completion_is_the_default():
    """In a REPL a last expression that is not JSON is shown, unless the run says otherwise."""
    async with open_repl() as repl:
        assert "{1}" == (await repl.run("{1}")).text().strip()
        assert "invalid-output" == kind(await repl.run("{1}", display_completion=False))


async def test_stream():
    """A REPL streams."""
    async with open_repl() as repl:
        events = [event async for event in repl.stream("print('a')\n1")]
        assert [OutputEvent, ResultEvent] == [type(event) for event in events]
        assert 1 == events[-1].result.value


def test_blocking_in_a_script():
    """The twin works without an event loop, and ends its thread."""
    before = threading.active_count()
    with blocking.open_repl(tools={"echo": echo}) as repl:
        repl.put("x", 20)
        assert 42 == repl.run("x + (await tools.echo(22))").value
        assert 20 == repl.get("x")
        assert [OutputEvent, ResultEvent] == [type(event) for event in repl.stream("print('a')")]
        repl.reset()
        assert "exception" == kind(repl.run("x"))
    repl.close()
    assert before == threading.active_count()


async def test_blocking_inside_a_running_loop():
    """P64: the twin works where a loop runs already, as in a notebook."""
    with blocking.open_repl({"double": lambda n: n * 2}) as repl:
        assert 42 == repl.run("await tools.double(21)").value


def test_blocking_with_a_bad_configuration():
    """A configuration that is refused leaves no thread behind."""
    before = threading.active_count()
    with pytest.raises(ValueError, match="timeout_ms"):
        blocking.open_repl(config={"timeout_ms": 0})
    assert before == threading.active_count()


async def test_rendered_text():
    """P14: `text()` folds what was overwritten and drops escapes; `output` has all of it."""
    program = "for i in range(1000): print(f'\\r{i}', end='')\nprint('\\n\\x1b[31mred\\x1b[0m ab\\bc')"
    async with open_repl() as repl:
        result = await repl.run(program)
    assert "999\nred ac\n" == result.text()
    assert "\r0\r1\r2" in result.output[0].text
    assert "\x1b[31m" in result.output[0].text


async def test_result_shows_itself():
    """A result's repr is short; a notebook sees the output, the value or the failure."""
    async with open_repl() as repl:
        result = await repl.run("print('hi')\n'x' * 1000")
        assert 150 > len(repr(result))
        assert result._repr_mimebundle_()["text/plain"].startswith("hi\n'xxx")
        assert result is result.raise_for_error()
        failed = await repl.run("1/0")
        assert "ZeroDivisionError" in failed._repr_mimebundle_()["text/plain"]
        with pytest.raises(PtcRunError, match="ZeroDivisionError") as caught:
            failed.raise_for_error()
        assert (failed, "exception") == (caught.value.result, caught.value.kind)
