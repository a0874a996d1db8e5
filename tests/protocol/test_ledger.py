"""The output ledger: what a result weighs and which prefix fits (contract 10.2)."""

# The test law asks for `assert expected == actual`.

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ptc_kernel.protocol.ledger import (
    LOST,
    Ledger,
    Meter,
    json_size,
    limit_message,
    longest_prefix,
    string_size,
)
from tests.protocol.json_strategies import FAST, HIGH, LOW, THOROUGH, fold, lone_texts, texts

# ---------------------------------------------------------------------- a naive reference


def merged(pieces):
    """The entries that these pieces of (channel, text) make: neighbours of one channel are one entry."""
    entries: list[list[str]] = []
    for channel, text in pieces:
        if not text:
            continue
        if entries and entries[-1][0] == channel:
            entries[-1][1] += text
        else:
            entries.append([channel, text])
    return [(channel, text) for channel, text in entries]


def naive_size(entries):
    """What these entries weigh, by writing them out."""
    escaped = [json.dumps(text, ensure_ascii=False) for _, text in entries]
    return len(f"[{','.join(escaped)}]".encode("utf-8", "surrogatepass")) + 3 * sum(
        "\ud800" <= char <= "\udfff" for _, text in entries for char in text
    )


def naive_prefix(pieces, room):
    """The longest prefix of the pieces, in code points, whose entries weigh at most `room`."""
    chars = [(channel, char) for channel, text in pieces for char in text]
    while chars and naive_size(merged(chars)) > room:
        chars.pop()
    return merged(chars)


channels = st.sampled_from(["stdout", "stderr", "display"])
pieces_lists = st.lists(st.tuples(channels, lone_texts | st.just("")), max_size=8)

# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 0),
        ("abc", 3),
        ('"', 2),
        ("\\", 2),
        ("/", 1),
        ("\b\t\n\f\r", 10),
        ("\x00", 6),
        ("\x0b\x1f\x1b", 18),
        ("\x7f", 1),
        ("\x80", 2),
        ("\u20ac", 3),
        ("\u2028", 3),
        ("\U0001f600", 4),
        ("\ud800", 6),
        ("a\udfffb", 8),
        (HIGH + LOW, 4),
        (LOW + HIGH, 12),
        ('\U0001f600"\n', 8),
    ],
    ids=ascii,
)
def test_sizes(text, size):
    """Each character counts as its JSON escape or as raw UTF-8."""
    assert size == string_size(text)
    assert size + 2 == json_size(text)


@THOROUGH
@given(st.text(max_size=12) | lone_texts)
def test_size_against_json(text):
    """The size is the length of the JSON string in UTF-8, with lone surrogates at six bytes."""
    assert naive_size([("stdout", text)]) == json_size(text) + 2


@THOROUGH
@given(lone_texts, st.integers(-3, 60))
def test_longest_prefix(text, room):
    """The prefix fits, and one code point more would not."""
    prefix = longest_prefix(text, room)
    assert text.startswith(prefix)
    assert "" == prefix or string_size(prefix) <= room
    assert prefix == text or string_size(text[: len(prefix) + 1]) > room


@FAST
@given(texts, st.integers(0, 40))
@example((HIGH + LOW) * 3, 9)
def test_longest_prefix_with_spelled_out_pairs(text, room):
    """The prefix is the longest that fits, where surrogates spell a character too."""
    fitting = [end for end in range(len(text) + 1) if string_size(text[:end]) <= room]
    assert fold(text[: max(fitting)]) == fold(longest_prefix(text, room))


# ---------------------------------------------------------------------- the cap, by example


@pytest.mark.parametrize(
    ("pieces", "tail", "total"),
    [
        pytest.param([], 0, 2, id="empty"),
        pytest.param([], 5, 7, id="F17-euro"),
        pytest.param([("stdout", "abc")], 4, 11, id="F18-abc-and-xy"),
        pytest.param([("stdout", "abc")], 6, 13, id="F19-abc-and-message"),
        pytest.param([("stdout", "\x00" * 100)], 0, 604, id="F26-100-NULs"),
        pytest.param([("stdout", "a"), ("stdout", "b")], 0, 6, id="one-channel-is-one-entry"),
        pytest.param([("stdout", "a"), ("stderr", "b")], 0, 9, id="two-channels-are-two-entries"),
        pytest.param([("stdout", "a"), ("stderr", "b"), ("stdout", "c")], 0, 13, id="three-entries"),
        pytest.param(
            [("stdout", "a"), ("stderr", ""), ("stdout", "c")], 0, 6, id="an-empty-text-is-no-entry"
        ),
    ],
)
def test_at_the_cap_and_one_under(pieces, tail, total):
    """At the cap everything is kept; with one byte less it is not."""
    assert total == naive_size(merged(pieces)) + tail
    for cap, fits in ((total, True), (total - 1, False)):
        if cap < 4:
            continue
        ledger = Ledger(cap)
        for channel, text in pieces:
            ledger.admit_text(channel, text)
        assert fits == ledger.fits(tail)
        assert fits == (not ledger.over and tail <= ledger.room)


@pytest.mark.parametrize("used", ["a", "ab", "abc"])
def test_empty_text_never_overflows(used):
    """A write of nothing is no entry and cannot cross the cap."""
    ledger = Ledger(4 + len(used))
    handed = [("stdout", ledger.admit_text("stdout", used))]
    assert "" == ledger.admit_text("stderr", "")
    assert not ledger.over
    assert [("stdout", used)] == merged(handed + ledger.rest())


def test_default_cap():
    """F25: the default cap admits a lone string of 67,108,860 letters and not one more."""
    ledger = Ledger(67_108_864)
    assert ledger.fits(67_108_860 + 2)
    assert not ledger.fits(67_108_861 + 2)


def test_overflow_is_for_good():
    """Once a text did not fit, nothing fits any more."""
    ledger = Ledger(20)
    ledger.admit_text("stdout", "x" * 100)
    assert ledger.over
    assert "" == ledger.admit_text("stdout", "y")
    assert not ledger.fits(0)


def test_meter_cuts_at_a_code_point():
    """A meter hands out the prefix that fits and remembers that it was not all."""
    meter = Meter(2 + 2 + 5)
    assert "\U0001f600a" == meter.fit_text("stdout", "\U0001f600ab")
    assert (True, 9, 0) == (meter.over, meter.used, meter.room)


def test_meter_has_no_room_for_an_entry():
    """An entry whose quotes do not fit is not begun, and the channel stays the old one."""
    meter = Meter(2 + 2 + 1 + 2)
    assert "a" == meter.fit_text("stdout", "a")
    assert "" == meter.fit_text("stderr", "b")
    assert "cc" == meter.fit_text("stdout", "cc")
    assert 7 == meter.used


# ---------------------------------------------------------------------- the text of an overflow


@pytest.mark.parametrize("lost", [False, True])
def test_limit_message_fits_every_cap(lost):
    """The text of an overflow takes at most half of what is there, for every cap."""
    for cap in [*range(4, 600), 10**4, 67_108_864]:
        size = json_size(limit_message(cap, lost=lost))
        assert size <= max((cap - 2) / 2, 2), cap


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("cap", [64, 96, 250, 300, 1_000, 67_108_864])
def test_limit_message_names_the_cap(cap, lost):
    """F20: the text of an overflow names the cap."""
    assert str(cap) in limit_message(cap, lost=lost)


def test_limit_message_says_that_variables_are_gone():
    """Contract 8.3: where the environment was lost and there is room, the text ends by saying so."""
    assert limit_message(1_000, lost=True).endswith(LOST)
    assert LOST not in limit_message(1_000, lost=False)


def test_smallest_cap():
    """A cap of 4 bytes is an empty list and an empty text."""
    ledger = Ledger(4)
    assert "" == ledger.admit_text("stdout", "x")
    assert ([], "") == ledger.cut_rest(lost=False)


# ---------------------------------------------------------------------- against the reference


def run_ledger(cap, pieces):
    """Admit the pieces; returns the ledger and what was handed out at once."""
    ledger = Ledger(cap)
    return ledger, [(channel, ledger.admit_text(channel, text)) for channel, text in pieces]


@THOROUGH
@given(st.integers(4, 60) | st.integers(150, 400), pieces_lists)
def test_success_keeps_everything(cap, pieces):
    """What fits under the cap is handed out whole and in order, and its weight is the naive one."""
    ledger, handed = run_ledger(cap, pieces)
    size = naive_size(merged(pieces))
    assert (size > cap) == ledger.over
    if size <= cap:
        assert cap - size == ledger.room
        assert merged(pieces) == merged(handed + ledger.rest())
        assert [] == ledger.rest()


def check_overflow(cap, pieces, lost):
    """An overflow keeps the longest prefix that fits beside its message, on top of what was handed out."""
    ledger, handed = run_ledger(cap, pieces)
    held, message = ledger.cut_rest(lost=lost)
    output = merged(handed + held)
    assert message == limit_message(cap, lost=lost)
    assert naive_size(output) + json_size(message) <= cap
    assert naive_prefix(pieces, cap - json_size(message)) == output


@THOROUGH
@given(st.integers(4, 100), pieces_lists, st.booleans())
def test_overflow_keeps_the_longest_prefix(cap, pieces, lost):
    """Total bytes stay under the cap, the output is a prefix, and no longer one would fit."""
    check_overflow(cap, pieces, lost)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("write", ["x", "\x00", '\U0001f600"', "\n"], ids=ascii)
def test_overflow_for_every_cap(write, lost):
    """For every cap, a flood of one character keeps the longest prefix and stays under the cap."""
    for cap in [*range(4, 24), *range(24, 320, 13)]:
        check_overflow(cap, [("stdout", write)] * math.ceil(cap / len(write)), lost)


@pytest.mark.parametrize("lost", [False, True])
def test_value_that_does_not_fit_for_every_cap(lost):
    """For every cap, output beside a value that does not fit is cut to make room for the text."""
    for cap in range(4, 320):
        check_overflow(cap, [("stdout", "x" * (cap - 4))], lost)


@THOROUGH
@given(st.integers(4, 100) | st.integers(190, 300), pieces_lists, st.booleans(), st.booleans())
def test_nothing_is_taken_back(cap, pieces, lost, fails):
    """What was handed out is a prefix of the final output, whatever the end."""
    ledger, handed = run_ledger(cap, pieces)
    held = ledger.cut_rest(lost=lost)[0] if fails or ledger.over else ledger.rest()
    before = [(channel, char) for channel, text in handed for char in text]
    written = [(channel, char) for channel, text in pieces for char in text]
    after = before + [(channel, char) for channel, text in held for char in text]
    assert before == written[: len(before)]
    assert after == written[: len(after)]
