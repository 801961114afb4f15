"""Enqueue many: one transaction, outcomes in the order of the requests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure.app import App
from perdure.errors import InvalidOption, TaskDisabled, UnknownTask
from perdure.request.job import JobRequest
from perdure.request.times import from_us
from tests.conformance.world import NOON, World, ids, work


def stranger() -> JobRequest[int]:
    """A request for a task this database has never heard of."""
    return App("sqlite:///:memory:").task(name="stranger")(work).job()


def test_outcomes_are_in_the_order_of_the_requests(world: World) -> None:
    task = world.task()
    known = task.using(idempotency_key="b").enqueue(2)
    active = task.using(unique_key="y").enqueue(3)
    jobs = world.app.enqueue_many(
        [
            task.using(idempotency_key="z").job(1),
            task.using(unique_key="y").job(9),
            task.job(2),
            task.using(idempotency_key="b").job(2),
            task.using(unique_key="x").job(4),
            task.using(idempotency_key="a").job(5),
        ]
    )
    assert [job.created for job in jobs] == [True, False, True, False, True, True]
    assert (jobs[1].id, jobs[3].id) == (active.id, known.id)
    created = [world.row(job).payload for job in jobs if job.created]
    assert created == ['{"n":1}', '{"n":2}', '{"n":4}', '{"n":5}']


def test_a_request_may_be_enqueued_twice(world: World) -> None:
    request = world.task().job(1)
    one, other = world.app.enqueue_many([request, request])
    assert one.id != other.id


@pytest.mark.parametrize("when", [{}, {"delay": 5}, {"run_at": from_us(NOON + 5)}], ids=str)
def test_a_job_of_many_is_written_like_one_alone(world: World, when: Any) -> None:
    asked = world.task(queue="mail").using(
        **when,
        queue="fast",
        priority=-3,
        max_attempts=2,
        timeout=1.5,
        expires=60,
        tenant="acme",
        tags=["b", "a"],
        meta={"z": 1e16, "a": None},
    )
    alone = world.row(asked.enqueue(1))
    for job in world.app.enqueue_many([asked.job(1)] * 3):
        row = world.row(job)
        assert msgspec.structs.replace(row, id=alone.id) == alone
        assert (job.queue, job.state, job.created) == ("fast", "ready", True)


def test_many_jobs_alike_take_the_defaults_of_their_task(world: World) -> None:
    task = world.task(queue="mail", priority=3, max_attempts=5, timeout=60)
    alone = world.row(task.enqueue())
    world.advance(1)
    heard = world.listen()
    jobs = world.app.enqueue_many([task.job(n) for n in range(3)])
    assert heard == [{"queue/mail"}]
    assert {job.queue for job in jobs} == {"mail"}
    row = world.row(jobs[0])
    assert (row.queue, row.priority, row.max_attempts, row.timeout) == ("mail", 3, 5, alone.timeout)
    assert (row.run_at, row.created_at) == (world.now, world.now)


def test_many_jobs_alike_of_an_unknown_or_disabled_task_are_refused(world: World) -> None:
    with pytest.raises(UnknownTask):
        world.app.enqueue_many([stranger()] * 3)
    task = world.task()
    world.app.save_tasks()
    world.app.set_task("work", enabled=False)
    with pytest.raises(TaskDisabled):
        world.app.enqueue_many([task.job()] * 3)
    assert (world.count("job"), world.woken) == (0, [])


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("keyed", [False, True])
def test_one_unknown_task_undoes_the_batch(world: World, place: int, keyed: bool) -> None:
    task = world.task()
    requests = [task.using(idempotency_key="k", unique_key="u").job() if keyed else task.job(), task.job()]
    world.app.save_tasks()
    heard = world.listen()
    with pytest.raises(UnknownTask):
        world.app.enqueue_many([*requests[:place], stranger(), *requests[place:]])
    assert (world.count("job"), world.count("key")) == (0, 0)
    assert heard == []


def test_one_disabled_task_undoes_the_batch(world: World) -> None:
    task, other = world.task("work"), world.task("other")
    world.app.save_tasks()
    world.app.set_task("other", enabled=False)
    heard = world.listen()
    with pytest.raises(TaskDisabled):
        world.app.enqueue_many([task.job(), other.job(), task.job()])
    assert world.count("job") == 0
    assert heard == []


def test_the_same_idempotency_key_twice_in_a_batch_is_one_job(world: World) -> None:
    task = world.task(queue="mail").using(idempotency_key="k")
    first, again, other = world.app.enqueue_many([task.job(1), task.job(1), task.using(tenant="a").job(1)])
    assert (first.created, again.created, other.created) == (True, False, True)
    assert again.id == first.id != other.id
    assert (again.queue, again.state, again.run, again.attempt) == ("mail", "ready", 1, 0)
    assert world.count("job") == 2


def test_the_same_unique_key_twice_in_a_batch_is_one_job(world: World) -> None:
    task = world.task(queue="mail").using(unique_key="u")
    first, again = world.app.enqueue_many([task.job(1), task.job(2)])
    assert (first.created, again.created) == (True, False)
    assert (again.id, again.queue, again.state) == (first.id, "mail", "ready")
    assert world.row(first).payload == '{"n":1}'


def test_both_keys_twice_in_a_batch_lead_to_the_job_that_is_active(world: World) -> None:
    task = world.task()
    active = task.using(unique_key="u").enqueue()
    both = task.using(unique_key="u", idempotency_key="k")
    first, again = world.app.enqueue_many([both.job(), both.job()])
    assert ids([first, again]) == [active.id, active.id]
    assert (first.created, again.created, again.state) == (False, False, "ready")


def test_different_idempotency_keys_of_one_unique_key_lead_to_one_job(world: World) -> None:
    task = world.task().using(unique_key="u")
    one, other = world.app.enqueue_many(
        [task.using(idempotency_key="z").job(), task.using(idempotency_key="a").job()]
    )
    assert other.id == one.id
    assert [one.created, other.created].count(True) == 1
    assert (
        task.using(idempotency_key="z").enqueue().id == task.using(idempotency_key="a").enqueue().id == one.id
    )


def test_thousands_of_jobs_go_in_one_call(world: World) -> None:
    task = world.task()
    jobs = world.app.enqueue_many([task.job(n) for n in range(2500)])
    assert len({job.id for job in jobs}) == world.count("job") == 2500
    assert [world.row(jobs[n]).payload for n in (0, 999, 1000, 2499)] == [
        f'{{"n":{n}}}' for n in (0, 999, 1000, 2499)
    ]
    assert ids(world.claim(2500)) == ids(jobs)


def test_thousands_of_keyed_jobs_go_in_one_call(world: World) -> None:
    task = world.task()
    requests = [
        task.using(idempotency_key=f"k{n % 1200}", unique_key=f"u{n % 1100}").job() for n in range(1200)
    ]
    jobs = world.app.enqueue_many(requests)
    assert [job.created for job in jobs].count(True) == world.count("job") == 1100
    assert world.count("key") == 1200
    assert ids(jobs[:100]) == ids(jobs[1100:])
    assert ids(world.app.enqueue_many(requests)) == ids(jobs)


def test_no_requests_need_no_database(world: World) -> None:
    world.close()
    assert world.app.enqueue_many([]) == []


def test_only_requests_can_be_enqueued(world: World) -> None:
    no_requests: Any = [world.task()]
    with pytest.raises(InvalidOption):
        world.app.enqueue_many(no_requests)
