"""A cancelled call on the caller's connection, at any moment: either it is done, or only this call is undone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import psycopg
import pytest

from perdure.errors import IdempotencyConflict, PerdureError, UnsupportedConnection
from tests.conformance.conftest import migrated_postgres, migrated_sqlite, postgres_url, sqlite_url
from tests.conformance.world import World
from tests.conn.caller import Caller, done, theirs
from tests.conn.drivers import SQLITE
from tests.conn.test_jobs import DRIVERS, rows, world_at

__all__ = ["migrated_postgres", "migrated_sqlite", "postgres_url", "sqlite_url"]  # fixtures

KINDS: dict[str, Any] = {name: getattr(kind, "func", kind) for name, kind in DRIVERS.items()}
ASYNC = [name for name, kind in KINDS.items() if kind.mode == "async"]
ROUNDS = 20


@pytest.fixture(params=ASYNC)
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def world(driver: str, request: pytest.FixtureRequest) -> Iterator[World]:
    with world_at(request.getfixturevalue("sqlite_url" if driver in SQLITE else "postgres_url")) as world:
        yield world


@pytest.fixture
def caller(driver: str, world: World) -> Iterator[Caller]:
    caller = DRIVERS[driver](world.url)
    yield caller
    caller.ends()


@pytest.fixture
def work(world: World, caller: Caller) -> Any:
    return world.app.tasks["work"].using(conn=caller.conn)


def test_a_time_out_takes_nothing_of_the_caller_s_along(world: World, caller: Caller, work: Any) -> None:
    chance = random.Random(7)

    async def work_on() -> int:
        kept = 0
        longest = 0.01
        for number in range(ROUNDS):
            await done(caller.say(f"INSERT INTO {theirs(world.url)} VALUES ({number})"))
            begin = perf_counter()
            try:
                async with asyncio.timeout(chance.random() * longest if number else None):
                    await work.aenqueue()
                kept += 1
                longest = 1.5 * (perf_counter() - begin)
            except TimeoutError:
                pass
            await done(caller.commit())
        return kept

    kept = caller.does(work_on)
    assert 0 < kept < ROUNDS, "too early or too late to be about anything"
    assert rows(world) == (kept, ROUNDS)


def test_a_second_cancel_does_not_stop_the_undoing_of_the_first(
    world: World, caller: Caller, work: Any
) -> None:
    chance = random.Random(8)

    async def work_on() -> int:
        kept = 0
        for number in range(ROUNDS):
            await done(caller.say(f"INSERT INTO {theirs(world.url)} VALUES ({number})"))
            call = asyncio.create_task(work.aenqueue())
            for _ in range(2):
                await asyncio.sleep(chance.random() * 0.002)
                call.cancel()
            try:
                await call
                kept += 1
            except asyncio.CancelledError:
                pass
            await done(caller.commit())
        return kept

    kept = caller.does(work_on)
    assert rows(world) == (kept, ROUNDS)


def test_nothing_is_given_up_before_there_is_a_savepoint_to_go_back_to(
    world: World, caller: Caller, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.store.borrowed import join

    run_in_task = join._run_in_task
    batches: list[Any] = []

    async def keep(run: Any, batch: Any) -> Any:
        batches.append(batch)
        return await run_in_task(run, batch)

    async def act() -> None:
        await done(caller.say(f"INSERT INTO {theirs(world.url)} VALUES (1)"))
        await work.aenqueue()
        await done(caller.commit())

    monkeypatch.setattr(join, "_run_in_task", keep)
    caller.does(act)
    [place] = [n for n, batch in enumerate(batches) if join._SAVEPOINT in batch]
    firm = [isinstance(batch, join.Uninterruptible) for batch in batches]
    assert firm == [*[True] * (place + 1), False, True]


def test_a_cancel_that_comes_when_all_is_done_comes_a_little_later(
    world: World, caller: Caller, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.store.borrowed import join

    run_in_task = join._run_in_task
    told: list[str] = []

    async def cancel_at_the_end(run: Any, batch: Any) -> Any:
        if join._RELEASE in batch:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
        return await run_in_task(run, batch)

    async def act() -> None:
        await done(caller.say(f"INSERT INTO {theirs(world.url)} VALUES (1)"))
        try:
            told.append((await work.aenqueue()).id)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.append("canceled")
        await done(caller.commit())

    async def act_in_a_task() -> None:
        await asyncio.create_task(act())

    monkeypatch.setattr(join, "_run_in_task", cancel_at_the_end)
    caller.does(act_in_a_task)
    assert (len(told), told[-1]) == (2, "canceled")
    assert rows(world) == (1, 1)


def test_two_calls_at_once_on_one_connection_do_not_take_each_other_along(
    world: World, caller: Caller, work: Any
) -> None:
    world.app.tasks["work"].using(idempotency_key="k", priority=1).enqueue()

    async def act() -> list[Any]:
        await done(caller.say(f"INSERT INTO {theirs(world.url)} VALUES (1)"))
        both = (work.aenqueue(), work.using(idempotency_key="k").aenqueue())
        answers = await asyncio.gather(*both, return_exceptions=True)
        await done(caller.commit())
        return [*answers]

    answers = caller.does(act)
    made = [answer for answer in answers if not isinstance(answer, BaseException)]
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert all(isinstance(error, UnsupportedConnection | IdempotencyConflict) for error in refused)
    assert refused
    assert rows(world) == (1 + len(made), 1)


def test_who_may_not_notify_keeps_the_transaction(postgres_url: str) -> None:
    with world_at(postgres_url) as world, psycopg.connect(postgres_url) as conn:
        conn.execute("INSERT INTO public.theirs VALUES (1)")
        conn.execute("REVOKE EXECUTE ON FUNCTION pg_notify FROM PUBLIC")
        conn.execute("CREATE ROLE mute")
        conn.execute("GRANT ALL ON SCHEMA perdure, public TO mute")
        conn.execute("GRANT ALL ON ALL TABLES IN SCHEMA perdure, public TO mute")
        conn.execute("SET ROLE mute")
        with pytest.raises(PerdureError, match="lacks rights"):
            world.app.tasks["work"].using(conn=conn).enqueue()
        conn.execute("INSERT INTO public.theirs VALUES (2)")
        assert conn.execute("SELECT count(*) FROM public.theirs").fetchall() == [(2,)]
        conn.rollback()
