"""An upgrade without downtime: workers of a release and of this version on one database that is migrated meanwhile."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure import App
from tests.harness import processes
from tests.harness.processes import tell
from tests.harness.waiting import until
from tests.migrations.database import Database, end, start
from tests.migrations.samples import online
from tests.migrations.test_together import killed_at_the_end
from tests.upgrade.test_released import WHEELS

TODAY = processes.ROOT / "src"

SHOP = """
import asyncio, sys
from perdure import App
app = App(sys.argv[1], lease=3600)

@app.task(name="note", max_attempts=8)
async def note(n: int) -> str:
    with open(sys.argv[2], "a") as file:
        file.write(f"{n}\\n")
    await asyncio.sleep(0.01)
    return sys.argv[3]

@app.task(name="long", max_attempts=8)
async def long() -> str:
    while "let it end" not in open(sys.argv[2]).read():
        await asyncio.sleep(0.05)
    return sys.argv[3]

print("loaded", flush=True)
sys.exit(app.run_worker(concurrency=4))
"""

pytestmark = pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.stem.split("-")[1])


def run_from(home: Path, script: str, *args: str) -> subprocess.Popen[str]:
    """A program that imports perdure from there."""
    return processes.start("-W", "default", "-c", script, *args, env={"PYTHONPATH": str(home)})


@contextmanager
def worker(home: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A worker that imports perdure from there."""
    process = run_from(home, SHOP, *args)
    with killed_at_the_end(process):
        yield process


class Rehearsal:
    """A database with the tables of the release, a page on which handlers write, and an app of today."""

    def __init__(self, url: str, page: Path) -> None:
        self.database = Database(url)
        self.page = page
        self.page.touch()
        self.app = App(url)
        self.ids: list[str] = []

        @self.app.task(name="note", max_attempts=8)
        async def note(n: int) -> str:
            return "elsewhere"

        @self.app.task(name="long", max_attempts=8)
        async def long() -> str:
            return "elsewhere"

        self.note, self.long = note, long

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.ids.append(self.note.enqueue(n=len(self.ids)).id)

    def results(self) -> Counter[str]:
        return Counter(self.app.get_job(id).get(60) for id in self.ids)

    def notes(self) -> list[int]:
        return sorted(int(line) for line in self.page.read_text().splitlines() if line.isdigit())

    def end_leases(self, pid: int) -> None:
        """As if the time of the worker's lease had passed, and that of the lead."""
        self.database.run(f"UPDATE perdure.worker SET expires_at = beat_at WHERE name LIKE '%:{pid}'")
        self.database.run("UPDATE perdure.leader SET expires_at = (SELECT min(beat_at) FROM perdure.worker)")

    @contextmanager
    def worker(self, home: Path) -> Iterator[subprocess.Popen[str]]:
        name = "today" if home == TODAY else "release"
        with worker(home, self.database.url, str(self.page), name) as process:
            yield process

    def done_by(self, name: str) -> bool:
        """Whether a worker of that kind has done something by now, while there is more to do."""
        self.enqueue(4)
        return bool(self.results()[name])


@pytest.fixture
def rehearsal(url: str, tmp_path: Path) -> Iterator[Rehearsal]:
    Database(url).migrate(to=1)
    rehearsal = Rehearsal(url, tmp_path / "page")
    yield rehearsal
    rehearsal.app.close()


def test_workers_of_both_go_on_while_the_schema_is_migrated(rehearsal: Rehearsal, wheel: Path) -> None:
    database = rehearsal.database
    with rehearsal.worker(wheel) as old:
        until(lambda: known(rehearsal, 1))
        # The schema that today's version ships first; then what a later one may bring, online too.
        rehearsal.app.migrate()
        until(lambda: rehearsal.done_by("release"))
        with rehearsal.worker(TODAY) as new:
            until(lambda: known(rehearsal, 2))
            until(lambda: rehearsal.done_by("today"))
            rehearsal.enqueue(40)
            assert database.migrate() == [
                online(database.dialect).version - 1,
                online(database.dialect).version,
            ]
            assert database.run("SELECT size FROM perdure.more") == [(1,)]
            assert old.poll() is None
            before = rehearsal.results()
            until(lambda: rehearsal.done_by("release") and rehearsal.results()["release"] > before["release"])
            stop(old)
            rehearsal.enqueue(20)
            rehearsal.results()
            stop(new)
    assert rehearsal.notes() == list(range(len(rehearsal.ids))), "each once"


@pytest.mark.parametrize("survivor", ["release", "today"])
def test_each_takes_over_what_a_killed_worker_of_the_other_left(
    rehearsal: Rehearsal, wheel: Path, survivor: str
) -> None:
    with rehearsal.worker(wheel) as old:
        until(lambda: known(rehearsal, 1))
        rehearsal.app.migrate()
        with rehearsal.worker(TODAY) as new:
            until(lambda: known(rehearsal, 2))
            jobs = [rehearsal.long.enqueue() for _ in range(8)]
            until(lambda: all(job.refresh().state == "running" for job in jobs))
            killed = new if survivor == "release" else old
            killed.kill()
            killed.wait(60)
            rehearsal.end_leases(killed.pid)
            with rehearsal.page.open("a") as page:
                page.write("let it end\n")
            assert [job.get(60) for job in jobs] == [survivor] * 8
            assert sorted(job.refresh().attempt for job in jobs) == [1] * 4 + [2] * 4


@pytest.mark.long
def test_a_release_exceeds_a_limit_and_is_counted(rehearsal: Rehearsal, wheel: Path) -> None:
    """As docs/limiting.md says: it does not know limits. Workers of today wait until there is room."""
    app = rehearsal.app
    with rehearsal.worker(wheel) as old:
        until(lambda: known(rehearsal, 1))
        app.migrate()
        app.set_queue("default", concurrency=2)
        jobs = [rehearsal.long.enqueue() for _ in range(6)]
        until(lambda: running(app) == 4)  # as many as it has slots
        with rehearsal.worker(TODAY) as new:
            until(lambda: known(rehearsal, 2))
            assert rehearsal.note.using(queue="other").enqueue(n=1).get(60) == "today"
            (use,) = app.list_limits()
            assert (use.running, use.waiting, len(use.exceeded)) == (4, 2, 1)
            old.kill()
            old.wait(60)
            rehearsal.end_leases(old.pid)
            until(lambda: running(app) == 2)
            assert rehearsal.note.using(queue="other").enqueue(n=2).get(60) == "today"
            assert running(app) == 2
            assert app.list_limits()[0].exceeded == []
            with rehearsal.page.open("a") as page:
                page.write("let it end\n")
            assert [job.get(60) for job in jobs] == ["today"] * 6
            stop(new)


def running(app: App) -> int:
    """How many jobs of the limited queue run."""
    return app.count_jobs().get("default", {}).get("running", 0)


def test_a_release_that_starts_meanwhile_is_told_at_once_and_disturbs_nobody(
    postgres_url: str, wheel: Path
) -> None:
    """It waits for a lock of its own inside a statement; an index that is built would wait for that."""
    database = Database(postgres_url)
    database.migrate(to=online("postgres").version - 1)
    migrates = f"from perdure import App; App({postgres_url!r}).migrate()"
    builder = start(postgres_url)
    with killed_at_the_end(builder), psycopg.connect(postgres_url) as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        tell(builder)
        until(lambda: "CREATE INDEX CONCURRENTLY" in queries(database))
        with run_from(wheel, migrates) as release:
            assert "SchemaNewer" in release.communicate(timeout=60)[1]
        reader.rollback()
        assert end(builder) == (0, [online("postgres").version])


def test_both_may_be_first(url: str, wheel: Path) -> None:
    """The release knows other locks, and the first migration only."""
    database = Database(url)
    old = run_from(wheel, f"from perdure import App; input(); App({url!r}).migrate()")
    new = start(url)
    with killed_at_the_end(old, new):
        tell(old)
        tell(new)
        assert end(new)[0] == 0
        _, errors = old.communicate(timeout=60)
        assert old.returncode == 0 or "SchemaNewer" in errors, errors
    database.check()
    assert database.run("SELECT size FROM perdure.more") == [(1,)]


def queries(database: Database) -> str:
    return json.dumps(database.run("SELECT query FROM pg_stat_activity WHERE state = 'active'"))


def known(rehearsal: Rehearsal, workers: int) -> bool:
    """Whether as many have registered. Asked by SQL: an app of today would migrate an SQLite file first."""
    return rehearsal.database.run("SELECT count(*) FROM perdure.worker") == [(workers,)]


def stop(process: subprocess.Popen[Any]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
