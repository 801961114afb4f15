"""``queues``, ``workers``, ``stats``, ``migrate``, ``check`` and ``sql``."""

from __future__ import annotations

import json
import secrets
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

import psycopg
import pytest

from perdure import App
from perdure.model.job import SECOND
from perdure.model.lifecycle import Failed
from perdure.store.schema.files import migrations
from perdure.store.statements import render
from tests.cli.shop import Shop, run
from tests.postgres import with_database


def test_queues_are_counted(shop: Shop) -> None:
    shop.serve()
    shop.end(Failed, "error", message="later", delay=3600 * SECOND)
    shop.send.using(delay=60).enqueue()
    shop.send.enqueue()
    shop.app.pause_queue("idle")
    mail, idle = reversed(shop.json("queues"))
    assert (mail["name"], mail["counts"]) == ("mail", {"ready": 1, "retrying": 1, "scheduled": 1})
    assert 0 < mail["lag"] < 60
    assert (mail["paused"], mail["cool_until"], mail["unserved"], mail["held"]) == (False, None, [], 0)
    assert (idle["name"], idle["counts"], idle["lag"], idle["paused"]) == ("idle", {}, 0, True)
    title, *rows = shop.run("queues").stdout.splitlines()
    assert title.split()[:4] == ["QUEUE", "READY", "SCHEDULED", "RETRYING"]
    assert rows[0].split()[:3] == ["idle", "paused", "since"]
    assert rows[1].split()[:4] == ["mail", "1", "1", "1"]


def test_queues_and_check_name_what_nobody_serves(shop: Shop) -> None:
    shop.serve(name="ann", tasks=("mail.send",), queues=["slow"])
    shop.send.enqueue()
    (queue,) = shop.json("queues")
    assert queue["unserved"] == [{"task": "mail.send", "ready": 1, "lacks": "queue"}]
    line = "1 ready in queue mail of task mail.send: no live worker serves the queue."
    told = shop.run("queues").stdout
    assert told.splitlines()[1].split()[-1] == "unserved"
    assert told.splitlines()[-1] == line
    assert f"warning: {line}" in shop.run("check").stdout.splitlines()
    assert shop.run("check").exit_code == 0
    assert shop.run("check", "--strict").exit_code == 1
    shop.serve(name="bob")
    assert shop.json("queues")[0]["unserved"] == []
    assert line not in shop.run("check").stdout


def test_no_queues_are_said_to_be_none(shop: Shop) -> None:
    result = shop.run("queues")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("No queues")
    assert shop.json("queues") == []


def test_workers_are_listed(shop: Shop) -> None:
    assert shop.run("workers").stderr == "No workers.\n"
    shop.serve(name="ann", slots=7, queues=["mail", "slow"])
    shop.app.operations.register("gone", name="gone", lease=1)
    ann, gone = sorted(shop.json("workers"), key=lambda worker: worker["name"])
    assert (ann["name"], ann["slots"], ann["queues"], ann["tasks"]) == (
        "ann",
        7,
        ["mail", "slow"],
        ["mail.send"],
    )
    assert (ann["lease"], ann["live"], gone["queues"], gone["live"]) == (600, True, None, False)
    assert ann["started_at"].endswith("Z")
    rows = sorted(line.split() for line in shop.run("workers").stdout.splitlines()[1:])
    assert rows[0][:6] == ["ann", "ann-1", "live", "7", "mail,", "slow"]
    assert rows[1][:5] == ["gone", "gone", "silent", "1", "every"]
    assert (ann["silent_since"], gone["silent_since"]) == (None, gone["beat_at"])
    since = datetime.fromisoformat(gone["beat_at"])
    note = f"silent since {since:%Y-%m-%d %H:%M:%S} UTC, taken over by the next sweep of a live worker"
    assert " ".join(rows[1]).endswith(note)


def test_a_worker_that_misses_its_beat_is_silent_before_its_lease_ends(shop: Shop) -> None:
    shop.serve(name="ann")
    with closing(shop.app.store.connect()) as connection:
        late = "beat_at = beat_at - span(301000000), expires_at = expires_at - span(301000000)"
        connection.execute(render(f"UPDATE perdure.worker SET {late}", shop.app.store.dialect))
        connection.commit()
    (ann,) = shop.json("workers")
    assert (ann["live"], ann["silent_since"]) == (True, ann["beat_at"])
    until = datetime.fromisoformat(ann["expires_at"])
    line = " ".join(shop.run("workers").stdout.splitlines()[-1].split())
    assert (
        f" silent since {datetime.fromisoformat(ann['beat_at']):%Y-%m-%d %H:%M:%S} UTC, taken over at "
        in line
    )
    assert f"{until:%Y-%m-%d %H:%M:%S} UTC (in " in line
    assert shop.json("stats")["workers"][0]["silent_since"] == ann["beat_at"]


def test_stats_are_told_in_one_document(shop: Shop) -> None:
    shop.serve(slots=3)
    shop.send.enqueue()
    told = shop.json("stats")
    base = told["database"]
    assert base["bytes"] > 50_000
    if shop.url.startswith("sqlite"):
        assert (base["dialect"], base["version"]) == ("sqlite", sqlite3.sqlite_version)
        assert (base["dead_rows"], base["oldest_snapshot"]) == (None, None)
        assert base["wal_bytes"] >= 0
    else:
        assert base["dialect"] == "postgres"
        assert int(base["version"].split(".")[0]) >= 14
        assert base["dead_rows"] >= 0
        assert told["connections"]["most"] > told["connections"]["open"] > 0
    assert [(queue["name"], queue["counts"]) for queue in told["queues"]] == [("mail", {"ready": 1})]
    assert [worker["name"] for worker in told["workers"]] == ["ann"]
    assert told["at"].endswith("Z")
    text = shop.run("stats").stdout
    assert "workers  " in text
    assert "1 live, 3 slots" in text
    assert f"{base['dialect']} {base['version']}" in text


def test_migrate_tells_what_it_did_and_check_agrees(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    before = run("check", "--url", url, "--json")
    assert before.exit_code == 4
    assert json.loads(before.stdout)["schema"]["code"] == "schema.missing"
    every = [migration.version for migration in migrations("sqlite")]
    assert json.loads(run("migrate", "--url", url, "--json").stdout) == {
        "applied": every,
        "version": every[-1],
    }
    again = run("migrate", "--url", url).stdout
    assert again == f"The schema is at version {every[-1]}; there was nothing to do.\n"
    after = run("check", "--url", url, "--json")
    assert after.exit_code == 0
    assert json.loads(after.stdout)["schema"] == {"fits": True}


def test_migrate_says_what_is_wrong_with_a_path(tmp_path: Path) -> None:
    result = run("migrate", "--url", f"sqlite:///{tmp_path}/none/jobs.db")
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: The directory of the SQLite file does not exist; create it first. [config.invalid]\n"
    )


@pytest.mark.parametrize(("version", "warned"), [("3.51.2", True), ("3.51.3", False), ("3.100.0", False)])
def test_check_warns_of_an_old_sqlite(version: str, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = App("sqlite:///:memory:").stats()
    old = stats._replace(database=stats.database._replace(version=version))
    monkeypatch.setattr(App, "stats", lambda app, since: old)
    monkeypatch.setattr(App, "check_schema", lambda app: None)
    result = run("check", "--url", "sqlite:///:memory:", "--strict")
    assert result.exit_code == int(warned)
    assert (f"warning: SQLite {version} can corrupt its log" in result.stdout) is warned


@pytest.mark.parametrize("schema", ["perdure", 'a "strange" one'])
def test_the_printed_sql_makes_a_database_that_fits_on_postgresql(postgres_server: str, schema: str) -> None:
    script = run("sql", "postgres", "--schema", schema).stdout
    name = f"perdure_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_server, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
        try:
            url = with_database(postgres_server, name)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(script.encode())
            assert run("check", "--url", url, "--schema", schema).exit_code == 0
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_the_printed_sql_makes_a_database_that_fits_on_sqlite(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "jobs.db")
    connection.executescript(run("sql", "sqlite").stdout)
    connection.close()
    result = run("check", "--url", f"sqlite:///{tmp_path / 'jobs.db'}")
    assert (result.exit_code, result.stderr) == (0, "")


def test_sql_prints_both_kinds(tmp_path: Path) -> None:
    both = run("sql").stdout
    assert "CREATE TABLE perdure_job" in both
    assert 'CREATE TABLE "perdure".job' in both
    assert list(json.loads(run("sql", "--json").stdout)) == ["sqlite", "postgres"]
    assert "perdure_job" not in run("sql", "postgres").stdout


def test_stats_tell_how_long_jobs_waited_and_ran(shop: Shop) -> None:
    shop.serve()
    shop.end(Failed, "fatal")
    (queue,) = shop.json("stats", "--since", "15m")["recent"]["queues"]
    assert (queue["name"], queue["failed"]) == ("mail", 1)
    assert 0 <= queue["waited"]["p50"] <= queue["waited"]["max"] < 60
    text = shop.run("stats").stdout
    assert "seconds waited and run:" in text
    assert "WAITED P50" in text
    assert shop.run("stats", "--since", "soon").exit_code == 2
