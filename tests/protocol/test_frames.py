"""Frames of the comm: forged ones of every wrong shape are violations (areas E and M, contract 7 and 13)."""

# The test law asks for `assert expected == actual`.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptc_kernel.protocol.frames import (
    BUFFER_FROM,
    AbandonFrame,
    Answer,
    CallFrame,
    CallsFrame,
    OverFrame,
    PlacedImage,
    ProtocolViolationError,
    encode_answers,
    encode_calls,
    pack_text,
    parse_frame,
    unpack_text,
)
from ptc_kernel.protocol.lossless import encode
from tests.protocol.json_strategies import FAST, THOROUGH, json_values, texts

ROOM = 1 << 20
CALL = [1, "tools", "echo", "{}"]


class Text(str):
    """A str subclass: no parser makes one."""

    __slots__ = ()


def parse(data, *buffers, max_bytes=ROOM):
    """The frame of this data."""
    return parse_frame(data, list(buffers), max_bytes=max_bytes)


def refused(data, *buffers, max_bytes=ROOM):
    """The text with which this data is refused."""
    with pytest.raises(ProtocolViolationError) as caught:
        parse(data, *buffers, max_bytes=max_bytes)
    return str(caught.value)


# ---------------------------------------------------------------------- good frames


@pytest.mark.parametrize(
    ("data", "buffers", "frame"),
    [
        ({"over": "r"}, [], OverFrame("r")),
        ({"abandoned": [1, 2], "run": "r"}, [], AbandonFrame("r", (1, 2))),
        ({"abandoned": [], "run": "r"}, [], AbandonFrame("r", ())),
        ({"calls": [CALL], "run": "r"}, [], CallsFrame("r", (CallFrame(1, "tools", "echo", "{}"),))),
        ({"calls": [[7, "t", "", "1"]], "run": ""}, [], CallsFrame("", (CallFrame(7, "t", "", "1"),))),
        (
            {"calls": [[1, "t", "f", None]], "run": "r"},
            [b"[1]"],
            CallsFrame("r", (CallFrame(1, "t", "f", "[1]"),)),
        ),
        (
            {"calls": [[1, "t", "f", None], [2, "t", "g", "5"], [3, "t", "h", None]], "run": "r"},
            [memoryview(b'"\xe2\x82\xac"'), b"3"],
            CallsFrame(
                "r",
                (
                    CallFrame(1, "t", "f", '"\u20ac"'),
                    CallFrame(2, "t", "g", "5"),
                    CallFrame(3, "t", "h", "3"),
                ),
            ),
        ),
    ],
)
def test_good_frames(data, buffers, frame):
    """A frame of a known shape is rebuilt field by field, in order."""
    assert frame == parse(data, *buffers)


def test_the_callers_buffers_are_left_alone():
    """Parsing takes no buffer out of the message."""
    buffers = [b"1"]
    parse_frame({"calls": [[1, "t", "f", None]], "run": "r"}, buffers, max_bytes=ROOM)
    assert [b"1"] == buffers


# ---------------------------------------------------------------------- forged frames

WRONG_IDS = [None, True, False, 1.0, "1", [], {}, float("inf"), b"1"]
WRONG_TEXTS = [None, True, 1, 1.5, [], {}, b"x", Text("x"), ["x"]]


@pytest.mark.parametrize(
    "data",
    [
        *(None, True, 1, 1.5, "calls", b"calls", [], ["calls"], [["calls", []]], {}, {"run": "r"}),
        *({"calls": [CALL]}, {"abandoned": [1]}, {"unknown": 1}, {"unknown": [], "run": "r"}),
        *(
            {"over": "r", "run": "r"},
            {"calls": [CALL], "run": "r", "x": 1},
            {"abandoned": [], "run": "r", "x": 1},
        ),
        *(
            {"calls": [CALL], "abandoned": [], "run": "r"},
            {"Over": "r"},
            {"answers": [[1, True, "1"]]},
            {"ack": 1},
        ),
        *({"cancel": "r"}, {1: "r"}, {None: 1, "run": "r"}),
    ],
    ids=repr,
)
def test_no_frame(data):
    """M01: what is no object, or no object of a known type, is a violation."""
    assert "control frame" in refused(data)


@pytest.mark.parametrize("run", WRONG_TEXTS, ids=repr)
@pytest.mark.parametrize(
    "data", [{"over": 0}, {"abandoned": [1], "run": 0}, {"calls": [CALL], "run": 0}], ids=list
)
def test_run_of_a_wrong_type(data, run):
    """M01: the run of a frame is exactly a text."""
    assert "run" in refused({key: run if value == 0 else value for key, value in data.items()})


@pytest.mark.parametrize("ident", WRONG_IDS, ids=repr)
def test_ids_of_a_wrong_type(ident):
    """M04: a call id is exactly an int; True is none."""
    refused({"calls": [[ident, "t", "f", "1"]], "run": "r"})
    refused({"abandoned": [ident], "run": "r"})
    refused({"abandoned": [1, ident], "run": "r"})


@pytest.mark.parametrize("ids", [None, 1, "12", {}, {"0": 1}, True, (1, 2)], ids=repr)
def test_abandoned_of_a_wrong_type(ids):
    """M01: the abandoned ids are a list."""
    refused({"abandoned": ids, "run": "r"})


@pytest.mark.parametrize(
    "calls",
    [
        *(None, True, 1, "calls", {}, {"0": CALL}, [], [None], [[]], [1], ["abcd"], [{}], [CALL, None]),
        *([CALL[:3]], [[*CALL, 1]], [CALL, CALL[:3]], [tuple(CALL)], [[[1, "t", "f", "1"]]]),
    ],
    ids=repr,
)
def test_calls_of_a_wrong_shape(calls):
    """M01, M05: a call has exactly four fields, and a calls frame at least one call."""
    refused({"calls": calls, "run": "r"})


@pytest.mark.parametrize("value", WRONG_TEXTS, ids=repr)
@pytest.mark.parametrize("field", [1, 2, 3], ids=["namespace", "member", "text"])
def test_call_fields_of_a_wrong_type(field, value):
    """M05: namespace, member and argument of a call are exactly texts; an argument of None needs a buffer."""
    call = [*CALL]
    call[field] = value
    refused({"calls": [call], "run": "r"})


def test_missing_buffer():
    """M05: an argument whose buffer is missing is a violation, also when an earlier one took the last."""
    refused({"calls": [[1, "t", "f", None]], "run": "r"})
    refused({"calls": [[1, "t", "f", None], [2, "t", "f", None]], "run": "r"}, b"1")


@pytest.mark.parametrize("data", [b"\xff", b"\xc3", b"ab\x80", b"\xf4\x90\x80\x80"])
def test_buffers_that_are_not_utf8(data):
    """M06: bytes that are not UTF-8 are a violation."""
    assert "UTF-8" in refused({"calls": [[1, "t", "f", None]], "run": "r"}, data)
    assert "UTF-8" in refused({"calls": [[1, "t", "f", None]], "run": "r"}, memoryview(data))


@pytest.mark.parametrize(
    ("rows", "buffers", "size"),
    [
        pytest.param(["x" * 512], [], 512, id="one-text"),
        pytest.param(["x" * 256, "y" * 256], [], 512, id="two-texts"),
        pytest.param([None], [b"x" * 512], 512, id="one-buffer"),
        pytest.param([None], [memoryview(b"x" * 512)], 512, id="one-view"),
        pytest.param(["x" * 200, None, None], [b"x" * 200, b"y" * 112], 512, id="texts-and-buffers"),
        pytest.param(["\u20ac" * 100], [], 300, id="three-byte-characters"),
        pytest.param(["\U0001f600" * 100, "\u00e9"], [], 402, id="four-byte-characters"),
    ],
)
def test_frame_over_max_message_bytes(rows, buffers, size):
    """M06, E18: the arguments of a frame have at most max_message_bytes UTF-8 bytes together."""
    data = {"calls": [[n, "t", "f", text] for n, text in enumerate(rows, 1)], "run": "r"}
    assert len(rows) == len(parse(data, *buffers, max_bytes=size).calls)
    assert str(size - 1) in refused(data, *buffers, max_bytes=size - 1)


def test_violations_have_short_texts():
    """A violation never repeats what the peer sent."""
    huge = "x" * 1_000_000
    for data in (
        huge,
        {huge: 1},
        {"over": [huge]},
        {"calls": [[huge]], "run": "r"},
        {"calls": huge, "run": huge},
    ):
        assert len(refused(data)) < 200


# ---------------------------------------------------------------------- packing


@pytest.mark.parametrize(("length", "in_buffer"), [(0, False), (BUFFER_FROM - 1, False), (BUFFER_FROM, True)])
def test_large_texts_travel_as_buffers(length, in_buffer):
    """A text of BUFFER_FROM characters or more is a buffer, with None in its place."""
    buffers: list[bytes] = []
    text = "x" * length
    field = pack_text(text, buffers)
    assert (None if in_buffer else text) == field
    assert ([text.encode()] if in_buffer else []) == buffers
    assert text == unpack_text(field, buffers)
    assert [] == buffers


def test_long_text_with_a_lone_surrogate():
    """E07: a large rejection text crosses unchanged, lone surrogates included."""
    buffers: list[bytes] = []
    text = "\ud800" + "x" * BUFFER_FROM + "\udfff"
    assert text == unpack_text(pack_text(text, buffers), buffers)


@pytest.mark.parametrize("field", [True, 1, 1.5, [], {}, b"x", Text("x")], ids=repr)
def test_unpack_wrong_types(field):
    """A packed text is a str or None, and anything else takes no buffer."""
    buffers = [b"x"]
    with pytest.raises(ProtocolViolationError):
        unpack_text(field, buffers)
    assert [b"x"] == buffers


def test_answers():
    """E13: answers keep their order, ids and outcomes, and large ones become buffers."""
    large = "x" * BUFFER_FROM
    image = PlacedImage(("a", 0), 7, "/picture.png", 3, 4)
    data, buffers = encode_answers(
        [Answer(2, True, "1"), Answer(1, False, "nope"), Answer(3, True, large, (image,))]
    )
    placed = [[["a", 0], 7, "/picture.png", 3, 4]]
    assert {"answers": [[2, True, "1"], [1, False, "nope"], [3, True, None, placed]]} == data
    assert [large.encode()] == buffers


# ---------------------------------------------------------------------- properties

sizes = st.sampled_from([0, 0, 0, BUFFER_FROM])
call_frames = st.builds(
    lambda ident, namespace, member, value, extra: CallFrame(
        ident, namespace, member, encode(value) + " " * extra
    ),
    st.integers(),
    texts,
    texts,
    json_values,
    sizes,
)


@FAST
@given(texts, st.lists(call_frames, min_size=1, max_size=4))
def test_calls_round_trip(run, calls):
    """Calls come back as they were sent, in order, whatever travelled as a buffer."""
    data, buffers = encode_calls(run, calls)
    assert CallsFrame(run, tuple(calls)) == parse_frame(data, buffers, max_bytes=1 << 24)


words = st.sampled_from(["calls", "run", "over", "abandoned", "answers", "r"])
junk = st.recursive(
    json_values | st.floats() | st.integers() | words | st.just(CALL),
    lambda items: st.lists(items, max_size=4) | st.dictionaries(words | texts, items, max_size=3),
    max_leaves=8,
)
rows = st.tuples(st.integers() | junk, texts | junk, texts | junk, texts | st.none() | junk).map(list)
near_frames = st.one_of(
    st.fixed_dictionaries({"calls": st.lists(rows | junk, max_size=3) | junk, "run": texts | junk}),
    st.fixed_dictionaries(
        {"abandoned": st.lists(st.integers() | junk, max_size=3) | junk, "run": texts | junk}
    ),
    st.fixed_dictionaries({"over": texts | junk}),
    junk,
)


@THOROUGH
@given(near_frames, st.lists(st.binary(max_size=6), max_size=3), st.integers(1, 200))
def test_arbitrary_data(data, buffers, max_bytes):
    """Arbitrary data is a frame of exactly typed fields within the cap, or a violation."""
    try:
        frame = parse_frame(data, buffers, max_bytes=max_bytes)
    except ProtocolViolationError:
        return
    match frame:
        case OverFrame(run):
            assert {"over": run} == data
        case AbandonFrame(run, ids):
            assert {"abandoned": list(ids), "run": run} == data
            assert all(type(ident) is int for ident in ids)
        case CallsFrame(run, calls):
            assert [list(row[:3]) for row in data["calls"]] == [[c.id, c.namespace, c.member] for c in calls]
            assert {int, str} >= {type(c.id) for c in calls} | {type(c.text) for c in calls}
            assert max_bytes >= sum(len(c.text.encode("utf-8", "surrogatepass")) for c in calls)
    assert str is type(frame.run)
