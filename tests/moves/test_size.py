"""A store of 200,000 jobs is moved to another database and back, interrupted twice each way."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perdure import App
from perdure.store.move.side import MOVED
from tests.moves import large_store
from tests.moves.ends import Ends
from tests.moves.fork_server import fork_server

JOBS = 200_000


@pytest.mark.long
def test_two_hundred_thousand_jobs_there_and_back(tmp_path: Path, postgres_url: str) -> None:
    first, last = f"sqlite:///{tmp_path / 'first.db'}", f"sqlite:///{tmp_path / 'last.db'}"
    large_store.make(first, JOBS)
    for ends in (Ends(first, postgres_url), Ends(postgres_url, last)):
        with fork_server(ends, batch=5000) as run:
            assert run("after_move_commit:kill@20") == (-signal.SIGKILL, "")
            assert run("before_move_commit:kill@40") == (-signal.SIGKILL, "")
            assert run("") == (0, "")
    assert differences(tmp_path / "first.db", tmp_path / "last.db") == dict.fromkeys(MOVED, 0)
    assert histories(first) == histories(postgres_url) == histories(last)


def differences(one: Path, other: Path) -> dict[str, int]:
    """How many rows of each table are only in one of two files."""
    with closing(sqlite3.connect(one)) as connection:
        connection.execute("ATTACH ? AS other", (str(other),))
        found = {}
        for table in MOVED:
            here, there = f"SELECT * FROM main.perdure_{table}", f"SELECT * FROM other.perdure_{table}"
            only = "SELECT count(*) FROM ({} EXCEPT {})"
            found[table] = sum(
                connection.execute(only.format(*pair)).fetchone()[0]
                for pair in ((here, there), (there, here))
            )
        return found


def histories(url: str) -> list[object]:
    """Of a few hundred jobs from all over the store."""
    with closing(App(url)) as app:
        return [app.job_history(id_of(i)) for i in range(40, JOBS, 1001)]


def id_of(i: int) -> str:
    return f"018bcfe5-{i % 65536:04x}-7000-8000-{i:012x}"
