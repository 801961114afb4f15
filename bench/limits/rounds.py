"""Rounds in which several sides take turns, and the ratios of what they measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import NamedTuple

from bench.limits.drains import Drained
from bench.report import Report


class Bounds(NamedTuple):
    """The target of a ratio, and what we aim for."""

    at_least: float | None = None
    at_most: float | None = None
    aim: float | None = None


NO_BOUNDS = Bounds()


class Rounds:
    """What each side measured, round by round. The order of the sides is reversed every other round."""

    def __init__(
        self, report: Report, name: str, sides: Mapping[str, Callable[[], Drained]], rounds: int
    ) -> None:
        self._report = report
        self._name = name
        self._found: dict[str, list[Drained]] = {side: [] for side in sides}
        for number in range(rounds):
            for side in [*sides][:: -1 if number % 2 else 1]:
                self._found[side].append(sides[side]())
            report.fact(
                round=number,
                of=name,
                rates={side: round(found[-1].rate) for side, found in self._found.items()},
                cpu={side: round(found[-1].cpu) for side, found in self._found.items()},
            )

    def figures(self) -> None:
        """The medians of each side."""
        for side, found in self._found.items():
            self._report.figure(f"{self._name}: {side}", median(one.rate for one in found), "jobs/s")
            self._report.figure(f"{self._name}: {side}, CPU per job", median(one.cpu for one in found), "µs")

    def rates(self, side: str, without: str, bounds: Bounds = NO_BOUNDS) -> None:
        """The rate of one side, as a part of the rate of another."""
        pairs = self._pairs(side, without)
        self._ratio(f"{side} / {without}, jobs/s", [one.rate / other.rate for one, other in pairs], bounds)

    def costs(self, side: str, without: str, bounds: Bounds = NO_BOUNDS) -> None:
        """The CPU per job of one side, as a multiple of that of another."""
        pairs = self._pairs(side, without)
        self._ratio(f"{side} / {without}, CPU per job", [one.cpu / other.cpu for one, other in pairs], bounds)

    def times(self, side: str, without: str, bounds: Bounds = NO_BOUNDS) -> None:
        """The time of a drain, as a multiple of that of another."""
        pairs = self._pairs(side, without)
        self._ratio(f"{side} / {without}, time", [other.rate / one.rate for one, other in pairs], bounds)

    def first_starts(self, side: str, at_most: float | None) -> None:
        waits = [one.first_start for one in self._found[side]]
        name = f"{self._name}: {side}, from the worker's start to the first of them"
        self._report.figure(name, median(waits), "s", at_most=at_most, worst=max(waits))

    def _pairs(self, side: str, without: str) -> list[tuple[Drained, Drained]]:
        return list(zip(self._found[side], self._found[without], strict=True))

    def _ratio(self, name: str, values: list[float], bounds: Bounds) -> None:
        self._report.figure(
            f"{self._name}: {name}",
            median(values),
            "ratio",
            at_least=bounds.at_least,
            at_most=bounds.at_most,
            aim=bounds.aim,
            spread=[round(min(values), 3), round(max(values), 3)],
            rounds=len(values),
        )
