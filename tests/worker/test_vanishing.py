"""Tables or a file that vanish under a worker: it waits, says so once, and goes on with what comes in their place."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure import App
from perdure.errors import SchemaMissing, StoreAway
from perdure.worker.identity import UNKNOWN
from perdure.worker.options import Exit
from perdure.worker.worker import Worker
from tests.harness.waiting import auntil

SCHEMA = "vanishing"
"""The other one is for other tests, too."""

GONE = "The SQLite file was moved, deleted or replaced while it was in use."
LEFT_BEHIND = "The -wal and -shm files beside the SQLite file belong to an earlier file at this path"


def drop_tables(url: str) -> None:
    if not url.startswith("sqlite"):
        dropped = False
        with psycopg.connect(url, autocommit=True) as connection:
            while not dropped:
                # A statement of the worker's may hold one table and want another: one of the two must give way.
                with suppress(psycopg.errors.DeadlockDetected):
                    connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE".encode())
                    dropped = True
        return
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
        file.execute("BEGIN IMMEDIATE")
        names = file.execute("SELECT type, name FROM sqlite_master WHERE name LIKE 'perdure%'").fetchall()
        for kind, name in sorted(names, reverse=True):
            if kind in ("table", "view"):
                file.execute(f"DROP {kind} {name}")
        file.execute("COMMIT")


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def remove(path: Path) -> None:
    for file in (path, *path.parent.glob(f"{path.name}-wal"), *path.parent.glob(f"{path.name}-shm")):
        file.unlink()


@asynccontextmanager
async def busy_worker(app: App, *, queues: list[str] | None = None) -> AsyncIterator[Worker]:
    """One that has a job in hand."""

    @app.task(name="rest")
    async def rest() -> None:
        await asyncio.sleep(60)

    @app.task(name="work")
    async def work() -> str:
        return "done"

    async with app.worker(poll=0.1, drain=0, queues=queues) as worker:
        await rest.aenqueue()
        await auntil(worker.leases)
        yield worker
    assert worker.status in (Exit.DONE, Exit.GAVE_BACK)


async def another_works(url: str) -> None:
    """A producer of its own, on what is there now."""
    producer = App(url, synchronous="normal", schema=SCHEMA)
    await producer.amigrate()
    work: Any = producer.task(name="work")(lambda: None)
    job = await work.aenqueue()
    assert await job.aget(30) == "done"
    await producer.aclose()


async def until_told(caplog: pytest.LogCaptureFixture, text: str) -> None:
    await auntil(lambda: text in caplog.text)


@pytest.fixture
def brisk_app(url: str) -> Iterator[App]:
    app = App(url, synchronous="normal", lease=1, schema=SCHEMA)
    app.migrate()
    yield app
    app.close()
    drop_tables(url)


async def test_tables_that_are_dropped_and_made_anew(
    brisk_app: App, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with busy_worker(brisk_app) as worker:
        first = worker.identity
        drop_tables(url)
        await until_told(caplog, "The database cannot serve: perdure's tables do not exist")
        await auntil(lambda: worker._health._failures > 5)
        await another_works(url)
        await auntil(lambda: not worker.leases())
        assert [row.id for row in await brisk_app.alist_workers()] == [worker.identity] != [first]
    assert caplog.text.count(UNKNOWN) == 1
    assert "believed dead" not in caplog.text
    # Each state once. Between two migrations the tables are there, and older.
    assert caplog.text.count("The database cannot serve: perdure's tables do not exist") == 1
    assert caplog.text.count("The database cannot serve: perdure's tables are older") <= 1
    assert caplog.text.count("The database serves again") == 1
    assert "ERROR" not in caplog.text


def test_a_program_that_only_enqueues_goes_on_after_its_tables_were_made_anew(
    brisk_app: App, url: str
) -> None:
    work: Any = brisk_app.task(name="work")(lambda: None)
    work.enqueue()
    drop_tables(url)
    with pytest.raises(SchemaMissing):
        work.enqueue()
    with App(url, synchronous="normal", schema=SCHEMA) as operator:
        operator.migrate()
    assert work.enqueue().refresh().state == "ready"


async def test_a_worker_does_not_begin_without_tables(postgres_url: str) -> None:
    app = App(postgres_url, schema=SCHEMA)
    app.task(name="work")(lambda: None)
    with pytest.raises(SchemaMissing):
        async with app.worker():
            pass
    await app.aclose()


@pytest.fixture
def brisk_file(sqlite_url: str) -> App:
    return App(sqlite_url, synchronous="normal", lease=1)


async def test_a_file_that_is_deleted_is_waited_for(
    brisk_file: App, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = path_of(sqlite_url)
    async with busy_worker(brisk_file) as worker:
        remove(path)
        await until_told(caplog, f"The database cannot serve: {GONE}")
        await auntil(lambda: worker._health._failures > 5)
        assert not path.exists()
        await another_works(sqlite_url)
        await auntil(lambda: not worker.leases())
        assert [row.id for row in await brisk_file.alist_workers()] == [worker.identity]
    assert caplog.text.count(UNKNOWN) == 1
    assert caplog.text.count(GONE) == 1
    assert caplog.text.count("The database serves again") == 1
    assert "ERROR" not in caplog.text
    await brisk_file.aclose()


async def test_a_file_that_is_replaced_is_opened_instead(
    brisk_file: App, sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, backup = path_of(sqlite_url), tmp_path / "backup.db"
    app = App(f"sqlite:///{backup}")
    job = await app.task(name="work")(lambda: None).aenqueue()
    await app.aclose()
    async with busy_worker(brisk_file):
        remove(path)
        os.replace(backup, path)
        await until_told(caplog, f"The database cannot serve: {GONE}")
        assert await (await brisk_file.aget_job(job.id)).aget(30) == "done"
        await another_works(sqlite_url)
    assert caplog.text.count(GONE) == 1
    assert "ERROR" not in caplog.text
    await brisk_file.aclose()


def beside(path: Path) -> list[Path]:
    return [Path(f"{path}-wal"), Path(f"{path}-shm")]


async def backup_with_a_job(path: Path) -> str:
    """Larger than what the worker has: the old WAL's pages would fall into the middle of it."""
    app = App(f"sqlite:///{path}")
    work: Any = app.task(name="work")(lambda: None)
    await app.aenqueue_many([work.using(queue="elsewhere").job() for _ in range(500)])
    job = await work.aenqueue()
    await app.aclose()
    return str(job.id)


async def test_a_wal_of_the_old_file_is_not_applied_to_the_new_one(
    brisk_file: App, sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, backup = path_of(sqlite_url), tmp_path / "backup.db"
    job = await backup_with_a_job(backup)
    content = backup.read_bytes()
    async with busy_worker(brisk_file, queues=["default"]) as worker:
        os.replace(backup, path)
        await until_told(caplog, f"The database cannot serve: {LEFT_BEHIND}")
        await auntil(lambda: worker._health._failures > 5)
        with pytest.raises(StoreAway, match=LEFT_BEHIND):
            await brisk_file.aget_job(job)
        store = brisk_file._store
        assert store is not None
        with pytest.raises(StoreAway, match=LEFT_BEHIND):
            store.connect()
        with pytest.raises(StoreAway, match=LEFT_BEHIND):
            await App(sqlite_url).amigrate()
        assert path.read_bytes() == content
        for left in beside(path):
            left.unlink()
        await auntil(lambda: "The database serves again" in caplog.text)
        assert await (await brisk_file.aget_job(job)).aget(30) == "done"
    await brisk_file.aclose()
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert file.execute("SELECT count(*) FROM perdure_job").fetchall() == [(501,)]
    assert caplog.text.count(LEFT_BEHIND) == 1
    assert "ERROR" not in caplog.text


@pytest.mark.parametrize("part", [0, 1], ids=["wal", "shm"])
async def test_one_left_file_is_enough_to_wait(
    brisk_file: App, sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, part: int
) -> None:
    """The -shm alone says where the pages of a WAL are, and others may still write there for the old file."""
    path, backup = path_of(sqlite_url), tmp_path / "backup.db"
    job = await backup_with_a_job(backup)
    async with busy_worker(brisk_file, queues=["default"]):
        beside(path)[1 - part].unlink()
        os.replace(backup, path)
        await until_told(caplog, f"The database cannot serve: {LEFT_BEHIND}")
        beside(path)[part].unlink()
        await auntil(lambda: "The database serves again" in caplog.text)
        assert await (await brisk_file.aget_job(job)).aget(30) == "done"
    await brisk_file.aclose()


async def test_a_file_that_comes_back_brings_its_own_wal(
    brisk_file: App, sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, aside, other = path_of(sqlite_url), tmp_path / "aside.db", tmp_path / "other.db"
    await backup_with_a_job(other)
    async with busy_worker(brisk_file, queues=["default"]) as worker:
        os.rename(path, aside)
        os.rename(other, path)
        await until_told(caplog, LEFT_BEHIND)
        os.replace(aside, path)
        await auntil(lambda: "The database serves again" in caplog.text)
        await another_works(sqlite_url)
        assert worker.identity in [row.id for row in await brisk_file.alist_workers()]
    await brisk_file.aclose()


async def test_what_is_only_in_the_wal_of_the_new_file_is_kept(
    brisk_file: App, sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite deletes a WAL by its name with the last connection, and the old file's connections had this name."""
    path, new = path_of(sqlite_url), tmp_path / "new.db"
    job = await backup_with_a_job(new)
    with closing(sqlite3.connect(new, isolation_level=None)) as other:
        other.execute("PRAGMA wal_autocheckpoint = 0")
        other.execute("UPDATE perdure_job SET priority = priority + 1 WHERE queue = 'elsewhere'")
        async with busy_worker(brisk_file, queues=["default"]):
            for old, name in zip([new, *beside(new)], [path, *beside(path)], strict=True):
                os.replace(old, name)
            wal = beside(path)[0].stat()
            await until_told(caplog, f"The database cannot serve: {GONE}")
            assert await (await brisk_file.aget_job(job)).aget(30) == "done"
            assert os.path.samestat(beside(path)[0].stat(), wal)
        await brisk_file.aclose()
        assert os.path.samestat(beside(path)[0].stat(), wal)
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        ((raised,),) = file.execute(
            "SELECT count(DISTINCT priority) FROM perdure_job WHERE queue = 'elsewhere'"
        )
        ((first,),) = file.execute("SELECT priority FROM perdure_job WHERE queue = 'elsewhere' LIMIT 1")
        ((usual,),) = file.execute("SELECT priority FROM perdure_job WHERE id = ?", (job,))
        assert (raised, first) == (1, usual + 1)
    assert "ERROR" not in caplog.text


async def test_a_file_without_tables_is_not_ours(
    brisk_file: App, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = path_of(sqlite_url)
    async with busy_worker(brisk_file):
        remove(path)
        with closing(sqlite3.connect(path)) as file:
            file.execute("CREATE TABLE customer (name text)")
        await until_told(caplog, "The database cannot serve: perdure's tables do not exist")
        with closing(sqlite3.connect(path)) as file:
            assert file.execute("SELECT name FROM sqlite_master").fetchall() == [("customer",)]
        await another_works(sqlite_url)
    await brisk_file.aclose()
