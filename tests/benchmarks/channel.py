"""A ZMQ socket on an event loop with nothing between: the least that a bridge could do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("Channel", "endpoint")


def endpoint(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """A socket that queues without bound and ends at once."""
    socket = context.socket(kind)
    socket.linger = socket.sndhwm = socket.rcvhwm = 0
    return socket


class Channel:
    """Hands what arrives on a socket to a function, on the event loop."""

    def __init__(self, socket: zmq.Socket[bytes], on_parts: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._on_parts = on_parts
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.Handle | None = None
        self._loop.add_reader(int(socket.fd), self._read)
        self._look_again()

    def send(self, *parts: bytes) -> None:
        """Send one message."""
        self._socket.send_multipart(parts)
        self._look_again()

    def close(self) -> None:
        """Read no more."""
        self._loop.remove_reader(int(self._socket.fd))
        if self._again is not None:
            self._again.cancel()

    def _look_again(self) -> None:
        """A send may have used up the descriptor's read edge."""
        if self._again is None:
            self._again = self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._again = None
        while True:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_parts(parts)
