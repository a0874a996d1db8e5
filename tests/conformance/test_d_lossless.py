"""Area D: lossless JSON in all three directions: completion, argument and resolution."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import math
import pathlib
import types
import uuid

import numpy
import pytest

from ptc_kernel import PtcCallContext
from tests.support import Session, echo, kind, namespace, text

CYCLE: list = []
CYCLE.append(CYCLE)
PAIR = "\ud83d\ude00"

VALUES = [
    *(None, True, False, 1, 0, -1, 1.5, "x", "", [], {}),
    *([None], [True, 1, 1.0, "1"], {"a": None}, {"a": {"b": [1, [2, {"c": []}]]}}, [[], {}, [[]], [{}]]),
    *(2**53, -(2**53), 2**53 - 1, 2**60, 10**22, 2**1023, -(2**1023), 2**1023 + 2**971, (2**53 - 1) * 2**970),
    *(0.0, 1.0, -1.0, 1e22, 1e21, 0.1, 5e-324, 1.7976931348623157e308, 2.5e-8, 123456789.125, 1e16, 1e-7),
    *(
        "\0",
        "\x01\x1f",
        "\x7f",
        "\x80\x9f",
        "\u2028\u2029",
        "\"'\\",
        "\\u0041",
        "\b\f\n\r\t",
        "\ufeff",
        "\uffff",
    ),
    *(
        "é",
        "ツ",
        "\U0001f600",
        "\U0010ffff",
        "e\u0301",
        "</script>",
        "\ud800",
        "\udfff",
        "a\udc00b",
        "\ude00\ud83d",
    ),
    *(
        {"b": 1, "a": 2},
        {"": 1},
        {"__proto__": 1},
        {"a b": 1, "\n": 2, "\0": 3},
        {"\ud800": 1},
        {"1": 1, "1.0": 2},
    ),
    *(
        {"constructor": {"prototype": []}},
        {"toJSON": 1, "__json__": 2, "__class__": "x"},
        {"null": None, "true": True},
    ),
]
"""Values that cross every border exactly: the same type, order and characters."""

MADE = [
    "-0",
    "int('0')",
    "2 ** 53 * 1",
    "'a' + chr(0xD800)",
    "list((1, 2))",
    "dict(b=1, a=2)",
    "[1][:]",
    "str(1.5)",
]

SETUP = """\
import abc, array, collections, dataclasses, datetime, decimal, enum, fractions, io, json, pathlib, re, types
import typing, uuid, weakref

class IntSub(int): pass
class FloatSub(float): pass
class StrSub(str): pass
class ListSub(list): pass
class DictSub(dict): pass
class Int(enum.IntEnum): A = 1
class Str(enum.StrEnum): A = 'a'
class Plain(enum.Enum): A = 1
class Flag(enum.IntFlag): A = 1
Named = collections.namedtuple('Named', 'a')
@dataclasses.dataclass
class Data: a: int = 1
class Typed(typing.TypedDict): a: int
class Obj: pass
async def coroutine_function(): pass
"""

LOSSY = {
    "2**53+1": "int",
    "-(2**53+1)": "int",
    "10**23": "int",
    "2**1024": "int",
    "-(2**1024)": "int",
    "2**1023+1": "int",
    "10**400": "int",
    "10**100_000": "int",
    "2**1024-2**970": "int",
    "float('nan')": "nan",
    "float('inf')": "inf",
    "-float('inf')": "-inf",
    "-0.0": "-0.0",
    "[{'a': [float('nan')]}]": "nan",
    "[{'a': [float('inf')]}]": "inf",
    "[{'a': [-float('inf')]}]": "-inf",
    "[{'a': [-0.0]}]": "-0.0",
    "[0.5, -0.0]": "-0.0",
    "(1,2)": "tuple",
    "()": "tuple",
    "{'a':(1,)}": "tuple",
    "[[(1,)]]": "tuple",
    "{1}": "set",
    "frozenset()": "frozenset",
    "b'x'": "bytes",
    "bytearray(b'x')": "bytearray",
    "memoryview(b'x')": "memoryview",
    "array.array('i')": "array",
    "1j": "complex",
    "decimal.Decimal(1)": "Decimal",
    "fractions.Fraction(1)": "Fraction",
    "datetime.datetime(2020, 1, 1)": "datetime",
    "datetime.date(2020, 1, 1)": "date",
    "datetime.timedelta(1)": "timedelta",
    "pathlib.Path('x')": "Path",
    "uuid.UUID(int=1)": "UUID",
    "range(3)": "range",
    "(n for n in [1])": "generator",
    "iter([1])": "list_iterator",
    "{}.keys()": "dict_keys",
    "{}.items()": "dict_items",
    "map(str, [])": "map",
    "zip()": "zip",
    "slice(1)": "slice",
    "lambda: 1": "function",
    "len": "builtin_function_or_method",
    "coroutine_function": "function",
    "json": "module",
    "int": "type",
    "Obj": "type",
    "object()": "object",
    "Obj()": "Obj",
    "...": "ellipsis",
    "NotImplemented": "NotImplementedType",
    "ValueError('x')": "ValueError",
    "re.compile('x')": "Pattern",
    "io.StringIO()": "StringIO",
    "weakref.ref(Obj)": "ReferenceType",
    "int | str": "UnionType",
    "{1:'a'}": "int",
    "{None:1}": "NoneType",
    "{True:1}": "bool",
    "{(1,):1}": "tuple",
    "{1.5:1}": "float",
    "{b'a':1}": "bytes",
    "{StrSub('a'):1}": "StrSub",
    "{Str.A:1}": "Str",
    "[{'a': {1: 2}}]": "int",
    "collections.OrderedDict(a=1)": "OrderedDict",
    "collections.defaultdict(int)": "defaultdict",
    "collections.Counter('a')": "Counter",
    "collections.deque()": "deque",
    "collections.ChainMap()": "ChainMap",
    "collections.UserDict()": "UserDict",
    "collections.UserList()": "UserList",
    "collections.UserString('a')": "UserString",
    "types.MappingProxyType({})": "mappingproxy",
    "types.SimpleNamespace()": "SimpleNamespace",
    "Named(1)": "Named",
    "Data()": "Data",
    "Int.A": "Int",
    "Str.A": "Str",
    "Plain.A": "Plain",
    "Flag.A": "Flag",
    "IntSub(1)": "IntSub",
    "FloatSub(1.5)": "FloatSub",
    "StrSub('x')": "StrSub",
    "ListSub()": "ListSub",
    "DictSub()": "DictSub",
    "[IntSub(1), 2]": "IntSub",
    "{'a': StrSub('x')}": "StrSub",
}
"""What JSON cannot carry, with a word of the reason."""

CYCLES = {
    "a=[]\na.append(a)\na": "list",
    "a={}\na['a']=a\na": "dict",
    "a=[1]\nb={'a': a}\na.append(b)\na": "list",
    "a=[[[[]]]]\na[0][0][0].append(a)\n{'x': a}": "list",
    "a=[]\na.append([a, a])\n[a]": "list",
}
NUMPY = {
    "np.float64(1.5)": "float64",
    "np.float32(1.5)": "float32",
    "np.int64(1)": "int64",
    "np.bool_(True)": "bool",
    "np.str_('x')": "str_",
    "np.array([1])": "ndarray",
    "np.array(1)": "ndarray",
    "np.datetime64('2020')": "datetime64",
    "[np.float64(1.5)]": "float64",
    "{'a': np.int64(1)}": "int64",
    "{np.str_('a'): 1}": "str_",
    "[1.5, np.float64(1.5)]": "float64",
}
EVERY_LOSSY = {**LOSSY, **NUMPY}


class Recorder:
    """A handler that counts, and remembers, what reached the host."""

    def __init__(self):
        self.arguments = []
        self.ids = []

    async def __call__(self, argument):
        self.arguments.append(argument)
        self.ids.append(PtcCallContext.current().call_id)
        return argument


async def lossy(session, program):
    """The text with which a completion is refused."""
    result = await session.run(program)
    assert "invalid-output" == kind(result)
    assert "kept" == result.state
    return result.error.message


def leaf(value, depth):
    """What is inside so many lists (or dicts of one member), found without recursion."""
    for _ in range(depth):
        assert type(value) in (list, dict)
        assert 1 == len(value)
        value = value[0] if type(value) is list else value["k"]
    return value


# ---------------------------------------------------------------------- what crosses


@pytest.mark.core
async def test_exact_completions(session):
    """D01, D02, D05, D16, D31, D32: each JSON value is the completion with its own type, order and text."""
    wrong = {}
    for value in VALUES:
        program = "float('nan')" if value is None else repr(value)
        result = await session.run(repr(value))
        if result.error is not None or repr(result.value) != repr(value):
            wrong[program] = result
    assert {} == wrong
    assert repr([eval(made) for made in MADE]) == repr([await session.value(made) for made in MADE])


async def test_exact_values_in_all_three_directions(session):
    """D01, D02, D16, D31: each value survives argument, resolution and completion unchanged."""
    recorder = Recorder()

    async def all_values(_):
        return VALUES

    tools = namespace(echo=recorder, all=all_values)
    assert await session.value(f"values = {VALUES!r}\nrepr(await tools.all()) == repr(values)", tools)
    assert await session.value("[await tools.echo(v) for v in values] == values", tools)
    assert repr(VALUES) == repr(recorder.arguments)
    assert repr(VALUES) == repr(await session.value("[await tools.echo(v) for v in values]", tools))
    assert repr(VALUES) == repr(await session.value("await tools.echo(values)", tools))


@pytest.mark.core
async def test_number_types(session):
    """D05, D32: 1.0 arrives as a number equal to 1; zero, 0.0 and an int minus zero are fine."""
    for program in ("1.0", "0", "0.0", "-0", "0.0 * 1", "-1 + 1"):
        value = await session.value(program)
        assert eval(program) == value
        assert type(value) in (int, float)
        assert 1 == math.copysign(1, value)
    assert [True, False] == await session.value("[1 == 1.0, False]")


async def test_lone_surrogates(session):
    """D13: a lone surrogate is the same lone surrogate on the host, in a value and in a key."""
    assert "\ud800" == await session.value("chr(0xD800)")
    assert {"\udc00": ["a\udbffb"]} == await session.value("{chr(0xDC00): ['a' + chr(0xDBFF) + 'b']}")
    assert "\ude00\ud83d" == await session.value("chr(0xDE00) + chr(0xD83D)")


async def test_spelled_out_pairs(session):
    """D13: a high and a low surrogate in a row are one character in JSON, on every way."""

    async def pair(_):
        return PAIR

    recorder = Recorder()
    tools = namespace(echo=recorder, pair=pair)
    assert "\U0001f600" == await session.value("chr(0xD83D) + chr(0xDE00)")
    assert {"\U0001f600": 1} == await session.value("{chr(0xD83D) + chr(0xDE00): 1}")
    assert "\ud83d\U0001f600\ude00" == await session.value("chr(0xD83D) * 2 + chr(0xDE00) * 2")
    assert 1 == await session.value("len(await tools.echo(chr(0xD83D) + chr(0xDE00)))", tools)
    assert ["\U0001f600"] == recorder.arguments
    assert await session.value("await tools.pair() == chr(0x1F600)", tools)


@pytest.mark.core
async def test_keys_that_become_equal(session):
    """D15: a dict with a spelled-out pair and its character as keys is refused."""
    message = await lossy(session, "{chr(0xD83D) + chr(0xDE00): 1, chr(0x1F600): 2}")
    assert "key" in message
    message = await lossy(session, "[{'a': {chr(0xD83D) + chr(0xDE00): 1, chr(0x1F600): 2}}]")
    assert "key" in message
    assert {PAIR[0]: 1, PAIR[1]: 2} == await session.value("{chr(0xD83D): 1, chr(0xDE00): 2}")


async def test_shared_objects(session):
    """D18: an object that stands in two places is copied twice."""
    value = await session.value("s={'k':1}\n[s,s]")
    assert [{"k": 1}, {"k": 1}] == value
    assert value[0] is not value[1]
    assert [[[], []], [[], []]] == await session.value("a=[]\nb=[a,a]\n[b,b]")
    assert {"x": [1], "y": [[1]]} == await session.value("a=[1]\n{'x': a, 'y': [a]}")
    assert 2**20 == await session.value(
        "a=1\nfor _ in range(20): a=[a,a]\nimport json\njson.dumps(a).count('1')"
    )


# ---------------------------------------------------------------------- what is refused


@pytest.mark.core
async def test_lossy_completions(session):
    """D03, D04, D06, D07, D08, D10: what JSON cannot carry is invalid-output that names the reason."""
    await session.run(SETUP)
    wrong = {}
    for program, reason in LOSSY.items():
        result = await session.run(program)
        message = result.error.message if kind(result) == "invalid-output" else ""
        if reason not in message or len(message) > 1_000 or result.state != "kept" or list(result.output):
            wrong[program] = result
    assert {} == wrong
    assert "IntSub" == await session.value("IntSub.__name__")


async def test_numpy(session):
    """D12: numpy's scalars and arrays are refused, those that are a float or a str among them."""
    await session.run("import numpy as np")
    wrong = {}
    for program, reason in NUMPY.items():
        result = await session.run(program)
        if "invalid-output" != kind(result) or reason not in result.error.message:
            wrong[program] = result
    assert {} == wrong
    converted = "[np.float64(1.5).item(), int(np.int64(1)), np.array([1]).tolist(), str(np.str_('x'))]"
    assert [1.5, 1, [1], "x"] == await session.value(converted)


async def test_path_to_the_reason(session):
    """D04, D06: the text says where the value stands, in a bounded way."""
    message = await lossy(session, "{'rows': [1, {'when': (1,)}]}")
    for part in ("tuple", "rows", "1", "when"):
        assert part in message
    assert len(await lossy(session, "{'k' * 1_000_000: {1}}")) < 2_000
    assert len(await lossy(session, "a = {1}\nfor _ in range(50_000): a = [a]\na")) < 2_000
    assert len(await lossy(session, "10**1_000_000")) < 2_000


@pytest.mark.core
@pytest.mark.parametrize(("program", "reason"), CYCLES.items(), ids=ascii)
async def test_cycles(session, program, reason):
    """D17: what contains itself is refused."""
    assert reason in await lossy(session, program)


async def test_long_cycle(session):
    """D17: a cycle through thousands of levels is found too."""
    message = await lossy(session, "a=[]\nb=a\nfor _ in range(10_000): b=[b]\na.append(b)\na")
    assert "itself" in message


async def test_huge_type_name(session):
    """D29: a class with a name of 70 MB gives invalid-output with a bounded text."""
    assert len(await lossy(session, "type('N'*70_000_000,(),{})()")) < 2_000
    assert len(await lossy(session, "{type('N'*1_000_000,(str,),{})('a'): 1}")) < 2_000
    recorder = Recorder()
    program = (
        "try:\n    await tools.f(type('N'*1_000_000,(),{})())\n"
        "except ToolCallError as e:\n    size = len(str(e))\nsize"
    )
    assert await session.value(program, namespace(f=recorder)) < 2_000
    assert [] == recorder.arguments


HOOKS = """\
import collections.abc
seen = []

def hook(name):
    def called(self, *args, **kwargs):
        seen.append(name)
        return {}
    return called

names = '''
    __json__ toJSON to_json _repr_json_ _repr_mimebundle_ _ipython_display_ __iter__ __str__ __len__
    __getitem__ keys items values __int__ __float__ __index__ __repr__ __eq__ __hash__ __bool__ __reduce__
    __reduce_ex__ __getstate__ __format__ default tolist item isoformat model_dump dict _asdict
    __array__ __contains__ __call__
'''.split()
Hooked = type('Hooked', (), {name: hook(name) for name in names})

class Nosy:
    def __getattribute__(self, name):
        seen.append(name)
        raise AttributeError(name)

class Liar:
    @property
    def __class__(self):
        seen.append('__class__')
        return dict

class Mapped(collections.abc.Mapping):
    __getitem__, __iter__, __len__ = hook('[]'), hook('iter'), hook('len')

class Meta(type):
    def __instancecheck__(cls, instance): seen.append('instancecheck')
    def __getattribute__(cls, name):
        seen.append(name)
        return super().__getattribute__(name)

class Odd(metaclass=Meta): pass

class Lists(list):
    __iter__, __len__, __getitem__ = hook('iter'), hook('len'), hook('[]')

class Dicts(dict):
    items, keys, __iter__ = hook('items'), hook('keys'), hook('iter')

objects = [Hooked(), Nosy(), Liar(), Mapped(), Odd(), Odd, Lists([1]), Dicts(a=1)]
seen.clear()
"""


async def test_hooks_are_never_called(session):
    """D34: an object that offers to convert itself is refused, and no method of it is called."""
    await session.run(HOOKS)
    count = await session.value("len(objects)")
    programs = [
        f(index) for index in range(count) for f in ("objects[{}]".format, "[{{'a': objects[{}]}}]".format)
    ]
    kinds = {program: kind(await session.run(program)) for program in programs}
    assert dict.fromkeys(programs, "invalid-output") == kinds
    recorder = Recorder()
    program = (
        "refused = 0\nfor o in objects:\n    try:\n        await tools.f(o)\n"
        "    except ToolCallError:\n        refused += 1\nrefused"
    )
    assert count == await session.value(program, namespace(f=recorder))
    assert [] == recorder.arguments
    looked_at_by_isinstance = ["__class__", "__dict__", "__mro__"]
    assert [] == await session.value(f"[name for name in seen if name not in {looked_at_by_isinstance}]")


# ---------------------------------------------------------------------- depth and width


async def test_deep_completion(session):
    """D19: a completion of 5,000 nested lists, or of 100,000, arrives whole; dicts and mixtures too."""
    assert 7 == leaf(await session.value("a = 7\nfor _ in range(5_000): a = [a]\na"), 5_000)
    assert 8 == leaf(await session.value("a = 8\nfor _ in range(5_000): a = {'k': [a]}\na"), 10_000)
    assert 9 == leaf(await session.value("a = 9\nfor _ in range(100_000): a = [a]\na"), 100_000)


async def test_deep_argument_and_answer(session):
    """D20: 5,000 nested lists cross as argument, as resolution and as completion."""
    depths = []

    async def measured(argument):
        assert "leaf" == leaf(argument, 5_000)
        depths.append(5_000)
        return argument

    program = "a = 'leaf'\nfor _ in range(5_000): a = [a]\nb = await tools.deep(a)\nb"
    assert "leaf" == leaf(await session.value(program, namespace(deep=measured)), 5_000)
    assert [5_000] == depths
    program = "depth = 0\nwhile type(b) is list: b = b[0]; depth += 1\n[depth, b]"
    assert [5_000, "leaf"] == await session.value(program)


async def test_deep_value_from_inside_a_recursion(session):
    """D20: a deep answer, and a deep argument, work where the program itself is deep in a recursion."""
    program = (
        "a = 1\nfor _ in range(500): a = [a]\n"
        "async def down(n):\n    return await down(n - 1) if n else await tools.echo(a)\n"
        "b = await down(800)\ndepth = 0\nwhile type(b) is list: b = b[0]; depth += 1\ndepth"
    )
    assert 500 == await session.value(program, namespace(echo=echo))


async def test_wide_values(session):
    """D22: long lists, wide dicts and long texts are exact."""
    assert [7] * 50_000 == await session.value("[7]*50000")
    value = await session.value("[0]*2_000_000")
    assert 2_000_000 == len(value)
    assert {0} == set(value)
    assert list(range(100_000)) == await session.value("list(range(100_000))")
    assert [n / 7 for n in range(50_000)] == await session.value("[n / 7 for n in range(50_000)]")
    assert {f"k{n}": [n] for n in range(50_000)} == await session.value(
        "{f'k{n}': [n] for n in range(50_000)}"
    )
    for piece in ("x", "é\n", "\U0001f600", "\0", "\ud800", '"\\'):
        value = await session.value(f"{piece!a} * 500_000")
        assert piece * 500_000 == value


async def test_one_bad_item_in_a_wide_value(session):
    """D22: one lossy item at the end of a wide value is found, whatever all the others are."""
    for items, bad in (
        ("[0]*100_000", "2**53+1"),
        ("['x']*100_000", "b'x'"),
        ("[1.5]*100_000", "float('nan')"),
    ):
        assert "100000" in await lossy(session, f"{items} + [{bad}]")
    await lossy(
        session, "[1]*100_000 + [True, 1.0, IntLike]" if False else "[1]*100_000 + [type('I', (int,), {})(1)]"
    )
    assert "invalid-output" == kind(await session.run("[True]*10 + [1j]"))


async def test_value_at_the_default_cap(session):
    """F25: the default cap admits a lone string of 67,108,860 letters, and not one letter more."""
    result = await session.run("'x' * 67_108_860")
    assert result.error is None
    assert 67_108_860 == len(result.value)
    assert {"x"} == set(result.value)
    result = await session.run("'x' * 67_108_861")
    assert "output-limit" == kind(result)
    assert "67108864" in result.error.message.replace(",", "").replace("_", "")
    assert [] == list(result.output)
    assert "kept" == result.state


# ---------------------------------------------------------------------- arguments

REFUSALS = """\
import numpy as np
texts, wrong = {}, []
for source in sources:
    try:
        await tools.never(eval(source))
    except ToolCallError as e:
        texts[source] = str(e)
        if (type(e).__name__, e.toolName) != ('ToolCallError', 'never'):
            wrong.append(source)
    else:
        wrong.append(source)
a = []
a.append(a)
b = {}
b['b'] = [b]
for name, cycle in {'list cycle': a, 'dict cycle': b}.items():
    try:
        await tools.never(cycle)
    except ToolCallError as e:
        texts[name] = str(e)
[texts, wrong, await tools.good({'n': 1})]
"""


async def test_lossy_arguments(session):
    """D23, D24: each refused kind is a typed rejection; the host is never called and no id is used up."""
    never, good = Recorder(), Recorder()
    tools = namespace(never=never, good=good)
    await session.run(f"{SETUP}\nsources = {list(EVERY_LOSSY)!r}")
    result = await session.run(REFUSALS, tools)
    assert result.error is None
    texts, wrong, last = result.value
    assert [] == wrong
    assert [*EVERY_LOSSY, "list cycle", "dict cycle"] == list(texts)
    assert {} == {source: texts[source] for source, word in EVERY_LOSSY.items() if word not in texts[source]}
    assert all("itself" in texts[name] for name in ("list cycle", "dict cycle"))
    assert {} == {source: text for source, text in texts.items() if "JSON" not in text or len(text) > 2_000}
    assert [] == never.arguments
    assert {"n": 1} == last
    assert [1] == good.ids
    assert ["good"] == [call.member for call in result.calls]
    assert 1 == result.calls_total


async def test_lossy_arguments_in_every_form_of_call(session):
    """D23, D24: keywords, gathered calls and blocking calls are refused alike, without a gap in the ids."""
    recorder = Recorder()
    program = (
        "import asyncio\nseen = []\n"
        "try:\n    await tools.f(a={1})\nexcept ToolCallError as e:\n"
        "    seen.append([e.toolName, 'set' in str(e)])\n"
        "try:\n    tools.f.sync((1,))\nexcept ToolCallError as e:\n"
        "    seen.append([e.toolName, 'tuple' in str(e)])\n"
        "r = await asyncio.gather(*map(tools.f, [1, {2}, 3, b'4', 5]), return_exceptions=True)\n"
        "[seen, [x if type(x) is int else type(x).__name__ for x in r]]"
    )
    expected = [[["f", True], ["f", True]], [1, "ToolCallError", 3, "ToolCallError", 5]]
    assert expected == await session.value(program, namespace(f=recorder))
    assert [1, 3, 5] == recorder.arguments
    assert [1, 2, 3] == recorder.ids


async def test_lossy_argument_without_an_error_class(session):
    """D23: without an error class the rejection is a plain RuntimeError."""
    recorder = Recorder()
    program = (
        "try:\n    await tools.f({1})\nexcept RuntimeError as e:\n"
        "    r = [type(e).__name__, vars(e), 'set' in str(e)]\nr"
    )
    assert ["RuntimeError", {}, True] == await session.value(program, namespace("tools", None, f=recorder))
    result = await session.run("await tools.f({1})", namespace("tools", None, f=recorder))
    assert "exception" == kind(result)
    assert [] == recorder.arguments


async def test_argument_is_a_snapshot(make_session):
    """D27: what the program does to an argument after the call was issued does not reach the host."""
    recorder = Recorder()
    program = (
        "import asyncio\na = [1]\nb = {'k': a}\n"
        "calls = [tools.f(a), tools.f(b), tools.f(b)]\na.append(2)\nb['l'] = 3\nawait asyncio.gather(*calls)"
    )
    for limits in ({}, {"max_pending_calls": 1}):  # with one slot the later calls wait in the program
        session = make_session(**limits)
        assert [[1], {"k": [1]}, {"k": [1]}] == await session.value(program, namespace(f=recorder))
    assert [[1], {"k": [1]}, {"k": [1]}] * 2 == recorder.arguments


async def test_completion_is_a_snapshot(session):
    """D27: what a task of the program does to the completion afterwards does not reach the value."""
    program = "import asyncio\na = [1]\nasyncio.get_running_loop().call_soon(a.append, 2)\na"
    assert [1] == await session.value(program)
    assert [1, 2] == await session.value("import asyncio\nawait asyncio.sleep(0)\na")


# ---------------------------------------------------------------------- resolutions


class Hooked(dict):
    """A dict subclass, which is no dict."""


class Number(enum.IntEnum):
    """An int that is no int."""

    ONE = 1


@dataclasses.dataclass
class Data:
    """A dataclass."""

    a: int = 1


RESOLUTIONS = {
    "tuple": (1, 2),
    "int key": {1: 2},
    "nan": math.nan,
    "inf": [math.inf],
    "-0.0": {"a": [-0.0]},
    "2**53+1": 2**53 + 1,
    "set": {1},
    "bytes": b"x",
    "float64": numpy.float64(1.5),
    "int64": [numpy.int64(1)],
    "ndarray": numpy.array([1]),
    "bool_": numpy.bool_(1),
    "object": object(),
    "function": echo,
    "exception": ValueError("x"),
    "cycle": CYCLE,
    "OrderedDict": collections.OrderedDict(a=1),
    "namedtuple": collections.namedtuple("Named", "a")(1),
    "dict subclass": Hooked(a=1),
    "IntEnum": Number.ONE,
    "dataclass": Data(),
    "Decimal": decimal.Decimal(1),
    "Fraction": fractions.Fraction(1),
    "datetime": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    "Path": pathlib.Path("x"),
    "UUID": uuid.UUID(int=1),
    "SimpleNamespace": types.SimpleNamespace(),
    "two keys of one text": {PAIR: 1, "\U0001f600": 2},
}

RESOLVED = """\
seen = {}
for name in names:
    try:
        await tools.give({'name': name})
    except ToolCallError as e:
        seen[name] = [e.toolName, str(e)]
    else:
        seen[name] = 'no rejection'
[seen, await tools.echo('after')]
"""


async def test_lossy_resolutions(session):
    """D25: a handler's answer that is not lossless JSON rejects that call, says so, and the run goes on."""

    async def give(argument):
        return RESOLUTIONS[argument["name"]]

    result = await session.run(f"names = {list(RESOLUTIONS)!r}\n{RESOLVED}", namespace(give=give, echo=echo))
    assert result.error is None
    seen, last = result.value
    assert list(RESOLUTIONS) == list(seen)
    assert {} == {
        name: found
        for name, found in seen.items()
        if "give" != found[0] or "resolution" not in found[1] or "lossless JSON" not in found[1]
    }
    assert "after" == last
    assert ["rejected"] * len(RESOLUTIONS) + ["ok"] == [call.outcome for call in result.calls]


async def test_lossy_resolution_of_one_of_many(session):
    """D25: one bad answer among gathered calls rejects only its own, also from a plain function."""

    def odd(number):
        return {number} if number % 2 else number

    program = (
        "import asyncio\nr = await asyncio.gather(*map(tools.odd, range(6)), return_exceptions=True)\n"
        "[x if type(x) is int else [type(x).__name__, x.toolName] for x in r]"
    )
    bad = ["ToolCallError", "odd"]
    assert [0, bad, 2, bad, 4, bad] == await session.value(program, namespace(odd=odd))


async def test_lossy_resolution_that_is_not_caught(session):
    """D25: uncaught, such a rejection is an exception of the program."""
    result = await session.run("print('before')\nawait tools.f()", namespace(f=lambda _: {1}))
    assert "exception" == kind(result)
    assert "ToolCallError" in result.error.message
    assert "resolution" in result.error.message
    assert "before\n" == text(result, "stdout")


async def test_resolution_is_a_snapshot(session):
    """D26: what a handler does to its answer after it returned does not reach the program."""
    kept = []

    async def give(_):
        answer = [1, {"k": [2]}]
        kept.append(answer)
        asyncio.get_running_loop().call_soon(answer.append, "late")
        asyncio.get_running_loop().call_soon(answer[1]["k"].clear)
        return answer

    async def spoil(_):
        for answer in kept:
            answer[:] = ["spoilt"]

    tools = namespace(give=give, spoil=spoil)
    program = "a = await tools.give()\nb = tools.give()\nawait tools.spoil()\n[a, await b]"
    assert [[1, {"k": [2]}]] * 2 == await session.value(program, tools)
    assert [["spoilt"]] * 2 == [answer[:1] for answer in kept]


async def test_answers_are_separate_objects(session):
    """D26: an answer that the program changes is its own copy, not the host's and not another call's."""
    shared = {"list": [1]}

    async def give(_):
        return shared

    program = "a, b = await tools.give(), await tools.give()\na['list'].append(2)\n[a, b]"
    assert [{"list": [1, 2]}, {"list": [1]}] == await session.value(program, namespace(give=give))
    assert {"list": [1]} == shared


async def test_value_is_a_copy(session):
    """D26: a value that the host changes leaves the program's object as it was."""
    value = await session.value("a = {'list': [1]}\na")
    value["list"].append(2)
    assert {"list": [1]} == await session.value("a")


# ---------------------------------------------------------------------- hostile values

CHURN = """\
import threading
stop = False
target = {target}

def churn():
    n = 0
    while not stop:
        n += 1
        {step}

threads = [threading.Thread(target=churn, daemon=True) for _ in range(1)]
for thread in threads: thread.start()
"""
STEPS = {
    "dict-grows-and-shrinks": ("{}", "target[str(n % 500)] = [n]; target.pop(str(n % 487), None)"),
    "dict-changes-values": (
        "{str(n): n for n in range(500)}",
        "target[str(n % 500)] = {'n': n} if n % 2 else [n]",
    ),
    "list-grows-and-shrinks": ("[]", "target.append([n]); n % 200 or target.clear()"),
    "list-is-nested-again": ("[[[[]]]]", "target[:] = [[target[:0], n, [n]]]"),
    "keys-turn-bad": ("{}", "target[n % 50 if n % 3 else str(n % 50)] = n; n % 100 or target.clear()"),
    "list-turns-into-a-cycle": ("[[]]", "target[0] = target if n % 2 else []"),
}


@pytest.mark.parametrize(("target", "step"), STEPS.values(), ids=STEPS)
async def test_value_that_other_threads_change(session, target, step):
    """D28: a completion that a thread keeps changing is ok, invalid-output or an exception; nothing hangs."""
    await session.run(CHURN.format(target=target, step=step))
    for _ in range(4):
        result = await session.run("target", timeout_ms=20_000)
        assert kind(result) in (None, "invalid-output", "exception")
        assert "kept" == result.state
    result = await session.run("stop = True\nfor thread in threads: thread.join()\nlen(threads)")
    assert 1 == result.value


async def test_argument_that_other_threads_change(session):
    """D28: the same for an argument: an answer or a typed rejection, and the run completes."""
    target, step = STEPS["dict-grows-and-shrinks"]
    program = (
        f"{CHURN.format(target=target, step=step)}\nseen = set()\n"
        "for _ in range(15):\n"
        "    try:\n        seen.add(type(await tools.echo(target)).__name__)\n"
        "    except ToolCallError:\n        seen.add('rejected')\n"
        "stop = True\nsorted(seen - {'rejected'}) in ([], ['dict'])"
    )
    assert await session.value(program, namespace(echo=echo), timeout_ms=20_000) is True


PATCHES = [
    "json.dumps = json.loads = json.dump = json.load = None",
    "json.JSONEncoder = json.JSONDecoder = None",
    "json.JSONEncoder.default = json.JSONEncoder.encode = json.JSONDecoder.decode = lambda *args: 1 / 0",
    "json._default_encoder = json._default_decoder = None",
    "json.encoder.encode_basestring = json.encoder.encode_basestring_ascii = None",
    "json.encoder.c_make_encoder = json.encoder.JSONEncoder = None",
    "json.decoder.scanstring = json.scanner.c_make_scanner = json.scanner.make_scanner = None",
    "json = len = str = list = dict = type = isinstance = repr = float = int = None",
    "import sys\nsys.modules['json'] = sys.modules['json.encoder'] = sys.modules['json.decoder'] = None",
]
VALUE = {"a": [1.5, "\u00e9\n", None, True, 2**60]}


async def test_patched_json(make_runtime):
    """D34: a program that replaces json's functions, or rebinds names of builtins, changes no crossing."""
    runtime = make_runtime(grace_ms=500)
    tools = namespace(echo=echo)
    wrong = {}
    for patch in PATCHES:
        session = Session(runtime)
        for program in (f"import json\n{patch}\nawait tools.echo({VALUE!r})", f"await tools.echo({VALUE!r})"):
            result = await session.run(program, tools, timeout_ms=5_000)
            if result.error is not None or result.value != VALUE or result.reset_reason:
                wrong[patch] = result
        result = await session.run("{1}", timeout_ms=5_000)
        if kind(result) != "invalid-output" or "set" not in result.error.message:
            wrong[patch] = result
        await runtime.release(session.owner)
    assert {} == wrong
