"""What the contest must show, as ratios of one run, and what is printed beside for whoever wonders."""

from __future__ import annotations

from typing import NamedTuple

from bench.report import Report
from bench.results import Entry, Results

PGQUEUER = ("pgqueuer", "pgqueuer-asyncio")
OURS = ("perdure", "perdure-500")
POSTGRES_PEERS = ("pgqueuer", "procrastinate", "chancy", "dbos")
REDIS_PEERS = ("celery", "dramatiq", "rq", "celery-durable", "dramatiq-durable", "rq-durable")


class Target(NamedTuple):
    """The best of ``above`` over the best of ``below``. With neither bound it is only printed."""

    name: str
    above: tuple[Entry, ...]
    below: tuple[Entry, ...]
    at_least: float | None = None
    at_most: float | None = None


def _of(workload: str, *contestants: str) -> tuple[Entry, ...]:
    return tuple(Entry(workload, contestant) for contestant in contestants)


NOTIFY = Target(
    "50 callers: with NOTIFY / without",
    _of("concurrent with NOTIFY", "perdure"),
    _of("concurrent without NOTIFY", "perdure"),
    at_least=0.9,
)


def _singles(contestant: str) -> tuple[Entry, ...]:
    """The faster of our two colours."""
    return (Entry("singles", contestant), Entry("singles blocking", contestant))


def _drains() -> list[Target]:
    ours = _of("drain", *OURS)
    made = [
        Target("drain: perdure / PgQueuer", ours, _of("drain", *PGQUEUER), at_least=1.3),
        Target("drain: perdure / Procrastinate", ours, _of("drain", "procrastinate"), at_least=20.0),
        Target(
            "drain by two: perdure / PgQueuer",
            _of("drain by two", *OURS),
            _of("drain by two", *PGQUEUER),
            at_least=1.2,
        ),
        Target(
            "drain by two, by 100: perdure / PgQueuer",
            _of("drain by two", "perdure"),
            _of("drain by two", *PGQUEUER),
        ),
    ]
    for suffix, batch in (("", 100), ("-500", 500)):
        one = _of("drain", f"perdure{suffix}")
        limit = _of("drain", f"bare-psycopg{suffix}")
        other = _of("drain", f"bare-asyncpg{suffix}")
        made += [
            Target(f"drain by {batch}: perdure / bare psycopg", one, limit, at_least=0.6),
            Target(f"drain by {batch}: perdure / bare asyncpg", one, other),
            Target(f"drain by {batch}: perdure / PgQueuer", one, _of("drain", *PGQUEUER)),
        ]
    sqlite = _of("drain", "perdure-sqlite", "perdure-sqlite-500")
    made.append(Target("drain: perdure on SQLite / Huey", sqlite, _of("drain", "huey"), at_least=6.0))
    made.append(Target("drain: perdure on SQLite / bare SQLite", sqlite, _of("drain", "bare-sqlite")))
    for peer in REDIS_PEERS:
        made.append(Target(f"drain: perdure on SQLite / {peer}", sqlite, _of("drain", peer), at_least=1.0))
    return made


def _enqueues() -> list[Target]:
    made = [
        Target("singles: perdure / PgQueuer", _singles("perdure"), _of("singles", "pgqueuer"), at_least=0.8),
        Target("bulk: perdure / PgQueuer", _of("bulk", "perdure"), _of("bulk", "pgqueuer"), at_least=1.0),
        NOTIFY,
    ]
    for contestant in ("perdure", "perdure-sqlite"):
        name = f"{contestant}: 50 callers / one by one"
        made.append(Target(name, _of("concurrent", contestant), _singles(contestant), at_least=5.0))
    return made


def _pick_ups() -> list[Target]:
    return [
        Target(
            f"pick-up {workload}: perdure / best PostgreSQL peer",
            _of(workload, "perdure"),
            _of(workload, *POSTGRES_PEERS),
            at_most=1.0,
        )
        for workload in ("idle p50", "loaded p99")
    ]


TARGETS: tuple[Target, ...] = (*_drains(), *_enqueues(), *_pick_ups())


def judge(report: Report, results: Results, targets: tuple[Target, ...] = TARGETS) -> None:
    """Tell each ratio that was measured, and which of those that matter were not."""
    missing = []
    for target in targets:
        summary = results.ratio(target.above, target.below)
        if summary is None:
            if target.at_least is not None or target.at_most is not None:
                missing.append(target.name)
            continue
        report.figure(
            target.name,
            summary.value,
            "ratio",
            at_least=target.at_least,
            at_most=target.at_most,
            spread=summary.spread,
            rounds=summary.rounds,
        )
    if missing:
        report.fact(not_measured=missing)
