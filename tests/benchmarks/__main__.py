"""The command: measures, and writes what came out."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks import calls, fleet, latency, output
from tests.benchmarks.machine import descendants, describe_machine
from tests.benchmarks.measure import Plan, skipped
from tests.benchmarks.report import as_json, as_markdown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.benchmarks.measure import Row

    Benchmark = Callable[[Plan], Awaitable[list[Row]]]

BENCHMARKS: dict[str, Benchmark] = {
    "cold": latency.cold,
    "warm": latency.warm,
    "calls": calls.calls,
    "text": calls.text,
    "flood": output.flood,
    "figure": latency.figure,
    "idle": fleet.idle,
    "busy": fleet.busy,
    "import": latency.imports,
    "stop": latency.stop,
}


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=BENCHMARKS, help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="few repetitions, less than a minute")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table there, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every repetition there")
    return parser.parse_args(argv)


async def measure(names: Sequence[str], plan: Plan) -> tuple[list[Row], bool]:
    """Run benchmarks one after the other; returns their rows, and whether all of them could be run."""
    rows: list[Row] = []
    went_well = True
    for name in names:
        began = time.perf_counter()
        try:
            rows += await BENCHMARKS[name](plan)
        except Exception as error:
            traceback.print_exc()
            rows.append(skipped(name, f"failed: {type(error).__name__}"))
            went_well = False
        sys.stderr.write(f"{name}: {time.perf_counter() - began:.0f} s\n")
        if left := descendants():
            sys.stderr.write(f"{name} left processes behind: {left}\n")
            went_well = False
    return rows, went_well


def main() -> int:
    """Measure, and write the table to stdout; 1 when something could not be measured."""
    arguments = parse_arguments()
    machine = describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(folder=folder, quick=arguments.quick)
        rows, went_well = asyncio.run(measure(arguments.only or list(BENCHMARKS), plan))
    table = as_markdown(machine, rows)
    sys.stdout.write(table)
    if arguments.output is not None:
        arguments.output.write_text(table)
    if arguments.json is not None:
        arguments.json.write_text(as_json(machine, rows))
    return 0 if went_well else 1


if __name__ == "__main__":
    sys.exit(main())
