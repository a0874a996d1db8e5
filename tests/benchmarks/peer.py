"""The other process of `raw`: plays the program that calls, and reports how long that took."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import zmq

from tests.benchmarks.channel import Channel, endpoint


class Caller:
    """Calls over a DEALER; each answer goes to the call with its number."""

    def __init__(self, dealer: zmq.Socket[bytes]) -> None:
        self._channel = Channel(dealer, self._on_parts)
        self._number = 0
        self._waiting: dict[bytes, asyncio.Future[Any]] = {}
        self.requests: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def call(self, argument: object) -> Any:
        """Call the host and wait for its answer."""
        self._number += 1
        ident = str(self._number).encode()
        future = self._waiting[ident] = asyncio.get_running_loop().create_future()
        self._channel.send(ident, json.dumps(argument).encode())
        return await future

    def report(self, seconds: float) -> None:
        """Tell the host how long it took."""
        self._channel.send(b"done", str(seconds).encode())

    def _on_parts(self, parts: list[bytes]) -> None:
        """Take an answer, or a request to measure something."""
        ident, body = parts
        if ident in self._waiting:
            self._waiting.pop(ident).set_result(json.loads(body))
        else:
            self.requests.put_nowait((ident.decode(), int(body)))


async def sequential(caller: Caller, count: int) -> None:
    """Each call waits for the one before."""
    for number in range(count):
        await caller.call(number)


async def gathered(caller: Caller, count: int) -> None:
    """All calls at once."""
    await asyncio.gather(*[caller.call(number) for number in range(count)])


async def text(caller: Caller, size: int) -> None:
    """One call with a long string."""
    await caller.call("x" * size)


def blocking(dealer: zmq.Socket[bytes], count: int) -> None:
    """Round trips without an event loop."""
    for number in range(count):
        dealer.send(json.dumps(number).encode())
        json.loads(dealer.recv())


async def main(url: str, blocking_url: str) -> None:
    """Measure what the host asks for, until the host ends this process."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer, blocking_dealer = endpoint(context, zmq.DEALER), endpoint(context, zmq.DEALER)
    dealer.connect(url)
    blocking_dealer.connect(blocking_url)
    caller = Caller(dealer)
    caller.report(0)
    while True:
        what, number = await caller.requests.get()
        began = time.perf_counter()
        if what == "blocking":
            blocking(blocking_dealer, number)
        else:
            await {"sequential": sequential, "gathered": gathered, "text": text}[what](caller, number)
        caller.report(time.perf_counter() - began)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
