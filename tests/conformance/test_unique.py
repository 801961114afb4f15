"""Unique keys: at most one active job per key, whatever its arguments."""

from __future__ import annotations

from typing import Any

from perdure.model.lifecycle import Canceled, Continued, Failed, Released, Snoozed, Succeeded, Throttled
from tests.conformance.world import World


def work_once(world: World) -> Any:
    return (world.app.tasks.get("work") or world.task()).using(unique_key="u")


def test_an_active_job_answers_for_its_unique_key(world: World) -> None:
    work = world.task(queue="mail").using(unique_key="u")
    first = work.enqueue(1)
    heard, events = world.listen(), world.events(first)
    again = work.using(priority=9).enqueue(2)
    assert (again.id, again.created, again.queue, again.state) == (first.id, False, "mail", "ready")
    assert world.count("job") == 1
    assert heard == [], "nobody is woken"
    assert world.events(first) == events == [], "nothing happened"


def test_every_state_that_waits_is_active(world: World) -> None:
    job = work_once(world).enqueue()
    for state in ("waiting", "ready", "open"):
        world.sql("UPDATE perdure.job SET state = :state", state=state)
        again = work_once(world).enqueue()
        assert (again.id, again.created, again.state) == (job.id, False, state)


def test_a_scheduled_job_is_active(world: World) -> None:
    work = world.task().using(unique_key="u")
    assert work.using(delay=60).enqueue().id == work.enqueue().id


def test_a_running_job_is_active(world: World) -> None:
    work = world.task().using(unique_key="u")
    job = work.enqueue()
    world.claim_one()
    again = work.enqueue()
    assert (again.id, again.state, again.attempt) == (job.id, "running", 1)


def test_a_job_that_will_run_again_is_active(world: World) -> None:
    for pause in (
        lambda lease: Failed(lease, "error"),
        lambda lease: Failed(lease, "timeout"),
        lambda lease: Snoozed(lease, 10),
        lambda lease: Throttled(lease, 10, cool_queue=False),
        Continued,
        Released,
    ):
        job = work_once(world).enqueue()
        world.attempt(pause)
        assert work_once(world).enqueue().id == job.id
        world.app.delete_job(job.id)


def test_a_job_that_ended_frees_its_unique_key(world: World) -> None:
    for end in (Succeeded, lambda lease: Failed(lease, "fatal"), lambda lease: Canceled(lease, "enough")):
        job = work_once(world).enqueue()
        assert job.created
        world.attempt(end)


def test_a_deleted_job_frees_its_unique_key(world: World) -> None:
    work = world.task().using(unique_key="u")
    world.app.delete_job(work.enqueue().id)
    assert work.enqueue().created


def test_a_unique_key_belongs_to_one_task_and_one_tenant_or_to_none(world: World) -> None:
    work, play = world.task("work"), world.task("play")
    scopes: list[tuple[Any, str | None]] = [(work, None), (work, "a"), (work, "b"), (play, None), (play, "a")]
    jobs = [task.using(unique_key="u", tenant=tenant).enqueue() for task, tenant in scopes]
    assert len({job.id for job in jobs}) == len(scopes)
    again = [task.using(unique_key="u", tenant=tenant).enqueue() for task, tenant in scopes]
    assert [job.id for job in again] == [job.id for job in jobs]


def test_of_both_keys_the_idempotency_key_answers_first(world: World) -> None:
    work = world.task()
    mine = work.using(idempotency_key="k", unique_key="u").enqueue()
    world.attempt(Succeeded)
    active = work.using(unique_key="u").enqueue()
    again = work.using(idempotency_key="k", unique_key="u").enqueue()
    assert (again.id, again.created, again.state) == (mine.id, False, "succeeded")
    assert again.id != active.id


def test_a_free_idempotency_key_is_bound_to_the_active_job(world: World) -> None:
    work = world.task()
    active = work.using(unique_key="u").enqueue()
    both = work.using(idempotency_key="k", unique_key="u")
    assert (both.enqueue().id, both.enqueue().created) == (active.id, False)
    world.attempt(Succeeded)
    assert both.enqueue().id == active.id, "also after it ended"
    world.app.delete_job(active.id)
    assert both.enqueue().created, "and no longer than its row"
