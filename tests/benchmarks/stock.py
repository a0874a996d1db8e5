"""The other contestant: ipykernel as it comes, driven by `AsyncKernelClient` over tcp."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from typing import TYPE_CHECKING, Any

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from jupyter_client.asynchronous.client import AsyncKernelClient

    OnMessage = Callable[[dict[str, Any]], Awaitable[None]]

__all__ = ("StockKernel", "stock_fleet", "stock_kernel")

READY_S = 60


class StockKernel:
    """One stock kernel and its client."""

    def __init__(self, ipython_folder: str) -> None:
        self._folder = ipython_folder
        # no folders to look in: the kernel of this interpreter, whatever else is installed
        self._manager = AsyncKernelManager(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
        self.client: AsyncKernelClient

    async def start(self) -> None:
        """Start the kernel and wait until it is ready, as Jupyter's documentation does."""
        env = {**os.environ, "IPYTHONDIR": self._folder}
        await self._manager.start_kernel(env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.client = self._manager.client()
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=READY_S)

    async def close(self) -> None:
        """End the kernel; also one that did not come up."""
        if hasattr(self, "client"):
            self.client.stop_channels()
        if self._manager.has_kernel:
            await self._manager.shutdown_kernel(now=True)

    async def interrupt(self) -> None:
        """Interrupt the cell."""
        await self._manager.interrupt_kernel()

    async def run(
        self, code: str, *, store_history: bool = True, on_message: OnMessage | None = None
    ) -> dict[str, Any]:
        """Run a cell until its reply and `idle` are here; returns the reply's content."""
        request = self.client.execute(code, store_history=store_history)
        reply, _ = await asyncio.gather(self.reply(request), self.until_idle(request, on_message))
        assert reply["status"] == "ok", reply
        return reply

    async def value(self, code: str, on_message: OnMessage | None = None) -> float:
        """Run a cell whose last line is an expression; returns the number that it evaluates to."""
        body, _, last = code.rpartition("\n")
        await self.run(f"{body}\nresult = {last}", on_message=on_message)
        request = self.client.execute("", silent=True, user_expressions={"result": "result"})
        reply, _ = await asyncio.gather(self.reply(request), self.until_idle(request))
        return float(reply["user_expressions"]["result"]["data"]["text/plain"])

    async def reply(self, request: str) -> dict[str, Any]:
        """The content of the reply to a request."""
        while True:
            message = await self.client.get_shell_msg()
            if message["parent_header"].get("msg_id") == request:
                return message["content"]

    async def until_idle(self, request: str, on_message: OnMessage | None = None) -> None:
        """Read iopub until a request is done."""
        async for message in self.published(request):
            if on_message is not None:
                await on_message(message)

    async def published(self, request: str) -> AsyncIterator[dict[str, Any]]:
        """What iopub says about a request, until it is done."""
        while True:
            message = await self.client.get_iopub_msg()
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return
            yield message


@contextlib.asynccontextmanager
async def stock_kernel(ipython_folder: str) -> AsyncIterator[StockKernel]:
    """A stock kernel that is ready, ended on the way out."""
    async with stock_fleet(1, ipython_folder) as (kernel,):
        yield kernel


@contextlib.asynccontextmanager
async def stock_fleet(count: int, ipython_folder: str) -> AsyncIterator[list[StockKernel]]:
    """Several stock kernels that are ready, all ended on the way out."""
    kernels = [StockKernel(ipython_folder) for _ in range(count)]
    try:
        for kernel in kernels:
            await kernel.start()
        yield kernels
    finally:
        await asyncio.gather(*(kernel.close() for kernel in kernels))
