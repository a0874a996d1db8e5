"""One flood of prints in this process: `python -m tests.benchmarks.flood ours|stock MEGABYTES FOLDER`."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from ptc_kernel import JupyterPtcRuntime, OutputEvent, PtcRunRequest, ResultEvent, StateOwner, TextOutput
from tests.benchmarks.machine import memory_mib
from tests.benchmarks.stock import stock_kernel

LINE = 1000  # bytes, its end included
MOST = 2**30


def program(megabytes: int) -> str:
    """A program that prints this much."""
    return f"line = 'x' * {LINE - 1}\nfor _ in range({megabytes * 1_000_000 // LINE}):\n    print(line)"


class Meter:
    """Takes the time, the memory and the size of what is read."""

    def __init__(self) -> None:
        self._baseline = memory_mib("VmRSS")
        self._began = time.perf_counter()
        self.size = 0

    def report(self, expected: int) -> dict[str, float]:
        """What there is to say at the end."""
        seconds = time.perf_counter() - self._began
        return {
            "megabytes_per_second": self.size / 1e6 / seconds,
            "peak_mib": max(memory_mib("VmHWM") - self._baseline, 0),
            "lost_bytes": expected - self.size,
        }


async def ours(megabytes: int, _folder: str) -> dict[str, float]:
    """Through `runtime.stream`, every event dropped."""
    async with JupyterPtcRuntime(max_output_bytes=MOST) as runtime:
        owner = StateOwner("flood")
        await runtime.run(runtime.resolve(PtcRunRequest(program="1+1", state_owner=owner)))
        request = PtcRunRequest(program=program(megabytes), state_owner=owner)
        meter = Meter()
        async for event in runtime.stream(runtime.resolve(request)):
            if isinstance(event, OutputEvent) and isinstance(event.output, TextOutput):
                meter.size += len(event.output.text)
            elif isinstance(event, ResultEvent):
                event.result.raise_for_error()
        return meter.report(megabytes * 1_000_000)


async def stock(megabytes: int, folder: str) -> dict[str, float]:
    """Through iopub, every message dropped."""
    async with stock_kernel(folder) as kernel:
        await kernel.run("1+1")
        meter = Meter()
        request = kernel.client.execute(program(megabytes))
        async for message in kernel.published(request):
            if message["msg_type"] == "stream":
                meter.size += len(message["content"]["text"])
        await kernel.reply(request)
        return meter.report(megabytes * 1_000_000)


if __name__ == "__main__":
    who, megabytes, folder = sys.argv[1:]
    report = asyncio.run({"ours": ours, "stock": stock}[who](int(megabytes), folder))
    sys.stdout.write(json.dumps(report))
