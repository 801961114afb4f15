"""Due jobs among many queues, or many priorities, in which all other jobs are due much later.

The sweeper sets such jobs aside within a few seconds of a worker's start: what a drain costs then must hardly differ
from a drain without them. The same drain by the first worker that ever sees these jobs is measured once, without a
target.
"""

from __future__ import annotations

from functools import partial

from bench.limits.drains import Bench
from bench.limits.program import Jobs
from bench.limits.rounds import Bounds, Rounds
from bench.limits.sizes import Sizes
from bench.report import Report

RATE = Bounds(at_least=0.8)
DELAY = 24 * 3600.0
NONE = "nothing else"


def measure(report: Report, bench: Bench, sizes: Sizes) -> None:
    due = Jobs("free", sizes.jobs)
    queues, priorities = sizes.future_queues, sizes.future_priorities
    others = {
        f"future jobs in {queues:,} queues": Jobs("free", queues, queues=queues, delay=DELAY),
        f"future jobs of {priorities:,} priorities": Jobs(
            "free", priorities, priorities=priorities, delay=DELAY
        ),
    }
    prepared = {NONE: bench.prepare(due)}
    for side, future in others.items():
        prepared[side] = bench.prepare(future, due, aside=True)
    sides = {side: partial(bench.drain, each) for side, each in prepared.items()}
    rounds = Rounds(report, f"{bench.kind}: set aside", sides, sizes.rounds)
    rounds.figures()
    for side in others:
        rounds.rates(side, NONE, RATE)
        rounds.costs(side, NONE)
    for side, future in others.items():
        drained = bench.drain(bench.prepare(future, due))
        report.figure(f"{bench.kind}: {side}, not yet set aside", drained.rate, "jobs/s")
        report.figure(f"{bench.kind}: {side}, not yet set aside, CPU per job", drained.cpu, "µs")
