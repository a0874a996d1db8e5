"""The rows as a Markdown table for people, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.benchmarks.measure import Row, Sample, Target

__all__ = ("as_json", "as_markdown")

HEADINGS = ("what", "ptc_kernel", "compared with", "ratio", "target", "met?")
LEGEND = "Median (smallest to largest; repetitions). A ratio is the median of the ratios of neighbours."


def as_markdown(machine: str, rows: Sequence[Row]) -> str:
    """The machine, and a table with a line for each row."""
    lines = [HEADINGS, tuple("---" for _ in HEADINGS), *map(_cells, rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{machine}\n\n{table}\n\n{LEGEND}\n"


def _cells(row: Row) -> tuple[str, ...]:
    ours = row.note if row.ours is None else _sample(row.ours, row.unit)
    other = "" if row.other is None else f"{row.against}: {_sample(row.other, row.unit)}"
    ratio = "" if row.ratio is None else _sample(row.ratio, "", mark="x")
    target = "" if row.target is None else _target(row.target, row.unit)
    met = {None: "", True: "yes", False: "**no**"}[row.met]
    return row.what, ours, other, ratio, target, met


def _sample(sample: Sample, unit: str, mark: str = "") -> str:
    least, most = sample.spread()
    name = f" {unit}" if unit else ""
    spread = f"{_number(least)} to {_number(most)}; {len(sample.values)}"
    return f"{_number(sample.median)}{mark}{name} ({spread})"


def _number(value: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def _target(target: Target, unit: str) -> str:
    sign = "≥" if target.at_least else "≤"
    if not target.limit:
        return "0"
    if target.of == "ratio":
        return f"{sign} {target.limit:.2f}x"
    return f"{sign} {_number(target.limit)} {unit}"


def as_json(machine: str, rows: Sequence[Row]) -> str:
    """Everything that was measured."""
    return json.dumps({"machine": machine, "rows": [_object(row) for row in rows]}, indent=1) + "\n"


def _object(row: Row) -> dict[str, Any]:
    fields = asdict(row)
    for name in ("ours", "other", "ratio"):
        sample: Sample | None = getattr(row, name)
        if sample is not None:
            least, most = sample.spread()
            summary = {"median": sample.median, "min": least, "max": most}
            fields[name] = {**summary, "values": list(sample.values)}
    return {**fields, "met": row.met}
