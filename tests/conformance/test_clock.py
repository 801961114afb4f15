"""The life of a job by the database's own clock, which no test moves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from perdure.app import App
from perdure.model.lifecycle import Failed, Snoozed, Succeeded, Throttled
from tests.conformance.world import ids, work

MINUTE = timedelta(minutes=1)


@pytest.fixture
def app(url: str) -> Iterator[App]:
    app = App(url)
    app.task(name="work", queue="mail")(work)
    app.operations.register("w", name="w", lease=3_600_000_000)
    yield app
    app.close()


def test_times_are_times_of_now(app: App) -> None:
    job = app.enqueue("work").refresh()
    (claimed,) = app.operations.claim("w", tasks=["work"], n=1)
    app.operations.finish([Succeeded(claimed.lease)])
    row = job.refresh().row
    assert row is not None
    assert row.created_at == row.run_at <= (row.started_at or 0) <= (row.finished_at or 0)
    assert abs((job.run_at or datetime.min.replace(tzinfo=UTC)) - datetime.now(UTC)) < MINUTE


def test_what_is_for_later_waits(app: App) -> None:
    now = datetime.now(UTC)
    for options in ({"delay": 3600}, {"run_at": now + timedelta(hours=1)}):
        job = app.enqueue("work", **options).refresh()
        assert abs((job.run_at or now) - now - timedelta(hours=1)) < MINUTE
        assert app.operations.claim("w", tasks=["work"], n=1) == []
        assert app.run_now(job.id) == "due_now"
        assert ids(app.operations.claim("w", tasks=["work"], n=1)) == [job.id]
    assert app.count_jobs() == {"mail": {"running": 2}}


def test_endings_wait_by_the_clock_of_the_database(app: App) -> None:
    hour = 3_600_000_000
    for end in (lambda lease: Snoozed(lease, hour), lambda lease: Failed(lease, "error", delay=hour)):
        job = app.enqueue("work")
        (claimed,) = app.operations.claim("w", tasks=["work"], n=1)
        app.operations.finish([end(claimed.lease)])
        left = (job.refresh().run_at or datetime.now(UTC)) - datetime.now(UTC)
        assert abs(left - timedelta(hours=1)) < MINUTE
    assert app.count_jobs() == {"mail": {"scheduled": 1, "retrying": 1}}
    app.enqueue("work")
    (claimed,) = app.operations.claim("w", tasks=["work"], n=1)
    app.operations.finish([Throttled(claimed.lease, hour)])
    app.enqueue("work")
    assert app.operations.claim("w", tasks=["work"], n=1) == [], "the queue cools"
    assert list(app.oldest_ready()) == ["mail"]


def test_expiry_and_silence_are_noticed_by_the_clock_of_the_database(app: App) -> None:
    expired, lost = app.enqueue("work", expires=0, priority=1), app.enqueue("work")
    app.operations.register("silent", name="silent", lease=1)
    assert ids(app.operations.claim("silent", tasks=["work"], n=1)) == [lost.id]
    assert expired.refresh().reason == "expired"
    rescued: list[str] = []
    deadline = time.monotonic() + 30
    while not rescued and time.monotonic() < deadline:
        rescued = [change.id for change in app.operations.rescue()]
    assert rescued == [lost.id]
    assert app.operations.heartbeat("w").live
    assert not app.operations.heartbeat("silent").live


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_on_postgres_the_clock_of_the_host_does_not_matter(
    app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A day behind: ids continue from the last one, so that those of later tests are as usual.
    true_time, true_time_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: true_time() - 86_400)
    monkeypatch.setattr(time, "time_ns", lambda: true_time_ns() - 86_400 * 1_000_000_000)
    app.enqueue("work")
    (claimed,) = app.operations.claim("w", tasks=["work"], n=1)
    app.operations.finish([Succeeded(claimed.lease)])
    assert app.operations.heartbeat("w").live
    with psycopg.connect(url) as connection:
        [(now, *times)] = connection.execute(
            "SELECT now(), j.created_at, j.run_at, j.started_at, j.finished_at,"
            " w.beat_at, w.expires_at - interval '1 hour' FROM perdure.job j, perdure.worker w"
        ).fetchall()
    assert [at for at in times if not now - MINUTE < at <= now] == []


def test_in_a_transaction_of_the_caller_each_enqueue_has_its_own_time(app: App) -> None:
    app.save_tasks()
    with closing(app.store.connect()) as conn:
        first = app.enqueue("work", conn=conn)
        time.sleep(0.1)
        second = app.enqueue("work", conn=conn)
        conn.commit()
    one, other = first.refresh().row, second.refresh().row
    assert one is not None
    assert other is not None
    assert other.run_at - one.run_at >= 50_000, "not the time at which the transaction began"
    assert other.created_at == other.run_at
