"""Jupyter messages become events of a closed set; malformed ones of ours are violations (areas F and M)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptc_kernel.protocol.frames import BUFFER_FROM, CallFrame, CallsFrame, OverFrame, ProtocolViolationError
from ptc_kernel.protocol.messages import (
    REPLY_STATUSES,
    Began,
    Busy,
    Frame,
    Idle,
    Reply,
    Text,
    Visited,
    display_text,
    parse_iopub,
    parse_reply,
    whole_text,
)
from tests.protocol.json_strategies import FAST, THOROUGH, fold, json_values, texts

OURS = {"msg_id": "r", "session": "s"}
VISITOR = {"msg_id": "v", "session": "other"}
COMM = "our-comm"


def message(kind, content, parent=OURS, metadata=None, buffers=()):
    """A message as the session hands it over."""
    return {
        "header": {"msg_type": kind, "msg_id": "m"},
        "parent_header": parent,
        "metadata": {} if metadata is None else metadata,
        "content": content,
        "buffers": list(buffers),
    }


def iopub(kind, content, parent=OURS, metadata=None, buffers=()):
    """The event of an iopub message."""
    found = message(kind, content, parent, metadata, buffers)
    return parse_iopub(found, session="s", comm_id=COMM, max_bytes=1000)


def reply(content, *buffers, kind="execute_reply", parent=OURS):
    """The event of a shell message."""
    return parse_reply(message(kind, content, parent, buffers=buffers))


JSON_KINDS = [None, True, 1, 1.5, "text", [], ["x"], {}, {"x": 1}]

# ---------------------------------------------------------------------- iopub


@pytest.mark.parametrize(
    ("kind", "content", "event"),
    [
        ("status", {"execution_state": "busy"}, Busy("r")),
        ("status", {"execution_state": "idle"}, Idle("r")),
        ("status", {"execution_state": "starting"}, None),
        ("status", {}, None),
        ("execute_input", {"code": "1", "execution_count": 1}, Began("r")),
        ("stream", {"name": "stdout", "text": "a"}, Text("r", "stdout", "a", 0, 0)),
        ("stream", {"name": "stderr", "text": ""}, Text("r", "stderr", "", 0, 0)),
        ("display_data", {"data": {"text/plain": "x"}}, Text("r", "display", "x\n", 0, 0)),
        ("update_display_data", {"data": {"text/plain": "x\n"}}, Text("r", "display", "x\n", 0, 0)),
        ("clear_output", {"wait": True}, None),
        ("execute_result", {"data": {}}, None),
        ("error", {"ename": "E"}, None),
        ("comm_open", {"comm_id": COMM}, None),
        ("unheard_of", {}, None),
    ],
)
def test_our_messages(kind, content, event):
    """A message whose parent is a request of ours is one event, or none when its type does not matter."""
    assert event == iopub(kind, content)


def test_byte_count_and_ring():
    """An output message carries the byte count and the ring offset of the worker."""
    found = iopub("stream", {"name": "stdout", "text": "a"}, metadata={"ptc_count": 7, "ptc_ring": 9})
    assert Text("r", "stdout", "a", 7, 9) == found


@pytest.mark.parametrize(
    "parent",
    [
        {},
        VISITOR,
        {"session": "s"},
        {"msg_id": "r"},
        {"msg_id": None, "session": "s"},
        {"msg_id": 5, "session": "s"},
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["status", "stream", "display_data"])
def test_messages_of_somebody_else(kind, parent):
    """What belongs to no request of ours is no event, however malformed it is."""
    for content in ({"execution_state": "idle"}, {"name": 5}, {}, None, []):
        assert iopub(kind, content, parent) is None


def test_visitor():
    """A visitor's execute_input says that code was run, and nothing else."""
    assert Visited() == iopub("execute_input", {"code": "1"}, VISITOR)
    assert iopub("execute_input", {"code": "1"}, {}) is None


@pytest.mark.parametrize("content", JSON_KINDS[:-2], ids=repr)
@pytest.mark.parametrize("kind", ["status", "stream", "display_data", "update_display_data", "execute_input"])
def test_content_that_is_no_object(kind, content):
    """M01: the content of a message of ours is an object."""
    with pytest.raises(ProtocolViolationError, match=kind):
        iopub(kind, content)


@pytest.mark.parametrize(
    "content",
    [
        *({}, {"name": "stdout"}, {"text": "a"}, {"name": "stdin", "text": "a"}, {"name": None, "text": "a"}),
        *({"name": ["stdout"], "text": "a"}, {"name": "stdout", "text": None}, {"name": "stdout", "text": 5}),
        *({"name": "stdout", "text": ["a"]}, {"name": "stdout", "text": {}}, {"name": {}, "text": "a"}),
    ],
    ids=repr,
)
def test_streams_of_a_wrong_shape(content):
    """M01: a bad log message is a violation."""
    with pytest.raises(ProtocolViolationError):
        iopub("stream", content)


@pytest.mark.parametrize("data", [None, True, 5, "text", ["text/plain"]], ids=repr)
def test_displays_of_a_wrong_shape(data):
    """M01: the data of a display is an object."""
    with pytest.raises(ProtocolViolationError):
        iopub("display_data", {"data": data})


@pytest.mark.parametrize("value", [None, True, 1.5, "1", [], {}], ids=repr)
@pytest.mark.parametrize("field", ["ptc_count", "ptc_ring"])
def test_counts_of_a_wrong_type(field, value):
    """M01: a byte count or ring offset that is no int is a violation."""
    with pytest.raises(ProtocolViolationError):
        iopub("stream", {"name": "stdout", "text": "a"}, metadata={field: value})


@pytest.mark.parametrize("metadata", [[], "x", 5, True, [["ptc_count", 1]]], ids=repr)
def test_metadata_of_a_wrong_type(metadata):
    """M01: metadata that is no object is a violation, not an error of the host."""
    with pytest.raises(ProtocolViolationError):
        iopub("stream", {"name": "stdout", "text": "a"}, metadata=metadata)


@pytest.mark.parametrize("parent", [None, [], "x", 5, True, [["msg_id", "r"]]], ids=repr)
def test_parent_of_a_wrong_type(parent):
    """M01, M11: a parent that is no object belongs to no request of ours, and breaks nothing."""
    assert iopub("status", {"execution_state": "idle"}, parent) is None
    assert iopub("stream", {"name": "stdout", "text": "a"}, parent) is None


# ---------------------------------------------------------------------- comm messages


def test_frames_of_our_comm():
    """A message of our comm is a frame, whoever its parent is; its buffers belong to it."""
    assert Frame(OverFrame("r")) == iopub("comm_msg", {"comm_id": COMM, "data": {"over": "r"}}, {})
    calls = {"calls": [[1, "t", "f", None]], "run": "r"}
    found = iopub("comm_msg", {"comm_id": COMM, "data": calls}, buffers=[b"[1]"])
    assert Frame(CallsFrame("r", (CallFrame(1, "t", "f", "[1]"),))) == found


@pytest.mark.parametrize(
    "content", [*JSON_KINDS, {"comm_id": "widget", "data": {"over": 1}}, {"comm_id": [COMM]}], ids=repr
)
def test_other_comms(content):
    """Architecture row 2: the messages of other comms are ignored, never a violation."""
    assert iopub("comm_msg", content) is None


@pytest.mark.parametrize("data", [*JSON_KINDS, {"over": 5}, {"calls": [], "run": "r"}], ids=repr)
def test_forged_frames(data):
    """M01: what our comm carries is a frame, or a violation."""
    with pytest.raises(ProtocolViolationError):
        iopub("comm_msg", {"comm_id": COMM, "data": data})


def test_frame_without_data():
    """M01: a message of our comm without data is a violation."""
    with pytest.raises(ProtocolViolationError):
        iopub("comm_msg", {"comm_id": COMM})


def test_frame_over_the_cap():
    """M06: a frame over max_message_bytes is a violation."""
    with pytest.raises(ProtocolViolationError, match="1000"):
        iopub("comm_msg", {"comm_id": COMM, "data": {"calls": [[1, "t", "f", "x" * 1001]], "run": "r"}})


# ---------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("plain", "plain"),
        ("\ufeff\u20ac\U0001f600\x00", "\ufeff\u20ac\U0001f600\x00"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ud800", "\ufffd"),
        ("a\ud800b\udfffc", "a\ufffdb\ufffdc"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
    ],
    ids=ascii,
)
def test_whole_text(text, whole):
    """F32: output has no lone surrogates: pairs become characters, others U+FFFD, the rest stays."""
    assert whole == whole_text(text)
    assert Text("r", "stdout", whole, 0, 0) == iopub("stream", {"name": "stdout", "text": text})


@FAST
@given(texts)
def test_whole_text_against_fold(text):
    """Each lone surrogate becomes exactly one U+FFFD and nothing else changes."""
    expected = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in fold(text))
    assert expected == whole_text(text)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"text/plain": "<Figure>"}, "<Figure>\n"),
        ({"text/plain": "a\n", "text/html": "<a>"}, "a\n"),
        ({"text/plain": ""}, "\n"),
        ({"text/html": "<a>", "application/json": {}}, "<display of application/json, text/html>\n"),
        ({"text/plain": ["a"]}, "<display of text/plain>\n"),
        ({}, "<display of nothing>\n"),
    ],
    ids=repr,
)
def test_display_text(data, text):
    """F15: a display appears as its text/plain form and one line end, or as a note of what it was."""
    assert text == display_text(data)


def test_display_text_has_no_lone_surrogates():
    """F32: the text of a display is whole too."""
    assert Text("r", "display", "\ufffd\n", 0, 0) == iopub("display_data", {"data": {"text/plain": "\ud800"}})
    found = iopub("display_data", {"data": {"\ud800/x": 1}})
    assert found.text.encode().decode() == found.text


# ---------------------------------------------------------------------- replies


@pytest.mark.parametrize("status", REPLY_STATUSES)
def test_replies(status):
    """A reply has one of six outcomes; none and limit have no text."""
    text = "" if status in ("none", "limit") else "[1]"
    assert Reply("r", status, text) == reply({"status": "ok", "ptc": {"status": status, "text": "[1]"}})
    assert Reply("r", status, text) == reply({"ptc": {"status": status, "text": None}}, b"[1]")


def test_large_reply():
    """A large completion travels as a buffer."""
    text = '"' + "\u20ac" * BUFFER_FROM + '"'
    assert Reply("r", "value", text) == reply({"ptc": {"status": "value", "text": None}}, text.encode())


@pytest.mark.parametrize(
    "kind", ["kernel_info_reply", "complete_reply", "", None, 5, ["execute_reply"]], ids=repr
)
def test_other_shell_messages(kind):
    """Only an execute_reply is a reply."""
    assert reply({"ptc": {"status": "none"}}, kind=kind) is None


@pytest.mark.parametrize(
    "content",
    [
        *(
            None,
            [],
            "x",
            5,
            {},
            {"status": "ok"},
            {"status": "aborted"},
            {"ptc": None},
            {"ptc": []},
            {"ptc": "value"},
        ),
        *({"ptc": {}}, {"ptc": {"status": None}}, {"ptc": {"status": 1}}, {"ptc": {"status": ["value"]}}),
        *(
            {"ptc": {"status": "ok"}},
            {"ptc": {"status": "timeout", "text": "x"}},
            {"ptc": {"status": "abort"}},
        ),
        *(
            {"ptc": {"status": "protocol", "text": "x"}},
            {"ptc": {"status": "output-limit"}},
            {"ptc": {"status": {}}},
        ),
        *(
            {"ptc": {"status": "value"}},
            {"ptc": {"status": "value", "text": None}},
            {"ptc": {"status": "lossy"}},
        ),
        *({"ptc": {"status": "value", "text": 5}}, {"ptc": {"status": "exception", "text": ["x"]}}),
        *({"ptc": {"status": "cwd", "text": {}}}, {"ptc": {"status": "exception", "text": True}}),
    ],
    ids=repr,
)
def test_forged_replies(content):
    """M02: a terminal of an unknown kind, or without a text, is a violation."""
    with pytest.raises(ProtocolViolationError):
        reply(content)


def test_reply_that_is_not_utf8():
    """M06: a completion whose bytes are not UTF-8 is a violation."""
    with pytest.raises(ProtocolViolationError):
        reply({"ptc": {"status": "value", "text": None}}, b"\xff")


@pytest.mark.parametrize(
    "parent", [None, [], "x", {}, {"msg_id": None}, {"msg_id": 5}, {"msg_id": ["r"]}], ids=repr
)
def test_reply_to_nobody(parent):
    """M02: a reply that names no request is a violation."""
    with pytest.raises(ProtocolViolationError):
        reply({"ptc": {"status": "none"}}, parent=parent)


# ---------------------------------------------------------------------- properties

kinds = st.sampled_from(
    [
        *(
            "status",
            "stream",
            "display_data",
            "update_display_data",
            "execute_input",
            "comm_msg",
            "execute_reply",
        ),
        *("execute_result", "error", None, 5),
    ]
)
words = st.sampled_from(
    [*REPLY_STATUSES, "stdout", "stderr", "busy", "idle", COMM, "r", "s", "calls", "over"]
)
fields = st.sampled_from(
    [
        *(
            "execution_state",
            "name",
            "text",
            "data",
            "text/plain",
            "comm_id",
            "ptc",
            "status",
            "calls",
            "run",
            "over",
        ),
        *("msg_id", "session", "ptc_count", "ptc_ring"),
    ]
)
junk = st.recursive(
    json_values | words | st.floats(),
    lambda items: st.lists(items, max_size=3) | st.dictionaries(fields | texts, items, max_size=4),
    max_leaves=6,
)
contents = st.one_of(
    junk,
    st.fixed_dictionaries({"name": words | junk, "text": texts | junk}),
    st.fixed_dictionaries({"comm_id": st.just(COMM) | junk, "data": junk}),
    st.fixed_dictionaries(
        {"ptc": st.fixed_dictionaries({"status": words | junk, "text": texts | st.none() | junk})}
    ),
    st.fixed_dictionaries({"data": st.dictionaries(st.just("text/plain") | texts, texts | junk, max_size=3)}),
)
messages = st.builds(
    message,
    kinds | junk,
    contents,
    st.just(OURS) | st.just(VISITOR) | junk,
    st.just({}) | junk,
    st.lists(st.binary(max_size=4), max_size=2),
)
EVENTS = (Busy, Began, Idle, Text, Frame, Visited, type(None))


@THOROUGH
@given(messages)
def test_arbitrary_iopub_messages(found):
    """Arbitrary contents are an event, or nothing, or a violation, and never anything else."""
    try:
        event = parse_iopub(found, session="s", comm_id=COMM, max_bytes=100)
    except ProtocolViolationError:
        return
    assert isinstance(event, EVENTS)
    if isinstance(event, Text):
        assert (str, int, int) == (type(event.text), type(event.count), type(event.ring))
        assert event.channel in ("stdout", "stderr", "display")
        assert event.text.encode().decode() == event.text


@THOROUGH
@given(messages)
def test_arbitrary_replies(found):
    """Arbitrary contents are a reply, or nothing, or a violation, and never anything else."""
    try:
        event = parse_reply(found)
    except ProtocolViolationError:
        return
    if event is not None:
        assert event.status in REPLY_STATUSES
        assert (str, str) == (type(event.run), type(event.text))
