"""One worker sweeps for all: what the dead ran is rescued, and leadership falls with its worker."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from perdure import App
from perdure.client.job import Job
from perdure.errors import InternalError, PerdureError, StoreAway, StoreReadOnly
from perdure.model.job import ENDED, SECOND
from perdure.ops import set_aside
from perdure.request.events import JobEvent
from perdure.worker.health import Health
from perdure.worker.hooks import Hooks
from perdure.worker.sweeper import Duty, Sweeper
from tests.harness.waiting import auntil, until
from tests.worker.fleet import Fleet, rows
from tests.worker.outage import Outage
from tests.worker.refusing import refusing
from tests.worker.waiting import until_state


def leaders(url: str) -> list[tuple[Any, ...]]:
    """Whoever sweeps."""
    if not url.startswith("sqlite"):
        return rows(url, "SELECT worker FROM perdure.leader")
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return connection.execute("SELECT worker FROM perdure_leader").fetchall()


def end_leases(url: str, worker: str) -> None:
    """As if the time of its leases had passed, that of the lead among them."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE perdure.worker SET expires_at = beat_at WHERE id = %s", [worker])
        connection.execute(
            "UPDATE perdure.leader l SET expires_at = w.beat_at FROM perdure.worker w"
            " WHERE w.id = l.worker AND w.id = %s",
            [worker],
        )


def test_the_jobs_of_a_killed_worker_run_again_soon(fleet: Fleet, tmp_path: Path) -> None:
    """The one that is killed leads: leadership falls with it."""
    notes = tmp_path / "notes"
    first = fleet.start(lease=3600)
    job = fleet.enqueue("rest", seconds=60, note_to=str(notes))
    until(notes.exists)
    until(lambda: leaders(fleet.url))
    second = fleet.start(lease=3600)
    row = job.refresh().row
    assert row is not None
    first.kill()
    # On SQLite its lock tells that it is gone, elsewhere only the time that passes.
    if not fleet.url.startswith("sqlite"):
        end_leases(fleet.url, str(row.worker))
    until(lambda: notes.read_text().count("start") == 2)
    second.wait_for("Rescued 1 jobs of workers that fell silent")
    row = job.refresh().row
    assert row is not None
    assert (row.state, row.attempt, row.crashes) == ("running", 2, 1)


@pytest.mark.long
def test_a_worker_that_was_only_asleep_finds_its_job_taken(fleet: Fleet, tmp_path: Path) -> None:
    """On SQLite it holds its lock while it sleeps: there only the end of its lease tells."""
    notes = tmp_path / "notes"
    first = fleet.start(lease=0.5)
    job = fleet.enqueue("rest", seconds=2, note_to=str(notes))
    until(notes.exists)
    first.suspend(fleet.url)
    fleet.start(lease=30)
    until(lambda: notes.read_text().count("start") == 2)
    first.signal(signal.SIGCONT)
    first.wait_for("was taken away from this worker")
    first.wait_for("believed dead")
    assert job.get(30) == "rested"
    assert (job.attempt, job.row.token) == (2, 2)  # type: ignore[union-attr]
    assert first.stop() == 0


async def test_only_one_of_several_sweeps_and_another_follows_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.worker.sweeper.TICK", 0.1)
    apps = [App(url, synchronous="normal") for _ in range(3)]
    swept: list[int] = []

    def watched(n: int, arescue: Any) -> Any:
        async def rescue(**asked: Any) -> Any:
            swept.append(n)
            return await arescue(**asked)

        return rescue

    async with AsyncExitStack() as stack:
        workers = []
        for n, app in enumerate(apps):
            app.task(name="work")(lambda: None)
            monkeypatch.setattr(app.operations, "arescue", watched(n, app.operations.arescue), raising=False)
            workers.append(await stack.enter_async_context(app.worker()))
        await auntil(lambda: len(swept) >= 3)
        (leader,) = set(swept)
        # Its identity is retired, as after a crash: somebody leads on within a moment, and still only one.
        before = len(swept)
        workers[leader].stop()
        await auntil(lambda: len(set(swept[before:]) - {leader}) == 1)
        rest = len(swept)
        await auntil(lambda: len(swept) >= rest + 3)
        assert len(set(swept[rest:])) == 1
    for app in apps:
        await app.aclose()


async def test_a_leader_that_was_retired_asks_before_it_sweeps_on(
    brisk_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    brisk_app.task(name="work")(lambda: None)
    led: list[str] = []
    alead = brisk_app.operations.alead

    async def lead(name: str, worker: str, **options: Any) -> bool:
        led.append(worker)
        return await alead(name, worker, **options)

    monkeypatch.setattr(brisk_app.operations, "alead", lead, raising=False)
    async with brisk_app.worker() as worker:
        await auntil(lambda: led)
        await brisk_app.operations.aretire(worker.identity)
        await auntil(lambda: worker.identity != led[0])
        await auntil(lambda: worker.identity in led)


async def test_what_expired_is_canceled_though_no_worker_knows_it(url: str, app: App) -> None:
    stranger = App(url)
    stranger.task(name="strange")(lambda: None)
    job = await stranger.tasks["strange"].using(expires=0.05).aenqueue()
    await stranger.aclose()
    app.task(name="work")(lambda: None)
    async with app.worker():
        await until_state(await app.aget_job(job.id), "canceled")


async def test_a_worker_sets_aside_what_is_due_much_later_and_brings_it_back(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = app.task(name="work")(lambda: None)
    jobs = await app.aenqueue_many(
        [work.using(queue=f"q{i}", delay=3600).job() for i in range(set_aside.FEW + 1)]
    )

    async def all_have(held: str | None) -> bool:
        found = [await app.aget_job(job.id) for job in jobs]
        return all(job.row is not None and job.row.held == held for job in found)

    async with app.worker():
        await auntil(lambda: all_have("later"))
        assert await app.arun_now(jobs[0].id) == "due_now"
        await until_state(jobs[0], "succeeded")
        monkeypatch.setattr(set_aside, "BACK", 7200 * SECOND)
        await auntil(lambda: all_have(None))


@pytest.mark.parametrize("found_by", ["the sweeper", "a claim"])
async def test_what_expired_is_told_as_canceled(app: App, found_by: str) -> None:
    told: list[JobEvent] = []
    app.on("canceled")(told.append)
    app.task(name="work")(lambda: None)
    jobs = await app.aenqueue_many([app.tasks["work"].using(expires=0.000_001).job() for _ in range(3)])
    if found_by == "the sweeper":
        await app.apause_queue("default")
    async with app.worker():
        await auntil(lambda: len(told) == 3)
    assert {event.job_id for event in told} == {job.id for job in jobs}
    assert {(event.name, event.task, event.message) for event in told} == {("canceled", "work", "expired")}


async def test_what_a_sweeper_decides_is_told(brisk_app: App) -> None:
    told: list[JobEvent] = []
    failed: list[JobEvent] = []
    brisk_app.on("rescued", "failed")(told.append)

    @brisk_app.task(name="work", max_attempts=1, on_failed=failed.append)
    async def work() -> None:
        await asyncio.sleep(60)

    await brisk_app.asave_tasks()
    job = await work.aenqueue()
    await brisk_app.operations.aregister("gone-1", name="gone", lease=1)
    (claimed,) = await brisk_app.operations.aclaim("gone-1", tasks=["work"], n=1)
    async with brisk_app.worker():
        await auntil(lambda: len(failed) == 1 and len(told) == 2)
    assert [event.name for event in told] == ["rescued", "failed"]
    assert {event.job_id for event in (*told, *failed)} == {job.id} == {claimed.id}
    assert (failed[0].kind, failed[0].code) == ("lost", "job.lost")


async def test_a_job_that_is_running_elsewhere_is_left_alone(brisk_app: App) -> None:
    brisk_app.task(name="work")(lambda: None)
    job = await brisk_app.tasks["work"].aenqueue()
    await brisk_app.operations.aregister("live-1", name="live", lease=3600_000_000)
    await brisk_app.operations.aclaim("live-1", tasks=["work"], n=1)
    other = await brisk_app.tasks["work"].aenqueue()

    async def silent_retired() -> bool:
        return {row.id for row in await brisk_app.alist_workers()} >= {"live-1"}

    async with brisk_app.worker():
        await other.aget(30)
        await auntil(silent_retired)
    assert (await job.arefresh()).state == "running"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs flock")
async def test_a_worker_that_holds_its_lock_is_never_buried(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = App(sqlite_url), App(sqlite_url)
    for app in (first, second):
        app.task(name="work")(lambda: None)
    buried: list[str] = []
    aretire = second.operations.aretire

    async def retire(worker: str) -> None:
        buried.append(worker)
        await aretire(worker)

    monkeypatch.setattr(second.operations, "aretire", retire, raising=False)
    async with first.worker() as alive:
        async with second.worker() as looker:
            await looker._sweeper.swept.wait()
            mine = looker.identity
        assert buried == [mine]
        assert [row.id for row in await first.alist_workers()] == [alive.identity]
    await first.aclose()
    await second.aclose()


async def test_a_burst_takes_what_a_dead_worker_has_left(brisk_app: App) -> None:
    ran: list[int] = []

    @brisk_app.task(name="work", max_crashes=None)
    async def work() -> None:
        ran.append(1)

    job = await work.aenqueue()
    await brisk_app.operations.aregister("gone", name="gone", lease=30_000_000)
    assert len(await brisk_app.operations.aclaim("gone", tasks=["work"], n=1)) == 1
    await brisk_app.operations.aretire("gone")
    assert await asyncio.to_thread(brisk_app.run_worker, burst=True) == 0
    assert (ran, (await job.arefresh()).state) == ([1], "succeeded")


async def test_a_refused_job_that_was_set_aside_stops_no_rescue(brisk_app: App, url: str) -> None:
    work = brisk_app.task(name="work")(lambda: None)
    lost = await work.aenqueue()
    await brisk_app.operations.aregister("gone-1", name="gone", lease=1)
    assert len(await brisk_app.operations.aclaim("gone-1", tasks=["work"], n=1)) == 1
    refused = await work.using(tenant="refused", delay=20).aenqueue()
    await asyncio.to_thread(_write, url, f"UPDATE perdure.job SET held = 'later' WHERE id = '{refused.id}'")
    with refusing(url, "OLD.tenant = 'refused'", code="42501"):
        async with brisk_app.worker():
            await until_state(lost, "succeeded")


async def test_an_outage_longer_than_the_lease_costs_no_outcome(outage: Outage) -> None:
    """The workers could not send heartbeats: when the database is back, nobody is retired at once."""
    app, done = App(outage.url, synchronous="normal", lease=1), asyncio.Event()

    @app.task(name="work", max_attempts=1)
    async def work() -> None:
        await done.wait()

    job = await work.aenqueue()
    async with app.worker():
        await until_state(job, "running")
        with outage.begin():
            done.set()
            await asyncio.sleep(2.5)
        await auntil(lambda: _ended(job))
    assert (await job.arefresh()).state == "succeeded"
    await app.aclose()


async def _ended(job: Job[Any]) -> bool:
    return (await job.arefresh()).state in ENDED


async def test_a_burst_brings_back_what_was_set_aside_if_the_elected_worker_does_not(
    brisk_app: App, url: str
) -> None:
    work = brisk_app.task(name="work")(lambda: None)
    job = await work.using(delay=0.01).aenqueue()
    await asyncio.to_thread(_write, url, "UPDATE perdure.job SET held = 'later'")
    await brisk_app.operations.aregister("idle-1", name="idle", lease=3600 * SECOND)
    assert await brisk_app.operations.alead("sweeper", "idle-1", lease=3600 * SECOND)
    assert await asyncio.to_thread(brisk_app.run_worker, burst=True) == 0
    assert (await job.arefresh()).state == "succeeded"


def _write(url: str, text: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
            file.execute(text.replace("perdure.", "perdure_"))
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(text.encode())


def _sweeper(*duties: Duty, leads: bool = True) -> tuple[Sweeper, list[str]]:
    """A sweeper with these duties only, and who asked for the lead."""
    asked: list[str] = []

    async def alead(name: str, worker: str, **_: Any) -> bool:
        asked.append(worker)
        return leads

    operations: Any = SimpleNamespace(store=None, alead=alead, aexpire=None, asupersede=None)
    worker: Any = SimpleNamespace(identity="me")
    sweeper = Sweeper(worker, operations, Health(), Hooks({}, {}), lease=30.0)
    sweeper.duties = [*duties]
    return sweeper, asked


async def test_a_duty_that_fails_for_good_stops_no_other_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []
    broken = [True]

    async def fail() -> None:
        done.append("first")
        if broken[0]:
            raise InternalError("a damaged row")

    async def work() -> None:
        done.append("second")

    sweeper, _ = _sweeper(Duty("first", fail, "It fails"), Duty("second", work, "Never"))
    await sweeper.sweep()
    await sweeper.sweep()
    assert done == ["first", "second"] * 2
    assert [record.getMessage() for record in caplog.records] == ["It fails: a damaged row"]
    broken[0] = False
    await sweeper.sweep()
    broken[0] = True
    await sweeper.sweep()
    assert len(caplog.records) == 2, "it had worked in between"


@pytest.mark.parametrize(
    ("error", "about_jobs", "trusted"),
    [
        (StoreReadOnly(), True, True),  # somebody's trigger
        (StoreReadOnly(), False, False),
        (StoreAway(), True, False),
    ],
)
async def test_a_refused_job_does_not_make_silent_workers_count_as_live(
    error: PerdureError, about_jobs: bool, trusted: bool
) -> None:
    done: list[str] = []

    async def fail() -> None:
        raise error

    async def work() -> None:
        done.append("second")

    sweeper, _ = _sweeper(
        Duty("first", fail, "", about_jobs=about_jobs), Duty("second", work, "", interval=3600)
    )
    running = asyncio.create_task(sweeper.run())
    await auntil(lambda: sweeper.swept.is_set() or sweeper._trusts_at)
    running.cancel()
    assert (sweeper._trusts_at == 0.0) is trusted
    assert bool(done) is trusted


async def test_nobody_counts_as_silent_after_a_wait_for_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store waits for a database that is away, and then no error tells of it."""
    now = [100.0]
    monkeypatch.setattr("perdure.worker.sweeper.monotonic", lambda: now[0])

    async def wait() -> None:
        now[0] += 16

    sweeper, _ = _sweeper(Duty("wait", wait, ""))
    await sweeper.sweep()
    assert sweeper._trusts_at == 116 + 30


async def test_a_duty_is_done_once_in_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = [100.0], list[str]()

    async def often() -> None:
        done.append("often")

    async def seldom() -> None:
        done.append("seldom")

    monkeypatch.setattr("perdure.worker.sweeper.monotonic", lambda: now[0])
    sweeper, _ = _sweeper(Duty("often", often, ""), Duty("seldom", seldom, "", interval=60.0))
    for seconds in (0, 1, 58, 1):
        now[0] += seconds
        await sweeper.sweep()
    assert done == ["often", "seldom", "often", "often", "often", "seldom"]


async def test_who_does_not_lead_asks_once_in_a_sweep_and_does_its_own_duties() -> None:
    done: list[str] = []

    async def mine() -> None:
        done.append("mine")

    async def for_all() -> None:
        done.append("for all")

    duties = [Duty("a", for_all, ""), Duty("b", mine, "", leader_only=False), Duty("c", for_all, "")]
    sweeper, asked = _sweeper(*duties, leads=False)
    await sweeper.sweep()
    assert (done, asked) == (["mine"], ["me"])
    sweeper, asked = _sweeper(*duties)
    await sweeper.sweep()
    await sweeper.sweep()
    assert done[1:] == ["for all", "mine", "for all"] * 2
    assert asked == ["me"], "the lead lasts"
