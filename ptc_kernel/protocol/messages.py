"""Jupyter messages as a closed set of events; the only place where message dicts are read.

A message whose parent is not a request of the owner's session belongs to somebody else (a
visitor): it is no event of ours, except that it tells that code was run. Malformed messages of a
type that matters raise `ProtocolViolationError`; types that do not matter are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, final

from ptc_kernel.protocol.frames import (
    KernelFrame,
    ProtocolViolationError,
    parse_frame,
    unpack_text,
)

if TYPE_CHECKING:
    from ptc_kernel.types import Channel

__all__ = (
    "IMAGE_TYPES",
    "Began",
    "Busy",
    "Frame",
    "Idle",
    "KernelEvent",
    "Picture",
    "Reply",
    "ReplyStatus",
    "Text",
    "Visited",
    "display_text",
    "parse_iopub",
    "parse_reply",
)

ReplyStatus: TypeAlias = Literal["none", "value", "lossy", "exception", "limit", "cwd"]
IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif")
REPLY_STATUSES: Final[tuple[ReplyStatus, ...]] = ("none", "value", "lossy", "exception", "limit", "cwd")


@final
@dataclass(frozen=True, slots=True)
class Busy:
    """The kernel took up the request `run`."""

    run: str


@final
@dataclass(frozen=True, slots=True)
class Began:
    """The first line of the program is about to run (Jupyter's `execute_input`)."""

    run: str


@final
@dataclass(frozen=True, slots=True)
class Idle:
    """The kernel published everything that belongs to the request `run`."""

    run: str


@final
@dataclass(frozen=True, slots=True)
class Text:
    """Output text.

    Attributes:
        count: output bytes that the kernel had sent with this message, for acknowledgements.
        ring: the offset in the crash ring that this message reaches.
    """

    run: str
    channel: Channel
    text: str
    count: int
    ring: int


@final
@dataclass(frozen=True, slots=True)
class Picture:
    """A displayed image, as it came: base64, with the text that stands for it."""

    run: str
    media_type: str
    data: str
    plain: str
    count: int
    ring: int


@final
@dataclass(frozen=True, slots=True)
class Frame:
    """A message of our comm."""

    frame: KernelFrame


@final
@dataclass(frozen=True, slots=True)
class Visited:
    """An attached client ran code."""


@final
@dataclass(frozen=True, slots=True)
class Reply:
    """How the program ended, from the `execute_reply`.

    Attributes:
        status: `none` (no completion), `value` (`text` is JSON), `lossy` (`text` says why),
            `exception` (`text` is the traceback), `limit` (value or traceback did not fit under
            the cap and stayed in the kernel), `cwd` (`text` says why it could not be entered).
    """

    run: str
    status: ReplyStatus
    text: str


KernelEvent: TypeAlias = Busy | Began | Idle | Text | Picture | Frame | Visited | Reply


def parse_iopub(
    message: Mapping[str, Any], *, session: str, comm_id: str, max_bytes: int
) -> KernelEvent | None:
    """The event of an iopub message, or None when it is of no concern to the owner.

    Raises:
        ProtocolViolationError: a message of ours is malformed.
    """
    kind = message["header"]["msg_type"]
    if kind == "comm_msg":
        content = _object(message["content"])
        if content.get("comm_id") != comm_id:
            return None  # another comm: a widget, a progress bar
        return Frame(parse_frame(content.get("data"), message["buffers"], max_bytes=max_bytes))
    parent = _object(message["parent_header"])
    run = parent.get("msg_id")
    if type(run) is not str or parent.get("session") != session:
        return Visited() if kind == "execute_input" and run else None
    content = _fields(message["content"], f"content of a {kind} message")
    if kind == "status":
        return _status(run, content)
    if kind == "execute_input":
        return Began(run)
    if kind not in ("stream", "display_data", "update_display_data"):
        return None
    metadata = _fields(message["metadata"], f"metadata of a {kind} message")
    if kind == "stream":
        return _output(run, content.get("name"), content.get("text"), metadata)
    return _display(run, content, metadata)


def _object(value: object) -> Mapping[str, object]:
    """A part of a message that may be anything, because it need not be ours."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _fields(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        msg = f"the {what} is not an object"
        raise ProtocolViolationError(msg)
    return cast("Mapping[str, object]", value)


def _status(run: str, content: Mapping[str, object]) -> KernelEvent | None:
    state = content.get("execution_state")
    if state == "busy":
        return Busy(run)
    return Idle(run) if state == "idle" else None


def _output(run: str, channel: object, text: object, metadata: Mapping[str, object]) -> Text:
    if channel not in ("stdout", "stderr", "display") or type(text) is not str:
        raise ProtocolViolationError("an output message has no channel or no text")
    count, ring = metadata.get("ptc_count", 0), metadata.get("ptc_ring", 0)
    if type(count) is not int or type(ring) is not int:
        raise ProtocolViolationError("an output message has no byte count")
    return Text(run, channel, whole_text(text), count, ring)


def _display(run: str, content: Mapping[str, object], metadata: Mapping[str, object]) -> Text | Picture:
    bundle = _fields(content.get("data"), "data of a display message")
    text = _output(run, "display", display_text(bundle), metadata)
    for media_type in IMAGE_TYPES:
        data = bundle.get(media_type)
        if type(data) is str:
            return Picture(run, media_type, data, text.text, text.count, text.ring)
    return text


def whole_text(text: str) -> str:
    """The text with surrogate pairs folded and lone surrogates replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def display_text(data: object) -> str:
    """A mimebundle as text: its text/plain form, ended by a newline as a terminal would."""
    bundle = _fields(data, "data of a display message")
    plain = bundle.get("text/plain")
    if type(plain) is not str:
        kinds = ", ".join(sorted(bundle)) or "nothing"
        plain = f"<display of {kinds}>"
    return plain if plain.endswith("\n") else plain + "\n"


def parse_reply(message: Mapping[str, Any]) -> Reply | None:
    """The reply to a program, or None for any other shell message.

    Raises:
        ProtocolViolationError: the reply is malformed or not one of our worker's.
    """
    if message["header"]["msg_type"] != "execute_reply":
        return None
    run = _object(message["parent_header"]).get("msg_id")
    outcome = _object(_object(message["content"]).get("ptc"))
    status = outcome.get("status")
    if type(run) is not str:
        raise ProtocolViolationError("an execute_reply to no request")
    if status not in REPLY_STATUSES:
        raise ProtocolViolationError("an execute_reply with an unknown outcome")
    buffers: list[bytes | memoryview] = list(message["buffers"])
    text = "" if status in ("none", "limit") else unpack_text(outcome.get("text"), buffers)
    return Reply(run, status, text)
