"""Replay: a new job from one that succeeded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from perdure import Workflow
from perdure.client.job import Job
from perdure.errors import IdempotencyConflict, JobNotFound, Refused, TaskDisabled, UnknownTask
from perdure.model.job import Claimed
from perdure.model.lifecycle import Failed, Succeeded
from perdure.ops.topics import queue_topics
from tests.conformance.world import World

COPIED = ("task", "queue", "tenant", "payload", "meta", "tags", "priority", "max_attempts", "timeout")
NO_JOB = "0198a1b2-0000-7000-8000-000000000000"


def succeeded(world: World, **options: Any) -> Claimed:
    task = world.app.tasks.get("work") or world.task()
    task.using(**options).enqueue(7, note="x")
    return world.attempt(Succeeded, "7")


def refused(code: str, verb: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        verb()
    assert caught.value.code == code
    return str(caught.value)


def test_a_replay_is_a_new_job_like_the_old_one(world: World) -> None:
    old = succeeded(
        world,
        queue="mail",
        priority=3,
        max_attempts=2,
        timeout=9,
        tenant="acme",
        tags=["a"],
        meta={"by": "ann"},
        delay=0,
        expires=5,
        unique_key="u",
        idempotency_key="k",
    )
    world.advance(60)
    heard = world.listen()
    new = world.app.replay_job(old.id)
    assert (new.created, new.state, new.queue, new.id != old.id) == (True, "ready", "mail", True)
    before, after = world.row(old.id), world.row(new)
    assert {name: getattr(after, name) for name in COPIED} == {name: getattr(before, name) for name in COPIED}
    assert (after.replay_of, after.run_at, after.created_at) == (old.id, world.now, world.now)
    assert after.unique_key == "u"
    assert (after.expires_at, after.run, after.attempt, after.result) == (None, 1, 0, None)
    assert heard == [queue_topics(["mail"])]
    world.attempt(Succeeded, "7")
    assert new.get() == 7
    assert world.row(old.id) == before, "nothing happens to the old one"


def test_what_has_no_timeout_gets_none_although_its_task_has_one_by_now(world: World) -> None:
    world.task(timeout=None)
    old = succeeded(world)
    world.sql("UPDATE perdure.task SET timeout = 5000000, priority = 7, max_attempts = 3, queue = 'new'")
    row = world.row(world.app.replay_job(old.id))
    assert (row.timeout, row.priority, row.max_attempts, row.queue) == (None, 0, 8, "default")


def test_both_histories_tell_of_each_other(world: World) -> None:
    old = succeeded(world)
    new = world.app.replay_job(old.id, by="ann", reason="lost in the mail")
    last = world.app.job_history(old.id)[-1]
    assert (last.what, last.detail) == (
        "replayed",
        {"as": new.id, "reason": "lost in the mail", "by": "ann"},
    )
    (first,) = world.app.job_history(new.id)
    assert (first.what, first.detail) == ("enqueued", {"queue": "default", "replay_of": old.id})


def test_the_same_request_key_gives_the_same_job(world: World) -> None:
    old = succeeded(world)
    new = world.app.replay_job(old.id, request_key="ticket-42")
    again = world.app.replay_job(old.id, request_key="ticket-42", by="bob", reason="again")
    assert (again.id, again.created, new.created) == (new.id, False, True)
    world.attempt(Succeeded)
    ended = world.app.replay_job(old.id, request_key="ticket-42")
    assert (ended.id, ended.state) == (new.id, "succeeded"), "also after its end"
    assert [entry.what for entry in world.app.job_history(old.id)].count("replayed") == 1
    other = world.app.replay_job(old.id)
    assert other.created, "without a key each is one more"
    assert world.count("job") == 3


def test_a_request_key_is_an_idempotency_key_of_its_task_and_tenant(world: World) -> None:
    old, other = succeeded(world), succeeded(world, idempotency_key="order-7")
    world.app.replay_job(old.id, request_key="k")
    with pytest.raises(IdempotencyConflict) as conflict:
        world.app.replay_job(other.id, request_key="k")
    assert conflict.value.field == "replay_of"
    with pytest.raises(IdempotencyConflict):
        world.app.replay_job(old.id, request_key="order-7")
    with pytest.raises(IdempotencyConflict):
        world.app.tasks["work"].using(idempotency_key="k").enqueue()
    world.attempt(Succeeded)
    elsewhere = succeeded(world, tenant="acme")
    assert world.app.replay_job(elsewhere.id, request_key="k").created
    assert world.count("event") == 2, "a refused one leaves nothing"


def test_a_request_key_answers_when_the_source_is_gone(world: World) -> None:
    old = succeeded(world)
    succeeded(world, tenant="acme", idempotency_key="k")
    new = world.app.replay_job(old.id, request_key="k")
    world.app.delete_job(old.id)
    again = world.app.replay_job(old.id, request_key="k")
    assert (again.id, again.created, again.task, again.state) == (new.id, False, "work", "ready")
    for key in (None, "other"):
        with pytest.raises(JobNotFound):
            world.app.replay_job(old.id, request_key=key)
    with pytest.raises(JobNotFound):
        world.app.replay_job(NO_JOB, request_key="k")
    assert world.count("job") == 2


def test_a_replay_can_be_replayed(world: World) -> None:
    old = succeeded(world)
    second = world.app.replay_job(old.id)
    world.attempt(Succeeded)
    third = world.app.replay_job(second.id)
    assert [world.row(job).replay_of for job in (second, third)] == [old.id, second.id]


def test_only_what_succeeded_is_replayed(world: World) -> None:
    work = world.task(max_attempts=1, backoff=0)
    jobs: dict[str, Job[Any]] = {"ready": work.enqueue()}
    said = refused("job.not_succeeded", lambda: world.app.replay_job(jobs["ready"].id))
    assert said == "Only a job that succeeded can be replayed, and this one is ready: it has not ended yet."
    world.claim_one()
    assert "running: it has not ended" in refused(
        "job.not_succeeded", lambda: world.app.replay_job(jobs["ready"].id)
    )
    work.enqueue()
    failed = world.attempt(Failed, "error")
    canceled = work.enqueue()
    canceled.cancel()
    assert "failed: requeue_job" in refused("job.not_succeeded", lambda: world.app.replay_job(failed.id))
    assert "canceled: requeue_job" in refused("job.not_succeeded", lambda: world.app.replay_job(canceled.id))
    for id in (NO_JOB, "no id"):
        with pytest.raises(JobNotFound):
            world.app.replay_job(id)
    assert world.count("job") == 3


def test_a_step_of_a_workflow_is_not_replayed(world: World) -> None:
    flow = Workflow("publish")
    flow.step("print", world.task().job(1))
    world.app.start_workflow(flow)
    claimed = world.claim_one()
    world.finish(Succeeded(claimed.lease, workflow=claimed.workflow_id))
    assert "step print" in refused("job.is_a_step", lambda: world.app.replay_job(claimed.id))


def test_a_task_that_is_disabled_or_gone(world: World) -> None:
    old = succeeded(world)
    new = world.app.replay_job(old.id, request_key="k")
    world.app.set_task("work", enabled=False)
    with pytest.raises(TaskDisabled, match="work"):
        world.app.replay_job(old.id)
    assert world.app.replay_job(old.id, request_key="k").id == new.id, "the answer is known"
    world.sql("DELETE FROM perdure.task")
    with pytest.raises(UnknownTask, match="work"):
        world.producer().replay_job(old.id)
    assert world.count("job") == 2


def test_a_unique_key_that_another_job_has(world: World) -> None:
    old = succeeded(world, unique_key="u")
    holder = world.app.tasks["work"].using(unique_key="u").enqueue(8)
    said = refused("job.unique_key_taken", lambda: world.app.replay_job(old.id, request_key="k"))
    assert said == f"Job {holder.id} has its unique key and is ready: wait until it ends, or cancel it."
    assert (world.count("key"), world.count("event")) == (0, 0)
    holder.cancel()
    new = world.app.replay_job(old.id, request_key="k")
    assert new.created
    again = world.app.replay_job(old.id)
    assert (again.id, again.created) == (new.id, False), "a replay that is under way answers for the next"


def test_an_expired_holder_of_the_unique_key_does_not_count(world: World) -> None:
    old = succeeded(world, unique_key="u")
    world.app.tasks["work"].using(unique_key="u", expires=1).enqueue(8)
    world.advance(1)
    assert world.app.replay_job(old.id).created


async def test_the_async_twin(world: World) -> None:
    old = await asyncio.to_thread(succeeded, world)
    new = await world.app.areplay_job(old.id)
    assert new.created
    assert [entry.detail.get("as") for entry in await world.app.ajob_history(old.id)][-1] == new.id


def test_many_who_ask_at_once_under_one_key_get_one_job(world: World) -> None:
    old = succeeded(world)
    with ThreadPoolExecutor(4) as pool:
        jobs = [*pool.map(lambda _: world.app.replay_job(old.id, request_key="k"), range(12))]
    assert len({job.id for job in jobs}) == 1
    assert sum(job.created for job in jobs) == 1
    assert (world.count("job"), world.count("event")) == (2, 1)
