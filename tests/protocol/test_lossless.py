"""The lossless JSON codec: conformance area D, as far as it needs no process (contract 6)."""

# The test law asks for `assert expected == actual`.

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import pathlib
import sys
import threading
import time
import types
import uuid

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ptc_kernel.protocol.ledger import json_size
from ptc_kernel.protocol.lossless import LossyValueError, decode, encode, encode_string
from tests.protocol.json_strategies import FAST, HIGH, LOW, THOROUGH, fold, json_values, scalars, texts

DEEP = 5_000


def nest(depth, leaf=None):
    """A list of lists, `depth` of them, around a leaf."""
    value = leaf
    for _ in range(depth):
        value = [value]
    return value


def peel(value):
    """How many one-item lists are around a value, and the value."""
    depth = 0
    while type(value) is list and len(value) == 1:
        value, depth = value[0], depth + 1
    return depth, value


def refusal(value):
    """The text with which a value is refused."""
    with pytest.raises(LossyValueError) as caught:
        encode(value)
    return str(caught.value)


def oracle_text(value):
    """What json.dumps makes of a folded value, with lone surrogates escaped."""
    text = json.dumps(fold(value), ensure_ascii=False, separators=(",", ":"))
    return "".join(f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char for char in text)


# ---------------------------------------------------------------------- accepted values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (1, "1"),
        (0, "0"),
        (0.0, "0.0"),
        (-0, "0"),
        (-7, "-7"),
        (1.5, "1.5"),
        (1.0, "1.0"),
        (1e22, "1e+22"),
        (5e-324, "5e-324"),
        (sys.float_info.max, "1.7976931348623157e+308"),
        ("x", '"x"'),
        ("", '""'),
        ([], "[]"),
        ({}, "{}"),
        ([None], "[null]"),
        ([1, True, 1.0], "[1,true,1.0]"),
        (["a", "b"], '["a","b"]'),
        ([[], {}], "[[],{}]"),
        ({"b": 1, "a": 2}, '{"b":1,"a":2}'),
        ({"": [1], "__proto__": {}}, '{"":[1],"__proto__":{}}'),
        ([{"a": [{"b": None}]}, 1], '[{"a":[{"b":null}]},1]'),
        ({",": {':"': 1}}, '{",":{":\\"":1}}'),
        ("\x00\x1f\b\t\n\f\r", '"\\u0000\\u001f\\b\\t\\n\\f\\r"'),
        ('"\\/', '"\\"\\\\/"'),
        ("\x7f\u2028\u20ac\U0001f600", '"\x7f\u2028\u20ac\U0001f600"'),
        ("\ud800", '"\\ud800"'),
        ("a\udfffb", '"a\\udfffb"'),
        (HIGH + LOW, '"\U0001f600"'),
        (LOW + HIGH, '"\\ude00\\ud83d"'),
        ([HIGH, LOW], '["\\ud83d","\\ude00"]'),
    ],
)
def test_exact_text_and_value(value, text):
    """D01, D05, D13, D16, D31, D32: a JSON value has one compact text, and the text gives it back exactly."""
    assert text == encode(value)
    assert repr(fold(value)) == repr(decode(text))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "value",
    [2**53 - 1, 2**53, 2**53 + 2, 2**60, 10**22, 2**1023, 2**1024 - 2**971],
    ids=lambda value: f"{value.bit_length()}-bits",
)
def test_large_exact_ints(value, sign):
    """D02: an int that is exactly a double crosses with all its digits."""
    assert str(sign * value) == encode(sign * value)
    assert [sign * value] == decode(encode([sign * value]))
    assert int is type(decode(encode(sign * value)))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "value",
    [2**53 + 1, 10**23, 2**1024 - 1, 2**1024, 2**1024 - 2**970, 10**400, 10**5000, 2**1100],
    ids=lambda value: f"{value.bit_length()}-bits",
)
def test_inexact_ints(value, sign):
    """D03: an int that is not exactly a double is refused, alone and inside a list of ints."""
    assert "int" in refusal(sign * value)
    assert "[1]" in refusal([1, sign * value])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.0], ids=repr)
def test_floats_that_are_no_numbers(value):
    """D04: NaN, the infinities and minus zero are refused at any depth."""
    for held in (value, [value], [1.5, value], [{"a": value}], {"a": [value]}):
        assert "float" in refusal(held)


# ---------------------------------------------------------------------- refused values


class MyInt(int):
    """A subclass that could lie to an encoder."""


class MyStr(str):
    """A subclass that could lie to an encoder."""

    __slots__ = ()


class MyList(list):
    """A subclass that could lie to an encoder."""


class MyDict(dict):
    """A subclass that could lie to an encoder."""


class MyFloat(float):
    """A subclass that could lie to an encoder."""


class Colour(enum.IntEnum):
    """An int that is an enum member."""

    RED = 1


class Word(enum.StrEnum):
    """A str that is an enum member."""

    A = "a"


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Record:
    """A dataclass."""

    x: int = 1


class Hooks(collections.UserDict):
    """An object with every hook that some encoder looks for."""

    def __json__(self):
        raise AssertionError("a hook was called")

    toJSON = to_json = _repr_json_ = __iter__ = __len__ = __getitem__ = __str__ = __repr__ = __json__


class NamelessMeta(type):
    """A metaclass that lies about its classes' names."""

    @property
    def __name__(cls):
        raise AssertionError("a hook was called")


class Nameless(metaclass=NamelessMeta):
    """A class whose name cannot be asked for."""


class HostileName(str):
    """A class name whose text cannot be asked for."""

    __slots__ = ()

    def __str__(self):
        raise AssertionError("a hook was called")

    __repr__ = __len__ = __getitem__ = __str__


class Pretender:
    """An object that says it is a str."""

    @property
    def __class__(self):
        return str


def generator():
    """Yield once."""
    yield 1


REFUSED = {
    "D06-tuple": (1, 2),
    "D06-empty-tuple": (),
    "D07-set": {1},
    "D07-frozenset": frozenset(),
    "D07-bytes": b"x",
    "D07-bytearray": bytearray(b"x"),
    "D07-memoryview": memoryview(b"x"),
    "D07-complex": 1j,
    "D07-Decimal": decimal.Decimal("1.5"),
    "D07-Fraction": fractions.Fraction(1, 2),
    "D07-datetime": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    "D07-date": datetime.date(2024, 1, 1),
    "D07-Path": pathlib.PurePosixPath("/x"),
    "D07-UUID": uuid.UUID(int=1),
    "D07-range": range(3),
    "D07-generator": generator(),
    "D07-lambda": lambda: None,
    "D07-module": json,
    "D07-class": Record,
    "D07-Ellipsis": ...,
    "D07-NotImplemented": NotImplemented,
    "D07-deque": collections.deque(),
    "D07-object": object(),
    "D10-OrderedDict": collections.OrderedDict(a=1),
    "D10-defaultdict": collections.defaultdict(int),
    "D10-Counter": collections.Counter("a"),
    "D10-namedtuple": Point(1, 2),
    "D10-dataclass": Record(),
    "D10-IntEnum": Colour.RED,
    "D10-StrEnum": Word.A,
    "D10-mappingproxy": types.MappingProxyType({}),
    "subclass-int": MyInt(1),
    "subclass-str": MyStr("x"),
    "subclass-list": MyList([1]),
    "subclass-dict": MyDict(a=1),
    "subclass-float": MyFloat(1.5),
    "D34-hooks": Hooks(),
    "metaclass": Nameless(),
    "class-name-with-hooks": type(HostileName("N"), (), {})(),
    "pretender": Pretender(),
}
NAMES = {
    "D06-tuple": "tuple",
    "D07-set": "set",
    "D07-Decimal": "Decimal",
    "D07-datetime": "datetime",
    "D07-lambda": "function",
    "D07-class": "type",
    "D10-OrderedDict": "OrderedDict",
    "D10-IntEnum": "Colour",
    "subclass-int": "MyInt",
    "metaclass": "Nameless",
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_types(case):
    """D06, D07, D10, D34: any other type is refused with its name, and no hook is called."""
    value = REFUSED[case]
    assert NAMES.get(case, "") in refusal(value)
    assert "value[0]['a']" in refusal([{"a": value}])
    assert NAMES.get(case, "") in refusal(["text", value])


@pytest.mark.parametrize(
    "key",
    [1, None, True, 1.5, (1,), b"a", MyStr("a"), Word.A, HostileName("a")],
    ids=lambda key: type(key).__name__,
)
def test_keys_that_are_not_str(key):
    """D08: a key that is not exactly a str is refused, not coerced."""
    assert "key" in refusal({key: "a"})
    assert "key" in refusal([{"a": 1, "b": {key: "a"}}])


@pytest.mark.parametrize(
    "text", ["np.float64(1.5)", "np.int64(1)", "np.bool_(True)", "np.array([1])", "np.str_('a')"]
)
def test_numpy(text):
    """D12: numpy scalars and arrays are refused, those that subclass float and str too."""
    value = eval(text, {"np": np})
    refusal(value)
    refusal([value, value])


def test_keys_that_fold_to_one():
    """D15: the spelled-out pair and its character cannot both be keys."""
    assert "key" in refusal({HIGH + LOW: 1, "\U0001f600": 2})
    assert '{"\U0001f600":1}' == encode({HIGH + LOW: 1})


def test_cycles():
    """D17: a value that contains itself is refused, whatever the path."""
    alone: list = []
    alone.append(alone)
    own: dict = {}
    own["me"] = own
    two: list = [1]
    two.append({"up": [two]})
    for value in (alone, own, two, {"x": [two]}):
        assert "itself" in refusal(value)


def test_shared_values():
    """D18: an object that is there twice, without a cycle, is two equal values."""
    shared = {"k": [1]}
    assert '[{"k":[1]},{"k":[1]},[{"k":[1]}]]' == encode([shared, shared, [shared]])


@pytest.mark.parametrize("depth", [199, 200, 201, 900, DEEP, 100_000])
def test_deep_lists(depth):
    """D19, D20: nesting has no limit in either direction."""
    text = encode(nest(depth, "leaf"))
    assert "[" * depth + '"leaf"' + "]" * depth == text
    assert (depth, "leaf") == peel(decode(text))


def test_deep_dicts():
    """D19: dicts nest as deeply as lists."""
    value: object = 1
    for _ in range(DEEP):
        value = {"k": value, "z": 0}
    text = encode(value)
    assert '{"k":' * DEEP + "1" + ',"z":0}' * DEEP == text
    assert text == encode(decode(text))


def test_deep_refusal_is_bounded():
    """A refusal deep inside a value has a short text that says how deep it was."""
    text = refusal(nest(DEEP, (1,)))
    assert "tuple" in text
    assert str(DEEP) in text
    assert len(text) < 500


def test_deep_stack():
    """The codec works where the program has almost used up the stack."""

    def dive(left):
        return dive(left - 1) if left else (encode([{"a": [1]}]), decode("[" * 100 + "]" * 100))

    frame, used = sys._getframe(), 0
    while frame is not None:
        frame, used = frame.f_back, used + 1
    text, value = dive(sys.getrecursionlimit() - used - 40)
    assert '[{"a":[1]}]' == text
    assert (99, []) == peel(value)


@pytest.mark.parametrize("value", [[7] * 50_000, [0] * 2_000_000, ["x"] * 50_000, [1, "x"] * 25_000], ids=len)
def test_wide_lists(value):
    """D22: wide lists cross exactly."""
    assert value == decode(encode(value))


def test_text_is_a_snapshot():
    """D26, D27: what happens to the value after it was encoded changes nothing."""
    value = {"a": [1, 2]}
    text = encode(value)
    value["a"].append(3)
    value["b"] = 1
    assert {"a": [1, 2]} == decode(text)


def test_mutation_while_encoding():
    """D28: a thread that changes the value meanwhile leads to a text or a refusal, nothing else."""
    value = {str(n): [n] for n in range(50)}
    done = threading.Event()

    def mutate():
        n = 0
        while not done.is_set():
            n += 1
            value[f"x{n % 97}"] = [n]
            value.pop(f"x{(n + 50) % 97}", None)

    thread = threading.Thread(target=mutate)
    thread.start()
    try:
        for _ in range(200):
            assert 2 == len(decode(encode([value, value])))
    except LossyValueError:
        pass
    finally:
        done.set()
        thread.join()


def test_huge_names_are_bounded():
    """D29: neither a huge class name nor a huge key makes a huge text."""
    assert len(refusal(type("N" * 10_000_000, (), {})())) < 500
    assert len(refusal({"k" * 1_000_000: {"j" * 1_000_000: object()}})) < 1_000


def test_paths():
    """A refusal says where in the value the problem is."""
    assert "value['a'][1]['b']" in refusal({"a": [0, {"b": ()}]})
    assert "at value" not in refusal(())


def test_patched_json_module(monkeypatch):
    """Contract 13: a program that replaces the functions of json changes nothing here."""
    for name in ("loads", "dumps", "JSONDecoder", "JSONEncoder"):
        monkeypatch.setattr(json, name, None)
    assert '{"a":[1,"x"]}' == encode({"a": [1, "x"]})
    assert {"a": 1} == decode('{"a":1}')
    assert (300, 1) == peel(decode("[" * 300 + "1" + "]" * 300))
    assert "value['a']" in refusal({"a": ()})


# ---------------------------------------------------------------------- decoding


@pytest.mark.parametrize("deep", [0, 300], ids=["flat", "deep"])
@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "[",
            "]",
            "{",
            "}",
            "[1",
            "[1,]",
            "[,1]",
            "[1 2]",
            "{1:2}",
            '{"a"}',
            '{"a":}',
            '{"a":1,}',
            '{,"a":1}',
        ),
        *(
            "{'a':1}",
            '"a',
            '"a\n"',
            '"\\x"',
            '"\\u12"',
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "0x1",
            "True",
            "nul",
            "nulll",
        ),
        *(
            "NaN",
            "Infinity",
            "-Infinity",
            "1 1",
            "[1]]",
            "[1}",
            '{"a":1]',
            "\ufeff1",
            "1\x00",
            "\xa01",
            "1;",
            "//",
            "--1",
        ),
        *(
            '{"a"[1]}',
            '{"a":1[2]}',
            "[1[2]]",
            "[[1][2]]",
            '{"a":1{"b":2}}',
            '{["a"]:1}',
            "{[1]}",
            '["a":1]',
            '{"a","b"}',
        ),
        *(
            "[1:2]",
            '{"a":1:2}',
            "[[],,[]]",
            '{"a":1"b":2}',
            '["a""b"]',
            "[true false]",
            ":",
            ",",
            "[[]",
            "[{}{}]",
        ),
    ],
)
def test_texts_that_are_not_json(text, deep):
    """A text that is not JSON is refused, flat or nested beyond the stack."""
    with pytest.raises(LossyValueError):
        decode("[" * deep + text + "]" * deep if deep and text.strip() else text)


@pytest.mark.parametrize(
    "text", ["1e400", "-1e400", "-0.0", "-0e0", "9007199254740993", "1" + "0" * 23, "9" * 5000]
)
@pytest.mark.parametrize("wrap", ["{}", "[{}]", '{{"a":{}}}', "[" * 300 + "{}" + "]" * 300], ids=range(4))
def test_numbers_that_are_not_lossless(text, wrap):
    """D03, D04, M08: a forged lossy number does not pass a decode and the encode after it."""
    with pytest.raises(LossyValueError):
        encode(decode(wrap.format(text)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" \t\r\n1 \t\r\n", 1),
        ('"\\u00e9\\/\\b"', "\u00e9/\b"),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ('"\\ud83dx\\ude00"', "\ud83dx\ude00"),
        ('{"a":1,"a":2}', {"a": 2}),
        ("-0", 0),
        ("1E2", 100.0),
        ("[ ]", []),
        ("{ }", {}),
    ],
)
@pytest.mark.parametrize("deep", [0, 300], ids=["flat", "deep"])
def test_texts_that_somebody_else_wrote(text, value, deep):
    """Any JSON text is read, not only the compact one that we write."""
    depth, leaf = peel(decode("[" * deep + text + "]" * deep))
    assert (deep, repr(value)) == (depth, repr(leaf))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 201 + '"' + '\\"' * 15_000, id="unterminated-string-of-escapes"),
        pytest.param("[" * 201 + '"' + "x" * 200_000, id="unterminated-string"),
        pytest.param('["' + "[" * 1_000 + "\\\\" * 200_000 + '"]', id="brackets-in-a-string"),
        pytest.param("[" * 200_000, id="only-brackets"),
    ],
)
def test_hostile_texts_take_linear_time(text):
    """Contract 13: a forged text cannot hold the host up."""
    before = time.process_time()
    with contextlib.suppress(LossyValueError):
        decode(text)
    assert time.process_time() - before < 1.0


# ---------------------------------------------------------------------- properties


@THOROUGH
@given(json_values, st.integers(0, 400))
@example("\ud83d\ude00", 0)
@example(["\ud800", "\udfff"], 201)
def test_round_trip(value, depth):
    """D01 to D32: every JSON value, at any depth, comes back exactly, with types, order and surrogates."""
    text = encode(nest(depth, value))
    assert "[" * depth + oracle_text(value) + "]" * depth == text
    back = decode(text)
    for _ in range(depth):
        (back,) = back
    assert repr(fold(value)) == repr(back)


@FAST
@given(json_values)
def test_text_is_what_json_reads(value):
    """json.loads reads our text as the same value, and its UTF-8 form exists."""
    text = encode(value)
    assert repr(fold(value)) == repr(json.loads(text))
    assert text == text.encode().decode()


@THOROUGH
@given(st.text(max_size=12) | texts)
def test_string_size(text):
    """The encoded length of a string is its size in the ledger."""
    assert len(encode_string(text).encode()) == json_size(text)
    assert encode(text) == encode_string(text)


@st.composite
def spoiled(draw):
    """A JSON value with something refused at a random place, and the name of what it is."""
    case = draw(st.sampled_from(sorted(REFUSED)))
    value = REFUSED[case]
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            items = draw(st.lists(scalars, max_size=3))
            items.insert(draw(st.integers(0, len(items))), value)
            value = items
        else:
            others = draw(st.dictionaries(texts.map(fold), scalars, max_size=2))
            value = {**others, "bad": value}
    return case, value


@FAST
@given(spoiled())
def test_nothing_refused_gets_through(case_and_value):
    """A value with anything refused in it, anywhere, is refused, with a bounded text."""
    case, value = case_and_value
    text = refusal(value)
    assert NAMES.get(case, "") in text
    assert len(text) < 1_000


PIECES = [
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    '"a"',
    '"b":',
    "1",
    "-0",
    "1.5e3",
    "true",
    "null",
    "NaN",
    " ",
    "\n",
    "\x00",
]
PIECES += [
    "01",
    "1.",
    '"',
    "\\",
    '"\\ud83d"',
    '"\\u0041"',
    "'",
    "e",
    "-",
    "+",
    "[]",
    "{}",
    '{"a":1}',
    "\ufeff",
    "\xa0",
]


@st.composite
def texts_like_json(draw):
    """A JSON text with a few changes, or pieces of JSON in any order."""
    if draw(st.booleans()):
        return "".join(draw(st.lists(st.sampled_from(PIECES), max_size=8)))
    text = json.dumps(draw(json_values), ensure_ascii=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from([*PIECES, ""])) + text[at + draw(st.integers(0, 1)) :]
    return text


def strict_loads(text):
    """json.loads without the constants that are not JSON."""

    def refuse(name):
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


@THOROUGH
@given(texts_like_json(), st.sampled_from([0, 1, 201, 250]), st.sampled_from([("[", "]"), ('{"k":', "}")]))
@example('"a"[1]', 201, ("{", "}"))
@example("1[2]", 201, ("[", "]"))
def test_decode_agrees_with_json(text, depth, brackets):
    """A text is accepted when json accepts it, with the same value, on the flat and on the deep path."""
    nested = brackets[0] * depth + text + brackets[1] * depth
    try:
        expected = repr(fold(strict_loads(nested)))
    except ValueError:
        with pytest.raises(LossyValueError):
            decode(nested)
    else:
        assert expected == repr(fold(decode(nested)))
