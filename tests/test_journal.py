"""The journal: one file for each process, one line for each note, and nothing unless it is enabled."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from perdure.app import App
from perdure.client.job import Job
from perdure.errors import StoreAway
from perdure.internal import journal
from tests.harness import processes


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where this process keeps one for as long as the test lasts."""
    path = tmp_path / "deep" / "history"
    monkeypatch.setenv(journal.VARIABLE, str(path))
    monkeypatch.setattr(journal, "_files", {})
    monkeypatch.setattr(journal, "enabled", True)
    return path


def notes(directory: Path) -> list[dict[str, Any]]:
    lines = [line for path in sorted(directory.iterdir()) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def pids(directory: Path) -> list[int]:
    """Whose files are there."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in directory.glob("*.jsonl"))


def test_a_note_is_a_line_with_time_and_process(directory: Path) -> None:
    journal.note("started", ["a"], token=3)
    journal.note("strange", reason="1\n2")
    first, second = notes(directory)
    assert first.pop("at") <= second.pop("at")
    assert first == {"pid": os.getpid(), "what": "started", "jobs": ["a"], "token": 3}
    assert second == {"pid": os.getpid(), "what": "strange", "jobs": [], "reason": "1\n2"}


def test_all_threads_of_a_process_share_its_file(directory: Path) -> None:
    together = threading.Barrier(8)

    def write() -> None:
        together.wait()
        journal.note("started")

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pids(directory) == [os.getpid()]
    assert len(notes(directory)) == 8


WITH_A_CHILD = """
import os
from perdure.internal import journal
assert journal.enabled
journal.note("begun")
if (child := os.fork()) == 0:
    journal.note("born")
    os._exit(0)
os.waitpid(child, 0)
journal.note("ended", child=child)
"""


def test_a_forked_child_writes_its_own_file(tmp_path: Path) -> None:
    run(WITH_A_CHILD, tmp_path)
    told = notes(tmp_path)
    (end,) = [note for note in told if note["what"] == "ended"]
    assert {(note["what"], note["pid"]) for note in told} == {
        ("begun", end["pid"]),
        ("born", end["child"]),
        ("ended", end["pid"]),
    }
    assert pids(tmp_path) == sorted([end["pid"], end["child"]])


def test_what_was_noted_survives_a_kill(tmp_path: Path) -> None:
    program = (
        "import os; from perdure.internal import journal; journal.note('started'); os.kill(os.getpid(), 9)"
    )
    run(program, tmp_path, code=-9)
    assert [note["what"] for note in notes(tmp_path)] == ["started"]


def test_nothing_is_kept_where_nobody_asked() -> None:
    assert not journal.enabled
    run("from perdure.internal import journal; assert not journal.enabled", None)


def test_an_enqueue_is_noted_before_and_after(url: str, directory: Path) -> None:
    with App(url) as app:
        app.migrate()
        task = app.task(name="pay")(pay)
        one = task.enqueue(1)
        many = app.enqueue_many([task.job(n) for n in range(3)])
        keyed = task.using(tenant="ann", idempotency_key="march").enqueue(1)
        again = task.using(tenant="ann", idempotency_key="march").enqueue(1)
    assert again.id == keyed.id
    told = [(note["phase"], note["jobs"], note.get("answered")) for note in notes(directory)]
    (asked,) = told[6][1]
    assert told == [
        *asked_and_answered([one]),
        *asked_and_answered(many),
        *asked_and_answered([keyed]),
        ("invoke", [asked], None),
        ("ok", [asked], [keyed.id]),
    ]
    assert [note["keys"] for note in notes(directory) if note["phase"] == "invoke"] == [
        {},
        {},
        {keyed.id: ["pay", "ann", "march"]},
        {asked: ["pay", "ann", "march"]},
    ]


def test_an_enqueue_that_was_not_answered_is_unknown(
    sqlite_url: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with App(sqlite_url) as app:
        app.migrate()
        task = app.task(name="pay")(pay)
        app.save_tasks()

        def unreachable(*args: object, **options: object) -> None:
            raise StoreAway

        monkeypatch.setattr(app.store, "perform", unreachable)
        with pytest.raises(StoreAway):
            task.enqueue(1)
    assert [note["phase"] for note in notes(directory)] == ["invoke", "unknown"]


def asked_and_answered(jobs: list[Job[Any]]) -> list[tuple[str, list[str], list[str] | None]]:
    ids = [job.id for job in jobs]
    return [("invoke", ids, None), ("ok", ids, ids)]


def pay(n: int) -> None:
    pass


def run(program: str, directory: Path | None, *, code: int = 0) -> None:
    env = None if directory is None else {journal.VARIABLE: str(directory)}
    ran = processes.run("-W", "default", "-c", program, env=env)
    assert ran.returncode == code
