"""A kernel process and its family, played by real processes: signals, death, the end of all of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

import pytest

from ptc_kernel.host.process import KernelProcess, describe_exit, oom_kills
from tests.support import alive

LONG = 30  # seconds of grace that no test uses up

# What the leader of the group does. Each program prints the pids of its family, one a line.
SLEEPER = "sh -c 'echo $$; exec sleep 1000'"
STUBBORN_SLEEPER = "sh -c 'trap \"\" TERM INT HUP; echo $$; exec sleep 1000'"
STARTS_MORE = "sh -c 'trap \"sleep 1000 & echo \\$!\" TERM; echo $$; while :; do sleep 1000 & wait; done'"
CHILD = f"{SLEEPER} & wait"
LEFT_THE_GROUP = f"setsid {SLEEPER} & wait"
FAMILY_LEFT_THE_GROUP = "setsid sh -c 'sleep 1000 & echo $!; echo $$; wait' & wait"
POLITE = "trap 'exit 3' TERM; {} & while :; do wait; done"
STUBBORN_LEADER = "trap '' TERM; echo $$; exec sleep 1000"
STUBBORN_CHILD = f"{STUBBORN_SLEEPER} & wait"
STUBBORN_OUTSIDE = f"setsid {STUBBORN_SLEEPER} & wait"
LEAVES_A_CHILD = f"{SLEEPER} & read x; exit 5"
LEAVES_A_STUBBORN_CHILD = f"{STUBBORN_SLEEPER} & read x; exit 5"
SUBREAPER = """
import ctypes, subprocess, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
subprocess.run(["setsid", "sh", "-c", "sleep 1000 & echo $!"])
time.sleep(1000)
"""
INTERRUPTED = """
import subprocess, sys
child = '''
import time
try:
    print(1, flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print(2, flush=True)
'''
process = subprocess.Popen([sys.executable, "-c", child])
try:
    process.wait()
except KeyboardInterrupt:
    process.wait()
    print(3, flush=True)
"""


class Family:
    """A leader under a KernelProcess, and what its family prints."""

    def __init__(self, *command):
        self.popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.exits = []
        self.process = KernelProcess(self.popen, self.exits.append)
        self.seen = []

    def pids(self, count=1):
        """The next numbers that are printed: pids, as a rule."""
        numbers = [int(self.popen.stdout.readline()) for _ in range(count)]
        self.seen += [number for number in numbers if number > 3]
        return numbers

    async def sweep(self):
        """Leave nothing of a test, whatever became of it."""
        self.process.kill()
        await self.process.dead
        for pid in living(self.seen):
            os.kill(pid, signal.SIGKILL)
        for pid in (self.process.pid, *self.seen):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        self.popen.stdin.close()
        self.popen.stdout.close()


@pytest.fixture
async def start():
    """Start a leader: a shell script, or a whole command."""
    families, descriptors = [], len(os.listdir("/proc/self/fd"))

    def start(script, *command):
        families.append(Family(*(command or ("sh", "-c")), script))
        return families[-1]

    yield start
    for family in families:
        await family.sweep()
    assert descriptors == len(os.listdir("/proc/self/fd"))


def living(pids):
    """Those of them that live."""
    return [pid for pid in pids if alive(pid)]


async def gone(family, pids):
    """Whether all of these are gone once `all_gone` says that nothing is left."""
    assert await family.process.all_gone(LONG)
    return [] == living(pids)


# ---------------------------------------------------------------------- death


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -SEGV $$", -signal.SIGSEGV),
        ("kill -KILL $$", -signal.SIGKILL),
        ("kill -ABRT $$", -signal.SIGABRT),
    ],
)
async def test_death_has_an_exit_status(start, script, code):
    """A death is told once, with its exit status, and the process is reaped."""
    family = start(script)
    assert code == await family.process.dead
    assert ([code], False) == (family.exits, family.process.alive)
    assert not os.path.exists(f"/proc/{family.process.pid}")


async def test_on_exit_comes_before_dead():
    """Whoever waits for `dead` finds everything done that had to be done at the death."""
    popen = subprocess.Popen(["sh", "-c", "exit 4"], start_new_session=True)
    seen = []
    process = KernelProcess(popen, lambda code: seen.append((code, process.dead.done())))
    await process.dead
    assert [(4, False)] == seen


async def test_a_death_takes_the_group(start):
    """What a leader leaves in its group when it ends by itself is killed."""
    family = start(LEAVES_A_CHILD)
    pids = family.pids()
    family.popen.stdin.close()
    assert 5 == await family.process.dead
    assert await gone(family, pids)


async def test_an_ended_process_is_not_signalled(start):
    """Every signal after the death is a no-op: the id may belong to somebody else."""
    family = start("exit 0")
    await family.process.dead
    family.process.interrupt()
    family.process.kill()
    assert await family.process.end(LONG)
    assert await family.process.all_gone(LONG)
    assert [0] == family.exits


# ---------------------------------------------------------------------- interrupt and kill


async def test_interrupt_goes_to_the_group(start):
    """SIGINT reaches the leader and the child that it waits for."""
    family = start(INTERRUPTED, sys.executable, "-c")
    family.pids()
    family.process.interrupt()
    assert 0 == await family.process.dead
    assert [2, 3] == family.pids(2)


async def test_kill_spares_nobody_in_the_group(start):
    """Kill ends the leader and its children by SIGKILL."""
    family = start(CHILD)
    pids = family.pids()
    family.process.kill()
    assert -signal.SIGKILL == await family.process.dead
    assert await gone(family, pids)


@pytest.mark.parametrize("script", [LEFT_THE_GROUP, STUBBORN_OUTSIDE])
async def test_kill_takes_a_child_that_left_the_group(start, script):
    """A child that made a session of its own is killed too."""
    family = start(script)
    pids = family.pids()
    assert pids[0] == os.getpgid(pids[0])
    family.process.kill()
    await family.process.dead
    assert await gone(family, pids)


async def test_kill_takes_a_family_that_left_the_group(start):
    """The children of a child that left the group are killed with it."""
    family = start(FAMILY_LEFT_THE_GROUP)
    pids = family.pids(2)
    family.process.kill()
    await family.process.dead
    assert await gone(family, pids)


async def test_kill_takes_orphans_of_a_subreaper(start):
    """Daemons, whose parents ended, are found below a leader that adopts orphans."""
    family = start(SUBREAPER, sys.executable, "-c")
    pids = family.pids()
    family.process.kill()
    await family.process.dead
    assert await gone(family, pids)


async def test_kill_works_on_a_stopped_process(start):
    """A leader that is stopped, and one that ignores every signal, is killed."""
    family = start("trap '' TERM INT HUP QUIT; kill -STOP $$; exit 9")
    os.waitid(os.P_PID, family.process.pid, os.WSTOPPED | os.WNOWAIT)
    family.process.kill()
    assert -signal.SIGKILL == await family.process.dead


async def test_kill_twice(start):
    """Killing again, before the death is told, changes nothing."""
    family = start(CHILD)
    pids = family.pids()
    family.process.kill()
    family.process.kill()
    assert -signal.SIGKILL == await family.process.dead
    assert [-signal.SIGKILL] == family.exits
    assert await gone(family, pids)


async def test_strangers_are_left_alone(start):
    """Other processes of this user, other kernels among them, are not touched."""
    one, other = start(CHILD), start(CHILD)
    pids = other.pids()
    one.pids()
    one.process.kill()
    await one.process.dead
    assert await one.process.all_gone(LONG)
    assert (True, pids) == (other.process.alive, living(pids))


# ---------------------------------------------------------------------- end


@pytest.mark.parametrize("child", [SLEEPER, f"setsid {SLEEPER}"], ids=["inside", "outside"])
async def test_a_polite_end(start, child):
    """The leader and its children, in the group and outside it, are told by SIGTERM and end by themselves."""
    family = start(POLITE.format(child))
    pids = family.pids()
    assert await family.process.end(LONG)
    assert (3, []) == (family.process.dead.result(), living(pids))
    assert await gone(family, pids)


async def test_a_leader_that_ignores_sigterm(start):
    """After the grace a leader that ignores SIGTERM is killed."""
    family = start(STUBBORN_LEADER)
    family.pids()
    assert await family.process.end(0.05)
    assert -signal.SIGKILL == family.process.dead.result()
    assert await gone(family, [])


@pytest.mark.parametrize("script", [STUBBORN_CHILD, STUBBORN_OUTSIDE])
async def test_a_child_that_ignores_sigterm(start, script):
    """After the grace a child that ignores SIGTERM is killed, when its leader is dead already, too."""
    family = start(script)
    pids = family.pids()
    assert await family.process.end(0.5)
    assert -signal.SIGTERM == family.process.dead.result()
    assert [] == living(pids)
    assert await gone(family, pids)


async def test_a_member_that_starts_another_when_it_is_told_to_end(start):
    """What a member of the group starts in answer to SIGTERM is gone after the end, like everything else."""
    family = start(f"{STARTS_MORE} & wait")
    pids = family.pids()
    assert await family.process.end(0.5)
    pids += family.pids()
    assert (True, []) == (await family.process.all_gone(LONG), living(pids))


async def test_a_child_outside_that_starts_another_when_it_is_told_to_end(start):
    """The same for a child that left the group."""
    family = start(f"setsid {STARTS_MORE} & wait")
    pids = family.pids()
    assert await family.process.end(0.5)
    pids += family.pids()
    assert (True, []) == (await family.process.all_gone(LONG), living(pids))


async def test_a_stubborn_child_of_a_leader_that_died(start):
    """A child that ignores everything but SIGKILL does not survive its leader."""
    family = start(LEAVES_A_STUBBORN_CHILD)
    pids = family.pids()
    family.popen.stdin.close()
    assert 5 == await family.process.dead
    assert await gone(family, pids)


# ---------------------------------------------------------------------- all_gone


@pytest.mark.parametrize("script", [CHILD, LEFT_THE_GROUP, STUBBORN_CHILD, STUBBORN_OUTSIDE])
async def test_all_gone_ends_what_is_left(start, script):
    """Whoever is alive is killed, and gone when `all_gone` says so."""
    family = start(script)
    pids = family.pids()
    assert await family.process.all_gone(LONG)
    assert (-signal.SIGKILL, []) == (family.process.dead.result(), living(pids))


async def test_all_gone_waits(start):
    """`all_gone` returns as soon as the last one is gone."""
    family = start(CHILD)
    pids = family.pids()
    waiting = asyncio.ensure_future(family.process.all_gone(LONG))
    family.process.kill()
    assert await waiting
    assert [] == living(pids)


# ---------------------------------------------------------------------- words


def test_the_oom_counter_of_this_machine():
    """Linux says how many processes it killed for lack of memory."""
    assert type(oom_kills()) is int


NO_EVIDENCE = "running out of memory is the likely reason, but there is no evidence that this machine did"
EVIDENCE = (
    "running out of memory is the likely reason, but "
    "this machine did kill a process for lack of memory meanwhile"
)
UNKNOWN = "running out of memory is the likely reason, but this machine does not say whether it did"


@pytest.mark.parametrize(
    ("code", "before", "text"),
    [
        (0, 0, "the kernel process ended with exit code 0"),
        (137, 0, "the kernel process ended with exit code 137"),
        (-11, 0, "the kernel process was ended by signal SIGSEGV (11)"),
        (-6, None, "the kernel process was ended by signal SIGABRT (6)"),
        (-33, 0, "the kernel process was ended by signal 33"),
        (-9, 2**60, f"the kernel process was ended by signal SIGKILL (9); {NO_EVIDENCE}"),
        (-9, -1, f"the kernel process was ended by signal SIGKILL (9); {EVIDENCE}"),
        (-9, None, f"the kernel process was ended by signal SIGKILL (9); {UNKNOWN}"),
    ],
)
def test_an_exit_status_in_words(code, before, text):
    """An exit status names its code or its signal; after SIGKILL it says what is known of memory."""
    assert text == describe_exit(code, oom_before=before)
