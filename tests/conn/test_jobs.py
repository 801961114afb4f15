"""With every kind of ``conn=``, a job commits or rolls back with the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import Any

import pytest

from perdure import CONTEXT, App, Context, Gate, Workflow
from perdure.errors import (
    IdempotencyConflict,
    InvalidOption,
    StoreBusy,
    TaskDisabled,
    TaskNotSaved,
    UnknownTask,
    UnsupportedConnection,
    UnsupportedIsolation,
)
from tests.conformance.conftest import migrated_postgres, migrated_sqlite, postgres_url, sqlite_url
from tests.conformance.world import World, ids
from tests.conn.caller import Caller, theirs
from tests.conn.drivers import POSTGRES, SQLITE, listing
from tests.harness.waiting import until

DRIVERS = {**SQLITE, **POSTGRES}
on_one_of_each_kind = pytest.mark.parametrize(
    "driver", ["sqlite3", "psycopg", "psycopg, async"], indirect=True
)
PAIRS = [
    pair for table in (SQLITE, POSTGRES) for pair in pairwise([*table, next(iter(table))])
]  # each with the next, in a ring

__all__ = ["migrated_postgres", "migrated_sqlite", "postgres_url", "sqlite_url"]  # fixtures


@contextmanager
def world_at(url: str) -> Iterator[World]:
    """With a task of ours and a table of theirs."""
    world = World(url)
    world.task(queue="mail")
    world.app.save_tasks()
    world.sql(f"CREATE TABLE IF NOT EXISTS {theirs(url)} (id integer PRIMARY KEY)")
    world.sql(f"DELETE FROM {theirs(url)}")
    yield world
    world.close()


@pytest.fixture
def url(driver: str, request: pytest.FixtureRequest) -> str:
    chosen: str = request.getfixturevalue("sqlite_url" if driver in SQLITE else "postgres_url")
    return chosen


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def world(url: str) -> Iterator[World]:
    with world_at(url) as world:
        yield world


@pytest.fixture
def caller(driver: str, world: World) -> Iterator[Caller]:
    caller = DRIVERS[driver](world.url)
    yield caller
    caller.ends()


@pytest.fixture
def work(world: World, caller: Caller) -> Any:
    return world.app.tasks["work"].using(conn=caller.conn)


def rows(world: World) -> tuple[int, int]:
    """The number of jobs, and of rows in the caller's table."""
    [(number,)] = world.sql(f"SELECT count(*) FROM {theirs(world.url)}")
    return world.count("job"), number


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{listing()}")


def test_jobs_commit_with_the_caller(world: World, caller: Caller, work: Any) -> None:
    app, task = world.app, world.app.tasks["work"]
    plain = caller.verb(work, "enqueue", 1, note="100 % ä'\\\"")
    caller.inserts(1)
    keyed = caller.verb(work.using(idempotency_key="k", unique_key="u"), "enqueue", 2)
    many = caller.verb(app, "enqueue_many", [task.job(n) for n in range(3)], conn=caller.conn)
    mixed = caller.verb(app, "enqueue_many", [task.job(3), task.using(delay=9).job(4)], conn=caller.conn)
    named = caller.verb(app, "enqueue", "work", {"n": 5}, conn=caller.conn)
    assert rows(world) == (0, 0)
    caller.does(caller.commit)
    assert rows(world) == (8, 1)
    assert ids(world.claim(9)) == ids([plain, keyed, *many, mixed[0], named])
    assert {job.queue for job in (plain, keyed, *many, *mixed, named)} == {"mail"}


def test_jobs_vanish_with_the_caller(world: World, caller: Caller, work: Any) -> None:
    keyed = work.using(idempotency_key="k", unique_key="u")
    caller.inserts(1)
    gone = caller.verb(keyed, "enqueue", 1)
    caller.does(caller.rollback)
    assert (*rows(world), world.count("key")) == (0, 0, 0)
    fresh = caller.verb(keyed, "enqueue", 2)
    assert fresh.created
    assert fresh.id != gone.id
    caller.does(caller.commit)
    assert rows(world) == (1, 0)


def test_jobs_vanish_with_a_savepoint_of_the_caller(world: World, caller: Caller, work: Any) -> None:
    caller.inserts(1)
    kept = caller.verb(work, "enqueue", 1)
    caller.rolls_back_a_savepoint_around(work, "enqueue", 2)
    also = caller.verb(work, "enqueue", 3)
    caller.does(caller.commit)
    assert rows(world) == (2, 1)
    assert ids(world.claim(9)) == ids([kept, also])


def test_a_refusal_leaves_the_transaction_usable(world: World, caller: Caller, work: Any) -> None:
    world.app.tasks["work"].using(idempotency_key="k").enqueue(1)
    keyed = work.using(idempotency_key="k")
    with pytest.raises(IdempotencyConflict):  # as the first statement of all
        caller.verb(keyed, "enqueue", 2)
    caller.inserts(1)
    with pytest.raises(IdempotencyConflict):  # and in the middle
        caller.verb(keyed, "enqueue", 2)
    assert not caller.verb(keyed, "enqueue", 1).created
    caller.verb(work, "enqueue", 3)
    caller.does(caller.commit)
    assert rows(world) == (2, 1)


def test_an_error_of_the_database_leaves_it_usable_too(world: World, caller: Caller, work: Any) -> None:
    """A disabled task violates a NOT NULL of the insert; on PostgreSQL that fails everything since the savepoint."""
    caller.inserts(1)
    caller.does(caller.commit)
    world.app.set_task("work", enabled=False)
    with pytest.raises(TaskDisabled):
        caller.verb(work, "enqueue", 1)
    caller.inserts(2)
    caller.does(caller.commit)
    assert rows(world) == (0, 2)


@on_one_of_each_kind
def test_a_task_that_the_database_has_lost_is_refused_and_known_the_next_time(
    world: World, caller: Caller, work: Any
) -> None:
    world.sql("DELETE FROM perdure.task")
    with pytest.raises(UnknownTask):
        caller.verb(work, "enqueue", 1)
    caller.does(caller.rollback)
    job = caller.verb(work, "enqueue", 1)
    caller.does(caller.commit)
    assert ids(world.claim(9)) == [job.id]


@on_one_of_each_kind
def test_a_task_that_cannot_be_written_now_says_what_to_do(world: World, caller: Caller) -> None:
    """On SQLite the caller's own transaction holds the lock that the task would need."""
    late = world.task("late").using(conn=caller.conn)
    caller.inserts(1)
    if world.store.dialect == "sqlite":
        with pytest.raises(TaskNotSaved, match=r"task late is not .* app\.save_tasks\(\)"):
            caller.verb(late, "enqueue")
        caller.does(caller.rollback)
        world.app.save_tasks()
    assert caller.verb(late, "enqueue").created


def test_operators_act_inside_it_as_well(world: World, caller: Caller) -> None:
    job = world.app.tasks["work"].enqueue()
    cancel = {"reason": "withdrawn", "by": "ann", "conn": caller.conn}
    assert caller.verb(world.app, "cancel_job", job.id, **cancel) == "canceled"
    assert job.refresh().state == "ready", "not before the caller commits"
    caller.does(caller.commit)
    assert job.refresh().state == "canceled"
    assert caller.verb(world.app, "requeue_job", job.id, conn=caller.conn) == "requeued"
    caller.does(caller.rollback)
    assert job.refresh().state == "canceled"
    assert caller.verb(world.app, "requeue_job", job.id, by="ann", conn=caller.conn) == "requeued"
    caller.does(caller.commit)
    assert [event.kind for event in world.events(job)] == ["canceled", "requeued"]


def test_a_handler_s_writes_and_its_success_are_one(url: str, driver: str) -> None:
    with world_at(url) as world, closing(App(url)) as app:

        @app.task(name="book", max_attempts=1)
        def book(n: int, *, ctx: Context = CONTEXT) -> None:
            caller = DRIVERS[driver](url)
            try:
                ctx.stage("booking")
                ctx.enqueue(book.using(queue="later").job(n + 1))
                caller.inserts(n)
                caller.verb(ctx, "succeed", {"n": n}, conn=caller.conn)
                caller.does(caller.commit)
            finally:
                caller.ends()

        job = book.using(queue="now").enqueue(1)
        app.run_worker(queues=["now"], burst=True)
        assert job.get() == {"n": 1}
        assert rows(world) == (2, 1)


def test_the_method_for_the_other_kind_of_connection_is_refused_by_name(
    world: World, caller: Caller, work: Any
) -> None:
    right = "await aenqueue()" if caller.mode == "async" else "call enqueue()"
    with pytest.raises(UnsupportedConnection) as refused:
        caller.wrong_verb(work, "enqueue", 1)
    assert refused.value.code == "conn.wrong_mode"
    assert right in str(refused.value)
    assert rows(world) == (0, 0)


@on_one_of_each_kind
def test_a_request_has_no_connection_of_its_own(work: Any) -> None:
    with pytest.raises(InvalidOption, match="give conn to enqueue_many"):
        work.job(1)


@pytest.mark.parametrize("driver", POSTGRES, indirect=True)
def test_keys_need_a_snapshot_that_moves(world: World, caller: Caller, work: Any) -> None:
    keyed: list[Any] = [{"idempotency_key": "k"}, {"unique_key": "u"}]
    for level in ("REPEATABLE READ", "SERIALIZABLE"):
        caller.does(caller.say, f"SET TRANSACTION ISOLATION LEVEL {level}")
        for keys in keyed:
            with pytest.raises(UnsupportedIsolation) as refused:
                caller.verb(work.using(**keys), "enqueue", 1)
            assert refused.value.code == "job.unsupported_isolation"
        assert caller.verb(work, "enqueue", 1).created
        caller.does(caller.commit)
    assert rows(world) == (2, 0)


@pytest.mark.parametrize("driver", SQLITE, indirect=True)
def test_a_snapshot_that_others_have_left_behind_cannot_be_written_to(
    world: World, caller: Caller, work: Any
) -> None:
    caller.does(caller.begin_to_read)
    caller.does(caller.say, f"SELECT * FROM {theirs(world.url)}")
    world.app.tasks["work"].enqueue()
    with pytest.raises(StoreBusy, match="BEGIN IMMEDIATE"):
        caller.verb(work, "enqueue", 1)
    caller.does(caller.rollback)
    assert caller.verb(work, "enqueue", 1).created


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize(
    ("driver", "other"), PAIRS, ids=[f"{one} against {other}" for one, other in PAIRS], indirect=["driver"]
)
def test_two_race_for_a_key(world: World, caller: Caller, work: Any, other: str, ending: str) -> None:
    first = caller.verb(work.using(idempotency_key="k"), "enqueue", 1)
    rival = DRIVERS[other](world.url)
    try:
        keyed = world.app.tasks["work"].using(conn=rival.conn, idempotency_key="k")
        second = rival.starts(keyed, "enqueue", 1)
        if world.store.dialect == "postgres":
            until(lambda: waits(world) or second.done())
        assert not second.done()
        caller.does(getattr(caller, ending))
        won = second.result(60)
        assert won.created is (ending == "rollback")
        assert (won.id == first.id) is (ending == "commit")
        rival.does(rival.commit)
    finally:
        rival.ends()
    assert rows(world) == (1, 0)


def waits(world: World) -> bool:
    """Whether a transaction waits for another one."""
    held = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return bool(world.sql(held))


def test_a_workflow_is_started_resolved_and_requeued_in_it(world: World, caller: Caller) -> None:
    flow = Workflow("flow", unique_key="u", meta={"n": 1}, result="b")
    flow.gate("gate")
    flow.step("b", world.app.tasks["work"].job(1), after=["gate"])
    app = world.app

    def act(verb: str, *args: Any, **options: Any) -> Any:
        return caller.verb(app, verb, *args, conn=caller.conn, **options)

    vanished = act("start_workflow", flow)
    assert (vanished.name, vanished.status, vanished.meta) == ("flow", "open", {"n": 1})
    caller.does(caller.rollback)
    assert world.count("workflow") == 0
    started = act("start_workflow", flow)
    assert act("start_workflow", flow).created is False
    caller.does(caller.commit)
    assert act("resolve_gate", started.id, "gate", "failed", reason="no") is True
    assert world.count("workflow") == 1
    caller.does(caller.rollback)
    assert started.refresh().status == "open"
    act("resolve_gate", started.id, "gate", "failed")
    caller.does(caller.commit)
    assert started.refresh().status == "failed"
    assert act("requeue_workflow", started.id) == "requeued"
    caller.does(caller.commit)
    assert started.refresh().status == "open"
    assert act("append_steps", started.id, window="gate", mutation_key="m", steps=[Gate("more")]) == "applied"
    assert act("cancel_workflow", started.id) == "canceled"
    caller.does(caller.commit)
    assert started.refresh().status == "canceled"
