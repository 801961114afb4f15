"""Concurrency limits: of a task, of a key, and shared ones. Exact under concurrent claims, and nothing to leak."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from perdure.app import App
from perdure.errors import InvalidOption, InvalidTask, NotFound
from perdure.model.lifecycle import Failed, Succeeded
from perdure.ops import claim as claim_ops
from perdure.ops import limits as limit_ops
from perdure.ops.claim import ClaimRequest
from perdure.worker.operations import WorkerOperations
from tests.conformance.test_damaged_rows import refuse_claims
from tests.conformance.world import POISON, World, ids


def running(world: World) -> int:
    (((count,)),) = world.sql("SELECT count(*) FROM perdure.job WHERE state = 'running'")
    return int(count)


def test_a_task_runs_no_more_jobs_than_its_limit(world: World) -> None:
    work = world.task(concurrency=2)
    jobs = [work.enqueue(n) for n in range(5)]
    first = world.claim(5)
    assert ids(first) == ids(jobs[:2])
    assert world.claim(5) == []
    world.finish(Succeeded(first[0].lease))
    assert ids(world.claim(5)) == ids(jobs[2:3])
    assert running(world) == 2


def test_each_key_has_its_own_limit(world: World) -> None:
    work = world.task(concurrency=1, concurrency_key="{n}")
    jobs = [work.enqueue(n) for n in (1, 1, 2, 2, 3)]
    assert ids(world.claim(9)) == ids([jobs[0], jobs[2], jobs[4]])
    assert world.claim(9) == []
    assert world.row(jobs[0]).concurrency_key == "1"


def test_tasks_share_a_named_limit(world: World) -> None:
    world.app.limit("printer", concurrency=2)
    one, two = world.task("one", limits=["printer"]), world.task("two", limits=["printer"])
    jobs = [one.enqueue(), two.enqueue(), two.enqueue(), one.enqueue()]
    assert ids(world.claim(9)) == ids(jobs[:2])
    assert world.claim(9) == []
    world.app.set_limit("printer", concurrency=3)
    assert ids(world.claim(9)) == ids(jobs[2:3])
    assert world.app.reset_limit("printer") == 2
    assert world.claim(9) == []
    assert [limit[:3] for limit in world.app.list_limits()] == [("printer", 2, 2)]


def test_a_queue_runs_no_more_jobs_than_its_limit(world: World) -> None:
    world.app.queue("narrow", concurrency=2)
    one, two = world.task("one", queue="narrow"), world.task("two", queue="narrow", concurrency=1)
    other = world.task("other")
    jobs = [two.enqueue(), two.enqueue(), one.enqueue(), one.enqueue(), other.enqueue()]
    claimed = world.claim(9) + world.claim(9)
    assert sorted(ids(claimed)) == sorted(ids([jobs[0], jobs[2], jobs[4]]))
    reasons = world.app.explain_job(jobs[3].id).also
    (full,) = [reason.sentence for reason in reasons if reason.code == "limit_full"]
    assert "the limit of the queue narrow (2)" in full
    (advice,) = [reason.advice for reason in reasons if reason.code == "limit_full"]
    assert "set_queue('narrow', concurrency=N)" in advice
    (use,) = [limit for limit in world.app.list_limits() if limit.kind == "queue"]
    assert (use.name, use.concurrency, use.running, use.waiting) == ("narrow", 2, 2, 2)
    world.app.set_queue("narrow", concurrency=3)
    assert ids(world.claim(9)) == ids(jobs[3:4])
    world.app.set_queue("narrow", concurrency=None)
    assert world.claim(9) == []  # the limit of the task is left
    world.finish(Succeeded(claimed[0].lease))
    assert ids(world.claim(9)) == ids(jobs[1:2])


def test_a_limit_on_a_queue_closes_it_to_workers_that_do_not_know_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.worker.claimer.CHECK_INTERVAL", 3600)
    work = world.task()
    jobs = [work.enqueue() for _ in range(4)]
    unaware = WorkerOperations(world.store)
    assert len(unaware.claim(world.worker, tasks=["work"], n=1)) == 1
    assert (
        unaware.claim(world.worker, tasks=["other"], n=1, polls=True) == []
    )  # it has just checked the limits
    world.app.set_queue("default", concurrency=2)
    assert unaware.claim(world.worker, tasks=["work"], n=9, polls=True) == []
    assert ids(world.claim(9)) == ids(jobs[1:2])


def test_a_job_obeys_all_of_its_limits(world: World) -> None:
    world.app.limit("printer", concurrency=2)
    work = world.task("work", concurrency=1, concurrency_key="{n}", limits=["printer"])
    other = world.task("other", limits=["printer"])
    jobs = [work.enqueue(1), work.enqueue(1), other.enqueue(), other.enqueue()]
    assert ids(world.claim(9)) == ids([jobs[0], jobs[2]])
    assert world.claim(9) == []


def test_a_full_key_in_front_does_not_block_others(world: World) -> None:
    work = world.task(concurrency=1, concurrency_key="{note}")
    world.app.enqueue_many([work.job(n, note="full") for n in range(50)])
    others = [work.enqueue(n, note=f"other {n}") for n in range(3)]
    first = world.claim(4)
    assert [job.id for job in first][1:] == ids(others)
    assert world.claim(4) == []


def test_a_job_without_a_key_does_not_wait_behind_a_full_key(world: World) -> None:
    work = world.task(concurrency=1, concurrency_key="{note}")
    world.app.enqueue_many([work.job(n, note="full") for n in range(20)])
    keyless = work.enqueue(note="")
    assert len(world.claim(1)) == 1
    assert ids(world.claim(2)) == [keyless.id]


def test_a_job_that_the_database_refuses_does_not_take_a_slot(world: World) -> None:
    work = world.task(concurrency=1)
    refuse_claims(world)
    refused, other = work.using(tenant=POISON).enqueue(), work.enqueue()
    claimed = world.claim(2) or world.claim(2)
    assert (ids(claimed), world.row(refused).state) == ([other.id], "ready")


def test_a_refused_job_does_not_block_its_concurrency_key(world: World) -> None:
    work = world.task(concurrency=1, concurrency_key="{note}")
    work.enqueue(note="ann")
    assert len(world.claim(1)) == 1
    world.app.enqueue_many([work.job(note="ann") for _ in range(40)])  # so that jobs are searched key by key
    work.using(tenant=POISON).enqueue(note="bob")
    refuse_claims(world)
    good = work.enqueue(note="bob")
    assert good.id in [job.id for _ in range(6) for job in world.claim(5)]


def test_each_group_of_tasks_takes_its_own_turns(world: World) -> None:
    """As a worker does for its handlers in threads and for those in processes."""
    for name in ("a", "b"):
        limited, free = world.task(f"limited {name}", concurrency=9), world.task(f"free {name}")
        world.app.enqueue_many([*(free.job() for _ in range(20)), *(limited.job() for _ in range(2))])
    claimed = [
        world.operations.claim(world.worker, tasks=[f"free {name}", f"limited {name}"], n=1)[0].task
        for _ in range(6)
        for name in ("a", "b")
    ]
    assert claimed.count("limited a") == claimed.count("limited b") == 2


def test_unlimited_jobs_beside_limited_ones(world: World) -> None:
    limited, free = world.task("limited", concurrency=1), world.task("free")
    blocked = [limited.enqueue() for _ in range(20)]
    jobs = [free.enqueue() for _ in range(5)]
    claimed = world.claim(10)
    assert sorted(ids(claimed)) == sorted(ids([blocked[0], *jobs]))
    assert world.claim(10) == []


def test_limited_jobs_are_not_starved_by_unlimited_ones(world: World) -> None:
    limited, free = world.task("limited", concurrency=9), world.task("free")
    world.app.enqueue_many([free.job() for _ in range(20)])
    world.app.enqueue_many([limited.job() for _ in range(4)])
    tasks = [job.task for _ in range(8) for job in world.claim(1)]
    assert tasks.count("limited") == 4


def test_a_worker_obeys_a_limit_that_was_set_after_its_last_claim(world: World) -> None:
    work = world.task("work")
    jobs = [work.enqueue() for _ in range(4)]
    assert ids(world.claim(1)) == ids(jobs[:1])
    other = World(world.url)
    try:
        other.now = world.now
        other.task("work", concurrency=2)
        other.app.save_tasks()
    finally:
        other.close()
    assert ids(world.claim(9)) == ids(jobs[1:2])
    assert world.claim(9) == []


def test_the_slot_of_a_lost_worker_is_free_after_the_rescue(world: World) -> None:
    work = world.task(concurrency=1, backoff=0)
    jobs = [work.enqueue(), work.enqueue()]
    world.claim(2)
    assert world.lose_worker() == ids(jobs[:1])
    assert len(world.claim(2)) == 1
    assert running(world) == 1


def test_a_failed_attempt_frees_its_slot(world: World) -> None:
    work = world.task(concurrency=1, max_attempts=1)
    jobs = [work.enqueue(), work.enqueue()]
    world.attempt(Failed, "error", "x", "y")
    assert ids(world.claim(2)) == ids(jobs[1:])


def test_an_alias_shares_the_limit_of_its_task(world: World) -> None:
    work = world.task(concurrency=1, aliases=["old"])
    world.app.save_tasks()
    jobs = [world.producer().enqueue("old"), work.enqueue()]
    assert ids(world.claim(2)) == ids(jobs[:1])


def test_bulk_single_and_keyed_enqueues_store_the_key(world: World) -> None:
    work: Any = world.task(concurrency=1, concurrency_key=lambda n=0, *, note="": note or None)
    jobs = [
        work.enqueue(note="a"),
        *world.app.enqueue_many([work.job(note="b"), work.job(note="b")]),
        work.using(idempotency_key="k").enqueue(note="c"),
        work.using(concurrency_key="d").enqueue(note="c"),
        work.enqueue(),
    ]
    assert [world.row(job).concurrency_key for job in jobs] == ["a", "b", "b", "c", "d", ""]
    assert world.app.replay_job(_succeeded(world, jobs[0])).id
    (((keys,)),) = world.sql("SELECT count(*) FROM perdure.job WHERE concurrency_key = 'a'")
    assert keys == 2


def _succeeded(world: World, job: Any) -> str:
    for claimed in world.claim(9):
        world.finish(Succeeded(claimed.lease))
    return str(job.id)


def test_wrong_limits_are_refused(world: World) -> None:
    with pytest.raises(InvalidTask, match="concurrency_key needs concurrency"):
        world.task("a", concurrency_key="{n}")
    with pytest.raises(InvalidTask, match="neither tenant nor a parameter"):
        world.task("b", concurrency=1, concurrency_key="{m}")
    for template in ("{n!r}", "{n:d}", "{n:{note}}"):
        with pytest.raises(InvalidTask, match="may only name arguments"):
            world.task("f", concurrency=1, concurrency_key=template)
    with pytest.raises(InvalidTask, match="names no argument"):
        world.task("c", concurrency=1, concurrency_key="fixed")
    with pytest.raises(InvalidOption, match="concurrency"):
        world.task("d", concurrency=0)
    with pytest.raises(NotFound, match="which nobody has set"):
        world.task("e", limits=["nobody's"]).enqueue()
    world.app.limit("one", concurrency=1)
    with pytest.raises(InvalidOption, match="already declared"):
        world.app.limit("one", concurrency=2)


def test_a_burst_right_after_a_change_of_limits_runs_its_jobs(url: str) -> None:
    with App(url) as app:
        app.limit("printer", concurrency=1)
        work = app.task(name="work", limits=["printer"])(lambda: None)
        for concurrency in (1, 2):
            app.set_limit("printer", concurrency=concurrency)
            work.enqueue()
            app.run_worker(burst=True)
            assert app.count_jobs() == {"default": {"succeeded": concurrency}}


def test_a_locked_job_does_not_keep_a_slot_free(postgres_world: World) -> None:
    world = postgres_world
    work = world.task(concurrency=2)
    jobs = [work.enqueue(n) for n in range(4)]
    with psycopg.connect(world.url) as other:
        other.execute("SELECT FROM perdure.job WHERE id = ANY(%s) FOR UPDATE", [ids(jobs[:1])])
        claimed = world.claim(2)
        assert claimed.more
        claimed += world.claim(1)
        assert ids(claimed) == ids(jobs[1:3])
        assert world.claim(2) == []
    world.finish(*(Succeeded(job.lease) for job in claimed))
    assert ids(world.claim(2)) == ids([jobs[0], jobs[3]])


@pytest.mark.parametrize(("concurrency", "claimed"), [(3, slice(1, 3)), (2, slice(1, 2))])
def test_spare_jobs_replace_those_that_another_worker_claims_first(
    world: World, concurrency: int, claimed: slice
) -> None:
    work = world.task(concurrency=concurrency)
    jobs = [work.enqueue(n) for n in range(6)]
    version = world.store.perform(limit_ops.read_version)
    request = ClaimRequest(world.worker, ["work"], 2, limits=version, limited=ids(jobs[:4]))
    assert ids(world.claim(1)) == ids(jobs[:1])
    assert ids(world.store.perform(claim_ops.claim, request).jobs) == ids(jobs[claimed])


def test_keyless_jobs_are_not_limited_behind_a_full_key(world: World) -> None:
    work = world.task(concurrency=1, concurrency_key="{note}")
    world.app.enqueue_many([work.job(n, note="full") for n in range(20)])
    keyless = [work.enqueue(note="") for _ in range(4)]
    assert len(world.claim(1)) == 1
    assert ids(world.claim(5)) == ids(keyless)


def test_a_key_that_is_half_full_does_not_hide_others(world: World) -> None:
    work = world.task(concurrency=2, concurrency_key="{note}")
    jobs = [work.enqueue(note=note) for note in ("a", "a", "b")]
    assert ids(world.claim(3)) == ids(jobs)
    world.app.enqueue_many([work.job(note=note) for note in ("a", "a", "b", "b", "c")])
    assert len(world.claim(2)) == 2


def test_a_free_key_does_not_wait_for_jobs_of_lower_priority(world: World) -> None:
    work = world.task(concurrency=1, concurrency_key="{note}")
    low = world.task("low", priority=-1, concurrency=50)
    world.app.enqueue_many([work.job(n, note="full") for n in range(20)])
    other = work.enqueue(note="other")
    world.app.enqueue_many([low.job() for _ in range(20)])
    assert len(world.claim(1)) == 1
    assert other.id in ids(world.claim(2))
