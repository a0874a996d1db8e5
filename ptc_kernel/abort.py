"""AbortController and AbortSignal: one way to stop a run, from any thread, once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("AbortController", "AbortSignal", "reason_text")

UNPRINTABLE = "aborted (the reason cannot be printed)"


@final
class AbortSignal:
    """Tells its listeners, once, that somebody wants the work to stop.

    Made by an `AbortController`. Any thread may read it or listen to it.
    """

    __slots__ = ("_aborted", "_listeners", "_lock", "_reason")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[object, Callable[[], object]] = {}
        self._aborted = False
        self._reason: object = None

    @property
    def aborted(self) -> bool:
        """True once the controller aborted."""
        return self._aborted

    @property
    def reason(self) -> object:
        """What was given to `AbortController.abort`, or None."""
        return self._reason

    def add_listener(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener` once when the signal fires, in the thread that fires it.

        A signal that has fired already calls it at once. Returns a function that removes the
        listener and may be called any number of times.
        """
        key = object()
        with self._lock:
            if not self._aborted:
                self._listeners[key] = listener
                return lambda: self._remove(key)
        listener()
        return lambda: None

    def _remove(self, key: object) -> None:
        with self._lock:
            self._listeners.pop(key, None)

    def _fire(self, reason: object) -> None:
        with self._lock:
            if self._aborted:
                return
            self._reason, self._aborted = reason, True
            listeners = list(self._listeners.values())
            self._listeners.clear()
        for listener in listeners:
            listener()

    def __repr__(self) -> str:
        return f"<AbortSignal {'aborted' if self._aborted else 'waiting'}, {len(self._listeners)} listeners>"


@final
class AbortController:
    """Owns an `AbortSignal`.

    Example:
        controller = AbortController()
        request = PtcRunRequest(program="while True: pass", signal=controller.signal)
        controller.abort("the user pressed stop")
    """

    __slots__ = ("signal",)

    def __init__(self) -> None:
        self.signal: AbortSignal = AbortSignal()

    def abort(self, reason: object = None) -> None:
        """Fire the signal; only the first call counts. Works from any thread."""
        self.signal._fire(reason)


def reason_text(reason: object) -> str:
    """The text that an `abort` failure carries for this reason; never raises."""
    if reason is None:
        return "aborted"
    try:
        text = str(reason)
    except BaseException:  # noqa: BLE001 - a hostile __str__ must not make run() raise
        return UNPRINTABLE
    return text if type(text) is str and text else "aborted"
