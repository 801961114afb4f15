"""Enqueue one job: what is stored, what the caller gets, what is refused."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure.errors import InvalidOption, TaskDisabled, UnknownTask
from perdure.model.job import SECOND, Options
from perdure.ops import enqueue as ops
from perdure.request.ids import new_id
from perdure.request.times import from_us
from tests.conformance.world import NOON, World, ids


def test_a_job_takes_the_defaults_of_its_task(world: World) -> None:
    work = world.task(queue="mail", priority=3, max_attempts=5, timeout=60)
    row = world.row(work.enqueue(7, note="hi"))
    assert (row.task, row.queue, row.priority, row.max_attempts, row.timeout) == (
        "work",
        "mail",
        3,
        5,
        60 * SECOND,
    )
    assert (row.state, row.run, row.attempt, row.token, row.worker) == ("ready", 1, 0, 0, None)
    assert (row.created_at, row.run_at, row.started_at, row.finished_at) == (NOON, NOON, None, None)
    assert row.payload == '{"n":7,"note":"hi"}'


def test_what_is_asked_comes_before_the_defaults(world: World) -> None:
    work = world.task(queue="mail", priority=3, max_attempts=5, timeout=60)
    asked = work.using(
        queue="fast",
        priority=-3,
        max_attempts=2,
        timeout=1.5,
        delay=timedelta(minutes=1),
        expires=120,
        tenant="acme",
        tags=["a", "b"],
        meta={"z": 1, "a": [None, 1e16]},
        unique_key="u",
    )
    row = world.row(asked.enqueue())
    assert (row.queue, row.priority, row.max_attempts, row.timeout) == ("fast", -3, 2, 1_500_000)
    assert (row.run_at, row.expires_at) == (NOON + 60 * SECOND, NOON + 120 * SECOND)
    assert (row.tenant, row.unique_key, row.tags) == ("acme", "u", '["a","b"]')
    assert row.meta == '{"z":1,"a":[null,1e16]}', "as it was sent: neither reordered nor rounded"


def test_an_instant_may_be_asked_for_instead_of_a_delay(world: World) -> None:
    later, latest = from_us(NOON + 5), from_us(NOON + 9)
    row = world.row(world.task().using(run_at=later, expires=latest).enqueue())
    assert (row.run_at, row.expires_at) == (NOON + 5, NOON + 9)


def test_a_task_without_a_timeout_has_jobs_without_one(world: World) -> None:
    work = world.task(timeout=None)
    assert world.row(work.enqueue()).timeout is None
    assert world.row(work.using(timeout=1).enqueue()).timeout == SECOND


def test_the_handle_knows_what_was_enqueued(world: World) -> None:
    job = world.task(queue="mail").enqueue(1)
    assert (job.task, job.queue, job.state, job.run, job.attempt) == ("work", "mail", "ready", 1, 0)
    assert job.created
    assert (job.result, job.error, job.progress, job.meta) == (None, None, None, {})


def test_delay_is_another_name_for_enqueue(world: World) -> None:
    work = world.task()
    assert world.row(work.delay(3)).payload == world.row(work.enqueue(3)).payload


def test_a_producer_without_the_code_enqueues_by_name(world: World) -> None:
    world.task(queue="mail", priority=2)
    world.app.save_tasks()
    job = world.producer().enqueue("work", {"n": 7}, delay=1, tags=["x"])
    row = world.row(job)
    assert (row.queue, row.priority, row.payload, row.run_at) == ("mail", 2, '{"n":7}', NOON + SECOND)
    assert (job.queue, job.created) == ("mail", True)


def test_a_producer_may_leave_the_arguments_out(world: World) -> None:
    world.task()
    world.app.save_tasks()
    assert world.row(world.producer().enqueue("work")).payload == "{}"


def test_a_name_of_the_own_code_means_its_task(world: World) -> None:
    world.task()
    assert world.row(world.app.enqueue("work", {"n": 7})).payload == '{"n":7}'


def test_an_alias_is_a_name_of_its_own(world: World) -> None:
    world.task(name="new", aliases=["old"], queue="mail")
    world.app.save_tasks()
    row = world.row(world.producer().enqueue("old"))
    assert (row.task, row.queue) == ("old", "mail")
    assert ids(world.claim()) == [row.id]


def test_an_unknown_task_is_refused(world: World) -> None:
    with pytest.raises(UnknownTask):
        world.app.enqueue("nobody.has.it", {"n": 1})
    assert world.count("job") == 0


def test_a_disabled_task_is_refused_while_its_queued_work_runs(world: World) -> None:
    work = world.task()
    queued = work.enqueue()
    world.app.set_task("work", enabled=False)
    with pytest.raises(TaskDisabled):
        work.enqueue()
    with pytest.raises(TaskDisabled):
        world.producer().enqueue("work")
    assert ids(world.claim(9)) == [queued.id]
    world.app.set_task("work", enabled=True)
    assert work.enqueue().created


def test_only_a_known_task_can_be_disabled(world: World) -> None:
    with pytest.raises(UnknownTask):
        world.app.set_task("nobody.has.it", enabled=False)


def test_jobs_of_one_microsecond_run_in_the_order_they_came(world: World) -> None:
    work = world.task()
    one_by_one = [work.enqueue(n) for n in range(20)]
    together = world.app.enqueue_many([work.job(n) for n in range(20)])
    assert ids(world.claim(100)) == ids([*one_by_one, *together])


def test_a_lost_answer_is_asked_for_again_without_a_second_job(world: World) -> None:
    work = world.task()
    world.app.save_tasks()
    plain = work.job(1).new()
    keyed = work.using(idempotency_key="k", unique_key="u").job(1).new()
    alike = {new_id(): "{}" for _ in range(1200)}
    for _ in range(2):
        (first,) = world.store.perform(ops.enqueue, [plain])
        (second,) = world.store.perform(ops.enqueue_keyed, [keyed])
        assert (first.id, first.created) == (plain.id, True)
        assert (second.id, second.created, second.queue) == (keyed.id, True, "default")
        assert world.store.perform(ops.enqueue_alike, "work", Options(), alike, frozenset()) == "default"
    assert world.count("job") == 1202


def test_a_delay_and_an_instant_exclude_each_other(world: World) -> None:
    with pytest.raises(InvalidOption):
        world.task().using(delay=1, run_at=from_us(NOON)).enqueue()
    assert world.count("job") == 0
