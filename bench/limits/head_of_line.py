"""Others behind the jobs of a key that has no free slot."""

from __future__ import annotations

from functools import partial
from statistics import median

from bench.limits.drains import Bench
from bench.limits.program import Jobs
from bench.limits.rounds import Bounds, Rounds
from bench.limits.sizes import Sizes
from bench.limits.tasks import BLOCKED
from bench.report import Report

WITHIN = 0.5
"""Seconds until the first of the others starts."""
DRAIN = Bounds(at_most=1.2)
SINGLES, PAUSE = 20, 0.1


def measure(report: Report, bench: Bench, sizes: Sizes) -> None:
    blocked = Jobs("keyed", sizes.blocked, argument=BLOCKED)
    alone = Jobs("keyed", 3, argument=BLOCKED)
    """As many as run, so that both sides have the same slots."""
    for task, others in (("keyed", "jobs of 1,000 other keys"), ("free", "unlimited jobs")):
        jobs = Jobs(task, sizes.others)
        tasks = ("keyed", "free")
        behind = bench.prepare(blocked, jobs, tasks=tasks)
        before = bench.prepare(alone, jobs, tasks=tasks)
        side, without = f"behind {sizes.blocked:,} jobs of a full key", "alone"
        sides = {without: partial(bench.drain, before), side: partial(bench.drain, behind)}
        rounds = Rounds(report, f"{bench.kind}: {others}", sides, sizes.rounds)
        rounds.figures()
        rounds.times(side, without, DRAIN)
        rounds.costs(side, without)
        rounds.first_starts(without, None)
        rounds.first_starts(side, WITHIN)
    _measure_singles(report, bench, blocked)


def _measure_singles(report: Report, bench: Bench, blocked: Jobs) -> None:
    """Jobs that are enqueued one by one while a worker runs."""
    prepared = bench.prepare(blocked, tasks=("keyed", "free"))
    for task in ("keyed", "free"):
        waits = bench.waits(prepared, Jobs(task, SINGLES, pause=PAUSE))
        name = f"{bench.kind}: {blocked.n:,} jobs of a full key in front, one {task} job is enqueued, until it starts"
        report.figure(f"{name}, median", median(waits), "s")
        report.figure(f"{name}, worst of {SINGLES}", max(waits), "s", at_most=WITHIN)
