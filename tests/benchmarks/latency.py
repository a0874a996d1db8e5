"""How long one waits: for a first result, a warm one, a figure, a stop, and an import."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from ptc_kernel import AbortController, JupyterPtcRuntime, OutputEvent, PtcRunRequest, ResultEvent
from tests.benchmarks.measure import Plan, Row, Target, compare, skipped, take_turns
from tests.benchmarks.stock import StockKernel, stock_kernel
from tests.support import Session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

__all__ = ("cold", "figure", "imports", "stop", "warm")

STOCK = "stock ipykernel"
SUM = "1+1"
FIGURE = """
import matplotlib.pyplot as plt
_ = plt.subplots()[1].plot(range(100))
plt.show()"""
ENDLESS = {
    "a busy loop": "print('begun', flush=True)\nwhile True: pass",
    "await sleep": "import asyncio\nprint('begun', flush=True)\nawait asyncio.sleep(3600)",
}
SETTLE_S = 0.05  # the program has said that it began; now let it get into its loop


async def _timed(work: Awaitable[object]) -> float:
    """Milliseconds until something is done."""
    began = time.perf_counter()
    await work
    return 1000 * (time.perf_counter() - began)


@contextlib.asynccontextmanager
async def _both(plan: Plan) -> AsyncIterator[tuple[Session, StockKernel]]:
    async with JupyterPtcRuntime() as runtime, stock_kernel(plan.folder) as kernel:
        session = Session(runtime)
        await session.run(SUM)
        yield session, kernel


async def cold(plan: Plan) -> list[Row]:
    """From nothing to the first result of a new owner."""

    async def ours() -> float:
        began = time.perf_counter()
        async with JupyterPtcRuntime() as runtime:
            await Session(runtime).value(SUM)
            return 1000 * (time.perf_counter() - began)

    async def stock() -> float:
        began = time.perf_counter()
        async with stock_kernel(plan.folder) as kernel:
            await kernel.run(SUM)
            return 1000 * (time.perf_counter() - began)

    await take_turns(1, ours, stock)  # what the disk must read first, it reads now
    mine, theirs = await take_turns(plan.count(11, 3), ours, stock)
    target = Target(of="ratio", limit=0.40)
    return [compare("cold start to `1+1`", mine, theirs, unit="ms", against=STOCK, target=target)]


async def warm(plan: Plan) -> list[Row]:
    """The smallest program in a kernel that runs already."""
    async with _both(plan) as (session, kernel):

        async def ours() -> float:
            return await _timed(session.value(SUM))

        async def stock() -> float:
            return await _timed(kernel.run(SUM))

        await take_turns(20, ours, stock)
        mine, theirs = await take_turns(plan.count(1000, 100), ours, stock)
    target = Target(of="ratio", limit=0.40)
    return [compare("warm run of `1+1`", mine, theirs, unit="ms", against=STOCK, target=target)]


async def figure(plan: Plan) -> list[Row]:
    """One matplotlib figure, the first of a kernel and later ones."""
    if importlib.util.find_spec("matplotlib") is None:
        return [skipped("a matplotlib figure", "matplotlib is not installed")]
    first: tuple[list[float], list[float]] = ([], [])
    later: tuple[list[float], list[float]] = ([], [])
    for _ in range(plan.count(3, 1)):
        async with _both(plan) as (session, kernel):

            async def ours() -> float:
                began = time.perf_counter()
                result = await session.run(FIGURE)
                assert result.error is None, result.error
                assert result.output, "the figure was not shown"
                return 1000 * (time.perf_counter() - began)

            async def stock() -> float:
                return await _timed(kernel.run(FIGURE))

            for kept, times in ((first, 1), (later, plan.count(10, 5))):
                mine, theirs = await take_turns(times, ours, stock)
                kept[0].extend(mine)
                kept[1].extend(theirs)
    return [
        compare("a first matplotlib figure", *first, unit="ms", against=STOCK),
        compare("a matplotlib figure, warm", *later, unit="ms", against=STOCK),
    ]


async def stop(plan: Plan) -> list[Row]:
    """From the abort to the result, the kernel alive."""
    rows = []
    async with _both(plan) as (session, kernel):
        for what, program in ENDLESS.items():
            measures = partial(_stop_ours, session, program), partial(_stop_stock, kernel, program)
            mine, theirs = await take_turns(plan.count(15, 3), *measures)
            rows.append(compare(f"stop of {what}", mine, theirs, unit="ms", against=STOCK))
    return rows


async def _stop_ours(session: Session, program: str) -> float:
    controller, aborted = AbortController(), 0.0
    request = PtcRunRequest(program=program, state_owner=session.owner, signal=controller.signal)
    async for event in session.runtime.stream(session.runtime.resolve(request)):
        if isinstance(event, OutputEvent) and not aborted:
            await asyncio.sleep(SETTLE_S)
            aborted = time.perf_counter()
            controller.abort()
        elif isinstance(event, ResultEvent):
            error = event.result.error
            assert error is not None, "the program ended by itself"
            assert (error.kind, event.result.state) == ("abort", "kept"), error
    return 1000 * (time.perf_counter() - aborted)


async def _stop_stock(kernel: StockKernel, program: str) -> float:
    """Interrupt and poke: ipykernel 7.4 cancels what it awaits, but only a message wakes its loop."""
    request = kernel.client.execute(program)
    async for message in kernel.published(request):
        if message["msg_type"] == "stream":
            break
    await asyncio.sleep(SETTLE_S)
    interrupted = time.perf_counter()
    await kernel.interrupt()
    kernel.client.kernel_info()
    await asyncio.gather(kernel.reply(request), kernel.until_idle(request))
    return 1000 * (time.perf_counter() - interrupted)


async def imports(plan: Plan) -> list[Row]:
    """What the package adds to the start of a Python program."""
    package, front_door, bare = await take_turns(
        plan.count(15, 3),
        lambda: _run_python("import ptc_kernel"),
        lambda: _run_python("from ptc_kernel import JupyterPtcRuntime"),
        lambda: _run_python("pass"),
    )
    target = Target(of="value", limit=60)
    return [
        compare("`import ptc_kernel`, over bare Python", _over(package, bare), unit="ms", target=target),
        compare("`from ptc_kernel import JupyterPtcRuntime`, likewise", _over(front_door, bare), unit="ms"),
    ]


def _over(values: list[float], bare: list[float]) -> list[float]:
    return [value - base for value, base in zip(values, bare, strict=True)]


async def _run_python(code: str) -> float:
    async def run() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
        assert await process.wait() == 0

    return await _timed(run())
