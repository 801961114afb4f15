"""The same life by the database's own clock, which no test moves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

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
