"""Where the events of a run go: the fold of `run`, and the queue of `stream` with its back-pressure."""

from __future__ import annotations

import asyncio

import pytest

from ptc_kernel.host.sinks import Fold, Queue
from ptc_kernel.types import CallEvent, OutputEvent, PtcRunResult, ResultEvent, TextOutput

CALL = CallEvent(call_id=1, namespace="tools", member="add", phase="started")
RESULT = ResultEvent(PtcRunResult())


def output(text, channel="stdout"):
    """An output event."""
    return OutputEvent(TextOutput(text, channel))


class Taken:
    """Counts what was taken, by name, in order."""

    def __init__(self):
        self.names = []

    def __getitem__(self, name):
        return lambda: self.names.append(name)


@pytest.fixture
def taken():
    """A record of the events that were taken."""
    return Taken()


# ---------------------------------------------------------------------- Fold


def test_an_empty_fold():
    """A run without output has none."""
    assert [] == Fold().output()


def test_a_fold_keeps_output_and_takes_at_once(taken):
    """Every event is taken as it comes; the output is merged by channel, calls are dropped."""
    fold = Fold()
    events = [output("a"), CALL, output("b"), output("c", "stderr"), output("d", "display"), output("e")]
    for number, event in enumerate(events):
        fold.put(event, taken[number])
    assert list(range(6)) == taken.names
    expected = [("ab", "stdout"), ("c", "stderr"), ("d", "display"), ("e", "stdout")]
    assert [TextOutput(*item) for item in expected] == fold.output()


def test_a_fold_is_emptied():
    """The output is handed out once, so that a large one is not kept twice."""
    fold = Fold()
    fold.put(output("a"), lambda: None)
    assert ([TextOutput("a", "stdout")], []) == (fold.output(), fold.output())


# ---------------------------------------------------------------------- Queue


async def test_events_come_in_order(taken):
    """Whatever is put comes out in the same order, unmerged."""
    queue, events = Queue(), [output("a"), CALL, output("b"), output("c"), RESULT]
    for number, event in enumerate(events):
        queue.put(event, taken[number])
    assert events == [await queue.next() for _ in events]
    assert list(range(5)) == taken.names


async def test_an_event_is_taken_when_it_is_read(taken):
    """`taken` is called for an event when it is read, not before, and once."""
    queue = Queue()
    queue.put(output("a"), taken["a"])
    queue.put(output("b"), taken["b"])
    assert [] == taken.names
    await queue.next()
    assert ["a"] == taken.names
    await queue.next()
    assert ["a", "b"] == taken.names


async def test_a_reader_waits_for_the_next_event():
    """A reader that is ahead waits, and gets the very event that is put."""
    queue = Queue()
    reader = asyncio.ensure_future(queue.next())
    await asyncio.sleep(0)
    assert not reader.done()
    queue.put(CALL, lambda: None)
    assert CALL is await reader


async def test_a_reader_that_was_emptied_waits_again():
    """After the queue was read empty, the next read waits for a new event."""
    queue = Queue()
    queue.put(output("a"), lambda: None)
    await queue.next()
    reader = asyncio.ensure_future(queue.next())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not reader.done()
    queue.put(RESULT, lambda: None)
    assert RESULT is await reader


async def test_a_cancelled_reader_loses_nothing(taken):
    """A read that is cancelled takes no event with it."""
    queue = Queue()
    reader = asyncio.ensure_future(queue.next())
    await asyncio.sleep(0)
    queue.put(CALL, taken["call"])
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert [] == taken.names
    assert CALL is await queue.next()


async def test_close_lets_the_program_go_on(taken):
    """When nobody reads any more, everything that waits counts as taken, in order."""
    queue = Queue()
    for name in "abc":
        queue.put(output(name), taken[name])
    await queue.next()
    queue.close()
    assert ["a", "b", "c"] == taken.names


async def test_after_close_events_are_taken_at_once(taken):
    """What is put after the close is taken and forgotten."""
    queue = Queue()
    queue.close()
    queue.put(output("a"), taken["a"])
    queue.put(RESULT, taken["result"])
    assert ["a", "result"] == taken.names


async def test_closing_twice(taken):
    """Closing again takes nothing twice."""
    queue = Queue()
    queue.put(output("a"), taken["a"])
    queue.close()
    queue.close()
    assert ["a"] == taken.names


async def test_what_taken_puts_is_kept(taken):
    """A `taken` that makes the producer put the next event, as an acknowledgement may, is in order."""
    queue = Queue()
    queue.put(output("a"), lambda: queue.put(output("b"), taken["b"]))
    assert [output("a"), output("b")] == [await queue.next(), await queue.next()]
    assert ["b"] == taken.names


async def test_what_taken_puts_into_a_closing_queue_is_taken(taken):
    """Closing does not stumble over a producer that puts more at that moment."""
    queue = Queue()
    queue.put(output("a"), lambda: queue.put(output("b"), taken["b"]))
    queue.put(output("c"), taken["c"])
    queue.close()
    assert ["b", "c"] == taken.names
