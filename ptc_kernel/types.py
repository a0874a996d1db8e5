"""The vocabulary of the seam: requests, specs, results, outputs and bindings. All values are frozen."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

from ptc_kernel.errors import PtcRunError, UsageTypeError

if TYPE_CHECKING:
    import asyncio

    import anyio

    from ptc_kernel.abort import AbortSignal

__all__ = (
    "ABSENT",
    "FAILURE_KINDS",
    "UNSET",
    "Absent",
    "CallEvent",
    "Channel",
    "FailureKind",
    "ImageAttachmentRef",
    "ImageOutput",
    "OutputEvent",
    "PtcBindingErrorClass",
    "PtcBindingFunction",
    "PtcBindingNamespace",
    "PtcCallRecord",
    "PtcEvent",
    "PtcImage",
    "PtcJsonValue",
    "PtcOutput",
    "PtcRunFailure",
    "PtcRunRequest",
    "PtcRunResult",
    "PtcRunSandbox",
    "PtcRunSpec",
    "ResultEvent",
    "SandboxExecutionPolicy",
    "StateOwner",
    "TextOutput",
    "TimeoutLimits",
    "Unset",
)


class Absent(enum.Enum):
    """The type of `ABSENT`."""

    ABSENT = "ABSENT"

    def __repr__(self) -> str:
        return "ABSENT"


class Unset(enum.Enum):
    """The type of `UNSET`."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


ABSENT: Final = Absent.ABSENT
"""The value of a run that has none; None is a value (JSON null)."""

UNSET: Final = Unset.UNSET
"""The timeout that was not chosen: the provider's default. None means no deadline."""

PtcJsonValue: TypeAlias = "bool | int | float | str | list[PtcJsonValue] | dict[str, PtcJsonValue] | None"
Channel: TypeAlias = Literal["stdout", "stderr", "display"]
FailureKind: TypeAlias = Literal[
    "exception",
    "timeout",
    "abort",
    "worker-exit",
    "invalid-output",
    "output-limit",
    "protocol",
    "sandbox-unavailable",
]
FAILURE_KINDS: Final[tuple[FailureKind, ...]] = (
    "exception",
    "timeout",
    "abort",
    "worker-exit",
    "invalid-output",
    "output-limit",
    "protocol",
    "sandbox-unavailable",
)

REPR_LENGTH: Final = 80

PtcBindingFunction: TypeAlias = Callable[[Any], Awaitable[Any] | Any]
"""A host function: one JSON value in, a JSON value (or an awaitable of one) out."""


@final
class StateOwner:
    """An owner of retained state for callers who have no better object at hand.

    Owners are told apart by identity. The label names the owner in logs and listings.
    """

    __slots__ = ("__weakref__", "label")

    def __init__(self, label: str = "") -> None:
        self.label: str = label

    def __repr__(self) -> str:
        return f"StateOwner({self.label!r})"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PtcBindingErrorClass:
    """The exception class that a namespace's rejected calls raise inside the program.

    Attributes:
        name: the class's global name and `type(e).__name__`.
        member_name_property: the attribute that carries the failing member's name.
    """

    name: str
    member_name_property: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PtcBindingNamespace:
    """Host functions that the program sees as one global object of async callables.

    Attributes:
        global_name: the global's name (the seam's `global`).
        functions: members by exact name; read once, when `run` is called.
        error_class: raised by rejected calls; without one they raise RuntimeError.
    """

    global_name: str
    functions: Mapping[str, PtcBindingFunction]
    error_class: PtcBindingErrorClass | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxExecutionPolicy:
    """A resolved file-effect authority; refused by a provider that does not confine."""

    mode: Literal["read-only", "workspace-write", "danger-full-access"]
    workspace_root: str
    session_id: str | None = None


Signal: TypeAlias = "AbortSignal | asyncio.Event | anyio.Event"


def _exact(name: str, value: object, kind: type) -> None:
    if type(value) is not kind:
        msg = f"{name} must be exactly {kind.__name__}, not {type(value).__name__}"
        raise UsageTypeError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class PtcRunRequest:
    """What a caller wants to run; `resolve` turns it into a `PtcRunSpec`.

    Attributes:
        program: Python source in REPL form: the last expression is the completion.
        bindings: host functions, one global object per namespace.
        discard_completion: drop the completion without validating it.
        display_completion: show a completion that is not lossless JSON instead of failing.
        state_owner: the identity whose variables the program sees; None is a fresh environment.
        cwd: absolute working directory; None is the provider's.
        timeout_ms: elapsed budget in milliseconds; UNSET is the default, None no deadline.
        sandbox_policy: resolved authority; only for a provider that confines.
        signal: fires to stop the run. An Event must be set on the runtime's loop.

    Raises:
        UsageTypeError: when a field has the wrong type.
    """

    program: str
    bindings: Sequence[PtcBindingNamespace] = ()
    discard_completion: bool = False
    display_completion: bool = False
    state_owner: object | None = None
    cwd: str | None = None
    timeout_ms: float | Unset | None = UNSET
    sandbox_policy: SandboxExecutionPolicy | None = None
    signal: Signal | None = None

    def __post_init__(self) -> None:
        _exact("program", self.program, str)
        _exact("discard_completion", self.discard_completion, bool)
        _exact("display_completion", self.display_completion, bool)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PtcRunSpec(PtcRunRequest):
    """A request whose working directory and deadline are decided; `run` fills no gap."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ImageAttachmentRef:
    """An opaque reference to one immutable stored image; sizes in pixels, `bytes` exact."""

    attachment_id: str
    media_type: Literal["image/png", "image/jpeg", "image/webp", "image/gif"]
    bytes: int
    width: int
    height: int
    name: str | None = None
    original_dimensions: tuple[int, int] | None = None

    def to_json(self) -> dict[str, PtcJsonValue]:
        """The reference as the seam spells it, in camelCase; absent fields are left out."""
        data: dict[str, PtcJsonValue] = {
            "attachmentId": self.attachment_id,
            "mediaType": self.media_type,
            "bytes": self.bytes,
            "width": self.width,
            "height": self.height,
        }
        if self.name is not None:
            data["name"] = self.name
        if self.original_dimensions is not None:
            width, height = self.original_dimensions
            data["originalDimensions"] = {"width": width, "height": height}
        return data


@final
@dataclass(frozen=True, slots=True)
class PtcImage:
    """A stored image that a binding hands to the program: an absolute path and its reference."""

    path: str
    attachment: ImageAttachmentRef


@final
@dataclass(frozen=True, slots=True)
class TextOutput:
    """Text exactly as the program wrote it to one channel."""

    text: str
    channel: Channel
    type: Literal["text"] = "text"


@final
@dataclass(frozen=True, slots=True)
class ImageOutput:
    """An image that the program showed, at its place in the output."""

    attachment: ImageAttachmentRef
    type: Literal["image"] = "image"


PtcOutput: TypeAlias = TextOutput | ImageOutput


@final
@dataclass(frozen=True, slots=True)
class PtcRunFailure:
    """Why a run failed: one of eight kinds, and a text that a model can act on."""

    kind: FailureKind
    message: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PtcRunSandbox:
    """The file confinement that was applied; `denied` is advice, not proof."""

    mode: Literal["read-only", "workspace-write", "danger-full-access"]
    denied: bool
    enforcement: Literal["full", "partial"] | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PtcCallRecord:
    """One binding call that was dispatched; side effects of a call are never rolled back.

    Attributes:
        outcome: `ok`, `rejected`, or `open` when the handler had not ended with the run.
        milliseconds: from dispatch to the handler's end, or to the end of the run.
    """

    namespace: str
    member: str
    outcome: Literal["ok", "rejected", "open"]
    milliseconds: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PtcRunResult:
    """The outcome of one run; a failure is data and keeps the output that came before it.

    Attributes:
        output: text and images in the order in which the program made them.
        value: the completion, or ABSENT; None is JSON null.
        error: set when, and only when, the run failed.
        sandbox: set only by a provider that confines.
        state: what became of the owner's variables: `none` without an owner.
        reset_reason: why this run began in a fresh environment, when an earlier one was lost.
        started: whether the program began to run.
        calls: the first 1,000 dispatched binding calls, in order.
        calls_total: how many calls were dispatched.
        background: late output of earlier runs' threads and tasks; not metered.
        visited: whether an attached client ran code since the owner's last run.
    """

    output: Sequence[PtcOutput] = ()
    value: PtcJsonValue | Absent = ABSENT
    error: PtcRunFailure | None = None
    sandbox: PtcRunSandbox | None = None
    state: Literal["none", "kept", "lost"] = "none"
    reset_reason: str | None = None
    started: bool = False
    calls: tuple[PtcCallRecord, ...] = ()
    calls_total: int = 0
    background: tuple[PtcOutput, ...] = ()
    visited: bool = False

    @property
    def has_value(self) -> bool:
        """True when the program completed with a value, None included."""
        return self.value is not ABSENT

    def text(self) -> str:
        """The output as a terminal or a model would read it.

        Escape sequences are gone, lines that were overwritten show their last state, and an image
        is a line with its media type and size; `output` has everything as it was written.
        """
        from ptc_kernel.rendering import rendered_text  # noqa: PLC0415 - it needs these types

        return rendered_text(self.output)

    def __repr__(self) -> str:
        parts = [] if self.error is None else [f"error={self.error.kind!r}"]
        if self.has_value:
            value = repr(self.value)
            parts.append(f"value={value if len(value) <= REPR_LENGTH else value[:REPR_LENGTH] + '...'}")
        parts += [f"output={len(self.output)}", f"state={self.state!r}"]
        return f"PtcRunResult({', '.join(parts)})"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """What a notebook shows: the rendered output, then the value or the failure."""
        shown = self.text()
        if self.has_value and self.value is not None:
            shown += f"{self.value!r}\n"
        if self.error is not None:
            shown += f"{self.error.kind}: {self.error.message}\n"
        return {"text/plain": shown or repr(self)}

    def raise_for_error(self) -> PtcRunResult:
        """Return this result, or raise when the run failed.

        Raises:
            PtcRunError: carries this result and the failure kind.
        """
        if self.error is not None:
            raise PtcRunError(self)
        return self


@final
@dataclass(frozen=True, slots=True)
class OutputEvent:
    """A piece of output, as it happened; adjacent pieces of one channel belong together."""

    output: PtcOutput


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CallEvent:
    """A binding call was dispatched (`started`) or its handler ended (`ok`, `rejected`)."""

    call_id: int
    namespace: str
    member: str
    phase: Literal["started", "ok", "rejected"]


@final
@dataclass(frozen=True, slots=True)
class ResultEvent:
    """The last event of a stream: the result, without the output that was streamed before it."""

    result: PtcRunResult


PtcEvent: TypeAlias = OutputEvent | CallEvent | ResultEvent


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutLimits:
    """The elapsed budgets of a runtime, in milliseconds."""

    default_ms: float
    max_ms: float
