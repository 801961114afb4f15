"""The states that people see: each job has one, and every count, list, filter and command shows the same."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from perdure.client import bulk
from perdure.errors import InvalidOption, JobNotFound
from perdure.model.job import SECOND, JobRow
from perdure.model.visible_state import LATER, VISIBLE_STATES, VisibleState, visible_state
from perdure.request.filter import Wanted
from tests.cli.shop import run as cli
from tests.conformance.world import World

HOUR = 3600 * SECOND
PAST, FUTURE = 1_000_000_000 * SECOND, 4_000_000_000 * SECOND
ROWS: list[dict[str, Any]] = [
    {"state": state, "held": held, "run_at": run_at, "error_kind": error}
    for state in ("waiting", "ready", "running", "open", "succeeded", "failed", "canceled")
    for held in (None, "limit", "unclaimable")
    for run_at in (-HOUR, 0, 1, HOUR)
    for error in (None, "error")
]
"""Everything that a visible state depends on, including combinations that no job has."""


@pytest.fixture
def every(world: World) -> World:
    """A job for each of these, in no order; many are due at the same time."""
    work = world.task()
    jobs = world.app.enqueue_many([work.using(queue=f"q{n % 3}").job() for n in range(len(ROWS))])
    shuffled = random.Random(7).sample(ROWS, len(ROWS))
    world.sql_each(
        "UPDATE perdure.job SET state = :state, held = :held, run_at = instant(:run_at), error_kind = :error_kind,"
        " worker = CASE WHEN CAST(:state AS text) = 'running' THEN 'w' END, started_at = created_at,"
        " finished_at = CASE WHEN CAST(:state AS text) IN ('succeeded', 'failed', 'canceled') THEN created_at END"
        " WHERE id = :id",
        [
            {**row, "run_at": world.now + row["run_at"], "id": job.id}
            for job, row in zip(jobs, shuffled, strict=True)
        ],
    )
    return world


def seen(world: World, row: JobRow) -> VisibleState:
    return visible_state(row.state, held=row.held, due=row.run_at <= world.now, error_kind=row.error_kind)


def pages(world: World, limit: int, **wanted: Any) -> list[JobRow]:
    """All pages of a list, one after the other."""
    rows: list[JobRow] = []
    before: str | None = None
    while True:
        page = world.app.list_jobs(before=before, limit=limit, **wanted)
        rows += [job.row for job in page if job.row is not None]
        if len(page) < limit:
            return rows
        before = page[-1].id


def test_every_job_has_one_state_and_all_doors_tell_the_same(every: World) -> None:
    app = every.app
    rows = pages(every, 1000)
    assert len(rows) == len(ROWS)
    expected = Counter(seen(every, row) for row in rows)
    assert expected.keys() == set(VISIBLE_STATES)
    assert app.count_jobs_by("state") == expected
    assert sum((Counter(states) for states in app.count_jobs().values()), Counter()) == expected
    assert sum((Counter(queue.counts) for queue in app.stats().queues.values()), Counter()) == expected
    assert sum(queue.held for queue in app.stats().queues.values()) == expected["held"]
    tasks = Counter(app.get_task("work").counts)
    assert tasks == {state: expected[state] for state in ("ready", "scheduled", "retrying", "running")}
    for state in VISIBLE_STATES:
        listed = pages(every, 1000, state=state)
        assert {seen(every, row) for row in listed} == {state}
        assert len(listed) == expected[state] == app.count_jobs_by("state", state=state)[state]
        for queue, counts in app.count_jobs().items():
            assert len(app.list_jobs(queue=queue, state=state, limit=1000)) == counts.get(state, 0)


def test_the_command_line_tells_the_same(every: World) -> None:
    def run(*args: str) -> Any:
        result = cli("jobs", *args, "--json", "--url", every.url)
        assert (result.exit_code, result.stderr) == (0, "")
        return json.loads(result.stdout)

    # The command has the clock of the host, or of the server.
    for at, condition in ((PAST, "<="), (FUTURE, ">")):
        every.sql(
            f"UPDATE perdure.job SET run_at = instant(:at) WHERE run_at {condition} instant({every.now})",
            at=at,
        )
    expected = every.app.count_jobs_by("state")
    assert {row["state"]: row["jobs"] for row in run("--count-by", "state")} == expected
    for state in VISIBLE_STATES:
        assert len(run("--state", state, "--limit", "1000")) == expected[state]
        assert run("--state", state, "--count-by", "state") == [{"state": state, "jobs": expected[state]}]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_what_is_not_due_is_listed_soonest_first_page_by_page(every: World, limit: int) -> None:
    for state in sorted(LATER):
        wanted: list[Wanted] = [{"state": state}, {"state": state, "queue": "q1"}]
        for conditions in wanted:
            whole = [
                row
                for row in pages(every, 1000)
                if seen(every, row) == state and row.queue == conditions.get("queue", row.queue)
            ]
            soonest = sorted(whole, key=lambda row: (row.run_at, row.id))
            assert [row.id for row in pages(every, limit, **conditions)] == [row.id for row in soonest]


def test_pages_go_on_behind_a_job_that_has_left_the_list(world: World) -> None:
    work = world.task()
    first, second, third = (work.using(delay=delay).enqueue() for delay in (10, 20, 30))
    world.app.cancel_job(first.id)
    assert [job.id for job in world.app.list_jobs(state="scheduled", before=first.id)] == [
        second.id,
        third.id,
    ]
    world.app.delete_job(second.id)
    with pytest.raises(JobNotFound):
        world.app.list_jobs(state="scheduled", before=second.id)


def test_acts_take_what_they_took_before(every: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "CHUNK", 10)
    app = every.app
    number = app.count_jobs_by("state")
    active = sum(number[state] for state in ("waiting", "ready", "scheduled", "retrying", "held", "open"))
    dry = app.cancel_jobs(all=True, dry_run=True).counts
    assert dry == {"canceled": active, "cancel_requested": number["running"]}
    later = number["scheduled"] + number["retrying"]
    assert app.run_jobs_now(all=True, dry_run=True).counts == {"due_now": later}
    everything = len(ROWS) - number["running"]
    assert app.delete_jobs(all=True, dry_run=True).counts["deleted"] == everything
    for state in ("ready", "scheduled", "retrying", "held"):
        assert app.cancel_jobs(state=state).counts == {"canceled": number[state]}
    with pytest.raises(InvalidOption, match="scheduled or retrying, not held"):
        app.run_jobs_now(state="held")
