"""``perdure queues``, ``perdure workers`` and ``perdure stats``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from perdure.cli import typed
from perdure.cli.documents import as_json, print_json, queue_document, stats_document, worker_document
from perdure.cli.latencies import show_recent
from perdure.cli.output import number, say
from perdure.cli.tables import Column, facts, table
from perdure.cli.target import Target, pass_target, where
from perdure.model.time_text import distance, length, stamp

if TYPE_CHECKING:
    from perdure.client.queues import QueuePause
    from perdure.client.stats import QueueStats, Stats
    from perdure.client.views import WorkerRow
    from perdure.model.coverage import Unserved

COUNTS = ("ready", "scheduled", "retrying", "running", "waiting", "open", "failed", "canceled", "succeeded")
_LATE = {"waiting": 5, "open": 5, "canceled": 6, "succeeded": 4, "failed": 2, "scheduled": 3, "retrying": 3}

QUEUES = (
    Column("QUEUE", least=8, keep_end=True),
    *(Column(name.upper(), rank=_LATE.get(name, 0), right=True) for name in COUNTS),
    Column("LAG", rank=1, right=True),
    Column("STATUS", rank=1, least=10),
)
WORKERS = (
    Column("NAME", least=8, keep_end=True),
    Column("ID", rank=4),
    Column("STATE"),
    Column("SLOTS", rank=3, right=True),
    Column("QUEUES", rank=1, least=10),
    Column("TASKS", rank=5, least=10),
    Column("STARTED", rank=3),
    Column("BEAT", rank=2),
    Column("NOTE", rank=1, least=20),
)


@click.command()
@as_json
@where
@pass_target
def queues(target: Target, as_json: bool) -> None:
    """Count the jobs of each queue.

    Names ready jobs that no live worker serves. LAG is how long the oldest ready job has waited.

    \b
    Examples:
      perdure queues
      perdure queues --json | jq '.[] | select(.lag > 60) | .name'
    """
    with target.app_with_tables() as app:
        stats = app.stats(since=None)
    if as_json:
        print_json([queue_document(name, queue, stats) for name, queue in stats.queues.items()])
        return
    _show_queues(stats)
    if not stats.queues:
        say("No queues: no jobs were enqueued.", err=True)


@click.command()
@as_json
@where
@pass_target
def workers(target: Target, as_json: bool) -> None:
    """List the workers.

    A silent worker has missed a heartbeat. If it is still silent when its lease ends, another worker takes over its
    jobs.

    \b
    Examples:
      perdure workers
      perdure workers --json | jq 'map(.slots) | add'
    """
    with target.app_with_tables() as app:
        now, crew = app.views.workers()
    if as_json:
        print_json([worker_document(worker, now) for worker in crew])
        return
    table(WORKERS, [_worker(worker, now) for worker in crew])
    if not crew:
        say("No workers.", err=True)


@click.command()
@click.option(
    "--since",
    metavar="SPAN",
    callback=typed.seconds,
    default="1h",
    show_default=True,
    help="Measure jobs that ended in this time: 90s, 15m, 2h, 1d.",
)
@as_json
@where
@pass_target
def stats(target: Target, since: float, as_json: bool) -> None:
    """Show queues, workers and the database at a glance.

    Waiting times, running times and jobs per second come from a sample: the newest 10,000 jobs and, for each of the ten
    queues with the longest lag, the 2,000 jobs that were enqueued just before its next job to run.

    \b
    Examples:
      perdure stats
      perdure stats --since 15m
      perdure stats --json | jq '.recent.queues[] | {name, p95: .waited.p95}'
    """
    with target.app_with_tables() as app:
        seen = app.stats(since=since)
    if as_json:
        print_json(stats_document(seen))
        return
    facts(_database(seen))
    if seen.queues:
        say()
        _show_queues(seen)
    if seen.recent is not None and seen.recent.queues:
        show_recent(seen.recent)


def unserved_lines(unserved: Sequence[Unserved]) -> list[str]:
    """A sentence for each kind of ready job that no live worker can claim."""
    said = {
        "worker": "no worker is live",
        "queue": "no live worker serves the queue",
        "task": "no live worker knows the task",
        "both": "no live worker that serves the queue knows the task",
    }
    return [
        f"{number(lost.ready)} ready in queue {lost.queue} of task {lost.task}: {said[lost.lacks]}."
        for lost in unserved
    ]


def _show_queues(stats: Stats) -> None:
    table(QUEUES, [_queue(name, queue, stats) for name, queue in stats.queues.items()])
    if stats.unserved:
        say()
        for line in unserved_lines(stats.unserved):
            say(line)


def queue_status(name: str, queue: QueueStats, stats: Stats) -> list[str]:
    """The reasons that keep the queue's jobs from running."""
    status = [] if queue.pause is None else [pause_text(queue.pause)]
    if queue.cool_until is not None:
        status.append(f"cools for {length((queue.cool_until - stats.at).total_seconds())}")
    if any(lost.queue == name for lost in stats.unserved):
        status.append("unserved")
    if queue.held:
        status.append(f"{number(queue.held)} held")
    return status


def _queue(name: str, queue: QueueStats, stats: Stats) -> list[str]:
    counts = [number(found) if (found := queue.counts.get(count)) else "" for count in COUNTS]
    status = queue_status(name, queue, stats)
    if queue.settings is not None and queue.settings.edits:
        # For example: set by operator: concurrency 5, code says 20; no timeout
        status.append(f"set by operator: {'; '.join(map(str, queue.settings.edits))}")
    return [name, *counts, length(queue.lag) if queue.lag else "", ", ".join(status)]


def pause_text(pause: QueuePause) -> str:
    """``paused by ann since 2026-03-01 12:00:05 UTC until 2026-03-01 14:00:05 UTC: the gateway is down``."""
    from perdure.model.pause import Pause
    from perdure.request.times import to_us

    at, end = (None if time is None else to_us("at", time) for time in (pause.at, pause.resume_at))
    return str(Pause(at, pause.by, pause.reason, end))


def _worker(worker: WorkerRow, now: int) -> list[str]:
    from perdure.client.views import names_in

    return [
        worker.name,
        worker.id,
        "live" if worker.silence(now) is None else "silent",
        str(worker.slots),
        "every" if worker.queues is None else ", ".join(names_in(worker.queues)),
        ", ".join(names_in(worker.tasks)),
        distance(worker.started_at, now),
        distance(worker.beat_at, now),
        _silence(worker, now),
    ]


def _silence(worker: WorkerRow, now: int) -> str:
    silence = worker.silence(now)
    if silence is None:
        return ""
    since = f"silent since {stamp(silence.since)}"
    if silence.until <= now:
        return f"{since}, taken over by the next sweep of a live worker"
    return f"{since}, taken over at {stamp(silence.until)} ({distance(silence.until, now)})"


def _database(stats: Stats) -> list[tuple[str, str | None]]:
    base, lines = stats.database, stats.connections
    used = str(lines.connections) if lines.most is None else f"{lines.connections} of {lines.most}"
    return [
        ("database", f"{base.dialect} {base.version}"),
        ("size", _size(base.bytes)),
        ("log", None if base.wal_bytes is None else _size(base.wal_bytes)),
        ("dead rows", None if base.dead_rows is None else number(base.dead_rows)),
        ("oldest snapshot", None if base.oldest_snapshot is None else length(base.oldest_snapshot)),
        ("connections", used),
        (
            "workers",
            f"{number(len(stats.workers))} live, {number(sum(worker.slots for worker in stats.workers))} slots",
        ),
    ]


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TB"
