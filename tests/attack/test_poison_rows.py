"""Rows written by hand, with every column at and beyond its bounds: no worker dies, and other jobs run."""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from perdure.cli import program
from perdure.model.job import ENDED
from tests.attack.poison import MEGABYTES, TABLES, Bad, Connection, Scene, columns, draw, values_for
from tests.harness.waiting import until
from tests.worker.fleet import Fleet

FLEET = (
    *(("jobs",), ("jobs", "--json"), ("jobs", "--count-by", "state"), ("queues",), ("queues", "--json")),
    *(("stats",), ("stats", "--json"), ("tasks",), ("tasks", "--json"), ("workers",), ("workers", "--json")),
    *(("workflows",), ("workflows", "--json"), ("acts",), ("acts", "--json")),
)
PER_JOB = ("job", "workflow", "dependency", "attempt", "event", "log", "key")
ONE = (("job",), ("job", "--json"), ("explain",), ("explain", "--json"))


@pytest.fixture
def scene(url: str) -> Iterator[Scene]:
    scene = Scene(url)
    yield scene
    scene.close()


def run_fleet(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A worker does its work, stays alive, and logs no error of Python or of a driver."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "perdure"):
        assert scene.app.run_worker(burst=True) == 0, caplog.text
    for record in caplog.records:
        assert record.exc_info is None, caplog.text
        assert "Traceback" not in record.getMessage(), caplog.text
        assert "psycopg" not in record.getMessage(), caplog.text
        assert "sqlite3" not in record.getMessage(), caplog.text


def judge(scene: Scene, ids: list[str]) -> None:
    """The ordinary jobs have succeeded; each of the others has ended, is held, or is explained."""
    jobs = scene.app.get_jobs([*scene.innocents, *ids])
    assert {job and job.state for job in jobs[: len(scene.innocents)]} == {"succeeded"}
    for job in jobs[len(scene.innocents) :]:
        # The id of some rows was overwritten.
        if job is None or job.row is None or job.state in ENDED:
            continue
        told = scene.app.explain_job(job.id)
        assert told.sentence
        assert told.advice
        if job.state == "ready" and job.row.held == "unclaimable" and told.code != "expired":
            assert (told.code, "run_now" in told.advice) == ("unclaimable", True)


def read_everything(scene: Scene, ids: list[str], *, verbose: bool = True) -> None:
    """Do what operators do. A refusal is always an error of perdure."""
    app = scene.app
    for read in (
        app.list_jobs,
        app.stats,
        app.list_queues,
        app.list_workflows,
        app.list_workers,
        app.list_tasks,
        app.count_jobs,
    ):
        read()
    commands = [*FLEET, *((name, id, *more) for id in ids for name, *more in ONE)]
    for command in commands if verbose else random.sample(commands, 4):
        result = CliRunner().invoke(program, command, prog_name="perdure", env={"PERDURE_URL": scene.url})
        assert result.exit_code in (0, 1), (command, result.output, result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            command,
            result.exception,
        )
        if "--json" in command and result.exit_code == 0:
            json.loads(result.stdout)
    for job in app.get_jobs(ids):
        if job is not None:
            app.job_history(job.id)


def test_every_column_at_its_bounds_and_beyond(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """All at once, each in a row of its own. Where there is one row for all, the random ones write."""
    scene.enqueue_innocents(10)
    ids: list[str] = []
    for column, kind in columns(scene.connection).items():
        if column[0] not in PER_JOB:
            continue
        flow = scene.victim("flow") if column[0] in ("workflow", "dependency") else None
        for number, bad in enumerate(values_for(column, kind, scene.connection.dialect)):
            victim = scene.victim("ready") if flow is None else flow
            if scene.poison(bad, victim, which=number):
                ids += victim
    scene.enqueue_innocents(10)
    run_fleet(scene, caplog)
    judge(scene, ids)
    read_everything(scene, ids[:1])


def test_a_large_value_in_any_column_of_a_claim(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.enqueue_innocents(10)
    ids = [job.id for job in scene.app.enqueue_many([scene.work.job(n) for n in range(5)])]
    value = "x" * (MEGABYTES << 20)
    for id, column in zip(ids, ("payload", "meta", "checkpoint", "tenant", "error_trace"), strict=True):
        document = column in ("payload", "meta", "checkpoint")
        assert scene.poison(Bad(("job", column), f'"{value}"' if document else value), [id])
    scene.enqueue_innocents(10)
    run_fleet(scene, caplog)
    judge(scene, ids)
    rows = [scene.app.get_job(id).row for id in ids[:4]]
    assert [row and row.held for row in rows] == ["unclaimable"] * 4


def test_a_worker_in_a_process_of_its_own_lives(url: str, tmp_path: Path) -> None:
    fleet, connection = Fleet(url, tmp_path), Connection(url)
    highest = 2**31 - 1 if connection.dialect == "postgres" else 2**63 - 1
    try:
        jobs = [fleet.enqueue("add", a=n, b=1) for n in range(20)]
        for column, job in zip(("token", "attempt"), jobs[5:15:5], strict=True):
            assert connection.write(Bad(("job", column), highest), "id = ?", job.id)
        hand = fleet.start()
        innocents = [job for job in jobs if job not in jobs[5:15:5]]
        until(lambda: all(fleet.state(job) == "succeeded" for job in innocents))
        assert hand.stop() == 0
        assert "Traceback" not in hand.log
        assert [hand.log.count(f"Job {job.id} cannot be claimed") for job in jobs[5:15:5]] == [1, 1]
    finally:
        connection.close()
        fleet.close()


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_random_rows(scene: Scene, part: int, caplog: pytest.LogCaptureFixture) -> None:
    """Five hundred times, up to five values at once, in any table and in rows of every kind."""
    seed = int(os.environ.get("PERDURE_TEST_FUZZ_SEED", "14")) * 1000 + part
    print(f"seed {seed}")
    rng = random.Random(seed)
    known = columns(scene.connection)
    for number in range(50):
        scene.enqueue_innocents(20)
        drawn = [draw(rng, known, scene.connection.dialect) for _ in range(rng.randint(1, 5))]
        victims = [scene.victim(kind) for kind, *_ in drawn]
        for victim, (_, bad, which) in zip(victims, drawn, strict=True):
            scene.poison(bad, victim, which)
        ids = [id for victim in victims for id in victim]
        try:
            run_fleet(scene, caplog)
            judge(scene, ids)
            read_everything(scene, ids, verbose=False)
        except BaseException:
            print(f"seed {seed}, number {number}: {drawn}")
            raise
        scene.innocents.clear()
        for table in TABLES:
            if table != "worker":
                scene.connection.run(f"DELETE FROM perdure.{table}")
        scene.app.save_tasks()
