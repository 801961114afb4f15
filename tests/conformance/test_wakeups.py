"""Wake-ups by a commit: once per queue, only if there is something to do, never after a refusal."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.model.job import SECOND
from perdure.model.lifecycle import Continued, Failed, Released, Snoozed, Succeeded
from perdure.request.times import from_us
from tests.conformance.world import NOON, World

MAIL = frozenset(["queue/mail"])


def test_an_enqueue_wakes_its_queue(world: World) -> None:
    work = world.task(queue="mail")
    world.app.save_tasks()
    heard = world.listen()
    work.enqueue()
    work.using(queue="fast").enqueue()
    work.using(unique_key="u").enqueue()
    assert heard == [MAIL, {"queue/fast"}, MAIL]


def test_a_batch_wakes_each_of_its_queues_once(world: World) -> None:
    work = world.task(queue="mail")
    heard = world.listen()
    unkeyed: Any = {}
    for keys in (unkeyed, {"unique_key": "u"}):
        world.app.enqueue_many(
            [*(work.job(n) for n in range(5)), work.using(queue="fast", **keys).job(), work.job()]
        )
    assert heard == [{"queue/mail", "queue/fast"}, {"queue/mail", "queue/fast"}]


@pytest.mark.parametrize("keys", [{}, {"idempotency_key": "k"}, {"unique_key": "u"}])
def test_a_job_for_later_wakes_nobody(world: World, keys: Any) -> None:
    work = world.task(queue="mail").using(**keys)
    heard = world.listen()
    work.using(delay=0.000001).enqueue()
    work.using(run_at=from_us(NOON + 1), tenant="a").enqueue()
    world.app.enqueue_many([work.using(delay=1, tenant="b").job(), work.using(queue="now", tenant="c").job()])
    assert heard == [{"queue/now"}]


@pytest.mark.parametrize("keys", [{}, {"idempotency_key": "k"}, {"unique_key": "u"}])
def test_a_job_asked_for_at_an_instant_that_has_come_wakes_its_queue(world: World, keys: Any) -> None:
    work = world.task(queue="mail").using(**keys)
    heard = world.listen()
    work.using(run_at=from_us(NOON)).enqueue()
    work.using(run_at=from_us(NOON - SECOND), tenant="a").enqueue()
    work.using(delay=0, tenant="b").enqueue()
    assert heard == [MAIL, MAIL, MAIL]


def test_a_producer_without_the_code_wakes_the_queue_of_the_task(world: World) -> None:
    world.task(queue="mail")
    world.app.save_tasks()
    app, heard = world.producer(), world.listen()
    app.enqueue("work")
    app.enqueue("work", queue="fast")
    app.enqueue("work", delay=1)
    assert heard == [MAIL, {"queue/fast"}]


def test_a_resumed_queue_is_woken_and_a_paused_one_is_not(world: World) -> None:
    heard = world.listen()
    world.app.pause_queue("mail")
    assert heard == []
    world.app.resume_queue("mail")
    assert heard == [MAIL]


def test_a_job_that_may_run_again_at_once_wakes_its_queue(world: World) -> None:
    work = world.task(queue="mail")
    for end in (
        Released,
        Continued,
        lambda lease: Snoozed(lease, 0),
        lambda lease: Failed(lease, "interrupted"),
    ):
        work.enqueue()
        heard = world.listen()
        job = world.attempt(end)
        assert heard == [MAIL]
        world.app.delete_job(job.id)


def test_a_job_that_ended_or_waits_wakes_nobody(world: World) -> None:
    work = world.task(queue="mail", backoff=60)
    world.app.enqueue_many([work.job() for _ in range(4)])
    heard = world.listen()
    world.attempt(Succeeded)
    world.attempt(Snoozed, SECOND)
    world.attempt(Released, SECOND)
    world.attempt(Failed, "error", delay=SECOND)
    assert heard == []


def test_a_rescue_wakes_the_queues_of_the_jobs_it_frees(world: World) -> None:
    work = world.task(queue="mail")
    world.app.enqueue_many([work.job(), work.job(), work.using(queue="fast").job()])
    world.claim(3)
    heard = world.listen()
    world.lose_worker()
    assert heard == [{"queue/mail", "queue/fast"}]


def test_operators_wake_whom_they_should(world: World) -> None:
    work = world.task(queue="mail")
    job = work.using(delay=60).enqueue()
    heard = world.listen()
    world.app.run_now(job.id)
    assert heard == [MAIL], "a job that is due now"
    world.claim_one()
    heard = world.listen()
    world.app.cancel_job(job.id)
    assert heard == [{f"worker/{world.worker}"}], "the worker that should stop"
    world.app.delete_job(job.id)
    assert heard == [{f"worker/{world.worker}"}] * 2
    world.app.requeue_job(job.id)
    assert len(heard) == 2, "nobody, because it still runs"
    (lease,) = world.operations.heartbeat(world.worker).running
    world.finish(Released(lease))
    heard = world.listen()
    world.app.requeue_job(job.id)
    assert heard == [MAIL], "a job that may run again"
    heard = world.listen()
    world.app.cancel_job(job.id)
    world.app.delete_job(job.id)
    assert heard == [{"ended"}], "nobody runs it, but somebody may wait for it"
