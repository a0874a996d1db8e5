"""The crash ring, written by the worker's half and read by the host's half, and the rest of a pipe."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptc_kernel.host import recovery
from ptc_kernel.host.recovery import RING_BYTES, CrashRing, read_rest
from ptc_kernel.kernel import ring as writing
from ptc_kernel.kernel.interrupts import Interrupts
from ptc_kernel.kernel.ring import CODES, HEADER, RECORD, Ring
from ptc_kernel.kernel.runs import Runs
from ptc_kernel.kernel.streams import Output
from tests.protocol.json_strategies import FAST

SIZE = RING_BYTES - HEADER
DATA = [b"", b"a", b"two\nlines\n", "\u20ac \U0001f600".encode(), b"\0\x1b[0m\r", b"\xff\xe2\x82", b"x" * 300]
RECORDS = [(kind, data) for data in DATA for kind in CODES]

WRITER = """
import os, signal, sys
from ptc_kernel.kernel.ring import Ring

ring = Ring(int(sys.argv[1]))
for number in range(1000):
    ring.add("stdout" if number % 2 else "stderr", b"line %d\\n" % number)
os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def rings(start=0):
    """Both ends of one ring, as if `start` bytes had been written and seen."""
    crash = CrashRing()
    ring = Ring(crash.fd)
    ring.end = crash.seen = start
    try:
        yield ring, crash
    finally:
        ring._map.close()
        crash.close_fd()
        crash.close()


def add_all(ring, records):
    """Write the records."""
    for kind, data in records:
        ring.add(kind, data)


def forge(ring, data, end):
    """Write bytes behind the header, and an end offset, as a program could."""
    ring._map[HEADER : HEADER + len(data)] = data
    struct.pack_into("<Q", ring._map, 0, end)


def record(code, length, data=b""):
    """The bytes of a record with any code and any length."""
    return RECORD.pack(code, length) + data


# ---------------------------------------------------------------------- honest contents


def test_both_halves_agree_on_the_layout():
    """The writing and the reading half have the same header, record head and codes."""
    assert writing.PARTIAL_AT == recovery.PARTIAL_AT
    assert (writing.HEADER, writing.RECORD.format) == (recovery.HEADER, recovery.RECORD.format)
    assert dict(enumerate(recovery.KINDS, 1)) == {code: kind for kind, code in writing.CODES.items()}


def test_an_unused_ring_is_empty():
    """A kernel that wrote nothing leaves nothing."""
    with rings() as (_, crash):
        assert [] == list(crash.undelivered())


def test_records_come_back_exactly_and_in_order():
    """Every record comes back with its kind and its exact bytes, in the order of writing."""
    with rings() as (ring, crash):
        add_all(ring, RECORDS)
        assert RECORDS == list(crash.undelivered())


def test_records_are_handed_over_once():
    """What was handed over is seen: the second look finds only what was written since."""
    with rings() as (ring, crash):
        add_all(ring, RECORDS)
        list(crash.undelivered())
        assert ring.end == crash.seen
        assert [] == list(crash.undelivered())
        ring.add("stdout", b"later")
        assert [("stdout", b"later")] == list(crash.undelivered())


def test_records_cross_the_end_of_the_ring_at_every_byte():
    """A record comes back whole wherever the end of the ring cuts it: in its head, in its bytes, between."""
    records = [("stdout", b"first \xe2\x82\xac"), ("display", b"second")]
    length = sum(RECORD.size + len(data) for _, data in records)
    found = []
    for before in range(length + 1):
        with rings(SIZE - before) as (ring, crash):
            add_all(ring, records)
            found.append(list(crash.undelivered()))
    assert [records] * (length + 1) == found


def test_a_full_ring_is_readable_to_the_last_byte():
    """Exactly one ring of unseen bytes comes back; with one record more, nothing is made up."""
    half = SIZE // 2 - RECORD.size
    with rings(12345) as (ring, crash):
        ring.add("stdout", b"a" * half)
        ring.add("stderr", b"b" * (half - RECORD.size - 1))
        ring.add("display", b"c")
        sizes = [(kind, len(data)) for kind, data in crash.undelivered()]
        assert [("stdout", half), ("stderr", half - RECORD.size - 1), ("display", 1)] == sizes
        assert 12345 + SIZE == crash.seen
        crash.seen = 12345
        ring.add("stdout", b"")
        assert [] == list(crash.undelivered())


def test_an_overwritten_ring_gives_nothing():
    """When unseen records were overwritten, nothing is made up from what stands in their place."""
    with rings() as (ring, crash):
        for _ in range(17):
            ring.add("stdout", b"x" * 1024 * 1024)
        assert [] == list(crash.undelivered())


def test_an_overwritten_ring_is_readable_from_what_was_seen():
    """Records behind `seen` may be overwritten as often as they like."""
    with rings() as (ring, crash):
        for _ in range(40):
            ring.add("stdout", b"x" * 1024 * 1024)
        crash.seen = ring.end
        ring.add("stderr", b"the last words")
        assert [("stderr", b"the last words")] == list(crash.undelivered())


def merged(records):
    """The records as the ring keeps them: output joins the output of its channel before it."""
    found = []
    for kind, data in records:
        if found and found[-1][0] == kind != "began":
            found[-1] = (kind, found[-1][1] + data)
        else:
            found.append((kind, data))
    return found


def test_short_writes_share_a_record():
    """Writes to one channel that no message has reached are one record, to another channel a new one."""
    with rings() as (ring, crash):
        add_all(ring, [("stdout", b"ab")] * 1000)
        assert 2000 + RECORD.size == ring.end
        add_all(ring, [("stderr", b"c"), ("stdout", b"d")])
        assert [("stdout", b"ab" * 1000), ("stderr", b"c"), ("stdout", b"d")] == list(crash.undelivered())


def test_a_message_ends_a_record():
    """What is written after a message was made is a record of its own, which that message did not bring."""
    with rings() as (ring, crash):
        ring.add("stdout", b"in the message")
        crash.seen = ring.mark()
        ring.add("stdout", b"after it")
        assert [("stdout", b"after it")] == list(crash.undelivered())


def test_ids_of_runs_are_never_joined():
    """Two runs that began are two records."""
    with rings() as (ring, crash):
        add_all(ring, [("began", b"a"), ("began", b"b")])
        assert [("began", b"a"), ("began", b"b")] == list(crash.undelivered())


def test_a_record_does_not_outgrow_half_the_ring():
    """Short writes without end fill several records, each of which a reader accepts."""
    with rings() as (ring, crash):
        for _ in range(15):
            ring.add("stdout", b"x" * 1024 * 1024)
        sizes = [len(data) for _, data in crash.undelivered()]
        assert (15 * 1024 * 1024, True) == (sum(sizes), max(sizes) <= SIZE // 2)


@FAST
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(sorted(CODES)), st.binary(max_size=50)), max_size=8), max_size=6
    ),
    st.one_of(st.integers(0, 200), st.integers(SIZE - 200, SIZE + 200), st.integers(0, 2**60)),
    st.data(),
)
def test_any_records_from_any_message(messages, start, data):
    """Whatever was written wherever, from any message exactly the output beyond it comes back."""
    with rings(start) as (ring, crash):
        marks = [start]
        for records in messages:
            add_all(ring, records)
            marks.append(ring.mark())
        seen = data.draw(st.integers(0, len(messages)))
        crash.seen = marks[seen]
        expected = [record for records in messages[seen:] for record in merged(records)]
        assert expected == list(crash.undelivered())
        assert marks[-1] == crash.seen


@pytest.mark.parametrize("size", [SIZE, SIZE + 1, 2 * SIZE, 3 * SIZE])
def test_a_record_larger_than_the_ring_is_no_error(size):
    """Of a record larger than the ring can hold the end is kept, and what follows it is read."""
    with rings(99) as (ring, crash):
        ring.add("display", b"x" * (size - 3) + b"end")
        ring.add("stdout", b"after")
        (large, data), after = crash.undelivered()
        assert ("display", True, ("stdout", b"after")) == (large, data.endswith(b"xend"), after)
        assert SIZE // 2 >= len(data) > SIZE // 4


def test_a_whole_window_of_short_writes_fits():
    """What may be on its way to the host, in pieces of a few bytes too, is in the ring."""
    with rings() as (ring, crash):
        runs = Runs()
        output = Output(runs, Interrupts(runs, ()), ring, lambda *_: None)
        output.reader = Wakes()
        written = 0
        while not output.is_full():
            for _ in range(1000):
                output.put(None, "stdout", "abc\n")
            written += 4000
        assert written == sum(len(data) for _, data in crash.undelivered())


class Wakes:
    """Stands where the reader thread is: nobody has to be woken here."""

    def wake(self):
        """Do nothing."""


def test_the_ring_of_a_killed_process():
    """Everything that a process wrote before SIGKILL is read by the process that made the ring."""
    crash = CrashRing()
    done = subprocess.run([sys.executable, "-c", WRITER, str(crash.fd)], pass_fds=[crash.fd], check=False)
    crash.close_fd()
    lines = list(crash.undelivered())
    crash.close()
    expected = [("stdout" if number % 2 else "stderr", b"line %d\n" % number) for number in range(1000)]
    assert (-signal.SIGKILL, expected) == (done.returncode, lines)


PARTIALS = [b"\xe2", b"\xe2\x82", b"\xf0\x9f\x98", b""]


@pytest.mark.parametrize("data", PARTIALS)
@pytest.mark.parametrize("channel", ["stdout", "stderr"])
def test_the_first_bytes_of_a_character(channel, data):
    """The first bytes of a character are kept for each descriptor by itself, beside the records."""
    other = {"stdout": "stderr", "stderr": "stdout"}[channel]
    with rings() as (ring, crash):
        assert (b"", b"") == (crash.partial(channel), crash.partial(other))
        ring.set_partial(channel, b"\xf0\x9f\x98")
        ring.set_partial(channel, data)
        ring.set_partial(other, b"\xc3")
        ring.add("stdout", b"x" * 100)
        assert (data, b"\xc3") == (crash.partial(channel), crash.partial(other))
        assert [("stdout", b"x" * 100)] == list(crash.undelivered())


# ---------------------------------------------------------------------- hostile contents


@pytest.mark.parametrize("count", [4, 5, 128, 255])
def test_a_forged_number_of_first_bytes(count):
    """More first bytes than a character can have are cut."""
    with rings() as (ring, crash):
        ring._map[recovery.PARTIAL_AT["stdout"]] = count
        assert 3 == len(crash.partial("stdout"))


@pytest.mark.parametrize(
    ("data", "end", "expected"),
    [
        pytest.param(record(0, 1, b"a"), 6, [], id="code-0"),
        pytest.param(record(len(CODES) + 1, 1, b"a"), 6, [], id="code-beyond"),
        pytest.param(record(255, 1, b"a"), 6, [], id="code-255"),
        pytest.param(record(1, 2, b"a"), 6, [("stdout", b"a")], id="died-while-it-grew"),
        pytest.param(record(1, SIZE // 2 + 1), SIZE, [], id="longer-than-half-the-ring"),
        pytest.param(record(1, 2**32 - 1), SIZE, [], id="length-4-GiB"),
        pytest.param(record(1, SIZE - RECORD.size + 1), SIZE, [], id="longer-than-the-ring"),
        pytest.param(record(1, 1, b"a"), 2**64 - 1, [], id="end-at-its-largest"),
        pytest.param(record(1, 1, b"a"), SIZE + 1, [], id="end-beyond-the-ring"),
        pytest.param(record(1, 1, b"a"), 3, [], id="end-inside-a-head"),
        pytest.param(record(1, 1, b"a") + record(9, 0), 11, [("stdout", b"a")], id="good-then-bad"),
        pytest.param(record(1, 1, b"a") + b"\x01\x01", 8, [("stdout", b"a")], id="half-a-head"),
    ],
)
def test_forged_records(data, end, expected):
    """Reading stops at the first record that is not one; the good ones before it are kept."""
    with rings() as (ring, crash):
        forge(ring, data, end)
        assert expected == list(crash.undelivered())


@pytest.mark.parametrize("seen", [7, SIZE, 2**64, 10**30])
def test_an_end_behind_what_was_seen(seen):
    """An end offset that went back, or a forged mark in a message, gives nothing."""
    with rings() as (ring, crash):
        ring.add("stdout", b"a")
        crash.seen = seen
        assert [] == list(crash.undelivered())


@FAST
@given(
    st.binary(max_size=400),
    st.one_of(st.integers(0, 500), st.integers(SIZE - 500, SIZE + 500), st.integers(0, 2**64 - 1)),
    st.one_of(st.integers(0, 500), st.integers(0, 2**64 - 1)),
)
def test_random_contents_never_raise_and_stay_bounded(data, end, seen):
    """Whatever stands in the memory, reading it ends and gives at most a ring of known kinds."""
    with rings() as (ring, crash):
        forge(ring, data, end)
        crash.seen = seen
        found = list(crash.undelivered())
        assert {kind for kind, _ in found} <= set(CODES)
        assert len(found) * RECORD.size + sum(len(data) for _, data in found) <= SIZE


@FAST
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 40), st.binary(max_size=30)).map(lambda r: record(*r)),
        max_size=30,
    ),
    st.integers(0, 1000),
)
def test_nearly_good_records_never_raise(parts, end):
    """Records whose codes and lengths are nearly right are read without error, and never past the end."""
    with rings() as (ring, crash):
        forge(ring, b"".join(parts), end)
        found = list(crash.undelivered())
        assert len(found) * RECORD.size + sum(len(data) for _, data in found) <= end


def test_empty_records_are_counted_by_their_heads():
    """A ring full of empty records is read to its end, and no further."""
    with rings() as (ring, crash):
        count = 20_000
        forge(ring, record(2, 0) * count, count * RECORD.size)
        assert [("stderr", b"")] * count == list(crash.undelivered())


def test_the_host_cannot_write_into_the_ring():
    """The host's mapping is for reading only."""
    with rings() as (_, crash), pytest.raises(TypeError):
        crash._map[0:1] = b"x"


# ---------------------------------------------------------------------- read_rest


@pytest.fixture
def pipe():
    """A pipe; what a test closes of it is its own."""
    ends = list(os.pipe())
    yield ends
    for fd in ends:
        os.close(fd)


REST = {
    "empty": ([], ""),
    "ascii": ([b"abc\n"], "abc\n"),
    "split-in-two": ([b"a\xe2", b"\x82\xacb"], "a\u20acb"),
    "split-in-four": ([b"\xf0", b"\x9f", b"\x98", b"\x80"], "\U0001f600"),
    "cut-at-the-end": ([b"a\xe2\x82"], "a\ufffd"),
    "invalid-inside": ([b"a\xffb"], "a\ufffdb"),
    "bom": ([b"\xef\xbb\xbfa"], "\ufeffa"),
    "nul-and-newlines": ([b"\0\r\n\n\r"], "\0\r\n\n\r"),
    "a-full-pipe": ([b"x" * 65_536], "x" * 65_536),
}


@pytest.mark.parametrize(("pieces", "expected"), REST.values(), ids=REST)
@pytest.mark.parametrize("writer", ["open", "closed"])
def test_rest_of_a_pipe(pipe, pieces, expected, writer):
    """The rest of a pipe is its text, whether or not a writer still holds it open."""
    for piece in pieces:
        os.write(pipe[1], piece)
    if writer == "closed":
        os.close(pipe.pop())
    assert expected == read_rest(pipe[0])


BEGUN = [
    (b"", b"", ""),
    (b"\xe2\x82", b"\xacb", "\u20acb"),
    (b"\xf0\x9f\x98", b"\x80", "\U0001f600"),
    (b"\xe2\x82", b"", "\ufffd"),
    (b"\xe2\x82", b"abc", "\ufffdabc"),
]


@pytest.mark.parametrize(("begun", "data", "expected"), BEGUN)
def test_rest_of_a_character(pipe, begun, data, expected):
    """A character whose first bytes the dead kernel had read already is joined with its rest."""
    os.write(pipe[1], data)
    assert expected == read_rest(pipe[0], begun)


def test_rest_is_read_once(pipe):
    """What was read is gone from the pipe."""
    os.write(pipe[1], b"once")
    assert ("once", "") == (read_rest(pipe[0]), read_rest(pipe[0]))


def test_a_character_split_between_two_reads(tmp_path):
    """A character that two reads share comes back whole."""
    file = tmp_path / "rest"
    text = "x" * (1024 * 1024 - 1) + "\u20ac" * 3
    file.write_text(text, encoding="utf-8")
    fd = os.open(file, os.O_RDONLY)
    try:
        assert text == read_rest(fd)
    finally:
        os.close(fd)


def test_an_endless_writer_is_left_alone():
    """A writer that never ends is read up to a bound."""
    fd = os.open("/dev/zero", os.O_RDONLY)
    try:
        assert recovery.PIPE_REST == len(read_rest(fd))
    finally:
        os.close(fd)
