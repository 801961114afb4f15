"""A move that is killed at any point: the next run continues, and meanwhile nobody can write to the wrong database."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from perdure import App
from perdure.errors import Conflict, Refused, StoreBusy
from perdure.internal.failpoints import Failpoint
from perdure.move import abandon, move
from perdure.store.move import move as mover
from perdure.store.move.side import MOVED
from tests.chain import assert_carries_no_driver_error
from tests.conformance.world import work
from tests.moves import large_store, small_store
from tests.moves.ends import Ends, is_open, refuses
from tests.moves.fork_server import fork_server
from tests.test_failpoints import arm

KILLED = (-signal.SIGKILL, "")


def interrupt(ends: Ends, monkeypatch: pytest.MonkeyPatch, failpoint: str) -> bool:
    """Move until there, with small batches; whether it was reached."""
    monkeypatch.setattr(mover, "_MOST_ROWS", 16)
    for side in ("sqlite", "postgres"):
        monkeypatch.setattr(f"perdure.store.move.{side}.PAGE", 16)
    arm(monkeypatch, failpoint)
    monkeypatch.setattr("perdure.internal.failpoints.armed", True)
    try:
        move(*ends)
    except Failpoint:
        return True
    finally:
        monkeypatch.setattr("perdure.internal.failpoints.armed", False)
    return False


def test_interrupted_after_every_commit_it_goes_on_where_it_was(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_store.fill(ends.source)
    before = small_store.contents(ends.source)
    acts, opened = 0, [[True, False]]
    while interrupt(ends, monkeypatch, "after_move_commit:raise"):
        acts += 1
        opened.append([is_open(ends.source), is_open(ends.target)])
    assert acts > 2 + len(MOVED) + 3, "two seals, batches of each table, the arrival, two ends"
    # The target is there, empty, until its own seal.
    assert opened == [[True, False], [False, True], *[[False, False]] * (acts - 2), [False, True]]
    assert small_store.contents(ends.target) == before == small_store.contents(ends.source)


def test_killed_again_and_again_it_arrives(ends: Ends) -> None:
    large_store.make(ends.source, 400)
    before = small_store.contents(ends.source)
    with fork_server(ends, batch=100) as run:
        for failpoint in (
            "before_move_commit:kill@2",
            "after_move_commit:kill@5",
            "before_move_commit:kill@9",
        ):
            assert run(failpoint) == KILLED
            assert not is_open(ends.source)
        assert run("") == (0, "")
    assert small_store.contents(ends.target) == before == small_store.contents(ends.source)


def test_meanwhile_nobody_else_writes_to_either(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    small_store.fill(ends.source)
    with closing(App(ends.source)) as app:
        task = app.task(name="work")(work)
        task.enqueue(0)  # its connection is open, and its tasks are written
        before = small_store.contents(ends.source)
        assert interrupt(ends, monkeypatch, "after_move_commit:raise@9")
        for url in ends:
            refuse_everything(url)
        with pytest.raises(Refused) as refusal:
            task.enqueue(1)
        assert refusal.value.code == "store.moved"
    assert f"are being moved to {address(ends.target)}" in refuses(ends.source)
    assert "are being moved here, and not all have arrived" in refuses(ends.target)
    move(*ends)
    refuse_everything(ends.source)
    assert small_store.contents(ends.target) == before == small_store.contents(ends.source)


def address(url: str) -> str:
    with closing(App(url)) as app:
        return app.store.address


def refuse_everything(url: str) -> None:
    """Every way to write there, by our code and by others', by connections of ours and of others."""
    with closing(App(url)) as app:
        task = app.task(name="work")(work)
        app.task(name="not known there")(work)  # or a sync would have nothing to write
        (job,) = app.list_jobs(queue="other")
        acts = [
            lambda: task.enqueue(1),
            lambda: app.enqueue("work", {"n": 1}),
            lambda: app.cancel_job(job.id),
            lambda: app.delete_job(job.id),
            lambda: app.pause_queue("other"),
            app.save_tasks,
            lambda: app.run_worker(burst=True),
        ]
        for act in acts:
            with pytest.raises(Refused) as refusal:
                act()
            assert refusal.value.code == "store.moved"
        borrow(url, task)
    for sql in (
        "DELETE FROM perdure.job",
        "UPDATE perdure.task SET queue = 'x'",
        "INSERT INTO perdure.leader (name, worker, expires_at) SELECT 'x', 'y', synced_at FROM perdure.task",
    ):
        with pytest.raises((sqlite3.IntegrityError, psycopg.DatabaseError), match="moved"):
            small_store.run(url, sql)


def borrow(url: str, task: object) -> None:
    connection = (
        psycopg.connect(url)
        if url.startswith("postgres")
        else sqlite3.connect(url.removeprefix("sqlite:///"))
    )
    with closing(connection):
        with pytest.raises(Refused) as refusal:
            task.using(conn=connection).enqueue(1)  # type: ignore[attr-defined]
        assert refusal.value.code == "store.moved"
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_another_source_or_target_is_refused(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    large_store.make(ends.source, 20)
    assert interrupt(ends, monkeypatch, "after_move_commit:raise@4")
    other = f"sqlite:///{tmp_path / 'other.db'}"
    large_store.make(other, 20)
    with pytest.raises(Refused, match="are being moved into the target") as refusal:
        move(other, ends.target)
    assert refusal.value.code == "move.other"
    with pytest.raises(Refused, match="The jobs of the source are being moved to"):
        move(ends.source, f"sqlite:///{tmp_path / 'third.db'}")
    with pytest.raises(Refused, match="are being moved into the source"):
        move(ends.target, f"sqlite:///{tmp_path / 'third.db'}")
    assert is_open(other)
    assert move(*ends) is not None


def test_a_target_that_was_made_anew_gets_everything_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends(f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}")
    large_store.make(ends.source, 20)
    assert interrupt(ends, monkeypatch, "after_move_commit:raise@6")
    for file in tmp_path.glob("b.db*"):
        file.unlink()
    move(*ends)
    assert small_store.contents(ends.target) == small_store.contents(ends.source)


def test_a_move_can_be_given_up(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    large_store.make(ends.source, 20)
    before = small_store.contents(ends.source)
    assert interrupt(ends, monkeypatch, "after_move_commit:raise@6")
    assert [abandon(ends.target), abandon(ends.source)] == [True, True]
    assert [abandon(ends.target), abandon(ends.source)] == [False, False]
    assert [is_open(url) for url in ends] == [True, True]
    assert small_store.contents(ends.source) == before
    assert not any(small_store.contents(ends.target).values())
    small_store.run(ends.source, "DELETE FROM perdure.log")
    assert move(*ends) is not None


@pytest.mark.parametrize("last", ["_arrive", "_end"])
def test_what_has_arrived_is_not_given_up(ends: Ends, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    """The source may be closed for good by then."""
    large_store.make(ends.source, 20)
    act = getattr(mover, last)

    def act_and_break(*args: object) -> None:
        act(*args)
        raise Failpoint

    monkeypatch.setattr(mover, last, act_and_break)
    with pytest.raises(Failpoint):
        move(*ends)
    monkeypatch.setattr(mover, last, act)
    with pytest.raises(Refused, match="run perdure move again") as refusal:
        abandon(ends.target)
    assert refusal.value.code == "move.arrived"
    assert [is_open(url) for url in ends] == [False, False]
    assert move(*ends) is not None
    assert small_store.contents(ends.target) == small_store.contents(ends.source)
    assert [is_open(url) for url in ends] == [False, True]


def test_two_movers_do_not_mix(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second move begins while the first is running; the one that finds the other's traces stops."""
    large_store.make(ends.source, 20)
    monkeypatch.setattr(mover, "_MOST_ROWS", 7)
    write = mover._write
    calls = []

    def write_after_another(*args: object) -> None:
        calls.append(args)
        if len(calls) == 3:
            assert move(*ends) is not None
        write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(mover, "_write", write_after_another)
    with pytest.raises(StoreBusy, match="Another perdure move"):
        move(*ends)
    assert small_store.contents(ends.target) == small_store.contents(ends.source)


def test_a_difference_is_told_and_nothing_is_handed_over(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    large_store.make(ends.source, 20)
    copy = mover._copy

    def tamper(*args: object) -> None:
        copy(*args)  # type: ignore[arg-type]
        with_seal_broken(ends.target, "UPDATE perdure.attempt SET message = '' WHERE message = 'no 8'")

    monkeypatch.setattr(mover, "_copy", tamper)
    ((job,),) = small_store.run(
        ends.source, "SELECT job FROM perdure.attempt WHERE message = 'no 8' AND token = 1"
    )
    with pytest.raises(Conflict, match=f"table attempt, first at job {job}, token 1") as conflict:
        move(*ends)
    assert conflict.value.code == "move.differs"
    assert [is_open(url) for url in ends] == [False, False]


def test_a_row_too_few_is_a_difference(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    large_store.make(ends.source, 20)
    copy = mover._copy

    def tamper(*args: object) -> None:
        copy(*args)  # type: ignore[arg-type]
        with_seal_broken(ends.target, "DELETE FROM perdure.event WHERE id = 3")

    monkeypatch.setattr(mover, "_copy", tamper)
    with pytest.raises(Conflict, match="table event, first at id 3"):
        move(*ends)


def with_seal_broken(url: str, sql: str) -> None:
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as server:
            server.execute("SET perdure_move.writes = 'yes'")
            server.execute(sql.encode())
        return
    for act in ("update", "delete"):
        for table in ("attempt", "event"):
            small_store.run(url, f"DROP TRIGGER perdure.seal_{table}_{act}")
    small_store.run(url, sql)


MISFITS = {
    "NUL": ("UPDATE perdure.log SET message = 'a' || char(0) WHERE id = 4", r"log \(id 4, job "),
    "no text": ("UPDATE perdure.log SET message = CAST(x'ff41' AS text) WHERE id = 4", r"log \(id 4, job "),
    "large": (
        "UPDATE perdure.job SET snoozes = 3000000000 WHERE queue = 'queue-3' AND priority = 1",
        r"job \(id ",
    ),
    "no id": ("UPDATE perdure.key SET job = 'x' WHERE key = 'key-6'", r"key \(task work, tenant , job x\)"),
    "no JSON": ("UPDATE perdure.event SET detail = '{' WHERE id = 2", r"event \(id 2, job "),
    "late": (
        "UPDATE perdure.job SET run_at = 9000000000000000000 WHERE queue = 'queue-1' AND priority = 0",
        r"job \(",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_row_that_does_not_fit_is_told_by_its_id(misfit: str, tmp_path: Path, postgres_url: str) -> None:
    """Another program wrote this row: what perdure writes fits everywhere."""
    ends = Ends(f"sqlite:///{tmp_path / 'jobs.db'}", postgres_url)
    large_store.make(ends.source, 40)
    sql, told = MISFITS[misfit]
    small_store.run(ends.source, sql)
    for _ in range(2):
        with pytest.raises(Refused, match=told) as refusal:
            move(*ends)
        assert refusal.value.code == "move.misfit"
        assert_carries_no_driver_error(refusal.value)
    assert "key-6" not in str(refusal.value), "a key may be a secret"
    assert [is_open(url) for url in ends] == [False, False]
