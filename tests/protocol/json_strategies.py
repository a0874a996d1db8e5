"""Hypothesis strategies and small oracles that several tests of the protocol share."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

FAST = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
THOROUGH = settings(FAST, max_examples=120)

HIGH, LOW = "\ud83d", "\ude00"  # together they spell U+1F600
SPECIAL = [
    "a",
    "b",
    "1",
    " ",
    '"',
    "\\",
    "/",
    "\n",
    "\t",
    "\x00",
    "\x1f",
    "\x7f",
    "\u20ac",
    "\u2028",
    "\ufffd",
]
SPECIAL += ["\U0001f600", "\U0010ffff", "[", "]", "{", "}", ",", ":"]

whole_chars = st.sampled_from(SPECIAL) | st.characters()
lone_texts = st.text(whole_chars | st.sampled_from([LOW, "\udfff"]), max_size=12)
"""Texts that may hold lone surrogates, but no pair of them that spells a character."""
texts = st.text(whole_chars | st.sampled_from([HIGH, LOW, "\ud800", "\udfff"]), max_size=12)
"""Any texts, spelled-out surrogate pairs included."""

exact_ints = st.one_of(
    st.integers(-(2**53), 2**53),
    st.builds(lambda odd, shift: odd << shift, st.integers(-(2**53), 2**53), st.integers(0, 900)),
)
exact_floats = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: repr(x) != "-0.0")
scalars = st.one_of(st.none(), st.booleans(), exact_ints, exact_floats, texts)


def fold(value):
    """The value with spelled-out surrogate pairs as the characters that they spell."""
    if type(value) is str:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    if type(value) is list:
        return [fold(item) for item in value]
    if type(value) is dict:
        return {fold(key): fold(item) for key, item in value.items()}
    return value


def encode_size(text):
    """The bytes of a text as a JSON string: raw UTF-8, and six for a lone surrogate."""
    written = json.dumps(fold(text), ensure_ascii=False)
    return len(written.encode("utf-8", "surrogatepass")) + 3 * sum(
        "\ud800" <= char <= "\udfff" for char in written
    )


def containers(items: st.SearchStrategy) -> st.SearchStrategy:
    """Lists and dicts of these items."""
    return st.lists(items, max_size=5) | st.dictionaries(texts.map(fold), items, max_size=5)


json_values = st.recursive(scalars, containers, max_leaves=10)
"""Any lossless JSON value."""
