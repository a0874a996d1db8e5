"""State owners and their environments: one kernel per owner, runs in order, release."""

from __future__ import annotations

import asyncio
import collections
import logging
from typing import TYPE_CHECKING, Any, Final, Literal, final

from ptc_kernel.errors import ReleaseError
from ptc_kernel.host.environment import CleanupError, Environment
from ptc_kernel.host.launch import LaunchError
from ptc_kernel.protocol.ledger import LOST
from ptc_kernel.types import ABSENT, PtcRunFailure, PtcRunResult, StateOwner

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import zmq

    from ptc_kernel.attachments import AttachmentStore
    from ptc_kernel.config import JupyterPtcConfig
    from ptc_kernel.host.run import Run
    from ptc_kernel.protocol.execution import Outcome

__all__ = ("Owners",)

logger = logging.getLogger(__name__)

RELEASED: Final = "the state owner was released"


class _Slot:
    """What there is of one owner. Holding the owner keeps its identity from being used again."""

    def __init__(self, owner: object | None, before: _Slot | None = None) -> None:
        self.owner = owner
        self.before = before  # the same owner's slot that is being released
        self.label = _label(owner)
        self.environment: Environment | None = None
        self.unclean: list[Environment] = []  # dead, but something of them is left
        self.reset_reason: str | None = None
        self.runs: list[Run] = []
        self.queue: collections.deque[asyncio.Future[None]] = collections.deque()
        self.emptied = asyncio.Event()
        self.releasing: asyncio.Task[None] | None = None


@final
class Owners:
    """Runs programs in the environments of their owners."""

    def __init__(
        self, config: JupyterPtcConfig, context: zmq.Context[zmq.Socket[bytes]], store: AttachmentStore
    ) -> None:
        self._config = config
        self._context = context
        self._store = store
        self._slots: dict[int, _Slot] = {}

    # ------------------------------------------------------------------ run

    def admit(self, run: Run) -> Coroutine[None, None, PtcRunResult]:
        """Put a run in its owner's queue now; await what is returned for its result.

        That never raises for what the program does.
        """
        owner = run.spec.state_owner
        if owner is None:
            slot = _Slot(None)
        else:
            before = self._slots.get(id(owner))
            slot = before if before is not None and before.releasing is None else _Slot(owner, before)
            self._slots[id(owner)] = slot
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        slot.queue.append(turn)
        slot.runs.append(run)
        slot.emptied.clear()
        return self._take_turn(slot, run, turn)

    async def _take_turn(self, slot: _Slot, run: Run, turn: asyncio.Future[None]) -> PtcRunResult:
        try:
            if slot.queue[0] is not turn:
                await _first(turn, run.stopped)
            if slot.before is not None:
                await self._inherit(slot, slot.before)
            problem = await self._discard_dead(slot)
            if run.stop_text is not None:  # nothing is awaited between this and the run's own ear
                run.end_unstarted()
                state: Literal["none", "kept"] = "none" if slot.owner is None else "kept"
                unstarted = PtcRunResult(error=run.over.result().error, state=state)
                return unstarted if problem is None else _uncleaned(unstarted, problem)
            result = await self._run_now(slot, run, problem)
            return result if slot.owner is not None else await self._end_one_shot(slot, result)
        finally:
            slot.queue.remove(turn)
            slot.runs.remove(run)
            if slot.queue and not slot.queue[0].done():
                slot.queue[0].set_result(None)
            if not slot.queue:
                slot.emptied.set()

    @staticmethod
    async def _inherit(slot: _Slot, before: _Slot) -> None:
        """Wait for the release that is under way, and take over what it could not clean up."""
        if before.releasing is not None:
            await asyncio.wait({before.releasing})
        slot.before = None
        slot.unclean += before.unclean
        before.unclean = []

    async def _run_now(self, slot: _Slot, run: Run, problem: str | None) -> PtcRunResult:
        environment = slot.environment
        if environment is None:
            environment = slot.environment = Environment(self._config, self._context, self._store, slot.label)
        run.begin(environment)
        if not environment.alive:
            try:
                await environment.start()
            except LaunchError as error:
                environment.launch_failed(run, error)
        if not run.over.done():
            environment.execute(run)
        outcome = await run.over
        return await self._result(slot, run, outcome, problem)

    async def _discard_dead(self, slot: _Slot) -> str | None:
        """Clean up after a kernel that died between runs; returns what could not be cleaned."""
        environment = slot.environment
        if environment is None or environment.alive:
            return None
        slot.reset_reason = slot.reset_reason or environment.lost
        return await self._drop(slot)

    async def _drop(self, slot: _Slot) -> str | None:
        environment, slot.environment = slot.environment, None
        if environment is None:
            return None
        try:
            await environment.close()
        except CleanupError as error:
            slot.unclean.append(environment)
            return str(error)
        return None

    async def _result(self, slot: _Slot, run: Run, outcome: Outcome, problem: str | None) -> PtcRunResult:
        environment = slot.environment
        assert environment is not None
        reason, slot.reset_reason = slot.reset_reason, None
        background, visited = environment.background.take(), environment.visited
        environment.visited = False
        state: Literal["none", "kept", "lost"] = "none"
        if slot.owner is not None:
            state = "lost" if outcome.lost else "kept"
        if outcome.lost:
            kind = "well" if outcome.error is None else f"as {outcome.error.kind}"
            slot.reset_reason = environment.lost or f"the previous run ended {kind} and its kernel was killed"
            problem = await self._drop(slot) or problem
        result = PtcRunResult(
            value=outcome.value,
            error=outcome.error,
            state=state,
            reset_reason=reason,
            started=outcome.started,
            calls=run.dispatch.records(),
            calls_total=run.dispatch.total,
            background=background,
            visited=visited,
        )
        return result if problem is None else _uncleaned(result, problem)

    async def _end_one_shot(self, slot: _Slot, result: PtcRunResult) -> PtcRunResult:
        problem = await self._drop(slot)
        if problem is None:
            return result
        self._slots[id(slot)] = slot  # disposal tries again
        return _uncleaned(result, problem)

    def is_fresh(self, owner: object) -> bool:
        """Whether the owner has no live environment."""
        slot = self._slots.get(id(owner))
        return slot is None or slot.environment is None or not slot.environment.alive

    # ------------------------------------------------------------------ release

    async def release(self, owner: object) -> None:
        """End everything of an owner; returns when it is gone.

        Raises:
            ReleaseError: something is left; may be called again.
        """
        slot = self._slots.get(id(owner))
        if slot is None:
            return
        await self._release(slot, RELEASED)

    async def _release(self, slot: _Slot, reason: str) -> None:
        if slot.releasing is None:
            slot.releasing = asyncio.get_running_loop().create_task(self._end(slot, reason))
        await asyncio.shield(slot.releasing)

    async def _end(self, slot: _Slot, reason: str) -> None:
        try:
            for run in list(slot.runs):
                run.abort(reason)
            if slot.queue:
                await slot.emptied.wait()
            problem = await self._drop(slot)
            unclean, slot.unclean = slot.unclean, []
            for environment in unclean:
                slot.environment = environment
                problem = await self._drop(slot) or problem
            if slot.unclean:
                msg = f"releasing {slot.label} failed: {problem}"
                raise ReleaseError(msg)
            for key in [key for key, value in self._slots.items() if value is slot]:
                del self._slots[key]
        finally:
            slot.releasing = None

    async def release_all(self, reason: str) -> list[ReleaseError]:
        """End everything of every owner, at the same time; returns what failed."""
        slots = list(self._slots.values())
        results = await asyncio.gather(
            *(self._release(slot, reason) for slot in slots), return_exceptions=True
        )
        return [result for result in results if isinstance(result, ReleaseError)]


def _label(owner: object | None) -> str:
    if owner is None:
        return "a one-shot run"
    return owner.label if isinstance(owner, StateOwner) and owner.label else type(owner).__name__


def _uncleaned(result: PtcRunResult, problem: str) -> PtcRunResult:
    """Managed clean-up failed: that replaces any outcome (contract 3)."""
    ending = f" {LOST}" if result.state == "lost" else ""
    return PtcRunResult(
        error=PtcRunFailure("worker-exit", f"clean-up after the run failed: {problem}.{ending}"),
        value=ABSENT,
        state=result.state,
        reset_reason=result.reset_reason,
        started=result.started,
        calls=result.calls,
        calls_total=result.calls_total,
        background=result.background,
        visited=result.visited,
    )


async def _first(turn: asyncio.Future[None], stopped: asyncio.Event) -> None:
    """Wait for the turn, or for a reason not to take it."""
    stop = asyncio.get_running_loop().create_task(stopped.wait())
    try:
        waits: set[asyncio.Future[Any]] = {turn, stop}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
