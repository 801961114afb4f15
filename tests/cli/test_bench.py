"""`perdure bench` measures, says what it means, and leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from perdure import App
from perdure.cli.bench.report import lines, print_report, verdict
from perdure.cli.bench.tables import Place, drivers_errors
from perdure.cli.bench.worker import another_worker
from perdure.cli.bench.workloads import Figures, Range
from perdure.cli.failures import Failure
from perdure.client.database import DatabaseSettings
from perdure.errors import StoreFull
from tests.cli.shop import Shop, run
from tests.harness.processes import start
from tests.harness.waiting import until

SOON = 60.0
FIGURES = Figures(
    ours={"singles": 1000.0, "callers": 8000.0, "bulk": 50_000.0, "drain": 12_500.0},
    bare={"singles": 1250.0, "bulk": 100_000.0, "drain": 25_000.0},
    pick_up={50: 0.0031, 99: 0.0122},
    ours_range={
        "singles": Range(900.0, 1100.0),
        "callers": Range(7000.0, 8100.0),
        "bulk": Range(40_000.0, 60_000.0),
        "drain": Range(12_000.0, 12_600.0),
    },
    bare_range={
        "singles": Range(1200.0, 1300.0),
        "bulk": Range(90_000.0, 110_000.0),
        "drain": Range(20_000.0, 30_000.0),
    },
)


def left_behind(url: str) -> list[str]:
    """What bench has made and not removed."""
    if url.startswith("sqlite"):
        directory = Path(url.removeprefix("sqlite:///")).parent
        return [path.name for path in directory.iterdir() if "bench" in path.name]
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%bench%'").fetchall()
    return [name for (name,) in found]


def has_run_jobs(url: str) -> bool:
    """Whether the one that runs has come to where a worker drains."""
    ended = "SELECT 1 FROM {}job WHERE state = 'succeeded' LIMIT 1"
    try:
        if url.startswith("postgresql"):
            with psycopg.connect(url) as connection:
                return any(
                    connection.execute(ended.format(f"{name}.").encode()).fetchone()
                    for name in left_behind(url)
                )
        file = min(left_behind(url), default="", key=len)
        path = Path(url.removeprefix("sqlite:///")).with_name(file)
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection_:
            return bool(connection_.execute(ended.format("perdure_")).fetchone())
    except (psycopg.Error, sqlite3.Error, ValueError):
        return False  # the tables are not there yet


def test_a_file_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with started("--url", f"sqlite:///{tmp_path}/typo.db", "--seconds", "2", "--json") as process:
        out, err = process.communicate(timeout=SOON)
    assert (process.returncode, err) == (
        0,
        f"There is no file {tmp_path}/typo.db: bench measures the disk of its directory.\nMeasuring\n",
    )
    first = json.loads(out.splitlines()[0])
    assert first["low"] <= first["value"] <= first["high"]
    assert first["bare_low"] <= first["bare"] <= first["bare_high"]
    assert list(tmp_path.iterdir()) == []


@contextmanager
def started(*args: str) -> Iterator[subprocess.Popen[str]]:
    with start("-m", "perdure", "bench", *args) as process:
        try:
            yield process
        finally:
            process.kill()


def test_every_workload_is_measured_and_nothing_is_left_behind(shop: Shop) -> None:
    job = shop.send.enqueue()
    with started("--url", shop.url, "--seconds", "2", "--json") as process:
        out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, "Measuring\n")
    figures = {line["figure"]: line for line in map(json.loads, out.splitlines())}
    assert [(name, line["unit"], "ratio" in line) for name, line in figures.items()] == [
        ("enqueue one by one", "jobs/s", True),
        ("enqueue by 50 callers", "jobs/s", False),
        ("enqueue 1,000 at once", "jobs/s", True),
        ("drain by one worker", "jobs/s", True),
        ("pick-up, p50", "ms", False),
        ("pick-up, p99", "ms", False),
        ("a commit", "ms", False),
    ]
    assert all(line["value"] > 0 for line in figures.values())
    assert left_behind(shop.url) == []
    assert [job.id for job in shop.app.list_jobs()] == [job.id]


def test_a_database_that_goes_away_meanwhile_is_one_line(postgres_url: str) -> None:
    with started("--url", postgres_url, "--seconds", "20") as process:
        deadline = time.monotonic() + SOON
        while process.poll() is None:
            assert time.monotonic() < deadline
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE query LIKE '%.bare %' AND pid <> pg_backend_pid() AND datname = current_database()"
                )
            time.sleep(0.01)
        _, err = process.communicate(timeout=SOON)
    assert process.returncode == 3
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "Error: The database cannot be reached. [store.away]"
    assert left_behind(postgres_url) == []


@pytest.mark.parametrize(
    ("come_so_far", "number", "code"),
    [
        pytest.param(left_behind, signal.SIGINT, 130, id="SIGINT at the beginning"),
        pytest.param(left_behind, signal.SIGTERM, 143, id="SIGTERM at the beginning"),
        pytest.param(has_run_jobs, signal.SIGTERM, 143, id="SIGTERM in the middle"),
        pytest.param(has_run_jobs, signal.SIGINT, 130, id="SIGINT in the middle", marks=pytest.mark.long),
    ],
)
def test_nothing_is_left_behind_by_one_that_is_stopped(
    url: str, number: signal.Signals, code: int, come_so_far: Callable[[str], object]
) -> None:
    with started("--url", url, "--seconds", "20") as process:
        until(lambda: come_so_far(url) or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        process.send_signal(number)
        _, err = process.communicate(timeout=SOON)
    assert process.returncode == code
    assert "Traceback" not in err
    assert left_behind(url) == []


def test_a_role_that_may_not_create_a_schema_is_told_what_it_lacks(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS bench_reader")
        connection.execute("CREATE ROLE bench_reader LOGIN PASSWORD 'secret'")
    try:
        rest = postgres_url.partition("://")[2].rpartition("@")[2]
        result = run("bench", "--url", f"postgresql://bench_reader:secret@{rest}")
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("DROP ROLE bench_reader")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: This role may not create a schema, and bench needs its own: GRANT CREATE ON DATABASE "
        "to the role, or give another database with --url. [store.forbidden]\n"
    )


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("default_transaction_read_only=on", r"The database cannot be written to\. .*\[store\.read_only\]"),
        ("statement_timeout=5", r"The database took too long for a statement\. .*\[store\.busy\]"),
    ],
)
def test_a_setting_that_is_against_it_is_one_line_and_nothing_is_left_behind(
    postgres_url: str, setting: str, said: str
) -> None:
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}options=-c{setting.replace('=', '%3D')}"
    with started("--url", url, "--seconds", "20") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "Traceback" not in err
    (error,) = [line for line in err.splitlines() if line.startswith("Error")]
    assert re.fullmatch(f"Error: {said}", error)
    assert left_behind(postgres_url) == []


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "prog.py"
    file.write_text("print('this is no database of anybody')\n" * 100)
    result = run("bench", "--url", f"sqlite:///{file}", "--seconds", "2")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "Error: The file is not an SQLite database. [store.unsupported]\n"
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_is_told_as_an_enqueue_tells_it() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE bare (payload text)")
        connection.execute("PRAGMA max_page_count = 2")
        with pytest.raises(StoreFull) as caught, drivers_errors("sqlite"):
            connection.execute("INSERT INTO bare VALUES (?)", ["x" * 100_000])
    assert caught.value.code == "store.full"


def test_the_other_worker_says_why_it_could_not_begin(migrated_sqlite: Path) -> None:
    """Such as a database that has gone meanwhile."""
    with App(f"sqlite:///{migrated_sqlite}") as app:
        settings = DatabaseSettings("sqlite:///no/such/jobs.db")
        place = Place(settings, app, app.store, "")
        with pytest.raises(Failure) as caught, another_worker(place):
            pass
    assert caught.value.message.endswith("create it first. [config.invalid]")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "sqlite:///:memory:",
            "bench cannot use a database in memory: give the URL of a file, or of PostgreSQL.",
        ),
        ("sqlite:///no/such/jobs.db", "The directory of the SQLite file does not exist."),
        ("sqlite:///.", "The path of the SQLite file is a directory."),
    ],
)
def test_a_place_that_will_not_do_is_told(
    url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("bench", "--url", url)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"Error: {said} [config.invalid]\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", ["nan", "NaN", "inf", "1"])
def test_a_time_that_is_none_is_refused(seconds: str, tmp_path: Path) -> None:
    result = run("bench", "--seconds", seconds, "--url", f"sqlite:///{tmp_path}/jobs.db")
    assert (result.exit_code, result.stdout) == (2, "")
    said = f"Error: Invalid value for '--seconds': {float(seconds)} is not in the range 2<=x<=600."
    assert result.stderr.splitlines()[-1] == said
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.cli.bench.tables.PATIENCE", 0.1)
    result = run("bench", "--url", "postgresql://localhost:1/x")
    assert result.exit_code == 3
    assert result.stderr == "Error: The database cannot be reached (localhost:1). [store.away]\n"


def test_the_figures_are_compared_with_the_bare_databases() -> None:
    told = {line["figure"]: line for line in lines(FIGURES)}
    assert told["enqueue one by one"] == {
        "figure": "enqueue one by one",
        "value": 1000.0,
        "low": 900.0,
        "high": 1100.0,
        "unit": "jobs/s",
        "bare": 1250.0,
        "bare_low": 1200.0,
        "bare_high": 1300.0,
        "ratio": 0.8,
    }
    assert told["a commit"]["value"] == 0.8


def test_the_table_shows_how_far_the_rounds_differ(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(FIGURES, "sqlite 3.51.3", as_json=False)
    told = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "workload perdure range bare SQL range ratio" in told
    assert "enqueue one by one 1,000 jobs/s 900 to 1,100 1,250 jobs/s 1,200 to 1,300 80%" in told
    assert "enqueue by 50 callers 8,000 jobs/s 7,000 to 8,100" in told
    assert "pick-up, p50 3.1 ms" in told
    assert "A rate is the median of 3 rounds; its range goes from the slowest to the fastest one." in told


def test_the_verdict_is_a_sentence_for_each() -> None:
    assert list(verdict(FIGURES)) == [
        "A commit takes 0.8 ms here; a caller that waits for each commit enqueues at most 1,250 jobs a second.",
        "One by one, perdure enqueues 1,000 a second, 80% of what bare SQL does.",
        "50 concurrent callers in one process enqueue 8.0 times as many as one.",
        "In bulk it is 50,000 a second, 50% of what bare SQL does.",
        "One worker with 100 slots runs 12,500 empty jobs a second, 50% of what bare SQL does: 80 µs for each, "
        "plus the time of your code.",
        "An idle worker begins a job within 3.1 ms of the enqueue call in half of the cases, "
        "and within 12.2 ms in 99 of 100.",
    ]
    slow = FIGURES._replace(bare={**FIGURES.bare, "singles": 100.0})
    assert [*verdict(slow)][-1].startswith("Commits are slow here")


def test_no_limit_is_told_that_perdure_has_passed() -> None:
    fast = FIGURES._replace(ours={**FIGURES.ours, "singles": 1300.0})
    first, second, *_ = verdict(fast)
    assert (
        first
        == "A commit took 0.8 ms, but times varied: the disk is unsteady, so measure with more --seconds."
    )
    assert second == "One by one, perdure enqueues 1,300 a second, 104% of what bare SQL does."
