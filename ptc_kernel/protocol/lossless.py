"""Lossless JSON: a strict check and a codec that never recurses.

A value is encoded exactly or refused; nothing is coerced (contract 6). The text is compact JSON
in which only control characters, quotes, backslashes and lone surrogates are escaped, so its
UTF-8 length is what the output ledger counts. Values may be changed by other threads while they
are walked: each container is copied once, atomically, and only the copy is looked at.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.encoder import encode_basestring as _quote
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Other = Callable[[object, list[int | str]], bool]

    from ptc_kernel.types import PtcJsonValue

__all__ = ("LossyValueError", "decode", "encode", "encode_string")

EXACT: Final = 2**53
NESTED: Final = 200  # deeper texts are decoded without recursion; json's own limit is the stack
PATH_STEPS: Final = 8
NAME_LENGTH: Final = 80

_scan_string = cast("Callable[[str, int], tuple[object, int]]", scanstring)
_LONE: Final = re.compile("[\ud800-\udfff]")
_STRINGS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_TOKEN: Final = re.compile(r'[ \t\r\n]*(?:([\[\]{},:])|(")|([^\[\]{},:" \t\r\n]+))')
_BRACKETS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_PLAIN: Final = {True: "true", False: "false", None: "null"}


class LossyValueError(ValueError):
    """A value that JSON cannot carry without loss; the text names the type and the path."""


class _Frame:
    """One container that is being written: the items that are left and how it ends."""

    __slots__ = ("closing", "ident", "items", "key", "source")

    def __init__(self, source: object, items: Iterator[tuple[object, object]], closing: str) -> None:
        self.source = source  # held, so that the id of an object on the path is not used again
        self.ident = id(source)
        self.items = items
        self.closing = closing
        self.key: object = None


def encode(value: object, other: Other | None = None) -> str:
    """The compact JSON text of `value`.

    `other` is asked about each value that is none of JSON: where it answers True, null stands in
    the text; it gets the value and its path, a list of keys and indices.

    Raises:
        LossyValueError: the value, or something inside it, is not exactly a JSON value.
    """
    parts: list[str] = []
    stack: list[_Frame] = []
    on_path: set[int] = set()
    _open(value, parts, stack, on_path, other)
    while stack:
        frame = stack[-1]
        for key, item in frame.items:
            frame.key = key
            if type(key) is str:
                parts.append(key)  # a separator, the quoted key and a colon
            elif key:
                parts.append(",")
            if _open(item, parts, stack, on_path, other):
                break
        else:
            parts.append(frame.closing)
            on_path.discard(frame.ident)
            stack.pop()
    return "".join(parts)


def _open(
    value: object, parts: list[str], stack: list[_Frame], on_path: set[int], other: Other | None
) -> bool:
    """Write a scalar or a flat list; push any other container. True when one was pushed."""
    kind = type(value)
    if kind is str:
        parts.append(encode_string(cast("str", value)))
    elif kind is list:
        items = list(cast("list[object]", value))
        flat = _flat(items)
        if flat is None:
            return _push(_Frame(value, iter(enumerate(items)), "]"), "[", parts, stack, on_path)
        parts.append(flat)
    elif kind is dict:
        return _push(_Frame(value, _members(value, stack), "}"), "{", parts, stack, on_path)
    elif value is None or kind is bool:
        parts.append(_PLAIN[cast("bool | None", value)])
    elif kind is int:
        parts.append(_int(cast("int", value), stack))
    elif kind is float:
        parts.append(_float(cast("float", value), stack))
    elif other is not None and other(value, [_key(frame.key) for frame in stack]):
        parts.append("null")
    else:
        msg = f"{type_name(kind)} is not a JSON value"
        raise LossyValueError(msg + _where(stack))
    return False


def _push(frame: _Frame, opening: str, parts: list[str], stack: list[_Frame], on_path: set[int]) -> bool:
    if frame.ident in on_path:
        msg = f"the {type(frame.source).__name__} contains itself"
        raise LossyValueError(msg + _where(stack))
    on_path.add(frame.ident)
    stack.append(frame)
    parts.append(opening)
    return True


def _flat(items: list[object]) -> str | None:
    """The text of a list whose items are all of one scalar type, written at C speed."""
    kinds = set(map(type, items))
    if len(kinds) != 1:
        return None if kinds else "[]"
    kind = kinds.pop()
    if kind is str:
        return f"[{','.join(map(encode_string, cast('list[str]', items)))}]"
    if kind is int:
        numbers = cast("list[int]", items)
        if min(numbers) >= -EXACT and max(numbers) <= EXACT:
            return f"[{','.join(map(int.__repr__, numbers))}]"
    return None


def _members(value: object, stack: list[_Frame]) -> Iterator[tuple[object, object]]:
    while True:
        try:
            pairs = list(cast("dict[object, object]", value).items())
            break
        except RuntimeError:  # another thread resized the dict while it was copied
            continue
    for key, _ in pairs:
        if type(key) is not str:
            msg = f"a dict key is {type_name(type(key))}, not str"
            raise LossyValueError(msg + _where(stack))
    quoted = [encode_string(cast("str", key)) for key, _ in pairs]
    if len(set(quoted)) != len(quoted):
        msg = "two dict keys are the same text in JSON (a surrogate pair and its character)"
        raise LossyValueError(msg + _where(stack))
    heads = [f"{',' if index else ''}{text}:" for index, text in enumerate(quoted)]
    return iter([(head, item) for head, (_, item) in zip(heads, pairs, strict=True)])


def encode_string(text: str) -> str:
    """The JSON string of `text`; a spelled-out surrogate pair becomes its one character."""
    if text.isascii():
        return _quote(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        folded = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return _LONE.sub(lambda match: f"\\u{ord(match[0]):04x}", _quote(folded))
    return _quote(text)


def _int(value: int, stack: list[_Frame]) -> str:
    if not -EXACT <= value <= EXACT and (value.bit_length() > 1024 or not _is_double(value)):
        msg = f"an int of {value.bit_length()} bits is not exactly a double; send it as a str"
        raise LossyValueError(msg + _where(stack))
    return int.__repr__(value)


def _is_double(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _float(value: float, stack: list[_Frame]) -> str:
    text = float.__repr__(value)
    if text in ("nan", "inf", "-inf", "-0.0"):
        msg = f"the float {text} is not a JSON number"
        raise LossyValueError(msg + _where(stack))
    return text


def type_name(kind: type) -> str:
    """The name of a type, bounded and without running code of the program."""
    name = str.__str__(type.__dict__["__name__"].__get__(kind))
    return name if len(name) <= NAME_LENGTH else f"{name[:NAME_LENGTH]}..."


def _where(stack: list[_Frame]) -> str:
    if not stack:
        return ""
    steps = [_step(frame.key) for frame in (stack if len(stack) <= PATH_STEPS else stack[:PATH_STEPS])]
    more = "" if len(stack) <= PATH_STEPS else f"... ({len(stack)} levels deep)"
    return f" (at value{''.join(steps)}{more})"


def _key(key: object) -> int | str:
    """The key or index of a frame: dict keys are kept quoted, with their separators."""
    if type(key) is str:
        return cast("str", _decode_flat(key.lstrip(",")[:-1]))
    return cast("int", key)


def _step(key: object) -> str:
    return "" if key is None else f"[{ascii(_key(key))[:NAME_LENGTH]}]"


def decode(text: str) -> PtcJsonValue:
    """The value of a JSON text, of any depth.

    Raises:
        LossyValueError: the text is not JSON, or holds a number that is not a JSON value.
    """
    try:
        if _depth(text) <= NESTED:
            try:
                return _decode_flat(text)
            except RecursionError:  # called from deep inside a program
                pass
        return _decode_deep(text)
    except LossyValueError:
        raise
    except (ValueError, IndexError, StopIteration) as error:
        msg = f"not a JSON text: {error}"
        raise LossyValueError(msg) from None


def _no_constant(name: str) -> object:
    msg = f"{name} is not a JSON number"
    raise LossyValueError(msg)


# no program can patch a scanner that is built already
_scan: Callable[[str, int], tuple[object, int]]
_scan = json.JSONDecoder(parse_constant=_no_constant).scan_once  # type: ignore[attr-defined]


def _decode_flat(text: str) -> PtcJsonValue:
    text = text.strip(" \t\r\n")
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise LossyValueError("not a JSON text: a value is missing") from None
    if end != len(text):
        raise LossyValueError("not a JSON text: something follows the value")
    return cast("PtcJsonValue", value)


def _depth(text: str) -> int:
    """An upper bound of the nesting depth, found at C speed."""
    bound = text.count("[") + text.count("{")
    if bound <= NESTED:
        return bound
    bare = _STRINGS.sub("", text).encode("ascii", "replace").translate(_BRACKETS, _NOT_BRACKETS)
    return max(accumulate(1 if step == 1 else -1 for step in bare), default=0)


def _decode_deep(text: str) -> PtcJsonValue:
    """Decode token by token, with the open containers on a list instead of the stack."""
    root: list[object] = []
    stack: list[list[object] | dict[str, object]] = [root]
    keys: list[str] = []
    at, expect = 0, "value"
    while len(stack) > 1 or not root:
        match = _TOKEN.match(text, at)
        if match is None:
            raise LossyValueError("not a JSON text: it ends too early")
        mark, quote, _ = match.groups()
        at = match.end()
        if quote:
            item, at = _scan_string(text, at)
        elif mark is None:
            item, at = _scan(text, match.start(3))
        elif mark in "[{" and expect in ("value", "first"):
            container: list[object] | dict[str, object] = [] if mark == "[" else {}
            _put(stack[-1], keys, container)
            stack.append(container)
            expect = "first" if mark == "[" else "first key"
            continue
        else:
            expect = _punctuate(mark, expect, stack)
            continue
        expect = _scalar(item, expect, stack[-1], keys)
    if text[at:].strip(" \t\r\n"):
        raise LossyValueError("not a JSON text: something follows the value")
    return cast("PtcJsonValue", root[0])


def _scalar(item: object, expect: str, container: list[object] | dict[str, object], keys: list[str]) -> str:
    if expect in ("key", "first key"):
        if type(item) is not str:
            raise LossyValueError("not a JSON text: an object key must be a string")
        keys.append(item)
        return "colon"
    if expect not in ("value", "first"):
        raise LossyValueError("not a JSON text: a separator is missing")
    _put(container, keys, item)
    return "next"


def _put(container: list[object] | dict[str, object], keys: list[str], item: object) -> None:
    if type(container) is list:
        container.append(item)
    else:
        cast("dict[str, object]", container)[keys.pop()] = item


def _punctuate(mark: str, expect: str, stack: list[list[object] | dict[str, object]]) -> str:
    is_list = type(stack[-1]) is list
    if mark == ":" and expect == "colon":
        return "value"
    if mark == "," and expect == "next" and len(stack) > 1:
        return "value" if is_list else "key"
    closes = mark == "]" if is_list else mark == "}"
    if closes and len(stack) > 1 and expect in ("next", "first" if is_list else "first key"):
        stack.pop()
        return "next"
    msg = f"not a JSON text: {mark!r} is out of place"
    raise LossyValueError(msg)
