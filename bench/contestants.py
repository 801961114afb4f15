"""Who is measured, with which settings, and at what.

The settings are the best found for each in a sweep on two cores; a drain is so long that it takes some seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from bench.venvs import python_of

ENQUEUE = ("singles", "concurrent", "bulk")
DRAINS = ("drain", "drain by two")
PICK_UP = ("idle", "loaded")
EVERYTHING = (*ENQUEUE, *DRAINS, "threads", *PICK_UP)


class Contestant(NamedTuple):
    name: str
    store: str
    """postgres, sqlite, redis-stock or redis-durable."""
    module: str
    concurrency: int
    drain: int
    """How many jobs it is given to drain."""
    workloads: tuple[str, ...]
    venv: str | None = None
    """The environment it runs in; our own for perdure and what needs no more."""
    options: tuple[str, ...] = ()
    worker_options: tuple[str, ...] = ()
    setup: str = ""
    """The module that makes its tables, if another."""

    def python(self) -> Path:
        return Path(sys.executable) if self.venv is None else python_of(self.venv)


def _ours(name: str, store: str, concurrency: int, drain: int, *workloads: str) -> Contestant:
    return Contestant(name, store, "bench.perdure_contestant", concurrency, drain, workloads)


def _bare(name: str, store: str, batch: int, drain: int, *workloads: str) -> Contestant:
    setup = "bench.perdure_contestant"
    if "asyncpg" in name:
        module = "bench.bare_asyncpg"
        return Contestant(name, store, module, batch, drain, workloads, venv="asyncpg", setup=setup)
    return Contestant(name, store, "bench.bare_contestant", batch, drain, workloads, setup=setup)


def _peer(name: str, store: str, concurrency: int, drain: int, *workloads: str) -> Contestant:
    package = name.partition("-")[0]
    return Contestant(name, store, f"bench.peers.{package}", concurrency, drain, workloads, venv=package)


# Who is compared with whom stands beside them: less time for the machine to change its mind.
CONTESTANTS = (
    _ours("perdure", "postgres", 100, 60_000, "singles blocking", "silent", *EVERYTHING),
    _peer("pgqueuer", "postgres", 100, 40_000, *EVERYTHING)._replace(worker_options=("--uvloop",)),
    _bare("bare-psycopg", "postgres", 100, 90_000, "singles", "bulk", *DRAINS),
    _ours("perdure-500", "postgres", 500, 60_000, *DRAINS),
    _bare("bare-psycopg-500", "postgres", 500, 90_000, "drain"),
    _peer("pgqueuer-asyncio", "postgres", 100, 40_000, *DRAINS),
    _bare("bare-asyncpg", "postgres", 100, 90_000, "singles", "bulk", *DRAINS),
    _bare("bare-asyncpg-500", "postgres", 500, 90_000, "drain"),
    _peer("procrastinate", "postgres", 30, 1_800, *EVERYTHING),
    _peer("chancy", "postgres", 200, 9_000, *EVERYTHING),
    _peer("dbos", "postgres", 0, 1_500, "singles", *DRAINS, "idle"),
    _ours("perdure-sqlite", "sqlite", 100, 90_000, "singles blocking", *EVERYTHING),
    _ours("perdure-sqlite-500", "sqlite", 500, 90_000, "drain"),
    _peer("huey", "sqlite", 1, 10_000, "singles", *DRAINS, "idle"),
    _bare("bare-sqlite", "sqlite", 100, 200_000, "singles", "bulk", "drain"),
    _peer("dramatiq", "redis-stock", 32, 12_000, "singles", *DRAINS, "idle"),
    _peer("celery", "redis-stock", 1, 3_000, "singles", *DRAINS, "idle"),
    _peer("rq", "redis-stock", 1, 1_200, "singles", "bulk", *DRAINS, "idle"),
    _peer("dramatiq-durable", "redis-durable", 32, 9_000, "singles", "drain"),
    _peer("celery-durable", "redis-durable", 1, 2_000, "singles", "drain")._replace(
        options=("--kind", "late")
    ),
    _peer("rq-durable", "redis-durable", 1, 600, "singles", "bulk", "drain"),
)

QUICK: dict[str, tuple[str, ...]] = {
    "perdure": ("singles", "singles blocking", "concurrent", "bulk", "drain", "drain by two", "idle"),
    "perdure-500": ("drain", "drain by two"),
    "perdure-sqlite": ("singles", "singles blocking", "concurrent", "drain"),
    "perdure-sqlite-500": ("drain",),
    "bare-psycopg": ("drain",),
    "bare-psycopg-500": ("drain",),
    "bare-sqlite": ("drain",),
    "pgqueuer": ("singles", "bulk", "drain", "drain by two", "idle"),
    "huey": ("drain",),
}
"""What fits into three minutes."""


def quick() -> tuple[Contestant, ...]:
    """The same contestants with a third of the jobs."""
    chosen = [contestant for contestant in CONTESTANTS if contestant.name in QUICK]
    return tuple(each._replace(workloads=QUICK[each.name], drain=each.drain // 3) for each in chosen)
