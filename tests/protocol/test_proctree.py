"""Lines of `/proc/PID/stat`, and who descends from whom."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptc_kernel.protocol.proctree import Process, descendants_of, parse_stat
from tests.protocol.json_strategies import FAST

NAMES = {
    "plain": b"python3",
    "space": b"Web Content",
    "parentheses": b"(sd-pam)",
    "closing": b")",
    "opening": b"(",
    "looks-like-the-rest": b") Z 1 1 1 0",
    "two-closings": b"a) R (b)",
    "newline": b"a\nb",
    "not-utf8": b"\xff\xfe",
    "empty": b"",
}


def line(name=b"sh", state=b"S", pid=42, parent=7, group=40, started=123456):
    """A line as proc(5) describes it: 52 fields, the name in parentheses, the start time at 22."""
    numbers = [parent, group, 40, 34816, 40, 4194304, *range(10, 20), 0, 1, started, *range(1000, 1030)]
    return b"%d (%s) %s %s\n" % (pid, name, state, " ".join(map(str, numbers)).encode())


def process(pid, parent, *, zombie=False):
    """A process of whom only the family counts."""
    return Process(pid, 100 + pid, parent, 1, zombie)


def pids(pid, *processes):
    """The process ids of the descendants, in order."""
    return [found.pid for found in descendants_of(pid, processes)]


# ---------------------------------------------------------------------- parse_stat


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_do_not_confuse(name):
    """Whatever a process calls itself, the fields behind its name are found."""
    assert Process(42, 123456, 7, 40, False) == parse_stat(line(name))


@pytest.mark.parametrize("state", list("RSDZTtWXxKPI"))
def test_only_z_is_a_zombie(state):
    """A process is a zombie in state Z and in no other."""
    assert (state == "Z") == parse_stat(line(state=state.encode())).zombie


@FAST
@given(
    st.binary(max_size=15),
    st.integers(1, 2**22),
    st.integers(0, 2**22),
    st.integers(0, 2**22),
    st.integers(0, 2**63),
)
def test_any_name_and_numbers(name, pid, parent, group, started):
    """All numbers are found behind a name of any bytes."""
    text = line(name, b"S", pid, parent, group, started)
    assert Process(pid, started, parent, group, False) == parse_stat(text)


def test_the_line_of_this_process():
    """The line of a real process gives what the operating system says of it."""
    with open("/proc/self/stat", "rb") as file:
        found = parse_stat(file.read())
    assert (os.getpid(), os.getppid(), os.getpgrp(), False) == (
        found.pid,
        found.parent,
        found.group,
        found.zombie,
    )
    assert found.started > 0


# ---------------------------------------------------------------------- descendants_of


def test_no_processes():
    """Nobody descends from anybody in an empty table."""
    assert [] == pids(1)


def test_a_process_does_not_descend_from_itself():
    """The ancestor is no descendant, nor are its parent, its siblings and strangers."""
    table = [process(10, 1), process(1, 0), process(11, 1), process(50, 40)]
    assert [] == pids(10, *table)


def test_children_and_grandchildren():
    """All generations are found, whatever the order of the table."""
    table = [process(40, 30), process(30, 20), process(20, 10), process(21, 10), process(10, 1)]
    assert {20, 21, 30, 40} == set(pids(10, *table))
    assert {20, 21, 30, 40} == set(pids(10, *reversed(table)))


def test_parents_come_before_children():
    """Who is stopped first cannot start more of those that come later."""
    order = pids(10, *[process(number + 1, number) for number in range(50, 9, -1)])
    assert list(range(11, 52)) == order


def test_zombies_are_left_out_and_looked_through():
    """A zombie is dead already; what it started is not."""
    table = [process(20, 10, zombie=True), process(30, 20), process(31, 20, zombie=True)]
    assert [30] == pids(10, *table)


def test_a_zombie_ancestor():
    """The descendants of a process that is dead and not yet reaped are found."""
    assert [20] == pids(10, process(10, 1, zombie=True), process(20, 10))


@pytest.mark.parametrize(
    "table",
    [
        pytest.param([process(10, 10), process(20, 10)], id="its-own-parent"),
        pytest.param([process(10, 20), process(20, 10)], id="each-other's-parent"),
    ],
)
def test_a_table_that_changed_while_it_was_read(table):
    """Circles, which a table can show when ids are used again, do not hang the search."""
    assert 20 in pids(10, *table)


def test_a_chain_of_any_depth():
    """A chain of 100,000 processes needs no recursion."""
    table = [process(number + 1, number) for number in range(10, 100_010)]
    assert 100_000 == len(pids(10, *table))


@FAST
@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=30), st.data())
def test_any_forest(nodes, data):
    """The descendants are exactly the living ones with the ancestor on their way to the root."""
    table = [process(pid, parent % pid, zombie=zombie) for pid, (parent, zombie) in enumerate(nodes, 1)]
    parents = {found.pid: found.parent for found in table}
    ancestor = data.draw(st.integers(0, len(nodes)))

    def descends(pid):
        while pid in parents:
            pid = parents[pid]
            if pid == ancestor:
                return True
        return False

    expected = {found.pid for found in table if not found.zombie and descends(found.pid)}
    order = pids(ancestor, *data.draw(st.permutations(table)))
    assert (expected, len(expected)) == (set(order), len(order))
    assert all(order.index(parents[pid]) < order.index(pid) for pid in order if parents[pid] in order)
