"""Intervals in which jobs ran, by the database's clock, and the instants at which a limit was exceeded.

An interval lasts from the claim to the outcome or the rescue. Fault tests read it after all workers have ended.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.model.limits import LimitId, Limits
from perdure.ops import limits as limit_ops
from perdure.ops.op import Row
from perdure.store.statements import render
from perdure.store.store import Store


class Interval(NamedTuple):
    began: int
    ended: int
    queue: str
    task: str
    key: str | None


class Change(NamedTuple):
    """From this time on a limit had this concurrency."""

    at: int
    concurrency: int | None


Timeline = Mapping[LimitId, Sequence[Change]]


def intervals(store: Store) -> list[Interval]:
    """Every attempt. The last one of a job may be in the job's row alone."""
    found: dict[tuple[str, int], Interval] = {}
    for id, token, *interval in _ask(
        store,
        """SELECT a.job, a.token, a.started_at, a.finished_at, j.queue, j.task, j.concurrency_key
             FROM perdure.attempt a JOIN perdure.job j ON j.id = a.job WHERE a.started_at IS NOT NULL""",
    ):
        found[str(id), token] = _interval(*interval)
    for id, token, *interval in _ask(
        store,
        """SELECT id, token, started_at, finished_at, queue, task, concurrency_key
             FROM perdure.job WHERE started_at IS NOT NULL AND finished_at IS NOT NULL""",
    ):
        found.setdefault((str(id), token), _interval(*interval))
    return sorted(found.values())


def timeline(store: Store) -> Timeline:
    """The concurrency of every limit over time. Tests change only named limits while jobs run."""
    limits: Limits = store.perform(limit_ops.read_limits)
    changes: dict[LimitId, list[Change]] = defaultdict(list)
    for row in store.perform(limit_ops.list_limits):
        changes["named", row.name].append(Change(0, row.declared))
    for at, subject, detail in _ask(
        store, "SELECT at, subject, detail FROM perdure.act WHERE verb = 'set_limit' ORDER BY id"
    ):
        values = json.loads(detail) if isinstance(detail, str) else detail or {}
        name = subject.removeprefix("limit ")
        changes["named", name].append(Change(_micros(at), values.get("concurrency")))
    for name, concurrency in limits.queues.items():
        changes["queue", name].append(Change(0, concurrency))
    for limit in limits.tasks.values():
        changes["task", limit.scope].append(Change(0, limit.concurrency))
    return changes


def violations(store: Store) -> list[str]:
    """The claims that exceeded a limit."""
    limits, caps = store.perform(limit_ops.read_limits), timeline(store)
    under: dict[LimitId, list[Interval]] = defaultdict(list)
    for interval in intervals(store):
        # A limit that is lifted for a moment counts as one that everything fits under.
        for limit, _ in _lifted(limits).of(interval.queue, interval.task, interval.key):
            under[limit].append(interval)
    assert under, "no job ran under a limit"
    return [text for limit, some in under.items() for text in _exceeded(limit, some, caps)]


def _lifted(limits: Limits) -> Limits:
    return limits._replace(named=dict.fromkeys(limits.named, 1))


def _exceeded(limit: LimitId, some: Iterable[Interval], caps: Timeline) -> Iterator[str]:
    """Ends come before beginnings of the same microsecond."""
    events = sorted(event for one in some for event in ((one.began, 1), (one.ended, 0)))
    running = 0
    for at, begins in events:
        running += 1 if begins else -1
        cap = _cap(caps[("task", limit[1]) if limit[0] == "key" else limit], at)
        if begins and cap is not None and running > cap:
            yield f"{limit}: {running} of {cap} at {at}"


def _cap(changes: Sequence[Change], at: int) -> int | None:
    return [change.concurrency for change in changes if change.at <= at][-1]


def _ask(store: Store, text: str) -> list[Row]:
    connection = store.connect()
    try:
        rows: list[Row] = connection.execute(render(text, store.dialect)).fetchall()
        return rows
    finally:
        connection.close()


def _interval(began: Any, ended: Any, queue: str, task: str, key: str | None) -> Interval:
    return Interval(_micros(began), _micros(ended), queue, task, key)


def _micros(at: Any) -> int:
    """SQLite stores microseconds; PostgreSQL's driver gives a datetime."""
    return at if isinstance(at, int) else round(at.timestamp() * 1_000_000)
