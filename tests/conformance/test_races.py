"""Concurrent threads: no job twice, no deadlock, no lost answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psycopg
import pytest

from perdure.model.lifecycle import Failed, Succeeded
from tests.conformance.world import World, ids


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Do these in threads that start together; return what each returned."""
    start = threading.Barrier(len(acts))
    results: list[Any] = [None] * len(acts)

    def run(n: int) -> None:
        try:
            start.wait()
            results[n] = acts[n]()
        except BaseException as error:
            results[n] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def deadlocks(url: str) -> int:
    """How many deadlocks PostgreSQL has counted in this database, once all connections are closed."""
    if url.startswith("sqlite"):
        return 0
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(OTHERS).fetchone() != (0,):
            pass
        (number,) = connection.execute(DEADLOCKS).fetchone() or (0,)
        return int(number)


OTHERS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


def test_those_who_claim_never_share_a_job(world: World) -> None:
    work = world.task()
    jobs = world.app.enqueue_many([work.using(priority=n % 3).job() for n in range(240)])
    workers = [world.new_worker() for _ in range(4)]

    def drain(worker: str) -> list[str]:
        taken: list[str] = []
        while batch := world.operations.claim(worker, tasks=["work"], n=7):
            taken += ids(batch)
        return taken

    taken = at_once(*(partial(drain, worker) for worker in workers))
    assert sorted(id for batch in taken for id in batch) == sorted(ids(jobs))
    believed = [world.operations.heartbeat(worker).running for worker in workers]
    assert [len(leases) for leases in believed] == [len(batch) for batch in taken]


@pytest.mark.parametrize("key", ["idempotency_key", "unique_key"])
def test_those_who_ask_for_the_same_get_the_same(world: World, key: str) -> None:
    work = world.task()
    world.app.save_tasks()
    for n in range(15):
        asked: Any = {key: f"{n}"}
        jobs = at_once(*[partial(work.using(**asked).enqueue, 1)] * 3)
        assert len(set(ids(jobs))) == 1
        assert [job.created for job in jobs].count(True) == 1
        assert {job.state for job in jobs} == {"ready"}
    assert world.count("job") == 15


@pytest.mark.parametrize("keys", [("idempotency_key",), ("unique_key",), ("idempotency_key", "unique_key")])
def test_opposite_batches_never_deadlock(url: str, keys: Sequence[str]) -> None:
    before = deadlocks(url)
    world = World(url)
    tasks = [world.task("work"), world.task("other")]
    world.app.save_tasks()
    for n in range(12):
        asked: list[Any] = [{key: f"{n}-{i}" for key in keys} for i in range(40)]
        forth = [tasks[i % 2].using(tenant=f"{i % 3}", **asked[i]).job() for i in range(40)]
        there, back = at_once(
            partial(world.app.enqueue_many, forth), partial(world.app.enqueue_many, forth[::-1])
        )
        assert ids(there) == ids(back[::-1])
        assert all(one.created != other.created for one, other in zip(there, back[::-1], strict=True))
    assert world.count("job") == 12 * 40
    world.close()
    assert deadlocks(url) == before


@pytest.mark.parametrize("key", ["idempotency_key", "unique_key"])
def test_opposite_batches_that_meet_in_the_middle_never_deadlock(postgres_url: str, key: str) -> None:
    """Another transaction holds the key in the middle until both have come as far as they can."""
    before = deadlocks(postgres_url)
    world = World(postgres_url)
    work = world.task()
    asked: list[Any] = [{key: f"{n:02}"} for n in range(21)]
    forth = [work.using(**one).job() for one in asked]
    work.using(**asked[10]).enqueue()
    table = "perdure.key" if key == "idempotency_key" else "perdure.job"
    with psycopg.connect(postgres_url) as middle, psycopg.connect(postgres_url, autocommit=True) as watcher:
        # A delete that will be rolled back: an insert of this key waits to see whether it is free.
        middle.execute(f"DELETE FROM {table}".encode())

        def let_go() -> None:
            while watcher.execute(WAITING).fetchone() != (2,):
                pass
            middle.rollback()

        there, back, _ = at_once(
            partial(world.app.enqueue_many, forth), partial(world.app.enqueue_many, forth[::-1]), let_go
        )
    assert ids(there) == ids(back[::-1])
    world.close()
    assert deadlocks(postgres_url) == before


WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def test_keyed_rows_are_inserted_in_the_order_of_keys_whatever_the_plan(postgres_url: str) -> None:
    """On a caller's connection we do not control the plan: a hash join with the tasks reverses the rows."""
    world = World(postgres_url)
    work = world.task()
    world.app.save_tasks()
    world.sql("""
        INSERT INTO perdure.task (name, queue, priority, max_attempts, backoff, synced_at)
        SELECT 'other ' || n, 'default', 0, 1, '{}', now() FROM generate_series(1, 2000) n
    """)
    world.sql("ANALYZE perdure.task")
    requests = [work.using(unique_key=f"{n}").job() for n in range(6)]
    with psycopg.connect(postgres_url) as connection:
        connection.execute("SET enable_nestloop = off")
        jobs = world.app.enqueue_many(requests, conn=connection)
    assert [str(row[0]) for row in world.sql("SELECT id FROM perdure.job ORDER BY ctid")] == ids(jobs)
    world.close()


def test_a_unique_key_that_is_freed_while_others_ask_leaves_one_active_job(world: World) -> None:
    """The conflicting job may end between the conflict and the read of it."""
    work = world.task().using(unique_key="u")
    for _ in range(15):
        work.enqueue()
        claimed = world.claim_one()
        one, other, _ = at_once(work.enqueue, work.enqueue, partial(world.finish, Succeeded(claimed.lease)))
        active = ids(world.app.list_jobs(state="ready"))
        assert len(active) <= 1
        assert {one.id, other.id} <= {claimed.id, *active}
        for id in active:
            world.app.delete_job(id)


def test_of_two_requeues_with_one_unique_key_one_wins(world: World) -> None:
    work = world.task().using(unique_key="u")
    for _ in range(10):
        pair = []
        for _ in range(2):
            pair.append(work.enqueue().id)
            world.attempt(Failed, "fatal")
        outcomes = at_once(*(partial(world.app.requeue_job, id) for id in pair))
        assert sorted(outcomes) == ["requeued", "unique_key_taken"]
        for id in pair:
            world.app.delete_job(id)


def test_a_finish_and_a_rescue_agree_on_one_outcome(world: World) -> None:
    work = world.task(max_attempts=1)
    jobs = world.app.enqueue_many([work.job() for _ in range(40)])
    leases = [job.lease for job in world.claim(40)]
    world.operations.retire(world.worker)

    def finish_one_by_one() -> list[str]:
        return [lease.job for lease in leases if world.finish(Succeeded(lease)).accepted]

    finished, rescued = at_once(finish_one_by_one, partial(world.rescue, page=5))
    assert sorted(finished + rescued) == sorted(ids(jobs))
    assert {world.row(id).state for id in finished} <= {"succeeded"}
    assert {world.row(id).state for id in rescued} <= {"failed"}
