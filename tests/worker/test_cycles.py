"""Two turns of a worker may be at PostgreSQL at a time: it never holds more than its slots, and forgets nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from perdure import App, Snooze
from perdure.worker.claimer import Batch
from perdure.worker.cycle import Cycle, ReservedSlots
from perdure.worker.slot_group import SlotGroup
from tests.harness.waiting import auntil
from tests.store.proxy import Proxy

SLOTS = 10

WATCH = """
CREATE TABLE public.most (running bigint);
CREATE FUNCTION public.watch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.most SELECT count(*) FROM perdure.job WHERE worker IS NOT NULL;
    RETURN NULL;
END $$;
CREATE TRIGGER watch AFTER UPDATE ON perdure.job FOR EACH STATEMENT EXECUTE FUNCTION public.watch();
"""


@pytest.fixture
def watched(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """After each statement it is counted what the worker holds."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(WATCH.encode())
        yield connection
        connection.execute("DROP TABLE public.most; DROP FUNCTION public.watch() CASCADE")


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many turns were under way when each one was answered."""
    seen = list[int]()
    settle = Cycle._settle

    def noting(self: Cycle, *args: Any) -> None:
        seen.append(len(self._under_way))
        settle(self, *args)

    monkeypatch.setattr(Cycle, "_settle", noting)
    return seen


async def test_claims_never_exceed_the_slots(
    postgres_url: str, watched: psycopg.Connection[Any], together: list[int]
) -> None:
    app = App(postgres_url)
    snoozed = set[int]()

    @app.task(name="work")
    async def work(n: int) -> int:
        if n % 7 == 0:
            await asyncio.sleep(0.001 * (n % 5))
        if n % 13 == 0 and n not in snoozed:
            snoozed.add(n)
            raise Snooze(0)
        return n

    jobs = await app.aenqueue_many([work.job(n) for n in range(1_000)])
    async with app.worker(concurrency=SLOTS):
        assert [await job.aget(60) for job in jobs] == [*range(1_000)]
    await app.aclose()
    assert watched.execute("SELECT max(running) FROM public.most").fetchall() == [(SLOTS,)]
    assert together.count(2) >= 10, "claims of two turns under way at once are what is tried here"


async def test_a_burst_ends_once_all_turns_are_over(postgres_url: str, together: list[int]) -> None:
    app = App(postgres_url)
    done = set[int]()

    @app.task(name="work")
    async def work(n: int) -> None:
        done.add(n)

    await app.aenqueue_many([work.job(n) for n in range(500)])
    await asyncio.wait_for(asyncio.to_thread(app.run_worker, burst=True, concurrency=SLOTS), 60)
    assert done == {*range(500)}
    assert 2 in together
    assert {row.state for row in await app.alist_jobs(limit=500)} == {"succeeded"}
    await app.aclose()


async def test_no_job_is_lost_while_connections_are(postgres_url: str, together: list[int]) -> None:
    """With two turns on one connection, a cut leaves two in doubt."""
    runs: dict[int, int] = {}
    with Proxy(postgres_url) as proxy:
        app = App(proxy.url)

        @app.task(name="work")
        async def work(n: int) -> int:
            runs[n] = runs.get(n, 0) + 1
            if n % 400 == 399:
                proxy.cut()
            return n

        jobs = await app.aenqueue_many([work.job(n) for n in range(1_000)])
        async with app.worker(concurrency=SLOTS):
            assert [await job.aget(60) for job in jobs] == [*range(1_000)]
        await app.aclose()
    assert len(runs) == 1_000
    assert 2 in together


def test_of_two_claims_the_later_knows_better() -> None:
    group = SlotGroup(["work"])
    group.claim_sent()
    group.claim_sent()
    group.claim_answered(2, 5, Batch())
    assert not group.wants_claim
    group.claim_answered(1, 5, Batch(more=True))
    assert not group.wants_claim
    assert group.drained
    group.note_change()
    assert group.wants_claim


def test_what_was_recorded_later_may_have_left_something() -> None:
    group = SlotGroup(["work"])
    group.claim_sent()
    group.outcomes_sent(2)
    group.claim_answered(1, 5, Batch())
    assert not group.drained
    group.claim_answered(3, 5, Batch())
    assert group.drained


async def test_a_turn_leaves_to_another_what_that_may_take(postgres_url: str) -> None:
    app = App(postgres_url)

    @app.task(name="work")
    async def work() -> None: ...

    async with app.worker(concurrency=SLOTS, poll=60) as worker:
        cycle = worker._executor.cycle
        await auntil(lambda: cycle.drained)
        cycle.wake()
        assert cycle._claim_sizes == (SLOTS // 2, 0)
        cycle._under_way[cycle.begun + 1] = ReservedSlots(SLOTS - 2, 0)
        assert cycle._claim_sizes == (2, 0)
        cycle._under_way.clear()
    await app.aclose()
