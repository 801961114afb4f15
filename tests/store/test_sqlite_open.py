"""What the store opens, how, and what it refuses to open."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from perdure.errors import (
    InvalidConfig,
    PerdureError,
    SchemaMissing,
    SchemaNewer,
    StoreBusy,
    StoreClosed,
    UnsupportedDatabase,
)
from perdure.store.schema.files import migrations
from perdure.store.sqlite import connect
from perdure.store.sqlite.store import SqliteStore
from tests.harness.waiting import until
from tests.store.notes import (
    STATEMENTS,
    add,
    listed,
    note_store,
    notes_in,
    run_program,
    write_connection,
)

NOBODY = 65534


def test_nothing_is_opened_before_the_first_call(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "missing" / "jobs.db"), statements=STATEMENTS)
    assert store.dialect == "sqlite"
    assert store.patience == 30.0
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_the_first_call_migrates(tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db")
    store.check_schema()
    assert store.migrate() == []
    store.close()


def test_migrate_tells_what_it_applied(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "jobs.db"))
    assert store.migrate() == [migration.version for migration in migrations("sqlite")]
    assert store.migrate() == []
    store.close()


def test_check_schema_changes_nothing(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "jobs.db"))
    with pytest.raises(SchemaMissing):
        store.check_schema()
    assert list(tmp_path.iterdir()) == []
    sqlite3.connect(tmp_path / "jobs.db").execute("CREATE TABLE own (id)").connection.close()
    with pytest.raises(SchemaMissing):
        store.check_schema()
    store.close()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    note_store(tmp_path / "jobs.db").close()
    connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    connection.execute(
        "INSERT INTO perdure_migration (version, name, checksum, finished) VALUES (9999, 'later', '', 1)"
    )
    connection.close()
    store = SqliteStore(str(tmp_path / "jobs.db"), statements=STATEMENTS)
    # The second time too: a connection whose schema was refused is not kept.
    for _ in range(2):
        with pytest.raises(SchemaNewer):
            store.perform(add, "note")
        with pytest.raises(SchemaNewer):
            store.perform(listed)
        with pytest.raises(SchemaNewer):
            store.check_schema()
    store.close()
    assert notes_in(tmp_path / "jobs.db") == []


def test_an_up_to_date_file_needs_no_write_lock(tmp_path: Path) -> None:
    note_store(tmp_path / "jobs.db").close()
    holder = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    store = SqliteStore(str(tmp_path / "jobs.db"), statements=STATEMENTS, patience=0)
    assert store.perform(listed) == []
    store.check_schema()
    assert store.migrate() == []
    holder.close()
    store.close()


@pytest.mark.parametrize(("synchronous", "number"), [("full", 2), ("normal", 1)])
def test_every_connection_is_set_up(tmp_path: Path, synchronous: str, number: int) -> None:
    store = note_store(tmp_path / "jobs.db", synchronous=synchronous)
    store.perform(listed)
    reading = store._process_state._database.connections - {write_connection(store)}
    assert len(reading) == 1
    for connection in store._process_state._database.connections:
        expected = {
            "journal_mode": "wal",
            "synchronous": number,
            "foreign_keys": 0,
            "wal_autocheckpoint": 0,
            "journal_size_limit": connect.LONGEST_WAL,
            "busy_timeout": 0,
            "query_only": int(connection in reading),
        }
        found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in expected}
        assert found == expected
    store.close()


def test_reads_cannot_write(tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db")
    store.perform(listed)
    (connection,) = store._process_state._database.connections - {write_connection(store)}
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM note")
    store.close()


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.36.0")
    with pytest.raises(UnsupportedDatabase, match=r"SQLite 3\.37 or newer.* 3\.36\.0"):
        SqliteStore(str(tmp_path / "jobs.db")).migrate()


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "network_file_system", lambda path: "nfs4")
    with pytest.raises(UnsupportedDatabase, match="nfs4"):
        SqliteStore(str(tmp_path / "jobs.db")).migrate()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["missing/jobs.db", "."])
def test_a_path_that_cannot_be_a_file_is_a_wrong_setting(tmp_path: Path, path: str) -> None:
    store = SqliteStore(str(tmp_path / path), statements=STATEMENTS)
    with pytest.raises(InvalidConfig):
        store.perform(listed)
    with pytest.raises(InvalidConfig):
        store.perform(add, "note")


def test_an_empty_path_and_an_unknown_setting_are_refused_at_once() -> None:
    with pytest.raises(InvalidConfig):
        SqliteStore("")
    with pytest.raises(InvalidConfig):
        SqliteStore("jobs.db", synchronous="off")  # type: ignore[arg-type]


def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = "This is a letter, not a database. " * 100
    (tmp_path / "letter.txt").write_text(text)
    store = SqliteStore(str(tmp_path / "letter.txt"), statements=STATEMENTS)
    for call in (lambda: store.perform(add, "note"), lambda: store.perform(listed), store.check_schema):
        with pytest.raises(UnsupportedDatabase, match="not an SQLite database"):
            call()
    assert (tmp_path / "letter.txt").read_text() == text


def test_a_link_leads_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "jobs.db")
    store = note_store(tmp_path / "link.db")
    store.perform(add, "note")
    assert (tmp_path / "real" / "jobs.db-wal").exists()
    store.close()
    assert notes_in(tmp_path / "real" / "jobs.db") == ["note"]


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("jobs.db", statements=STATEMENTS)
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.migrate()
    store.close()
    assert (tmp_path / "jobs.db").exists()


def test_a_file_in_the_old_journal_mode_waits_for_its_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch to WAL needs the file to itself for a moment."""
    own = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    own.execute("CREATE TABLE own (id)")
    own.execute("BEGIN")
    own.execute("SELECT * FROM own").fetchall()
    impatient = SqliteStore(str(tmp_path / "jobs.db"), patience=0)
    with pytest.raises(StoreBusy):
        impatient.migrate()
    patient = SqliteStore(str(tmp_path / "jobs.db"))
    knocks: list[float] = []
    monkeypatch.setattr(patient._process_state._group_commit, "_rest", knocks.append)
    waiting = threading.Thread(target=patient.migrate)
    waiting.start()
    until(lambda: len(knocks) > 2)
    own.execute("ROLLBACK")
    waiting.join(60)
    patient.check_schema()
    patient.close()
    own.close()


def answers_to_nobody(path: Path) -> list[str]:
    """What a process is told that may do as little as others may. Root would not notice permissions."""
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        os.waitpid(child, 0)
        with open(reading) as answers:
            return answers.read().splitlines()
    try:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        store = SqliteStore(str(path), statements=STATEMENTS)
        for call in (lambda: store.perform(add, "note"), lambda: store.perform(listed)):
            try:
                call()
                answer = "done"
            except PerdureError as error:
                answer = error.code
            os.write(writing, f"{answer}\n".encode())
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(0)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that anybody may enter. Not in tmp_path: each run of pytest closes that tree to others."""
    with TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)
        os.chmod(directory, 0o700)


def test_a_file_that_cannot_be_written_to(shared: Path) -> None:
    note_store(shared / "jobs.db").close()
    os.chmod(shared / "jobs.db", 0o444)
    os.chmod(shared, 0o777)
    # It may be read: with a directory to keep the WAL's index in, nothing stands against it.
    assert answers_to_nobody(shared / "jobs.db") == ["store.read_only", "done"]


def test_a_directory_that_cannot_be_written_to(shared: Path) -> None:
    note_store(shared / "jobs.db").close()
    os.chmod(shared / "jobs.db", 0o666)
    os.chmod(shared, 0o555)
    assert answers_to_nobody(shared / "jobs.db") == ["store.read_only", "store.read_only"]


def test_a_directory_in_which_no_file_can_be_made(shared: Path) -> None:
    os.chmod(shared, 0o555)
    assert answers_to_nobody(shared / "jobs.db") == ["store.read_only", "store.read_only"]


@pytest.mark.parametrize(
    "use",
    [
        "store.perform(add, 'note')",
        "store.perform(listed)",
        "asyncio.run(store.aperform(add, 'note'))",
        "asyncio.run(store.aperform(listed))",
        "kept = store.perform(add, 'note'), store",
        "memory = SqliteStore(':memory:'); memory.migrate()",
        "sys.exit(store.perform(listed).clear())",
    ],
)
def test_a_program_that_never_closes_ends_in_silence(tmp_path: Path, use: str) -> None:
    note_store(tmp_path / "jobs.db").close()
    code = f"""
        import asyncio, sys
        from perdure.store.sqlite.store import SqliteStore
        from tests.store.notes import STATEMENTS, add, listed
        store = SqliteStore(sys.argv[1], statements=STATEMENTS)
        {use}
    """
    assert run_program(code, tmp_path / "jobs.db") == ""
    assert not (tmp_path / "jobs.db-wal").exists()


def test_a_program_ends_although_its_writer_is_busy(tmp_path: Path) -> None:
    """A daemon in the middle of a transaction is left behind, and what it had not committed never was."""
    note_store(tmp_path / "jobs.db").close()
    code = """
        import asyncio, sys, threading
        from perdure.store.sqlite.store import SqliteStore
        from tests.store.notes import STATEMENTS, hold
        store = SqliteStore(sys.argv[1], statements=STATEMENTS)
        entered = threading.Event()
        async def main():
            task = asyncio.create_task(store.aperform(hold, "unfinished", entered, threading.Event()))
            await asyncio.to_thread(entered.wait)
            task.cancel()
        asyncio.run(main())
        print("end")
    """
    assert run_program(code, tmp_path / "jobs.db") == "end\n"
    assert notes_in(tmp_path / "jobs.db") == []


def test_a_closed_store_stays_closed(tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db")
    store.close()
    store.close()
    for call in (store.migrate, store.check_schema, lambda: store.perform(listed)):
        with pytest.raises(StoreClosed):
            call()


@pytest.mark.parametrize(
    ("name", "said"), [("a\0b.db", "NUL"), ("half\ud800.db", "cannot be encoded as utf-8")]
)
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said) as refusal:
        SqliteStore(str(tmp_path / name))
    assert refusal.value.__context__ is None
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_the_locale_cannot_write_is_refused_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        import sys
        from perdure.errors import InvalidConfig
        from perdure.store.sqlite.store import SqliteStore
        try:
            SqliteStore(sys.argv[1] + "/j\\xf6bs.db").migrate()
        except InvalidConfig as refusal:
            print(refusal)
    """
    for setting, value in (("LC_ALL", "C"), ("PYTHONCOERCECLOCALE", "0"), ("PYTHONUTF8", "0")):
        monkeypatch.setenv(setting, value)
    said = run_program(code, tmp_path)
    assert "cannot be encoded as ascii" in said
    assert "LC_ALL=C.UTF-8" in said
    assert list(tmp_path.iterdir()) == []


def test_a_file_whose_name_is_no_text_is_opened(tmp_path: Path) -> None:
    name = os.fsdecode(b"j\xf6bs.db")
    with closing(SqliteStore(str(tmp_path / name))) as store:
        store.migrate()
        store.check_schema()
    assert b"j\xf6bs.db" in os.listdir(bytes(tmp_path))
