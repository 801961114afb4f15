"""A handler in a process commits its success by itself: what is told of it is what was committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import App
from perdure.request.events import JobEvent
from tests.harness.waiting import auntil
from tests.worker import own_commit_app
from tests.worker.test_processes import PATIENCE, alive, enqueue, noted, working
from tests.worker.waiting import until_state


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with own_commit_app.make(url, lease=2) as app:
        app.migrate()
        with closing(own_commit_app.connect(url)) as connection:
            # PostgreSQL keeps it from the last test.
            connection.execute("DROP TABLE IF EXISTS takings")
            connection.execute("CREATE TABLE takings (n integer)")
            connection.commit()
        yield app


@pytest.fixture
def told(app: App) -> list[JobEvent]:
    """What a worker of this app says of its jobs."""
    events: list[JobEvent] = []
    app.on("succeeded", "failed", "retried", "lease_lost")(events.append)
    return events


def effects(url: str) -> int:
    with closing(own_commit_app.connect(url)) as connection:
        rows: list[Any] = connection.execute("SELECT n FROM takings").fetchall()
        return len(rows)


@pytest.mark.parametrize("task", ["in_block", "in_async_block", "on_own_connection"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_child_killed_around_its_commit(
    app: App, url: str, told: list[JobEvent], task: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only children are armed: this process has looked at the variable long ago.
    monkeypatch.setenv("PERDURE_FAILPOINT", f"{when}_own_commit:kill")
    async with working(app, target=own_commit_app.TARGET):
        job = await enqueue(app, task, url=url, when=when)
        await job.ajoin(PATIENCE)
        await auntil(lambda: told)
    await job.arefresh()
    if when == "after":
        assert (job.state, job.error, effects(url)) == ("succeeded", None, 1)
        assert [event.name for event in told] == ["succeeded"]
    else:
        assert (job.state, job.error and job.error.kind, effects(url)) == ("failed", "panic", 0)
        assert [(event.name, event.kind) for event in told] == [("failed", "panic")]


async def test_a_success_that_was_rolled_back_in_a_child_is_none(
    app: App, url: str, told: list[JobEvent]
) -> None:
    async with working(app, target=own_commit_app.TARGET):
        job = await enqueue(app, "roll_back")
        assert await job.aget(PATIENCE) == "returned"
        await auntil(lambda: told)
    assert [event.name for event in told] == ["succeeded"]
    assert effects(url) == 0


async def test_a_handler_that_rolled_its_success_back_is_stopped_when_its_lease_is_gone(
    app: App, told: list[JobEvent], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    async with working(app, target=own_commit_app.TARGET, drain=0) as worker:
        await enqueue(app, "roll_back_and_wait", note_to=str(notes))
        await auntil(lambda: noted(notes))
        await app.operations.aretire(worker.identity)
        await app.operations.arescue()
        # The worker's own sweeper may have been quicker than the rescue above, and told what became of the job.
        await auntil(lambda: "lease_lost" in [event.name for event in told])


async def test_a_success_that_nobody_committed_is_lost_with_its_lease(
    app: App, url: str, told: list[JobEvent], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    async with working(app, target=own_commit_app.TARGET, drain=0) as worker:
        job = await enqueue(app, "roll_back_unseen", url=url, note_to=str(notes))
        await auntil(lambda: noted(notes))
        await app.operations.aretire(worker.identity)
        await app.operations.arescue()
        (tmp_path / "notes.go").touch()
        await auntil(lambda: "lease_lost" in [event.name for event in told])
    assert "succeeded" not in [event.name for event in told]
    assert (await job.arefresh()).state != "succeeded"
    assert effects(url) == 0


async def test_a_success_committed_by_a_handler_whose_lease_seemed_gone_is_told(
    app: App, url: str, told: list[JobEvent], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    async with working(app, target=own_commit_app.TARGET) as worker:
        job = await enqueue(app, "commit_late", note_to=str(notes))
        await auntil(lambda: noted(notes))
        (attempt,) = worker._executor.attempts.values()
        attempt.stop("lost")
        (tmp_path / "notes.go").touch()
        await until_state(job, "succeeded")
        await auntil(lambda: told)
        await auntil(lambda: not alive(int(noted(notes)[0])))
    assert [event.name for event in told] == ["succeeded"]
    assert effects(url) == 1
