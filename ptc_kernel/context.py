"""What a host function can know about the call that it serves."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, final

__all__ = ("CURRENT_CALL", "PtcCallContext")


@final
@dataclass(slots=True, eq=False)
class PtcCallContext:
    """What a handler can know about the call that it serves.

    Attributes:
        namespace: the namespace's global name.
        member: the called member.
        call_id: the call's number in its environment.
        state_owner: the owner of the calling run, or None.
        run_ended: True once the run that made the call has settled: nobody reads the answer.
        abandoned: True once the waiting task in the program was cancelled.
    """

    namespace: str
    member: str
    call_id: int
    state_owner: object | None
    run_ended: bool = False
    abandoned: bool = False
    outer: PtcCallContext | None = field(default=None, repr=False)

    @staticmethod
    def current() -> PtcCallContext | None:
        """The call that the running handler serves; None outside a handler."""
        return CURRENT_CALL.get()


CURRENT_CALL: Final[ContextVar[PtcCallContext | None]] = ContextVar("ptc_current_call", default=None)
