"""What goes into the state machine of a run, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, final

from ptc_kernel.protocol.messages import Began, Busy, Idle, Reply, Text

if TYPE_CHECKING:
    from ptc_kernel.types import Channel, ImageOutput

__all__ = (
    "Abort",
    "Action",
    "Died",
    "Emit",
    "EmitImage",
    "Event",
    "Finish",
    "Interrupt",
    "Kill",
    "LaunchFailed",
    "Over",
    "Ready",
    "Shown",
    "Violation",
)


@final
@dataclass(frozen=True, slots=True)
class Ready:
    """The kernel is up and has the request."""


@final
@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """No kernel could be started."""

    message: str
    kind: Literal["worker-exit", "sandbox-unavailable"] = "worker-exit"


@final
@dataclass(frozen=True, slots=True)
class Died:
    """The kernel is dead, and what it had written was read to the end."""

    message: str


@final
@dataclass(frozen=True, slots=True)
class Abort:
    """Somebody wants the run to stop."""

    message: str


@final
@dataclass(frozen=True, slots=True)
class Over:
    """The kernel says that the output cap was crossed."""


@final
@dataclass(frozen=True, slots=True)
class Shown:
    """An image that was stored, at its place among the output."""

    image: ImageOutput


@final
@dataclass(frozen=True, slots=True)
class Violation:
    """The kernel broke the protocol."""

    message: str


Event: TypeAlias = (
    Ready | LaunchFailed | Died | Abort | Over | Shown | Violation | Busy | Began | Idle | Text | Reply
)


@final
@dataclass(frozen=True, slots=True)
class Emit:
    """Hand this output on."""

    channel: Channel
    text: str


@final
@dataclass(frozen=True, slots=True)
class EmitImage:
    """Hand this image on."""

    image: ImageOutput


@final
@dataclass(frozen=True, slots=True)
class Interrupt:
    """Interrupt the program: one step of the stop ladder."""


@final
@dataclass(frozen=True, slots=True)
class Kill:
    """Kill the kernel and everything that it started."""


@final
@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over; `Execution.outcome` says how."""


Action: TypeAlias = Emit | EmitImage | Interrupt | Kill | Finish
