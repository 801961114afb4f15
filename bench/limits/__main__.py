"""What limits cost, as JSON lines: `make bench-limits`. Exits with 1 if a target is missed."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence

from bench.limits import base, cost, future, head_of_line, many_queues, peers
from bench.limits.drains import Bench
from bench.limits.sizes import Sizes
from bench.report import Report
from bench.servers import databases

KINDS = ("sqlite", "postgres")
MEASURES: dict[str, Callable[[Report, Bench, Sizes], None]] = {
    "head-of-line": head_of_line.measure,
    "queues": many_queues.measure,
    "cost": cost.measure,
    "future": future.measure,
}
OTHERS = ("base", "peers")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="bench.limits", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=(*KINDS, *MEASURES, *OTHERS), help="may be given several times"
    )
    parser.add_argument("--rounds", type=int, default=Sizes().rounds)
    parser.add_argument("--scale", type=float, default=1.0, help="0.01 tries it with a hundredth of the jobs")
    parser.add_argument("--base", metavar="COMMIT", help="compare unlimited jobs with this commit")
    asked = parser.parse_args(arguments)
    kinds = _chosen(KINDS, asked.only)
    measures = _chosen((*MEASURES, *OTHERS), asked.only)
    sizes = Sizes(rounds=asked.rounds).scaled(asked.scale)
    report = Report()
    with databases(report) as made:
        for kind in kinds:
            bench = Bench(made, kind)
            for name, measure in MEASURES.items():
                if name in measures:
                    measure(report, bench, sizes)
            if asked.base and "base" in measures:
                base.measure(report, bench, sizes, asked.base)
        if "peers" in measures and "postgres" in kinds:
            peers.measure(report, made, sizes)
    return report.status()


def _chosen(names: Sequence[str], only: Sequence[str] | None) -> Sequence[str]:
    return [name for name in names if name in (only or ())] or names


if __name__ == "__main__":
    sys.exit(main())
