"""Numbers and how they are taken: samples, targets, rows of the table, and turns."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Measure = Callable[[], Awaitable[float]]

__all__ = ("Plan", "Row", "Sample", "Target", "compare", "skipped", "take_turns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How thorough a run of the benchmark is, and a folder for its files."""

    folder: str
    quick: bool = False

    def count(self, full: int, quick: int) -> int:
        """The number of repetitions: `full`, or `quick` in a quick run."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Sample:
    """The repetitions of one measurement."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    def spread(self) -> tuple[float, float]:
        """The smallest and the largest value."""
        return min(self.values), max(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a median should reach; `of` says whether the ratio or our own value is meant."""

    of: Literal["ratio", "value"]
    limit: float
    at_least: bool = False

    def is_met(self, reached: float) -> bool:
        """Whether a median is on the right side of the limit."""
        return reached >= self.limit if self.at_least else reached <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        what: what was measured.
        unit: of `ours` and `other`.
        ours: our repetitions; None when this could not be measured, `note` says why.
        against: who `other` is.
        ratio: ours to the other's, pair by pair.
    """

    what: str
    unit: str = ""
    ours: Sample | None = None
    against: str = ""
    other: Sample | None = None
    ratio: Sample | None = None
    target: Target | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target or a measurement."""
        reached = self.ratio if self.target is not None and self.target.of == "ratio" else self.ours
        if self.target is None or reached is None:
            return None
        return self.target.is_met(reached.median)


def compare(
    what: str,
    ours: Sequence[float],
    other: Sequence[float] = (),
    *,
    unit: str,
    against: str = "",
    target: Target | None = None,
) -> Row:
    """A row of our repetitions and, where there are some, those of another taken in turn with them.

    There is no ratio where the other's is zero.
    """
    pairs = zip(ours, other, strict=True) if all(other) and other else ()
    ratio = [mine / theirs for mine, theirs in pairs]
    return Row(
        what=what,
        unit=unit,
        ours=Sample(tuple(ours)),
        against=against,
        other=Sample(tuple(other)) if other else None,
        ratio=Sample(tuple(ratio)) if ratio else None,
        target=target,
    )


def skipped(what: str, why: str) -> Row:
    """A row for what could not be measured."""
    return Row(what=what, note=why)


async def take_turns(count: int, *measures: Measure) -> list[list[float]]:
    """Take each measure `count` times, one after the other; every second turn is in reverse order."""
    taken: list[list[float]] = [[] for _ in measures]
    for turn in range(count):
        order = range(len(measures))
        for index in reversed(order) if turn % 2 else order:
            taken[index].append(await measures[index]())
    return taken
