"""Binding calls: one after the other, 1,000 at once, and one with a long string.

The programs take the time themselves, so that the run around them does not count.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from ptc_kernel import JupyterPtcRuntime
from tests.benchmarks.measure import Plan, Row, Target, compare, take_turns
from tests.benchmarks.raw import raw_peer
from tests.benchmarks.stock import StockKernel, stock_kernel
from tests.support import Session, echo, namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ("calls", "text")

SEQUENTIAL, GATHERED = 200, 1000
LONG = 10_000_000
US, MS = 1e6, 1e3
BARE = "raw ZMQ, both ends blocking"
RAW = "raw ZMQ, asyncio at both ends"
COMM = "a stock comm"

ONE_BY_ONE = f"""
import time
began = time.perf_counter()
for number in range({SEQUENTIAL}):
    await call(number)
(time.perf_counter() - began) / {SEQUENTIAL}"""

ALL_AT_ONCE = f"""
import asyncio, time
began = time.perf_counter()
_ = await asyncio.gather(*[call(number) for number in range({GATHERED})])
(time.perf_counter() - began) / {GATHERED}"""

ONE_LONG = f"""
import time
text = "x" * {LONG}
began = time.perf_counter()
answer = await call(text)
time.perf_counter() - began"""

COMM_CALLS = """
import asyncio, itertools
from comm import create_comm
numbers, waiting = itertools.count(), {}
bench = create_comm(target_name="bench")
def on_answer(message):
    data = message["content"]["data"]
    waiting.pop(data["id"]).set_result(data["value"])
bench.on_msg(on_answer)
async def call(value):
    number = next(numbers)
    future = waiting[number] = asyncio.get_running_loop().create_future()
    bench.send({"id": number, "value": value})
    return await future
"""


async def _answer_comm(kernel: StockKernel, message: dict[str, Any]) -> None:
    if message["msg_type"] == "comm_msg":
        content = message["content"]
        answer = {"comm_id": content["comm_id"], "data": await echo(content["data"])}
        kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", answer))


class _Callers:
    """A kernel of ours and a stock kernel whose programs can `await call(value)`."""

    def __init__(self, session: Session, kernel: StockKernel) -> None:
        self._session = session
        self._kernel = kernel

    async def prepare(self) -> None:
        """Define `call` in both."""
        await self._session.run("call = tools.echo")
        await self._kernel.run(COMM_CALLS)

    async def ours(self, program: str) -> float:
        """What our program says it took."""
        return await self._session.value(program)

    async def comm(self, program: str) -> float:
        """What the stock kernel's program says it took, its comm messages answered meanwhile."""
        return await self._kernel.value(program, partial(_answer_comm, self._kernel))


@contextlib.asynccontextmanager
async def _callers(folder: str) -> AsyncIterator[_Callers]:
    async with JupyterPtcRuntime() as runtime, stock_kernel(folder) as kernel:
        callers = _Callers(Session(runtime, bindings=[namespace(echo=echo)]), kernel)
        await callers.prepare()
        yield callers


async def calls(plan: Plan) -> list[Row]:
    """Short calls, one by one and 1,000 at once."""
    count = plan.count(15, 3)
    async with _callers(plan.folder) as callers, raw_peer(plan.folder) as peer:
        one, bare, raw, comm = await take_turns(
            count,
            lambda: callers.ours(ONE_BY_ONE),
            lambda: peer.blocking(SEQUENTIAL),
            lambda: peer.sequential(SEQUENTIAL),
            lambda: callers.comm(ONE_BY_ONE),
        )
        many, raw_many, comm_many = await take_turns(
            count,
            lambda: callers.ours(ALL_AT_ONCE),
            lambda: peer.gathered(GATHERED),
            lambda: callers.comm(ALL_AT_ONCE),
        )
    sequential, gathered = "binding call, one by one", f"binding call, {GATHERED:,} gathered"
    return [
        _row(sequential, one, raw, RAW, Target(of="ratio", limit=3.5)),
        _row(sequential, one, bare, BARE),
        _row(sequential, one, comm, COMM),
        _row(gathered, many, raw_many, RAW, Target(of="ratio", limit=1.5)),
        _row(gathered, many, comm_many, COMM),
    ]


def _row(what: str, ours: list[float], other: list[float], against: str, target: Target | None = None) -> Row:
    mine, theirs = ([US * value for value in values] for values in (ours, other))
    return compare(what, mine, theirs, unit="µs", against=against, target=target)


async def text(plan: Plan) -> list[Row]:
    """One string of 10 MB as argument and as answer."""
    async with (
        JupyterPtcRuntime() as runtime,
        raw_peer(plan.folder) as peer,
    ):
        session = Session(runtime, bindings=[namespace(echo=echo)])
        await session.run("call = tools.echo")
        ours, raw = await take_turns(
            plan.count(9, 3), lambda: session.value(ONE_LONG), lambda: peer.text(LONG)
        )
    mine, theirs = ([MS * value for value in values] for values in (ours, raw))
    target = Target(of="ratio", limit=1.3)
    return [compare("10 MB string there and back", mine, theirs, unit="ms", against=RAW, target=target)]
