"""A worker whose outcomes a trigger refuses: it goes on with all other jobs, and no job runs again for free."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from perdure import CONTEXT, App, Context
from perdure.client.job import Job
from perdure.client.task import AsyncTask
from perdure.ops import browse
from perdure.worker.damaged_rows import DamagedRows
from perdure.worker.orphan_claims import OrphanClaims
from perdure.worker.slots import KEPT_SIZE
from tests.conformance.test_damaged_rows import refuse_claims
from tests.conformance.world import POISON, World
from tests.harness.waiting import auntil
from tests.worker.fleet import rows

RUNNING = f"OLD.tenant = '{POISON}' AND OLD.state = 'running'"
SUCCEEDS = "NEW.state = 'succeeded'"
ANYTHING = "true"


def migrate(url: str) -> None:
    app = App(url)
    app.migrate()
    app.close()


class Fleet:
    """An app with one task, and what its jobs did."""

    def __init__(self, url: str) -> None:
        self.app = App(url, lease=1)
        self.world = World(url)
        self.ran: Counter[str] = Counter()

        @self.app.task(name="work", max_attempts=1)
        async def work(name: str) -> str:
            self.ran[name] += 1
            return name

        self.work: AsyncTask[..., str] = work

    async def enqueue(self, kind: str, n: int, *, tenant: str | None = None) -> list[Job[Any]]:
        task = self.work.using(tenant=tenant, priority=5 if tenant else 0)
        return await self.app.aenqueue_many([task.job(f"{kind} {i}") for i in range(n)])

    async def states(self, jobs: list[Job[Any]]) -> set[tuple[str, int, str | None]]:
        """Their states, attempts and errors."""
        rows = await self.app.operations.store.aperform(browse.get_jobs, [job.id for job in jobs])
        return {(row.state, row.attempt, row.error_code) for row in rows if row is not None}

    async def until(self, jobs: list[Job[Any]], *state: object) -> None:
        async def reached() -> bool:
            return await self.states(jobs) == {state}

        await auntil(reached)

    async def cure(self) -> None:
        await asyncio.to_thread(self.world.cure)

    async def refuse(self, also: str, code: str = "P0001") -> None:
        """From here on nothing of this can be written to a running job of the tenant POISON."""
        await asyncio.to_thread(refuse_claims, self.world, also, of=RUNNING, code=code)


@pytest.fixture
async def fleet(url: str) -> AsyncIterator[Fleet]:
    await asyncio.to_thread(migrate, url)
    fleet = await asyncio.to_thread(Fleet, url)
    yield fleet
    await asyncio.to_thread(fleet.world.close)
    await fleet.app.aclose()


async def test_more_refused_outcomes_than_slots_stop_no_claim(fleet: Fleet) -> None:
    refused = await fleet.enqueue("refused", 20, tenant=POISON)
    await fleet.refuse(ANYTHING)
    async with fleet.app.worker(concurrency=4):
        await auntil(lambda: sum(fleet.ran.values()) == 20)
        others = await fleet.enqueue("other", 20)
        await fleet.until(others, "succeeded", 1, None)
        assert await fleet.states(refused) == {("running", 1, None)}
        await fleet.cure()
        await fleet.until(refused, "succeeded", 1, None)
    assert {*fleet.ran.values()} == {1}


async def test_what_is_kept_is_bounded_in_memory(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.worker.slots.MOST_KEPT", 6 * KEPT_SIZE + KEPT_SIZE // 2)
    tries = count_calls(monkeypatch, DamagedRows, "note_unrecorded")
    refused = await fleet.enqueue("refused", 30, tenant=POISON)
    await fleet.refuse(ANYTHING)
    async with fleet.app.worker(concurrency=4, poll=0.05):
        await auntil(lambda: sum(fleet.ran.values()) >= 10)
        tries.clear()
        await auntil(lambda: len(tries) >= 4)
        assert sum(fleet.ran.values()) <= 14, "six without a slot, four in slots, and those claimed meanwhile"
        await fleet.cure()
        await fleet.until(refused, "succeeded", 1, None)


@pytest.mark.usefixtures("brief_flush")
async def test_a_job_whose_outcome_is_refused_does_not_run_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is known here, also after many heartbeats: it is no claim that was never answered."""
    monkeypatch.setattr("perdure.worker.damaged_rows.KEEP_FOR", 0.0)
    beats = count_calls(monkeypatch, OrphanClaims, "lost")
    refused = await fleet.enqueue("refused", 3, tenant=POISON)
    await fleet.refuse(ANYTHING, "23514")
    async with fleet.app.worker(concurrency=4):
        await auntil(lambda: sum(fleet.ran.values()) == 3)
        others = await fleet.enqueue("other", 20)
        await fleet.until(others, "succeeded", 1, None)
        beats.clear()
        await auntil(lambda: len(beats) >= 6)
        assert await fleet.states(refused) == {("running", 1, None)}
    assert {*fleet.ran.values()} == {1}
    await fleet.cure()
    await asyncio.to_thread(fleet.world.rescue)
    assert await fleet.states(refused) == {("failed", 1, "job.lost")}, "charged"


async def test_an_outcome_that_its_row_never_takes_costs_an_attempt(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fleet.world.store.dialect == "sqlite":
        return  # RAISE() has one code
    monkeypatch.setattr("perdure.worker.damaged_rows.KEEP_FOR", 0.0)
    refused = await fleet.enqueue("refused", 3, tenant=POISON)
    await fleet.refuse(SUCCEEDS, "23514")
    async with fleet.app.worker(concurrency=4):
        others = await fleet.enqueue("other", 20)
        await fleet.until(others, "succeeded", 1, None)
        await fleet.until(refused, "failed", 1, "job.outcome_refused")
    assert {*fleet.ran.values()} == {1}


@pytest.mark.usefixtures("brief_flush")
@pytest.mark.parametrize("code", ["P0001", "42P01", "23514"])
async def test_a_worker_that_stops_drops_what_is_refused_and_no_more(fleet: Fleet, code: str) -> None:
    if fleet.world.store.dialect == "sqlite" and code != "P0001":
        return  # RAISE() has one code
    refused = await fleet.enqueue("refused", 3, tenant=POISON)
    await fleet.refuse("NEW.result IS NOT NULL", code)
    async with fleet.app.worker(concurrency=4, drain=0.1):
        await auntil(lambda: sum(fleet.ran.values()) == 3)
    rows = await asyncio.to_thread(lambda: [fleet.world.row(job) for job in refused])
    assert {(row.state, row.reason) for row in rows} == {("succeeded", "result.refused")}


@pytest.mark.parametrize("code", ["40001", "57P01"])
async def test_refused_log_lines_stop_no_outcome(postgres_url: str, code: str) -> None:
    """Its outcome waits with them: the lines come first."""
    await asyncio.to_thread(migrate, postgres_url)
    fleet = await asyncio.to_thread(Fleet, postgres_url)

    @fleet.app.task(name="say")
    async def say(*, ctx: Context = CONTEXT) -> None:
        ctx.log("a line")

    talker = await say.aenqueue()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION perdure.refuse() RETURNS trigger LANGUAGE plpgsql "
            f"AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$; "
            "CREATE TRIGGER refuse BEFORE INSERT ON perdure.log "
            "FOR EACH ROW EXECUTE FUNCTION perdure.refuse()".encode()
        )
        async with fleet.app.worker(concurrency=2):
            await auntil(lambda: rows(postgres_url, "SELECT 1 FROM perdure.job WHERE state = 'running'"))
            others = await fleet.enqueue("other", 5)
            await fleet.until(others, "succeeded", 1, None)
            await fleet.until([talker], "succeeded", 1, None)
    await asyncio.to_thread(fleet.world.close)
    await fleet.app.aclose()


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[None]:
    """A list that grows by one with each call of this method."""
    calls: list[None] = []
    method = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return method(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)
    return calls
