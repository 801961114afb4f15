"""Fails when perdure has become slower: `make bench-guard`.

Speeds differ between machines, ratios of a quick contest far less. `expected.json` holds them, each with the
loss that is noise; `--write` renews it from more rounds than a quick contest has, on a machine that does nothing else.
"""

from __future__ import annotations

import json
import platform
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import contest, lines
from bench.contestants import quick
from bench.measures import QUICK_SIZES
from bench.report import Report
from bench.results import Results, Summary
from bench.targets import TARGETS

EXPECTED = Path(__file__).with_name("expected.json")
LEAST_NOISE = 0.25
"""All rounds of one run have the machine in one mood: one ratio had medians of 2.96 to 4.12 in five runs."""
ROUNDS = 4
LESS_IS_BETTER = {target.name for target in TARGETS if target.at_most is not None}


class Expected(NamedTuple):
    """A ratio, and the part of it that may be lost."""

    value: float
    tolerated_loss: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew what is expected")
    parser.add_argument("--from", dest="run", type=Path, help="lines of an earlier run, instead of a new one")
    parser.add_argument("--expected", type=Path, default=EXPECTED)
    asked = parser.parse_args(arguments)
    expected = {} if asked.write else load(asked.expected)
    if not expected and not asked.write:
        print(f"{asked.expected} expects nothing yet: run `python -m bench.guard --write`.", file=sys.stderr)
        return 1
    found = lines.ratios(lines.read(asked.run)) if asked.run else _measure(ROUNDS if asked.write else None)
    if asked.write:
        write(asked.expected, found)
        return 0
    losses = compare(expected, found)
    print(json.dumps({"guarded": sorted(expected), "losses": losses}, ensure_ascii=False))
    return 1 if losses else 0


def _measure(rounds: int | None) -> dict[str, Summary]:
    results = contest.compete(Report(), quick(), QUICK_SIZES, quick=True, rounds=rounds)
    return measured(results)


def measured(results: Results) -> dict[str, Summary]:
    """The ratios of a contest, by name."""
    found = {target.name: results.ratio(target.above, target.below) for target in TARGETS}
    return {name: summary for name, summary in found.items() if summary is not None}


def compare(expected: Mapping[str, Expected], found: Mapping[str, Summary]) -> list[str]:
    """What has been lost beyond the noise, in words. What was expected and not measured counts as lost."""
    losses = []
    for name, (value, tolerated) in expected.items():
        if name not in found:
            losses.append(f"{name}: not measured, {value:.3g} expected")
            continue
        now = found[name].value
        lost = now / value - 1 if name in LESS_IS_BETTER else 1 - now / value
        if lost > tolerated:
            losses.append(
                f"{name}: {now:.3g}, {value:.3g} expected, {lost:.0%} lost, {tolerated:.0%} tolerated"
            )
    return losses


def noise(summary: Summary) -> float:
    """How far a round was from the median, and at least what runs differ by."""
    far = max(summary.high - summary.value, summary.value - summary.low) / summary.value
    return max(LEAST_NOISE, round(far, 2))


def load(path: Path) -> dict[str, Expected]:
    ratios: dict[str, dict[str, float]] = json.loads(path.read_text())["ratios"]
    return {name: Expected(**ratio) for name, ratio in ratios.items()}


def write(path: Path, found: Mapping[str, Summary]) -> None:
    ratios = {
        name: Expected(float(f"{summary.value:.3g}"), noise(summary))._asdict()
        for name, summary in sorted(found.items())
    }
    content: dict[str, Any] = {
        "written_on": f"{platform.machine()}, {platform.python_version()}",
        "ratios": ratios,
    }
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
