"""A database that goes away, hangs, is locked or full: every job ends, and the log has a line for each change."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from perdure import App
from perdure.errors import StoreAway
from tests.harness.processes import Process
from tests.harness.waiting import auntil, until
from tests.postgres import Server
from tests.store.proxy import Proxy
from tests.worker.fleet import Fleet, rows

BRISK = 3
"""The lease where claims may stay unanswered: two heartbeats find them."""

END_ALL = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@pytest.fixture
def postgres_fleet(postgres_url: str, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(postgres_url, tmp_path)
    yield fleet
    fleet.close()


@pytest.fixture
def sqlite_fleet(sqlite_url: str, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(sqlite_url, tmp_path)
    yield fleet
    fleet.close()


def enqueue_some(fleet: Fleet, n: int = 30) -> list[Any]:
    add, rest = fleet.app.tasks["add"], fleet.app.tasks["rest"]
    return fleet.app.enqueue_many(
        [*(add.job(a=i, b=i) for i in range(n)), *(rest.job(0.05) for _ in range(n))]
    )


def assert_all_end(fleet: Fleet, jobs: list[Any], *hands: Process) -> None:
    for job in jobs:
        job.join(60)
    assert {job.state for job in jobs} == {"succeeded"}
    assert [hand.process.poll() for hand in hands] == [None] * len(hands)


def test_every_backend_ended_again_and_again(postgres_fleet: Fleet) -> None:
    fleet = postgres_fleet
    hand = fleet.start(concurrency=3, lease=BRISK)
    jobs = enqueue_some(fleet, 60)
    for _ in range(8):
        rows(fleet.url, END_ALL)
        fleet.app.count_jobs()
    assert_all_end(fleet, jobs, hand)
    assert "ERROR" not in hand.log
    assert hand.stop() == 0


def test_a_server_that_refuses_for_a_while_is_told_of_once(postgres_fleet: Fleet) -> None:
    fleet = postgres_fleet
    with Proxy(fleet.url) as proxy:
        hand = fleet.start(url=proxy.url, concurrency=2, lease=30)
        running, go_on = fleet.hold()
        proxy.refuse()
        hand.wait_for("The database is away")
        go_on()
        jobs = enqueue_some(fleet, 5)
        refused = proxy.refused
        until(lambda: proxy.refused >= refused + 8)
        proxy.admit()
        assert_all_end(fleet, [running, *jobs], hand)
        hand.wait_for("The database is back")
        assert (hand.log.count("database is away"), hand.log.count("database is back")) == (1, 1)
        assert (running.attempt, hand.stop()) == (1, 0)


def test_a_worker_that_starts_before_its_database_waits_for_it(postgres_fleet: Fleet) -> None:
    fleet = postgres_fleet
    fleet.app.save_tasks()
    with Proxy(fleet.url) as proxy:
        proxy.refuse()
        hand = fleet.start_only(url=proxy.url)
        hand.wait_for("The database is away")
        job = fleet.enqueue("add", a=1, b=2)
        proxy.admit()
        assert job.get(30) == 3


async def test_a_patience_that_ran_out_ends_no_worker_that_is_starting(postgres_url: str) -> None:
    with Proxy(postgres_url) as proxy:
        app = App(proxy.url)
        app.use_database(patience=0.1)
        app.task(name="work")(lambda: "done")
        proxy.refuse()
        asyncio.get_running_loop().call_later(1.0, proxy.admit)
        async with app.worker():
            job = await app.tasks["work"].aenqueue()
            assert await job.aget(30) == "done"
        await app.aclose()


async def test_beside_a_worker_a_call_is_as_patient_as_the_worker(postgres_url: str) -> None:
    with Proxy(postgres_url) as proxy:
        app = App(proxy.url)
        app.use_database(patience_away=0.01)
        work = app.task(name="work")(lambda: "done")
        async with app.worker():
            proxy.refuse()
            asyncio.get_running_loop().call_later(1.0, proxy.admit)
            job = await work.aenqueue()
            assert await job.aget(30) == "done"
        await app.aclose()


def test_an_app_has_less_patience_with_a_database_that_is_away_than_its_worker() -> None:
    app = App("postgresql://ann:hunter2@127.0.0.1:1/shop")
    app.use_database(patience_away=0.1)
    work = app.task(name="work")(lambda: None)
    with pytest.raises(StoreAway, match=r"^The database cannot be reached \(127.0.0.1:1\)\.$"):
        work.enqueue()
    app.close()


def test_a_network_that_swallows_everything(postgres_fleet: Fleet) -> None:
    """Nothing is refused and nothing is answered; then the connections turn out to be dead."""
    fleet = postgres_fleet
    with Proxy(fleet.url) as proxy:
        hand = fleet.start(url=proxy.url, concurrency=3, lease=BRISK)
        running, go_on = fleet.hold()
        proxy.freeze()
        go_on()
        jobs = enqueue_some(fleet, 5)
        assert running.refresh().state == "running"
        proxy.cut()
        proxy.thaw()
        assert_all_end(fleet, [running, *jobs], hand)
        assert running.attempt == 1


@pytest.mark.long
def test_a_stop_while_the_database_is_away_ends_in_time_and_leaves_the_jobs_to_others(
    postgres_fleet: Fleet,
) -> None:
    fleet = postgres_fleet
    with Proxy(fleet.url) as proxy:
        hand = fleet.start(url=proxy.url, drain=0.2, lease=1)
        job, go_on = fleet.hold()
        proxy.refuse()
        hand.wait_for("The database is away")
        go_on()
        assert hand.stop() in (0, 10)
        assert "other workers will find what is left" in hand.log
    fleet.start(lease=1)
    assert job.get(30) == "rested"


def test_a_server_that_restarts(tmp_path: Path) -> None:
    with Server.start() as server:
        fleet = Fleet(server.url(), tmp_path)
        try:
            fleet.app.migrate()
            hand = fleet.start(concurrency=3, lease=BRISK)
            jobs = enqueue_some(fleet)
            restart(server)
            jobs += enqueue_some(fleet)
            assert_all_end(fleet, jobs, hand)
            assert hand.log.count("database is away") == hand.log.count("database is back") <= 1
            assert hand.stop() == 0
        finally:
            fleet.close()


def restart(server: Server) -> None:
    """At once, as after a crash; with the options it was started with."""
    data = server.data_directory
    owner = data.stat()
    binary = Path((data / "postmaster.opts").read_text().split()[0])
    pg_ctl = [str(binary.with_name("pg_ctl")), "-D", str(data), "-w"]
    account: dict[str, Any] = {"user": owner.st_uid, "group": owner.st_gid} if os.getuid() == 0 else {}
    subprocess.run(
        [*pg_ctl, "-m", "immediate", "-l", str(data / "log"), "restart"],
        check=True,
        cwd="/",
        stdout=subprocess.DEVNULL,
        **account,
    )


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Somebody else holds SQLite's write lock."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def test_a_file_that_somebody_locks_for_seconds(sqlite_fleet: Fleet) -> None:
    fleet = sqlite_fleet
    hand = fleet.start(concurrency=3, lease=30)
    jobs = enqueue_some(fleet)
    for _ in range(3):
        with locked(fleet.url):
            time.sleep(1)
    assert_all_end(fleet, jobs, hand)
    assert "ERROR" not in hand.log
    assert {job.attempt for job in jobs} == {1}


async def test_a_lock_that_outlasts_patience_is_one_line_and_its_end_another(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(sqlite_url)
    app.use_database(patience=0.1)
    app.task(name="work")(lambda: "done")
    async with app.worker(poll=0.1):
        job = await app.tasks["work"].using(delay=0.3).aenqueue()
        with locked(sqlite_url):
            await auntil(lambda: "The database cannot serve" in caplog.text)
            await asyncio.sleep(0.5)  # several more attempts
        assert await job.aget(30) == "done"
    assert caplog.text.count("The database cannot serve") == 1
    assert caplog.text.count("The database serves again") == 1
    await app.aclose()


def fill(path: Path) -> None:
    """To the last block of its disk."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a small disk")
def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("no small disk can be made here")
    fleet = Fleet(f"sqlite:///{disk / 'jobs.db'}", tmp_path)
    try:
        hand = fleet.start(concurrency=2, lease=30)
        jobs = enqueue_some(fleet, 10)
        running, go_on = fleet.hold()
        jobs.append(running)
        ballast = disk / "ballast"
        fill(ballast)
        go_on()
        hand.wait_for("disk is full")
        ballast.unlink()
        assert_all_end(fleet, jobs, hand)
        hand.wait_for("serves again")  # it says so only after the commit that others see
        assert hand.log.count("The database cannot serve") == 1
        assert hand.log.count("The database serves again") == 1
        assert hand.stop() == 0
    finally:
        fleet.close()
        subprocess.run(["umount", str(disk)], check=True)
