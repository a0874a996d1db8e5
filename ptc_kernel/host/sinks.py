"""Where the events of a run go: folded into a result, or handed to a reader one by one."""

from __future__ import annotations

import asyncio
import collections
from typing import TYPE_CHECKING, Protocol, final

from ptc_kernel.host.background import merge
from ptc_kernel.types import CallEvent, OutputEvent, PtcEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptc_kernel.types import PtcOutput

__all__ = ("Fold", "Queue", "Sink", "nothing")


class Sink(Protocol):
    """Takes the events of a run as they happen."""

    def put(self, event: OutputEvent | CallEvent, taken: Callable[[], None]) -> None:
        """Take an event; `taken` is to be called when it was read."""
        ...

    def end(self) -> None:
        """The run is over: what is unread holds nobody back any more."""
        ...


def nothing() -> None:
    """Nobody waits to hear that an event was read."""


@final
class Fold:
    """Keeps the output and drops the rest: what `run` is made of."""

    def __init__(self) -> None:
        self._pieces: list[PtcOutput] = []

    def put(self, event: OutputEvent | CallEvent, taken: Callable[[], None]) -> None:
        """Keep an output event."""
        if isinstance(event, OutputEvent):
            self._pieces.append(event.output)
        taken()

    def end(self) -> None:
        """Everything was read already."""

    def output(self) -> list[PtcOutput]:
        """Everything that was kept, merged by channel."""
        pieces, self._pieces = self._pieces, []
        return merge(pieces)


@final
class Queue:
    """Holds the events for one reader; a reader that does not read holds the program back."""

    def __init__(self) -> None:
        self._events: collections.deque[tuple[PtcEvent, Callable[[], None]]] = collections.deque()
        self._filled = asyncio.Event()
        self._closed = False
        self._failure: BaseException | None = None

    def put(self, event: PtcEvent, taken: Callable[[], None]) -> None:
        """Keep an event until it is read."""
        if self._closed:
            taken()
            return
        self._events.append((event, taken))
        self._filled.set()

    def fail(self, error: BaseException) -> None:
        """No event comes any more, for this reason."""
        self._failure = error
        self._filled.set()

    async def next(self) -> PtcEvent:
        """The next event, when there is one."""
        while not self._events:
            if self._failure is not None:
                raise self._failure
            self._filled.clear()
            await self._filled.wait()
        event, taken = self._events.popleft()
        taken()
        return event

    def end(self) -> None:
        """The run is over: what is unread stays here, and holds nobody back any more."""
        for index, (event, taken) in enumerate(self._events):
            taken()
            self._events[index] = (event, nothing)

    def close(self) -> None:
        """Nobody reads any more."""
        self._closed = True
        self.end()
        self._events.clear()
