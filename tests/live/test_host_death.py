"""A host that is killed takes its kernels, and everything that they started, with it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys

import pytest

from tests.support import alive

READY = """
import os, subprocess
async def tell(*others):
    await host.ready({"kernel": os.getpid(), "others": list(others)})
"""
PROGRAMS = {
    "idle": "await tell()",
    "sleeping": "await tell()\nimport time\ntime.sleep(600)",
    "awaiting": "await tell()\nimport asyncio\nawait asyncio.sleep(600)",
    "busy": "await tell()\nwhile True: pass",
    "C loop": "await tell()\nsum(range(10**13))",
    "signals ignored": (
        "import signal\nfor n in (2, 15, 1): signal.signal(n, signal.SIG_IGN)\nawait tell()\nwhile True: pass"
    ),
    "children": (
        "ps = [subprocess.Popen(['sleep', '600']) for _ in range(3)]\n"
        "await tell(*[p.pid for p in ps])\nps[0].wait()"
    ),
    "forked child": (
        "import time\npid = os.fork()\nif pid == 0:\n    time.sleep(600)\n    os._exit(0)\n"
        "await tell(pid)\ntime.sleep(600)"
    ),
    "flooding": "await tell()\nwhile True: print('x' * 1000)",
}


def gone(pids: list[int], seconds: float) -> list[int]:
    """Wait, at most so long, until these processes are gone; returns those that are not."""
    left = []
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if not poll.poll(seconds * 1000) and alive(pid):
            left.append(pid)
        os.close(fd)
    return left


CASES = [(state, False) for state in PROGRAMS] + [(state, True) for state in ("idle", "awaiting", "C loop")]


@pytest.mark.parametrize(("state", "host_forked"), CASES)
def test_killed_host(state, host_forked):
    """Two seconds after `kill -9` of the host nothing of its kernel is left, in any state of the program."""
    command = [sys.executable, "-m", "tests.live.host_process", READY + PROGRAMS[state]]
    host = subprocess.Popen([*command, *(["fork"] if host_forked else [])], stdout=subprocess.PIPE, text=True)
    fork = 0
    try:
        assert host.stdout is not None
        facts = json.loads(host.stdout.readline())
        fork = facts["fork"]
        pids = [facts["kernel"], *facts["others"]]
        assert all(alive(pid) for pid in pids)

        host.send_signal(signal.SIGKILL)
        host.wait()

        assert [] == gone(pids, 2)
    finally:
        host.kill()
        host.wait()
        host.stdout.close()
        if fork:
            os.kill(fork, signal.SIGKILL)
