"""The floor for binding calls: a DEALER in another process, a ROUTER here, JSON, and nothing else.

`sequential`, `gathered` and `text` do what a binding does: a program awaits, an event loop at
each end. `blocking` is the bare round trip of two sockets whose owners do nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from typing import TYPE_CHECKING

import zmq

from tests.benchmarks.channel import Channel, endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ("RawPeer", "raw_peer")

DONE = b"done"


class RawPeer:
    """The host's end; the other process is `tests.benchmarks.peer`."""

    def __init__(self, router: zmq.Socket[bytes], blocking_router: zmq.Socket[bytes]) -> None:
        self._channel = Channel(router, self._on_parts)
        self._blocking_router = blocking_router
        self._ident = b""
        self._report: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def sequential(self, count: int) -> float:
        """Seconds per call when each waits for the one before."""
        return await self._measure("sequential", count) / count

    async def gathered(self, count: int) -> float:
        """Seconds per call when all are made at once."""
        return await self._measure("gathered", count) / count

    async def text(self, size: int) -> float:
        """Seconds for a call with one string of this size as argument and as answer."""
        return await self._measure("text", size)

    async def blocking(self, count: int) -> float:
        """Seconds per call between two threads that block on their sockets."""
        server = threading.Thread(target=self._serve_blocking, args=(count,), daemon=True)
        server.start()
        seconds = await self._measure("blocking", count)
        server.join()
        return seconds / count

    async def greeted(self) -> None:
        """Wait until the other process is there."""
        await self._report

    def close(self) -> None:
        """Read no more."""
        self._channel.close()

    def _serve_blocking(self, count: int) -> None:
        for _ in range(count):
            ident, body = self._blocking_router.recv_multipart()
            self._blocking_router.send_multipart([ident, json.dumps(json.loads(body)).encode()])

    async def _measure(self, what: str, number: int) -> float:
        """Ask the other process for a measurement; its calls are answered until it reports."""
        self._report = asyncio.get_running_loop().create_future()
        self._channel.send(self._ident, what.encode(), str(number).encode())
        return await self._report

    def _on_parts(self, parts: list[bytes]) -> None:
        self._ident, call, body = parts
        if call == DONE:
            self._report.set_result(float(body))
        else:
            self._channel.send(self._ident, call, json.dumps(json.loads(body)).encode())


@contextlib.asynccontextmanager
async def raw_peer(folder: str) -> AsyncIterator[RawPeer]:
    """The pair of processes, ended on the way out."""
    urls = [f"ipc://{folder}/raw", f"ipc://{folder}/raw-blocking"]
    with contextlib.ExitStack() as stack:
        context: zmq.Context[zmq.Socket[bytes]] = stack.enter_context(zmq.Context())
        routers = [stack.enter_context(endpoint(context, zmq.ROUTER)) for _ in urls]
        for router, url in zip(routers, urls, strict=True):
            router.bind(url)
        peer = RawPeer(*routers)
        stack.callback(peer.close)
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.benchmarks.peer", *urls)
        try:
            await peer.greeted()
            yield peer
        finally:
            process.kill()
            await process.wait()
