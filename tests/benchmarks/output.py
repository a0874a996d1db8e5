"""100 MB of prints, read and dropped: each flood in a host process of its own, see `flood`."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

from tests.benchmarks.measure import Plan, Row, Target, compare

__all__ = ("flood",)

STOCK = "stock iopub"


async def _flood(who: str, megabytes: int, folder: str) -> dict[str, Any]:
    """Run one flood in a fresh host process, whose memory is then its own."""
    command = (sys.executable, "-m", "tests.benchmarks.flood", who, str(megabytes), folder)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        said, _ = await process.communicate()
    except BaseException:
        process.send_signal(signal.SIGINT)  # it ends its kernel
        await process.wait()
        raise
    assert process.returncode == 0, f"the flood of {who} failed"
    return json.loads(said)


async def flood(plan: Plan) -> list[Row]:
    """Throughput, memory of the host, and loss."""
    megabytes = plan.count(100, 30)
    ours, stock = [], []
    for _ in range(plan.count(5, 2)):
        ours.append(await _flood("ours", megabytes, plan.folder))
        stock.append(await _flood("stock", megabytes, plan.folder))
    what = f"{megabytes} MB of prints"

    def row(title: str, field: str, unit: str, target: Target) -> Row:
        mine, theirs = ([one[field] for one in floods] for floods in (ours, stock))
        return compare(f"{what}, {title}", mine, theirs, unit=unit, against=STOCK, target=target)

    return [
        row("read", "megabytes_per_second", "MB/s", Target(of="ratio", limit=1.2, at_least=True)),
        row("host's peak over its baseline", "peak_mib", "MiB", Target(of="value", limit=64)),
        row("lost", "lost_bytes", "bytes", Target(of="value", limit=0)),
    ]
