"""Names of bindings: conformance area B, as far as it is validation (contract 4)."""

# ruff: noqa: SIM905
# The test law asks for `assert expected == actual`.

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptc_kernel.errors import UsageError, UsageTypeError, UsageValueError
from ptc_kernel.protocol.names import (
    PORTABLE_RESERVED_WORDS,
    RESERVED_BINDING_GLOBALS,
    RESERVED_ERROR_MEMBERS,
    check_namespaces,
    is_portable_identifier,
    is_usable_error_member,
)
from ptc_kernel.types import PtcBindingErrorClass, PtcBindingNamespace
from tests.protocol.json_strategies import FAST

ECMASCRIPT = (
    "await break case catch class const continue debugger default delete do else enum export extends false "
    "finally for function if import in instanceof new null return super switch this throw true try "
    "typeof var void while with yield let static implements interface package private protected public "
    "arguments eval"
).split()
PYTHON = (
    "False None True and as assert async def del elif except from global is lambda nonlocal not or pass "
    "raise match type _"
).split()
WORDS = ECMASCRIPT + PYTHON
OWNED = ["console", "inspect", "Image", "__dsh_main__", "__builtins__", "__name__", "__debug__"]
MEMBERS = ["name", "message", "stack", "args", "with_traceback", "add_note"]

MALFORMED = [
    "not valid!",
    "1bad",
    "",
    "$tools",
    "a$b",
    "a-b",
    "\u00e9",
    "\u30c4",
    "a b",
    "tools\n",
    "a.b",
    "\uff41",
]
SAMPLE_WORDS = "await lambda function nonlocal let eval arguments match type _ None null".split()
LEGAL = (
    "None_ Await self print undefined get image __x__ In Out get_ipython exit quit __ ___ _1 _i _ih _oh _dh"
)
LEGAL += " __doc__ __spec__ __file__ asyncio json dict len Exception RuntimeError NaN of set exec object a1_B"


def answer(argument):
    """A handler that nobody calls here."""
    return argument


def namespace(name="tools", functions=None, error=None, member="toolName"):
    """A namespace; `error` is the name of its error class."""
    error_class = None if error is None else PtcBindingErrorClass(name=error, member_name_property=member)
    return PtcBindingNamespace(global_name=name, functions=functions or {}, error_class=error_class)


def refused(*namespaces):
    """The text with which these namespaces are refused."""
    with pytest.raises(UsageValueError) as caught:
        check_namespaces(namespaces)
    return str(caught.value)


def test_word_counts():
    """The reserved sets are the 71 words, 7 globals and 6 members of the contract."""
    assert (48, 23, 71) == (len(ECMASCRIPT), len(PYTHON), len(PORTABLE_RESERVED_WORDS))
    assert set(WORDS) == PORTABLE_RESERVED_WORDS
    assert set(OWNED) == RESERVED_BINDING_GLOBALS
    assert set(MEMBERS) == RESERVED_ERROR_MEMBERS


def test_python_keywords_are_covered():
    """Every hard keyword of the running Python is a reserved word."""
    assert set() == set(keyword.kwlist) - PORTABLE_RESERVED_WORDS


@pytest.mark.parametrize("name", MALFORMED, ids=lambda name: f"B01-{name!a}")
def test_malformed_names(name):
    """B01: a name that is no ASCII identifier is refused as global and as error class."""
    assert repr(name) in refused(namespace(name))
    assert repr(name) in refused(namespace(error=name))


@pytest.mark.parametrize("name", SAMPLE_WORDS, ids=lambda name: f"B03-{name}")
def test_reserved_words_of_either_language(name):
    """B03: a word that any language reserves is refused as a global."""
    assert repr(name) in refused(namespace(name))


@pytest.mark.parametrize("name", OWNED, ids=lambda name: f"B04-{name}")
def test_globals_of_the_backend(name):
    """B04: the seven globals of the backend are refused as global and as error class."""
    assert repr(name) in refused(namespace(name))
    assert repr(name) in refused(namespace(error=name))


@pytest.mark.parametrize("name", WORDS, ids=lambda name: f"B05-{name}")
def test_every_reserved_word(name):
    """B05: each of the 71 reserved words is refused as global and as error class."""
    assert not is_portable_identifier(name)
    assert repr(name) in refused(namespace(name))
    assert repr(name) in refused(namespace(error=name))


@pytest.mark.parametrize("name", LEGAL.split(), ids=lambda name: f"B06-{name}")
def test_legal_names(name):
    """B06, B19, B20: a name that is legal elsewhere is legal here, builtins and IPython's names included."""
    assert [name] == list(check_namespaces([namespace(name)]))
    assert ["tools"] == list(check_namespaces([namespace(error=name)]))


def test_duplicate_global():
    """B07: two namespaces cannot have the same name."""
    assert "'tools'" in refused(namespace(), namespace("other"), namespace())


@pytest.mark.parametrize(
    "namespaces",
    [
        pytest.param([namespace("Tools", error="Tools")], id="B08-its-own-global"),
        pytest.param([namespace("a", error="Err"), namespace("Err")], id="B08-a-later-global"),
        pytest.param([namespace("Err"), namespace("a", error="Err")], id="B08-an-earlier-global"),
        pytest.param([namespace("a", error="Err"), namespace("b", error="Err")], id="B08-twice"),
    ],
)
def test_error_class_name_is_taken(namespaces):
    """B08: an error class has a name of its own."""
    assert "error class" in refused(*namespaces)


def test_namespace_called_like_an_error_class():
    """B09: a namespace may be called ToolCallError when no error class is."""
    assert {"ToolCallError": (None, {})} == check_namespaces([namespace("ToolCallError")])


@pytest.mark.parametrize(
    "member",
    ["", *MEMBERS, "__dict__", "__x__", "_____", "__ __", "______", "__a-b__"],
    ids=lambda member: f"B10-{member!a}",
)
def test_unusable_error_members(member):
    """B10, B11: a property that error objects have, a dunder or an empty text is refused."""
    assert not is_usable_error_member(member)
    assert repr(member) in refused(namespace(error="Err", member=member))


@pytest.mark.parametrize(
    "member",
    [
        "__",
        "____",
        "__mid",
        "_p",
        "tool-name",
        " ",
        "code",
        "toolName",
        "class",
        "__x__\n",
        "__\n__",
        "mid__",
        "\u00e9",
    ],
    ids=lambda member: f"B11-{member!a}",
)
def test_usable_error_members(member):
    """B11, B12: every other property is accepted, whether or not it is an identifier."""
    assert is_usable_error_member(member)
    error_class, _ = check_namespaces([namespace(error="Err", member=member)])["tools"]
    assert member == error_class.member_name_property


@pytest.mark.parametrize(
    ("namespaces", "culprit"),
    [
        pytest.param(
            [namespace(error="console"), namespace("1bad")], "1bad", id="globals-before-error-classes"
        ),
        pytest.param([namespace("1bad"), namespace("2bad")], "1bad", id="globals-in-order"),
        pytest.param(
            [namespace("console"), namespace("console")], "belongs", id="backend-owned-before-duplicate"
        ),
        pytest.param([namespace(error="1bad", member="name")], "1bad", id="identifier-before-member"),
        pytest.param(
            [namespace(error="inspect", member="name")], "inspect", id="backend-owned-before-member"
        ),
        pytest.param(
            [namespace("T", error="T", member="name")], "error class 'T'", id="duplicate-before-member"
        ),
        pytest.param(
            [namespace("a", error="A", member=""), namespace("b", error="1bad")],
            "'A'",
            id="error-classes-in-order",
        ),
        pytest.param(
            [namespace("a", functions={"f": 5}), namespace("1bad")], "1bad", id="names-before-functions"
        ),
    ],
)
def test_order_of_checks(namespaces, culprit):
    """The first problem in the order of contract 4.5 is the one that is reported."""
    assert culprit in refused(*namespaces)


class Hostile(Mapping):
    """A mapping whose member cannot be read."""

    def __getitem__(self, name):
        raise LookupError("the accessor failed")

    def __iter__(self):
        return iter(["f"])

    def __len__(self):
        return 1


def test_accessor_that_raises():
    """B14: a problem in the caller's mapping is the caller's to see."""
    with pytest.raises(LookupError, match="the accessor failed"):
        check_namespaces([namespace(functions=Hostile())])


def test_namespace_without_functions():
    """B16: a namespace with no functions is fine."""
    assert {"tools": (None, {})} == check_namespaces([namespace()])


@pytest.mark.parametrize(
    "member", [None, 5, "text", [], {}], ids=lambda member: f"B17-{type(member).__name__}"
)
def test_members_that_cannot_be_called(member):
    """B17: a member that is not callable is a TypeError that names it."""
    with pytest.raises(UsageTypeError, match=re.escape("tools['f']")):
        check_namespaces([namespace(functions={"f": member})])


class Text(str):
    """A str subclass: it can lie about itself."""

    __slots__ = ()


@pytest.mark.parametrize(
    "namespaces",
    [
        pytest.param(["tools"], id="no-namespace"),
        pytest.param([{"global_name": "tools", "functions": {}}], id="dict"),
        pytest.param([namespace(5)], id="int-global"),
        pytest.param([namespace(None)], id="none-global"),
        pytest.param([namespace(b"tools")], id="bytes-global"),
        pytest.param([namespace(Text("tools"))], id="str-subclass-global"),
        pytest.param([namespace(error=5)], id="int-error-class"),
        pytest.param([namespace(error=Text("Err"))], id="str-subclass-error-class"),
        pytest.param([namespace(error="Err", member=5)], id="int-member"),
        pytest.param([namespace(error="Err", member=None)], id="none-member"),
        pytest.param([namespace(functions={1: answer})], id="int-function-name"),
        pytest.param([namespace(functions={Text("f"): answer})], id="str-subclass-function-name"),
        pytest.param(
            [PtcBindingNamespace(global_name="t", functions={}, error_class="Err")], id="no-error-class"
        ),
    ],
)
def test_wrong_types(namespaces):
    """Something of a wrong type is a TypeError, and caller misuse."""
    with pytest.raises(TypeError) as caught:
        check_namespaces(namespaces)
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize(
    "name",
    [
        "__proto__",
        "constructor",
        "toString",
        "__class__",
        "__dict__",
        "__getattribute__",
        "my-tool",
        "class",
        "",
    ],
)
def test_function_names_are_arbitrary(name):
    """Contract 4.6: any text is an ordinary function name."""
    assert {"tools": (None, {name: answer})} == check_namespaces([namespace(functions={name: answer})])


class Counting(Mapping):
    """A mapping that counts how often its members are read."""

    def __init__(self, names):
        self.names, self.reads, self.walks = names, [], 0

    def __getitem__(self, name):
        self.reads.append(name)
        return answer

    def __iter__(self):
        self.walks += 1
        return iter(self.names)

    def __len__(self):
        return len(self.names)


def test_functions_are_read_once():
    """Contract 4.7: the mapping is walked once and each member is read once, in order."""
    functions = Counting(["b", "a"])
    _, captured = check_namespaces([namespace(functions=functions)])["tools"]
    assert (1, ["b", "a"]) == (functions.walks, functions.reads)
    assert ["b", "a"] == list(captured)


def test_later_mutation_has_no_effect():
    """Contract 4.7: what the caller does to the mapping afterwards changes nothing."""
    functions = {"f": answer}
    _, captured = check_namespaces([namespace(functions=functions)])["tools"]
    functions["g"] = functions.pop("f")
    assert {"f": answer} == captured


def test_namespaces_keep_their_order_and_classes():
    """The result has every namespace in order, with its own error class."""
    one, two = namespace("b", {"f": answer}, error="E1"), namespace("a", error="E2")
    assert {"b": (one.error_class, {"f": answer}), "a": (two.error_class, {})} == check_namespaces([one, two])
    assert ["b", "a"] == list(check_namespaces([one, two]))
    assert {} == check_namespaces([])


@FAST
@given(st.text(st.sampled_from("aZ_09-$ \n\u00e9") | st.characters(), max_size=6))
def test_identifier_rule(name):
    """A portable identifier is ASCII letters, digits and underscores, not a digit first, not reserved."""
    ascii_word = bool(name) and all(char.isascii() and (char.isalnum() or char == "_") for char in name)
    assert (ascii_word and not name[0].isdigit() and name not in WORDS) == is_portable_identifier(name)


@FAST
@given(st.text(st.sampled_from("_x\n"), max_size=7))
def test_dunder_rule(name):
    """A dunder is two underscores, at least one character that is no newline, and two underscores."""
    dunder = len(name) >= 5 and name[:2] == name[-2:] == "__" and "\n" not in name
    assert (bool(name) and not dunder) == is_usable_error_member(name)
