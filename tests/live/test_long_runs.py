"""Many runs, many calls, many kernels: nothing is lost, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading

import pytest

from ptc_kernel import JupyterPtcRuntime, StateOwner
from tests.support import Session, alive, echo, entries, kind, namespace


async def test_two_thousand_runs(session):
    """P01: of 2,000 runs of `1+1`, each followed by `print('x')`, none loses its value or its text."""
    wrong = []
    for number in range(2000):
        value = await session.run("1+1")
        shown = await session.run("print('x')")
        if (2, [], None) != (value.value, entries(value), kind(value)):
            wrong.append((number, value))
        if [("stdout", "x\n")] != entries(shown) or shown.background:
            wrong.append((number, shown))

    assert [] == wrong


async def test_owners_in_parallel():
    """P50: 24 owners that start at once each get their own kernel and their own answer."""
    async with JupyterPtcRuntime() as runtime:
        sessions = [Session(runtime, StateOwner(str(number))) for number in range(24)]
        values = await asyncio.gather(*[s.value(f"me = {i}\nme * 10") for i, s in enumerate(sessions)])
        pids = await asyncio.gather(*[s.pid() for s in sessions])

    assert [number * 10 for number in range(24)] == values
    assert 24 == len(set(pids))
    assert [] == [pid for pid in pids if alive(pid)]


@pytest.fixture
def held(tmp_path, monkeypatch):
    """Count the descriptors, threads and private folders that this process holds."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return lambda: (len(os.listdir("/proc/self/fd")), threading.active_count(), len(os.listdir(tmp_path)))


async def test_nothing_is_left_of_kernels(runtime, held):
    """J16, P51: descriptors, threads and folders are the same after 3 and after 30 one-shot runs."""
    one_shot = Session(runtime, None, (namespace(echo=echo),))
    for _ in range(3):
        await one_shot.value("await tools.echo(1)")
    before = held()
    for number in range(30):
        result = await one_shot.run("await tools.echo(1)" if number % 3 else "1/0")
        assert (None if number % 3 else "exception") == kind(result)

    assert before == held()


async def test_nothing_is_left_of_a_runtime(held):
    """Threads and descriptors of a closed runtime are gone."""
    async with JupyterPtcRuntime() as runtime:  # warms up what the process keeps
        await Session(runtime).value("1")
    before = held()
    for _ in range(5):
        async with JupyterPtcRuntime() as runtime:
            await Session(runtime).value("1")

    assert before == held()
