"""A host whose event loop stands still: output waits in the kernel, and none is lost.

The loop is frozen with `time.sleep` in a callback, on purpose: that is what is tested.
"""

from __future__ import annotations

import asyncio
import hashlib
import time

import pytest

from tests.support import kind, namespace, text

MIB = 1024 * 1024
PRINT_100_MB = """
import hashlib
seen = hashlib.sha256()
await host.freeze({})
for number in range(100_000):
    line = f"{number:09d}" + "x" * 990
    seen.update(line.encode() + b"\\n")
    print(line)
seen.hexdigest()
"""
DEATHS = {
    "exit": "os._exit(7)",
    "kill": "os.kill(os.getpid(), 9)",
    "segmentation fault": "import ctypes\nctypes.string_at(0)",
    "abort": "os.abort()",
}


def freezer(seconds: float):
    """A namespace whose `freeze` lets the host's loop stand still, from its next turn on."""

    async def freeze(_: object) -> None:
        asyncio.get_running_loop().call_later(0, time.sleep, seconds)

    return namespace("host", None, freeze=freeze)


async def test_flood_at_a_host_that_pauses(make_session):
    """P02: 100 MB printed at a host that stands still for 5 seconds arrive whole and in order."""
    session = make_session(max_output_bytes=256 * MIB)
    result = await session.run(PRINT_100_MB, freezer(5))

    assert kind(result) is None
    assert 1 == len(result.output)
    assert result.value == hashlib.sha256(text(result).encode()).hexdigest()


@pytest.mark.parametrize("lines", [1, 20_000])
@pytest.mark.parametrize("death", DEATHS)
async def test_death_before_a_host_that_pauses(session, death, lines):
    """10.1: what was printed before a death arrives exactly, though the host stood still meanwhile."""
    program = (
        f"import os\nawait host.freeze({{}})\nfor i in range({lines}): print(i, 'é')\nos.write(1, b'end')\n"
    )
    result = await session.run(program + DEATHS[death], freezer(0.5))

    assert "worker-exit" == kind(result)
    assert "".join(f"{i} é\n" for i in range(lines)) + "end" == text(result)


async def test_a_trap_where_the_log_was(session):
    """13: a program that puts a FIFO in the place of its kernel's log does not hold its host."""
    program = """
import os
arguments = open('/proc/self/cmdline').read().split(chr(0))
folder = os.path.dirname(next(a for a in arguments if a.endswith('connection.json')))
os.remove(f'{folder}/log')
os.mkfifo(f'{folder}/log')
os._exit(3)
"""
    assert "worker-exit" == kind(await session.run(program))
    assert 1 == await session.value("1")
