"""Late output: kept, bounded, merged, handed over once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptc_kernel.host.background import MOST, Background, merge
from ptc_kernel.types import TextOutput
from tests.protocol.json_strategies import FAST

CHANNELS = st.sampled_from(["stdout", "stderr", "display"])


def filled(*pieces):
    """A background to which these pieces were added."""
    background = Background()
    for channel, text in pieces:
        background.add(channel, text)
    return background


def merged(texts):
    """What becomes of pieces of text."""
    return merge([TextOutput(text, channel) for channel, text in texts])


def dropped(count):
    """What stands first when so many characters were dropped."""
    return TextOutput(f"[{count} older characters of late output were dropped]\n", "stderr")


# ---------------------------------------------------------------------- merge


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], []),
        ([("stdout", "a")], [("stdout", "a")]),
        ([("stdout", "a"), ("stdout", "b"), ("stdout", "c")], [("stdout", "abc")]),
        ([("stdout", "a"), ("stderr", "b")], [("stdout", "a"), ("stderr", "b")]),
        (
            [("stdout", "a"), ("stderr", "b"), ("stderr", "c"), ("stdout", "d")],
            [("stdout", "a"), ("stderr", "bc"), ("stdout", "d")],
        ),
        ([("display", "a\n"), ("display", "b\n")], [("display", "a\nb\n")]),
    ],
)
def test_merge(texts, expected):
    """Neighbours of one channel become one entry; entries of other channels stay where they are."""
    assert [TextOutput(text, channel) for channel, text in expected] == merged(texts)


@FAST
@given(st.lists(st.tuples(CHANNELS, st.text(min_size=1, max_size=5))))
def test_merge_keeps_every_character(texts):
    """The merged texts are the same characters in the same channels, and no two neighbours share one."""
    outputs = merged(texts)
    characters = [(item.channel, char) for item in outputs for char in item.text]
    assert [(channel, char) for channel, text in texts for char in text] == characters
    assert all(one.channel != two.channel for one, two in itertools.pairwise(outputs))


# ---------------------------------------------------------------------- Background


def test_nothing_was_added():
    """An empty background hands over nothing."""
    assert () == Background().take()


def test_everything_is_handed_over_once():
    """What was added comes out merged, in order, and only once."""
    background = filled(("stdout", "a"), ("stdout", "b"), ("stderr", "c"))
    assert (TextOutput("ab", "stdout"), TextOutput("c", "stderr")) == background.take()
    assert () == background.take()


def test_empty_text_is_no_entry():
    """A piece without text leaves no entry behind."""
    assert () == filled(("stdout", ""), ("stderr", "")).take()


def test_the_bound_is_inclusive():
    """64 KiB are kept whole, without a word about dropping."""
    assert (64 * 1024, 64 * 1024) == (MOST, len(filled(("stdout", "x" * MOST)).take()[0].text))
    assert (TextOutput("x" * MOST, "stdout"),) == filled(*[("stdout", "x" * 1024)] * 64).take()


@pytest.mark.parametrize(
    ("pieces", "count", "kept"),
    [
        pytest.param([("stdout", "a" + "x" * MOST)], 1, [("stdout", "x" * MOST)], id="one-too-long"),
        pytest.param(
            [("stdout", "abc"), ("stderr", "x" * (MOST - 2))],
            1,
            [("stdout", "bc"), ("stderr", "x" * (MOST - 2))],
            id="the-oldest-is-cut",
        ),
        pytest.param(
            [("stdout", "abc"), ("stderr", "x" * MOST)], 3, [("stderr", "x" * MOST)], id="the-oldest-goes"
        ),
        pytest.param(
            [("stdout", "a"), ("stderr", "b"), ("display", "c"), ("stdout", "x" * (MOST - 1))],
            2,
            [("display", "c"), ("stdout", "x" * (MOST - 1))],
            id="several-go",
        ),
        pytest.param(
            [("stdout", "abc"), ("stderr", "z" * 5 + "x" * MOST)],
            8,
            [("stderr", "x" * MOST)],
            id="both-bounds-at-once",
        ),
    ],
)
def test_the_oldest_is_dropped_and_counted(pieces, count, kept):
    """Beyond 64 KiB the oldest characters go, and the first entry says how many."""
    expected = merged([("stderr", dropped(count).text), *kept])
    assert tuple(expected) == filled(*pieces).take()


def test_the_count_begins_anew():
    """After it was handed over, a background has dropped nothing."""
    background = filled(("stdout", "x" * (MOST + 1)))
    background.take()
    background.add("stdout", "a")
    assert (TextOutput("a", "stdout"),) == background.take()


@FAST
@given(st.lists(st.tuples(CHANNELS, st.integers(1, MOST * 2)), max_size=8))
def test_the_newest_characters_are_kept(sizes):
    """Whatever was added, exactly the last 64 KiB come out, and nothing is dropped without being counted."""
    pieces = [(channel, chr(65 + index) * size) for index, (channel, size) in enumerate(sizes)]
    total = sum(size for _, size in sizes)
    everything = "".join(text for _, text in pieces)
    text = "".join(item.text for item in filled(*pieces).take())
    head = dropped(total - MOST).text if total > MOST else ""
    assert head + everything[-MOST:] == text


def test_a_flood_of_small_pieces_stays_bounded():
    """A thread that prints for hours costs 64 KiB."""
    background = Background()
    for number in range(200_000):
        background.add("stdout" if number % 2 else "stderr", "x")
    outputs = background.take()
    assert dropped(200_000 - MOST).text + "x" == outputs[0].text
    assert MOST == sum(len(item.text) for item in outputs) - len(dropped(200_000 - MOST).text)
