"""Limited jobs beside the same jobs without a limit. The limits are wide: only a few keys are ever full."""

from __future__ import annotations

from functools import partial

from bench.limits.drains import Bench
from bench.limits.program import Jobs
from bench.limits.rounds import Bounds, Rounds
from bench.limits.sizes import Sizes
from bench.limits.tasks import OPTIONS
from bench.report import Report

RATE = Bounds(at_least=0.6, aim=0.75)
COST = Bounds(at_most=1 / 0.6, aim=1 / 0.75)

FREE = "no limit"
LIMITED = {
    "queue": "a queue's limit of 500",
    "task": "a task's limit of 500",
    "named": "a shared limit of 500",
    "keyed": "1,000 random keys with 3 each",
}
MIXED = "no limit, in a worker that also has limited tasks"


def measure(report: Report, bench: Bench, sizes: Sizes) -> None:
    prepared = {FREE: bench.prepare(Jobs("free", sizes.jobs))}
    for task, side in LIMITED.items():
        prepared[side] = bench.prepare(Jobs(task, sizes.jobs))
    prepared[MIXED] = bench.prepare(Jobs("free", sizes.jobs), tasks=tuple(OPTIONS))
    sides = {side: partial(bench.drain, each) for side, each in prepared.items()}
    rounds = Rounds(report, bench.kind, sides, sizes.rounds)
    rounds.figures()
    for side in LIMITED.values():
        rounds.rates(side, FREE, RATE)
        rounds.costs(side, FREE, COST)
    rounds.rates(MIXED, FREE)
    rounds.costs(MIXED, FREE)
