"""Why a job is not running, read from a database."""

from __future__ import annotations

import pytest

from perdure import Workflow
from perdure.errors import JobNotFound
from perdure.model.explain import MOST_AHEAD, Explanation, Reason
from perdure.model.job import SECOND
from perdure.model.lifecycle import Failed, Snoozed, Succeeded, Throttled
from tests.conformance.flow import Flow
from tests.conformance.world import LEASE, World


def serve(world: World, *, tasks: tuple[str, ...] = ("work",), queues: list[str] | None = None) -> None:
    world.operations.register("server", name="ann", lease=LEASE, tasks=tasks, queues=queues)
    world.worker = "server"


def code(world: World, id: str) -> str:
    return world.app.explain_job(id).code


def test_a_job_that_is_not_there_is_not_found(world: World) -> None:
    for id in ("0198a1b2-0000-7000-8000-000000000000", "no id"):
        with pytest.raises(JobNotFound):
            world.app.explain_job(id)


def test_a_life_as_it_is_explained(world: World) -> None:
    serve(world)
    job = world.task(backoff=0).using(delay=5).enqueue()
    assert code(world, job.id) == "scheduled"
    world.advance(5)
    assert code(world, job.id) == "ready"
    claimed = world.claim_one()
    assert world.app.explain_job(job.id).sentence.startswith("It runs on ann since 2027-01-15 08:00:05 UTC")
    world.finish(Failed(claimed.lease, "error", delay=SECOND))
    assert code(world, job.id) == "retrying"
    world.advance(1)
    world.claim_one()
    world.app.cancel_job(job.id)
    assert code(world, job.id) == "cancel_requested"
    world.advance(LEASE / SECOND)
    assert code(world, job.id) == "lost"
    world.operations.rescue()
    assert code(world, job.id) == "ended"


def test_a_queue_that_hands_out_nothing(world: World) -> None:
    serve(world)
    work = world.task()
    job = work.enqueue()
    world.app.pause_queue("default")
    assert code(world, job.id) == "queue_paused"
    world.app.resume_queue("default")
    world.attempt(Throttled, 60 * SECOND)
    other = work.enqueue()
    assert code(world, other.id) == "queue_cooling"
    elsewhere = work.using(queue="other").enqueue()
    assert code(world, elsewhere.id) == "ready", "another queue's settings are its own"


def test_who_serves(world: World) -> None:
    job = world.task().enqueue()
    assert code(world, job.id) == "task_unserved", "the world's own worker says nothing of its tasks"
    serve(world, queues=["other"])
    assert code(world, job.id) == "unserved"
    world.advance(LEASE / SECOND)
    assert code(world, job.id) == "no_worker", "a silent worker serves nobody, though it is not retired yet"


def test_a_queue_nobody_serves(world: World) -> None:
    job = world.task().enqueue()
    serve(world, queues=["other"])
    world.operations.retire("worker-1")
    assert code(world, job.id) == "queue_unserved"


def test_an_expired_job_and_a_held_one(world: World) -> None:
    serve(world)
    work = world.task()
    expired, held = work.using(expires=1).enqueue(), work.enqueue()
    world.sql("UPDATE perdure.job SET held = 'limit' WHERE id = :id", id=held.id)
    world.advance(1)
    assert code(world, expired.id) == "expired"
    assert world.app.explain_job(held.id).sentence == "It is held by limit."


def test_the_jobs_ahead_are_those_that_would_be_claimed_before(world: World) -> None:
    serve(world)
    work = world.task()
    mine = work.using(priority=1).enqueue()
    work.using(priority=1).enqueue()
    work.using(priority=2, delay=60).enqueue()
    work.using(priority=2, queue="other").enqueue()
    work.enqueue()
    assert code(world, mine.id) == "ready", "behind it, later, elsewhere and less important are not ahead"
    last = work.using(priority=0).enqueue()
    assert world.app.explain_job(last.id).sentence == "3 jobs of its queue come before it."
    order = [job.id for job in world.claim(10, queues=["default"])]
    assert order.index(last.id) == 3, "as the claim has it"


def test_what_stands_ahead_is_counted_up_to_a_bound(world: World) -> None:
    serve(world)
    work = world.task()
    world.app.enqueue_many([work.job() for _ in range(MOST_AHEAD + 5)])
    last = work.enqueue()
    assert world.app.explain_job(last.id).sentence == "1,000 or more jobs of its queue come before it."


def test_an_ended_job_says_how(world: World) -> None:
    world.task().enqueue()
    job = world.attempt(Succeeded)
    assert world.app.explain_job(job.id).sentence == "It succeeded at 2027-01-15 08:00:00 UTC (0 s ago)."


def test_a_step_names_what_it_waits_for(flow: Flow) -> None:
    serve(flow.world)
    started = flow.start(flow.of(a=[], b=[], c=["a", "~b"]))
    a, _, c = (step.id for step in started.steps())
    flow.claim(1)
    told = flow.app.explain_job(c)
    assert told.sentence == (
        f"It waits for a (running) and b (ready) to end, as step c of workflow {started.id}."
    )
    assert told.advice == f"explain_job({a!r}) shows why the first of them has not ended."


def test_a_gate_is_open_until_its_time_runs_out(flow: Flow) -> None:
    serve(flow.world)
    ask = Workflow("ask")
    ask.gate("sure", timeout=60)
    started = flow.start(ask)
    (gate,) = (step.id for step in started.steps())
    told = flow.app.explain_job(gate)
    assert told.code == "open"
    assert told.sentence.startswith("It is open: it waits to be resolved until 2027-01-15 08:01:00 UTC")
    flow.world.advance(60)
    late = flow.app.explain_job(gate)
    assert (late.code, [reason.code for reason in late.also]) == ("gate_overdue", ["no_worker"])
    flow.world.operations.expire()
    assert code(flow.world, gate) == "ended"


def test_a_job_that_its_handler_put_off(world: World) -> None:
    serve(world)
    world.task().enqueue()
    job = world.attempt(Snoozed, 60 * SECOND)
    assert code(world, job.id) == "put_off"


def test_a_task_that_nobody_knows_and_one_that_is_disabled(world: World) -> None:
    serve(world, tasks=("other",))
    job = world.task().enqueue()
    world.app.set_task("work", enabled=False)
    told = world.app.explain_job(job.id)
    assert (told.code, [reason.code for reason in told.also]) == ("task_unserved", ["task_disabled"])
    world.sql("DELETE FROM perdure.task")
    assert code(world, job.id) == "task_unknown"


def test_workers_without_a_free_slot(world: World) -> None:
    serve(world)
    work = world.task()
    first, second = work.enqueue(), work.enqueue()
    world.claim_one()
    told = world.app.explain_job(second.id)
    assert (told.code, told.also) == ("workers_busy", [])
    world.operations.register("another", name="bob", lease=LEASE, tasks=["work"])
    assert code(world, second.id) == "ready"
    assert code(world, first.id) == "running"


def test_a_job_under_which_workers_died(world: World) -> None:
    work = world.task(backoff=0)
    job = work.enqueue()
    for _ in range(2):
        world.claim_one()
        world.lose_worker()
    serve(world)
    told = world.app.explain_job(job.id)
    assert (told.code, told.also[0].code) == ("ready", "alone")
    assert told.also[0].sentence.startswith("Workers or processes died under it 2 times")


def test_a_worker_that_falls_silent_is_told_until_its_job_runs_elsewhere(world: World) -> None:
    serve(world)
    job = world.task().enqueue()
    world.claim_one()
    assert world.app.explain_job(job.id).also == []
    world.advance(LEASE / SECOND / 2 + 1)
    told = world.app.explain_job(job.id)
    assert (told.code, [reason.code for reason in told.also]) == ("running", ["worker_silent"])
    assert told.also[0].sentence == (
        "Its worker ann has been silent since 2027-01-15 08:00:00 UTC (16 s ago); if it stays so, its jobs are taken "
        "over at 2027-01-15 08:00:30 UTC (in 14 s)."
    )
    world.advance(LEASE / SECOND / 2)
    told = world.app.explain_job(job.id)
    assert told.code == "lost"
    assert told.sentence == (
        "It runs since 2027-01-15 08:00:00 UTC (31 s ago), but its worker ann has been silent since "
        "2027-01-15 08:00:00 UTC (31 s ago); the next sweep takes it over."
    )
    world.operations.rescue()
    world.operations.register("other", name="bob", lease=LEASE, tasks=["work"])
    world.worker = "other"
    for claim in (False, True):
        if claim:
            world.claim_one()
        told = world.app.explain_job(job.id)
        assert (told.code, told.also[-1].code) == ("running" if claim else "ready", "taken_over")
        assert told.also[-1].sentence == (
            "It was taken over from the worker ann at 2027-01-15 08:00:31 UTC (0 s ago), which had been silent since "
            "2027-01-15 08:00:00 UTC (31 s ago)."
        )


def test_a_worker_that_stopped_in_order_was_never_silent(world: World) -> None:
    serve(world)
    job = world.task().enqueue()
    world.claim_one()
    world.operations.retire(world.worker)
    world.operations.register("other", name="bob", lease=LEASE, tasks=["work"])
    told = world.app.explain_job(job.id)
    assert told.code == "lost", "until the next sweep"
    assert "silent since" not in told.sentence
    assert [reason.code for reason in told.also] == []


def test_nobody_is_there_to_rescue_it(world: World) -> None:
    job = world.task().enqueue()
    world.claim_one()
    world.advance(LEASE / SECOND)
    told = world.app.explain_job(job.id)
    assert (told.code, [reason.code for reason in told.also]) == ("lost", ["no_worker"])


def test_a_requeue_that_a_unique_key_forbids_is_told_beforehand(world: World) -> None:
    keyed = world.task().using(unique_key="u")
    job = keyed.enqueue()
    job.cancel()
    assert world.app.explain_job(job.id).also == []
    holder = keyed.enqueue()
    (also,) = world.app.explain_job(job.id).also
    assert also.code == "unique_key_taken"
    assert also.sentence.startswith(f"Job {holder.id} has its unique key")
    assert job.requeue() == "unique_key_taken"
    holder.cancel()
    assert world.app.explain_job(job.id).also == []


def test_advice_can_be_followed(world: World) -> None:
    """An action that the advice names does what the advice says."""
    serve(world)
    work = world.task(max_attempts=1)

    def follow(reason: Reason | Explanation) -> object:
        return eval(f"app.{reason.advice.partition(')')[0]})", {"app": world.app})

    later = work.using(delay=60).enqueue()
    assert follow(world.app.explain_job(later.id)) == "due_now"
    world.app.pause_queue("default")
    follow(world.app.explain_job(later.id))
    world.app.set_task("work", enabled=False)
    follow(world.app.explain_job(later.id).also[0])
    done = world.attempt(Succeeded)
    assert done.id == later.id
    follow(world.app.explain_job(done.id))
    failed = world.attempt(Failed, "error")
    assert follow(world.app.explain_job(failed.id)) == "requeued"
    running = world.claim_one()
    assert follow(world.app.explain_job(running.id)) == "cancel_requested"


def test_a_full_limit_and_the_jobs_that_have_its_slots(world: World) -> None:
    world.app.limit("printer", concurrency=4)
    serve(world, tasks=("work", "other"))
    work = world.task(limits=["printer"], concurrency=1, concurrency_key="{n}")
    other = world.task("other", limits=["printer"])
    holders = [work.enqueue(7), other.enqueue(), other.enqueue()]
    for _ in holders:
        world.claim_one()
        world.advance(1)
    same_key, free = work.enqueue(7), work.enqueue(8)
    world.operations.register("another", name="bob", lease=LEASE, tasks=["work"])
    told = world.app.explain_job(same_key.id)
    assert (told.code, told.also) == ("limit_full", [])
    assert told.sentence == (
        f"It waits for a slot of the limit of the task work for the key 7 (1): job {holders[0].id} has it."
    )
    assert told.advice == (
        f"Wait until a slot is free, or cancel_job({holders[0].id!r}). The code declares the limit."
    )
    assert code(world, free.id) == "behind"
    holders.append(other.enqueue())
    world.claim(9)
    waiting = other.enqueue()
    assert code(world, free.id) == "running", "or the limit is not full by the job meant"
    told = world.app.explain_job(waiting.id)
    first, second, third = (job.id for job in holders[:3])
    assert told.sentence == (
        f"It waits for a slot of the limit printer (4): jobs {first}, {second}, {third} and 1 more have them."
    )
    assert told.advice == (
        f"Wait until a slot is free, or cancel_job({first!r}). set_limit('printer', concurrency=N) changes the limit."
    )
    assert [reason.code for reason in world.app.explain_job(same_key.id).also] == ["limit_full"], (
        "both limits"
    )
    later = other.using(delay=60).enqueue()
    assert code(world, later.id) == "scheduled"
    world.app.set_limit("printer", concurrency=None)
    assert code(world, waiting.id) in ("ready", "behind", "workers_busy")
