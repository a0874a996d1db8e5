"""Our own messages: the data of the one comm that a host and its worker share.

    kernel -> host, on iopub       {"calls": [[id, namespace, member, text], ...], "run": run}
                                   {"abandoned": [id, ...], "run": run}
                                   {"inspect": number, "run": run}
                                   {"over": run}
    host -> kernel, on control     {"answers": [[id, ok, text], ...]}
                                   {"ack": count}
                                   {"cancel": run}

JSON values cross as text, never as nested content that somebody would encode again. A text of
`BUFFER_FROM` characters or more travels as a message buffer, and None stands in its place. An
answer with images has a fourth field, a list of [place, number, path, width, height]: `place` is
where in the value, as keys and indices. What comes from the kernel may be forged: it is checked
field by field and rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast, final

__all__ = (
    "BUFFER_FROM",
    "COMM_TARGET",
    "PROTOCOL_VERSION",
    "AbandonFrame",
    "Answer",
    "CallFrame",
    "CallsFrame",
    "InspectFrame",
    "OverFrame",
    "PlacedImage",
    "ProtocolViolationError",
    "encode_answers",
    "encode_calls",
    "pack_text",
    "parse_frame",
    "unpack_text",
)

PROTOCOL_VERSION: Final = 1
COMM_TARGET: Final = "ptc.bindings"
BUFFER_FROM: Final = 64 * 1024
_CALL_FIELDS: Final = 4


class ProtocolViolationError(Exception):
    """The kernel sent something that the protocol does not allow; it is hostile or broken."""


@final
@dataclass(frozen=True, slots=True)
class CallFrame:
    """One binding call; `text` is the JSON text of its argument."""

    id: int
    namespace: str
    member: str
    text: str


@final
@dataclass(frozen=True, slots=True)
class CallsFrame:
    """The calls of one run that were made in the same turn, in the order of their ids."""

    run: str
    calls: tuple[CallFrame, ...]


@final
@dataclass(frozen=True, slots=True)
class AbandonFrame:
    """Calls whose waiting tasks were cancelled in the program."""

    run: str
    ids: tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class InspectFrame:
    """The program shows an image that a binding gave it, by its number."""

    run: str
    number: int


@final
@dataclass(frozen=True, slots=True)
class OverFrame:
    """The run wrote more output than its cap."""

    run: str


@final
@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image inside the value of an answer.

    Attributes:
        place: keys and indices that lead to it.
        number: what the program names it by; a number means one image in one environment.
    """

    place: tuple[int | str, ...]
    number: int
    path: str
    width: int
    height: int


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended: with the JSON text of a value, or with the text of a failure."""

    id: int
    ok: bool
    text: str
    images: tuple[PlacedImage, ...] = ()


KernelFrame: TypeAlias = CallsFrame | AbandonFrame | InspectFrame | OverFrame
Buffers: TypeAlias = "Sequence[bytes | memoryview]"


def pack_text(text: str, buffers: list[bytes]) -> str | None:
    """The text itself, or None after it was appended to the buffers."""
    if len(text) < BUFFER_FROM:
        return text
    buffers.append(text.encode("utf-8", "surrogatepass"))
    return None


def unpack_text(text: object, buffers: list[bytes | memoryview]) -> str:
    """The text of a field that `pack_text` made; takes the next buffer where it is None.

    Raises:
        ProtocolViolationError: the field is no text, or its buffer is missing or not UTF-8.
    """
    if type(text) is str:
        return text
    if text is not None or not buffers:
        raise ProtocolViolationError("a value on the wire has no text")
    try:
        return bytes(buffers.pop(0)).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise ProtocolViolationError("a value on the wire is not UTF-8") from None


def encode_calls(run: str, calls: Sequence[CallFrame]) -> tuple[dict[str, object], list[bytes]]:
    """The comm data and the buffers of a calls frame."""
    buffers: list[bytes] = []
    rows = [[call.id, call.namespace, call.member, pack_text(call.text, buffers)] for call in calls]
    return {"calls": rows, "run": run}, buffers


def encode_answers(answers: Sequence[Answer]) -> tuple[dict[str, object], list[bytes]]:
    """The comm data and the buffers of an answers frame."""
    buffers: list[bytes] = []
    rows: list[list[object]] = []
    for answer in answers:
        row: list[object] = [answer.id, answer.ok, pack_text(answer.text, buffers)]
        if answer.images:
            row.append([[list(i.place), i.number, i.path, i.width, i.height] for i in answer.images])
        rows.append(row)
    return {"answers": rows}, buffers


def parse_frame(data: object, buffers: Buffers, *, max_bytes: int) -> KernelFrame:
    """Rebuild a frame that the kernel sent.

    Raises:
        ProtocolViolationError: it is not a frame, a field has a wrong type, or its texts are
            together over `max_bytes`.
    """
    if not isinstance(data, Mapping):
        raise ProtocolViolationError("a control frame is not an object")
    fields = cast("Mapping[str, object]", data)
    if fields.keys() == {"over"}:
        return OverFrame(_text(fields["over"], "run"))
    if fields.keys() == {"abandoned", "run"}:
        ids = _items(fields["abandoned"], "abandoned calls")
        if not all(type(ident) is int for ident in ids):
            raise ProtocolViolationError("abandoned call ids must be integers")
        return AbandonFrame(_text(fields["run"], "run"), tuple(cast("list[int]", ids)))
    if fields.keys() == {"inspect", "run"}:
        number = fields["inspect"]
        if type(number) is not int:
            raise ProtocolViolationError("the number of an image must be an integer")
        return InspectFrame(_text(fields["run"], "run"), number)
    if fields.keys() == {"calls", "run"}:
        return _calls(fields, buffers, max_bytes)
    raise ProtocolViolationError("a control frame of an unknown type")


def _calls(fields: Mapping[str, object], buffers: Buffers, max_bytes: int) -> CallsFrame:
    rows = _items(fields["calls"], "calls")
    if not rows:
        raise ProtocolViolationError("a calls frame has no calls")
    left = list(buffers)
    size = sum(len(buffer) for buffer in left)
    calls: list[CallFrame] = []
    for row in (_items(item, "call") for item in rows):
        if len(row) != _CALL_FIELDS or type(row[0]) is not int:
            raise ProtocolViolationError("a call must be [id, namespace, member, text]")
        if row[3] is not None:
            size += len(_text(row[3], "argument").encode("utf-8", "surrogatepass"))
        if size > max_bytes:
            msg = f"a calls frame is over max_message_bytes ({max_bytes})"
            raise ProtocolViolationError(msg)
        call = CallFrame(
            row[0], _text(row[1], "namespace"), _text(row[2], "member"), unpack_text(row[3], left)
        )
        calls.append(call)
    return CallsFrame(_text(fields["run"], "run"), tuple(calls))


def _items(value: object, what: str) -> list[object]:
    if type(value) is not list:
        msg = f"the {what} of a control frame are not a list"
        raise ProtocolViolationError(msg)
    return cast("list[object]", value)


def _text(value: object, what: str) -> str:
    if type(value) is not str:
        msg = f"the {what} of a control frame is not a text"
        raise ProtocolViolationError(msg)
    return value
