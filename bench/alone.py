"""What only perdure is asked: sleepers, retries, large payloads, weighted queues, growth and memory, NOTIFY.

A part of `make bench`; by itself `make bench-memory` (growth and memory) and `make bench-notify`. `--scale 0.01` tries
it with a hundredth of the jobs.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from bench import measures
from bench.arena import arena
from bench.calls import Failed
from bench.contestants import CONTESTANTS, Contestant
from bench.measures import Setting, Sizes, drained
from bench.report import Report
from bench.results import Entry, Results, summarize
from bench.servers import databases
from bench.targets import NOTIFY, judge

REPEATS = 3
KINDS = {
    # What each job does: how many of them, and how many at a time.
    "sleeping": (10_000, 500),
    "failing": (10_000, 100),
    "large": (2_000, 100),
    "queues": (20_000, 100),
}
TITLES = {
    "sleeping": "jobs of 10 ms, concurrency 500",
    "failing": "jobs of which 30 % fail once",
    "large": "jobs with 64 kB of payload",
    "queues": "jobs of four queues with weights",
}
GROWTH = (1_000, 10_000, 100_000, 1_000_000)
SOME, BESIDE = 10_000, 3
"""The start of a shorter run weighs as much as its jobs. So many of these stand before the longest, and so many after
it: one takes half a second, and the next may take half as much again."""
FLAT_TIME, FLAT_RSS = 1.25, 1.1
"""A job among a million may cost so many times as much as one among ten thousand; so much may the worker grow."""


OURS = ("perdure", "perdure-sqlite")
NOTIFY_ROUNDS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("growth", "notify"))
    parser.add_argument("--scale", type=float, default=1.0, help="part of the jobs")
    asked = parser.parse_args(arguments)
    measure_one = _measure_growth if asked.what == "growth" else _measure_notify
    ours = tuple(each for each in CONTESTANTS if each.name in OURS)
    report = Report()
    with databases(report) as made, arena(report, made, ours) as ready:
        setting = Setting(ready, Sizes().scaled(asked.scale))
        for contestant in ours:
            if asked.what == "growth" or contestant.store == "postgres":
                ready.prepare(contestant)
                measure_one(report, setting, contestant)
                ready.sweep()
    return report.status()


def measure(report: Report, setting: Setting, contestants: tuple[Contestant, ...]) -> None:
    for contestant in contestants:
        if contestant.name in OURS:
            try:
                _measure_kinds(report, setting, contestant)
                _measure_growth(report, setting, contestant)
            except Failed as error:
                name = contestant.name
                report.failure(f"{name} did not run", peer=name, workload="alone", not_run=str(error))
            setting.arena.sweep()


def _measure_kinds(report: Report, setting: Setting, contestant: Contestant) -> None:
    for kind, (jobs, concurrency) in KINDS.items():
        n = int(jobs * setting.sizes.alone)
        given = contestant._replace(concurrency=concurrency, options=("--kind", kind))
        rates = [n / drained(setting, given, n)[0] for _ in range(REPEATS)]
        summary = summarize(rates)
        assert summary is not None
        report.figure(
            f"{contestant.name}: {TITLES[kind]}",
            summary.value,
            "jobs/s",
            workload=TITLES[kind],
            contestant=contestant.name,
            spread=summary.spread,
            rounds=summary.rounds,
        )


def _measure_growth(report: Report, setting: Setting, contestant: Contestant) -> None:
    each: dict[int, list[float]] = {}
    for jobs in (GROWTH[0], *[SOME] * BESIDE, *GROWTH[2:], *[SOME] * BESIDE):
        n = int(jobs * setting.sizes.alone)
        memory = Memory(n)
        seconds, _ = drained(setting, contestant, n, during=memory.look)
        each.setdefault(n, []).append(seconds / n * 1e6)
        report.fact(run=f"time per job, {n} jobs", contestant=contestant.name, value=seconds / n * 1e6)
        setting.arena.sweep()
        if jobs == GROWTH[-1]:
            report.figure(
                f"{contestant.name}: RSS of a worker after {n} jobs / after a tenth of them",
                memory.ratio(),
                "ratio",
                at_most=FLAT_RSS,
            )
    for n, times in each.items():
        report.figure(f"{contestant.name}: time per job, {n} jobs", median(times), "µs", jobs=n)
    some, most = (int(jobs * setting.sizes.alone) for jobs in (SOME, GROWTH[-1]))
    flat = median(each[most]) / median(each[some])
    report.figure(f"{contestant.name}: time per job, {most} / {some} jobs", flat, "ratio", at_most=FLAT_TIME)


def _measure_notify(report: Report, setting: Setting, contestant: Contestant) -> None:
    results = Results()
    for number in range(NOTIFY_ROUNDS):
        for name, rate in measures.silent(setting, contestant).items():
            results.add(number, Entry(name, contestant.name), rate)
            report.fact(run=name, contestant=contestant.name, round=number, value=rate)
        setting.arena.sweep()
    judge(report, results, (NOTIFY,))


class Memory:
    """The size of a worker as its jobs go by."""

    def __init__(self, jobs: int, read: Callable[[int], float] | None = None) -> None:
        self._jobs = jobs
        self._read = read or rss
        self._early = 0.0
        self._late = 0.0

    def look(self, pid: int, begun: int) -> None:
        size = self._read(pid)
        if begun <= self._jobs / 10 or not self._early:
            self._early = size
        self._late = size

    def ratio(self) -> float:
        return self._late / self._early


def rss(pid: int) -> float:
    """In megabytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


if __name__ == "__main__":
    sys.exit(main())
