"""Reads: single jobs, pages, counts, and the lag of queues."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from perdure.errors import InvalidOption, JobNotFound
from perdure.model.job import SECOND
from perdure.model.lifecycle import Canceled, Failed, Snoozed, Succeeded
from perdure.request.times import from_us
from tests.conformance.world import NOON, World, ids

NOBODY = "0198a1b2-0000-7000-8000-000000000000"
BAD_IDS = ["", "no id at all", "0198a1b2", NOBODY + "0"]
NO_IDS: list[Any] = [7, None, b"x"]


def test_a_job_is_found_by_its_id(world: World) -> None:
    job = world.task(queue="mail").using(tenant="acme", tags=["a"], meta={"x": [1]}, delay=5).enqueue(7)
    seen = world.app.get_job(job.id.upper())
    assert (seen.id, seen.task, seen.queue, seen.state, seen.run) == (job.id, "work", "mail", "ready", 1)
    assert (seen.tags, seen.meta, seen.run_at) == (["a"], {"x": [1]}, from_us(NOON + 5 * SECOND))
    assert not seen.created, "it was only looked at"


def test_a_job_that_is_not_there_is_not_found(world: World) -> None:
    with pytest.raises(JobNotFound):
        world.app.get_job(NOBODY)


def test_what_is_no_id_belongs_to_no_job(world: World) -> None:
    app = world.app
    verbs = (app.get_job, app.job_history, app.cancel_job, app.requeue_job, app.run_now, app.delete_job)
    for id in BAD_IDS:
        for verb in verbs:
            with pytest.raises(JobNotFound):
                verb(id)
        assert app.get_jobs([NOBODY, id]) == [None, None]
    for odd in NO_IDS:
        for verb in verbs:
            with pytest.raises(InvalidOption):
                verb(odd)
        with pytest.raises(InvalidOption):
            app.get_jobs([NOBODY, odd])


def test_an_id_may_be_a_uuid(world: World) -> None:
    job = world.task().enqueue()
    assert world.app.get_job(uuid.UUID(job.id)).id == job.id


def test_jobs_come_in_the_order_asked(world: World) -> None:
    work = world.task()
    jobs = [work.enqueue() for _ in range(3)]
    asked = [jobs[2].id, NOBODY, jobs[0].id, jobs[2].id]
    seen = world.app.get_jobs(asked)
    assert [job and job.id for job in seen] == [jobs[2].id, None, jobs[0].id, jobs[2].id]
    assert world.app.get_jobs([]) == []


def test_lists_are_filtered(world: World) -> None:
    work, play = world.task("work"), world.task("play", queue="fun")
    a = work.enqueue()
    b = work.using(queue="fun", tenant="acme").enqueue()
    c = play.using(tenant="acme").enqueue()
    world.claim(1, queues=["default"])
    listed = world.app.list_jobs
    assert ids(listed()) == ids([c, b, a]), "the newest first"
    assert ids(listed(queue="fun")) == ids([c, b])
    assert ids(listed(task="work")) == ids([b, a])
    assert ids(listed(state="running")) == [a.id]
    assert ids(listed(tenant="acme")) == ids([c, b])
    assert ids(listed(queue="fun", task="work", state="ready", tenant="acme")) == [b.id]
    assert listed(queue="fun", state="running") == []


def test_what_is_not_due_is_listed_as_it_is_counted(world: World) -> None:
    work = world.task(backoff=60)
    failed = work.enqueue()
    world.attempt(Failed, "error", delay=60 * SECOND)
    snoozed = work.enqueue()
    world.attempt(Snoozed, 60 * SECOND)
    soon, later = (work.using(delay=delay, queue=queue).enqueue() for delay, queue in ((1, "a"), (90, "b")))
    due = work.enqueue()
    listed = world.app.list_jobs
    assert ids(listed(state="retrying")) == [failed.id]
    assert ids(listed(state="scheduled")) == [soon.id, snoozed.id, later.id], "soonest first"
    assert ids(listed(state="ready")) == [due.id], "what is due"
    assert ids(listed(state="scheduled", queue="b", task="work")) == [later.id]
    assert ids(listed(state="scheduled", limit=1)) == [soon.id]
    assert ids(listed(state="scheduled", before=soon.id)) == [snoozed.id, later.id]
    assert listed(state="scheduled", tenant="acme") == listed(state="retrying", queue="b") == []
    world.advance(1)
    assert ids(listed(state="scheduled")) == [snoozed.id, later.id], "by the database's clock"
    counts = [states.get("scheduled", 0) for states in world.app.count_jobs().values()]
    assert sum(counts) == len(listed(state="scheduled"))
    assert listed(tenant="nobody") == []


def test_pages_begin_where_the_one_before_ended(world: World) -> None:
    work = world.task()
    jobs = world.app.enqueue_many([work.using(queue="a" if n % 3 else "b").job() for n in range(10)])
    expected = [job.id for job in reversed(jobs) if job.queue == "a"]
    before, pages = None, []
    for _ in range(3):
        pages.append(ids(world.app.list_jobs(queue="a", before=before, limit=4)))
        before = pages[-1][-1] if pages[-1] else before
        work.using(queue="a").enqueue()
    assert pages == [expected[:4], expected[4:], []], "what is newer does not move them"


def test_a_page_has_its_bounds(world: World) -> None:
    work = world.task()
    jobs = world.app.enqueue_many([work.job() for _ in range(60)])
    assert len(world.app.list_jobs()) == 50
    assert ids(world.app.list_jobs(limit=1)) == [jobs[-1].id]
    assert len(world.app.list_jobs(limit=1000)) == 60
    for limit in (0, -1, 1001, True):
        with pytest.raises(InvalidOption):
            world.app.list_jobs(limit=limit)


def test_an_unknown_state_is_refused(world: World) -> None:
    with pytest.raises(InvalidOption):
        world.app.list_jobs(state="sleeping")  # type: ignore[arg-type]
    with pytest.raises(JobNotFound):
        world.app.list_jobs(before="no id")


def test_counts_tell_scheduled_and_retrying_apart(world: World) -> None:
    work = world.task(backoff=0)
    for end in (Succeeded, lambda lease: Failed(lease, "fatal"), lambda lease: Canceled(lease, "enough")):
        work.enqueue()
        world.attempt(end)
    work.enqueue()
    world.attempt(Failed, "error", delay=SECOND)
    work.enqueue()
    world.attempt(Snoozed, SECOND)
    work.using(delay=1).enqueue()
    work.enqueue()
    world.claim_one()
    work.using(tenant="acme").enqueue()
    work.using(queue="other", tenant="acme").enqueue()
    assert world.app.count_jobs() == {
        "default": {
            "succeeded": 1,
            "failed": 1,
            "canceled": 1,
            "retrying": 1,
            "scheduled": 2,
            "running": 1,
            "ready": 1,
        },
        "other": {"ready": 1},
    }
    assert world.app.count_jobs(queue="other") == {"other": {"ready": 1}}
    assert world.app.count_jobs(tenant="acme") == {"default": {"ready": 1}, "other": {"ready": 1}}
    assert world.app.count_jobs(queue="default", tenant="acme") == {"default": {"ready": 1}}
    assert world.app.count_jobs(queue="nothing here") == {}
    world.advance(1)
    assert world.app.count_jobs(queue="default")["default"]["ready"] == 4, "what is due is ready"


def test_the_lag_of_a_queue_is_its_oldest_job_that_could_run(world: World) -> None:
    work = world.task()
    work.using(queue="later", delay=60).enqueue()
    held = work.using(queue="held").enqueue()
    world.sql("UPDATE perdure.job SET held = 'limit' WHERE id = :id", id=held.id)
    work.using(queue="a").enqueue()
    world.advance(3)
    work.using(queue="a").enqueue()
    work.using(queue="b").enqueue()
    assert world.app.oldest_ready() == {"a": from_us(NOON), "b": from_us(NOON + 3 * SECOND)}
    assert world.app.oldest_ready(queue="b") == {"b": from_us(NOON + 3 * SECOND)}
    world.claim(1, queues=["a"])
    assert world.app.oldest_ready(queue="a") == {"a": from_us(NOON + 3 * SECOND)}
    assert world.app.oldest_ready(queue="later") == {}
