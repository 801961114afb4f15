"""Ready jobs in a thousand queues, beside as many in one."""

from __future__ import annotations

from functools import partial

from bench.limits.drains import Bench
from bench.limits.program import Jobs
from bench.limits.rounds import Bounds, Rounds
from bench.limits.sizes import Sizes
from bench.report import Report

COST = Bounds(at_most=5.0, aim=3.0)


def measure(report: Report, bench: Bench, sizes: Sizes) -> None:
    side, without = f"in {sizes.ready_queues:,} queues", "in one queue"
    prepared = {
        without: bench.prepare(Jobs("free", sizes.jobs)),
        side: bench.prepare(Jobs("free", sizes.jobs, queues=sizes.ready_queues)),
    }
    sides = {name: partial(bench.drain, each) for name, each in prepared.items()}
    rounds = Rounds(report, f"{bench.kind}: ready jobs", sides, sizes.rounds)
    rounds.figures()
    rounds.times(side, without, COST)
    rounds.costs(side, without, COST)
