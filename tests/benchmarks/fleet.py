"""Many owners: the memory and the wake-ups of those that wait, the runs per second of those that work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ptc_kernel import JupyterPtcRuntime, StateOwner
from tests.benchmarks.machine import Usage, descendants, pss_mib, usage
from tests.benchmarks.measure import Plan, Row, Target, compare, take_turns
from tests.benchmarks.stock import StockKernel
from tests.support import Session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    OneRun = Callable[[], Awaitable[object]]

__all__ = ("busy", "idle")

STOCK = "stock ipykernel"
MANY, BUSY = 10, 8
SETTLE_S = 1  # what a start leaves to be done is done then


class Fleet(Protocol):
    """Kernels of one kind."""

    async def add(self) -> OneRun:
        """Start one more; returns what runs `1+1` in it."""
        ...


class OurFleet:
    """Owners of one runtime."""

    def __init__(self) -> None:
        self._runtime = JupyterPtcRuntime()

    async def add(self) -> OneRun:
        """Start a kernel for a new owner."""
        session = Session(self._runtime, StateOwner("one of many"))
        await session.value("1+1")
        return lambda: session.value("1+1")

    async def close(self) -> None:
        """End all of them."""
        await self._runtime.aclose()


class StockFleet:
    """Stock kernels, each with its client."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._kernels: list[StockKernel] = []

    async def add(self) -> OneRun:
        """Start a kernel."""
        kernel = StockKernel(self._folder)
        self._kernels.append(kernel)
        await kernel.start()
        await kernel.run("1+1")
        return lambda: kernel.run("1+1", store_history=False)

    async def close(self) -> None:
        """End all of them."""
        await asyncio.gather(*(kernel.close() for kernel in self._kernels))


async def _add(fleet: Fleet, count: int) -> list[OneRun]:
    """Start several at the same time."""
    return await asyncio.gather(*(fleet.add() for _ in range(count)))


@contextlib.asynccontextmanager
async def _fleets(folder: str) -> AsyncIterator[tuple[OurFleet, StockFleet]]:
    """One of each, both empty; what is in them is ended on the way out."""
    async with contextlib.AsyncExitStack() as stack:
        fleets = OurFleet(), StockFleet(folder)
        for fleet in fleets:
            stack.push_async_callback(fleet.close)
        yield fleets


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """What a fleet cost while nothing ran: MiB of one alone and of each of many, and what they did."""

    alone: float
    each: float
    kernels: Usage
    host: Usage


async def _look(fleet: Fleet, seconds: float) -> Idle:
    others = set(descendants())
    await fleet.add()
    alone = pss_mib(set(descendants()) - others)
    await _add(fleet, MANY - 1)
    kernels, host = set(descendants()) - others, {os.getpid()}
    each = pss_mib(kernels) / MANY
    await asyncio.sleep(SETTLE_S)
    host_before, before = usage(host), usage(kernels)
    await asyncio.sleep(seconds)
    after, host_after = usage(kernels), usage(host)
    return Idle(alone=alone, each=each, kernels=after - before, host=host_after - host_before)


async def idle(plan: Plan) -> list[Row]:
    """Memory of 1 and of 10 kernels that wait, and what 10 of them do meanwhile."""
    seconds = plan.count(5, 2)
    ours, stock = [], []
    for _ in range(plan.count(3, 1)):
        async with _fleets(plan.folder) as (our_fleet, _):
            ours.append(await _look(our_fleet, seconds))
        async with _fleets(plan.folder) as (_, stock_fleet):
            stock.append(await _look(stock_fleet, seconds))

    def row(what: str, unit: str, target: Target | None, value: Callable[[Idle], float]) -> Row:
        mine, theirs = ([value(one) for one in found] for found in (ours, stock))
        return compare(what, mine, theirs, unit=unit, against=STOCK, target=target)

    memory, nothing = Target(of="ratio", limit=0.40), Target(of="value", limit=0)
    waiting = f"{MANY} idle owners, {seconds} s"
    return [
        row("memory (PSS) of 1 idle owner", "MiB", memory, lambda one: one.alone),
        row(f"memory (PSS) of each of {MANY} idle owners", "MiB", memory, lambda one: one.each),
        row(f"{waiting}: CPU", "ms", nothing, lambda one: one.kernels.cpu_ms),
        row(f"{waiting}: voluntary switches", "", nothing, lambda one: one.kernels.switches),
        row(f"{waiting}: voluntary switches of the host", "", None, lambda one: one.host.switches),
    ]


async def _runs_per_second(runs: list[OneRun], seconds: float) -> float:
    """How often these get done when all of them work for some time."""
    began = time.perf_counter()

    async def work(run: OneRun) -> int:
        done = 0
        while time.perf_counter() - began < seconds:
            await run()
            done += 1
        return done

    done = await asyncio.gather(*(work(run) for run in runs))
    return sum(done) / (time.perf_counter() - began)


async def busy(plan: Plan) -> list[Row]:
    """Runs per second of 8 owners that work at the same time, nothing kept in a history."""
    seconds = plan.count(2, 1)
    async with _fleets(plan.folder) as fleets:
        ours, stock = [await _add(fleet, BUSY) for fleet in fleets]
        mine, theirs = await take_turns(
            plan.count(7, 2),
            lambda: _runs_per_second(ours, seconds),
            lambda: _runs_per_second(stock, seconds),
        )
    target = Target(of="ratio", limit=1.6, at_least=True)
    return [compare(f"{BUSY} busy owners", mine, theirs, unit="runs/s", against=STOCK, target=target)]
