"""The limits of DBOS and Procrastinate beside the same drains without, for reference."""

from __future__ import annotations

from statistics import median

from bench.arena import Arena
from bench.calls import Failed
from bench.contestants import Contestant
from bench.limits.sizes import Sizes
from bench.measures import Setting, drained
from bench.measures import Sizes as ContestSizes
from bench.report import Report
from bench.servers import Databases
from bench.venvs import NotInstalled

ROUNDS = 3
"""At most: enqueueing a thousand jobs with DBOS takes longer than anything else that is measured here."""


def _peer(module: str, concurrency: int, jobs: int) -> Contestant:
    venv = module.partition("_")[0]
    return Contestant(module, "postgres", f"bench.peers.{module}", concurrency, jobs, (), venv=venv)


PAIRS = {
    "DBOS, a queue's limit of 500": (_peer("dbos", 0, 1_500), _peer("dbos_limited", 0, 1_500)),
    "Procrastinate, 1,000 random locks": (
        _peer("procrastinate", 30, 1_500),
        _peer("procrastinate_locked", 30, 1_500),
    ),
}


def measure(report: Report, made: Databases, sizes: Sizes) -> None:
    for name, pair in PAIRS.items():
        try:
            _measure(report, made, sizes, name, pair)
        except (Failed, NotInstalled) as error:
            report.fact(figure=name, value=None, unit="jobs/s", target=None, ok=None, not_run=str(error))


def _measure(
    report: Report, made: Databases, sizes: Sizes, name: str, pair: tuple[Contestant, Contestant]
) -> None:
    arena = Arena(made, {})
    for contestant in pair:
        report.fact(contestant=contestant.name, versions=arena.prepare(contestant))
    rates: dict[Contestant, list[float]] = {contestant: [] for contestant in pair}
    for number in range(min(ROUNDS, sizes.rounds)):
        for contestant in pair[:: -1 if number % 2 else 1]:
            seconds, _ = drained(Setting(arena, ContestSizes()), contestant, contestant.drain)
            rates[contestant].append(contestant.drain / seconds)
        arena.sweep()
    free, limited = (rates[contestant] for contestant in pair)
    report.figure(f"postgres: {name}", median(limited), "jobs/s")
    report.figure(f"postgres: {name}, without", median(free), "jobs/s")
    ratios = [one / other for one, other in zip(limited, free, strict=True)]
    spread = [round(min(ratios), 3), round(max(ratios), 3)]
    report.figure(
        f"postgres: {name} / without, jobs/s", median(ratios), "ratio", spread=spread, rounds=len(ratios)
    )
