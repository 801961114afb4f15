"""A handler that blocks the event loop past its time ends its worker: it is charged, the others are given back."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure import CONTEXT, App, Context
from perdure.client.job import Job
from tests.harness.waiting import auntil, until
from tests.worker import hostile
from tests.worker.fleet import Fleet
from tests.worker.hostile import begin, row_of, start

BLOCKED = 12


def test_its_job_is_charged_and_the_others_go_back_free(
    fleet: Fleet, hostile_app: App, tmp_path: Path
) -> None:
    hand = start(fleet, processes=1)
    others = [begin(hostile_app, task, tmp_path / task) for task in ("wait", "wait_in_thread")]
    blocker = begin(hostile_app, "block", tmp_path / "block")
    assert hand.end() == BLOCKED
    row = row_of(blocker)
    assert (row.state, row.attempt, row.crashes) == ("ready", 1, 1)
    assert (row.error_kind, row.error_code) == ("panic", "job.blocked_loop")
    assert row.error_trace is not None
    assert row.error_trace.count("  File ") == 1, "the frames of the handler and no others"
    assert "time.sleep(seconds)" in row.error_trace
    for row in map(row_of, others):
        assert (row.state, row.attempt, row.crashes) == ("ready", 0, 0)
        assert row.error_kind == "interrupted"
    assert hostile_app.list_workers() == []
    assert f"Job {blocker.id} of block" in hand.log
    assert "time.sleep(seconds)" in hand.log


def test_what_ended_in_a_thread_meanwhile_is_recorded(fleet: Fleet, hostile_app: App, tmp_path: Path) -> None:
    hand = start(fleet)
    job = begin(hostile_app, "wait_in_thread", tmp_path / "thread", seconds=0.5)
    begin(hostile_app, "block", tmp_path / "block")
    assert hand.end() == BLOCKED
    assert (fleet.state(job), job.result) == ("succeeded", "done")


@pytest.mark.long
def test_what_ended_in_a_process_meanwhile_is_recorded(
    fleet: Fleet, hostile_app: App, tmp_path: Path
) -> None:
    hand = start(fleet, processes=1)
    job = begin(hostile_app, "return_much_from_a_process", tmp_path / "process")
    begin(hostile_app, "block", tmp_path / "block")
    assert hand.end() == BLOCKED
    assert fleet.state(job) == "succeeded"
    assert len(job.result or "") == 900_000, "more than the socket between the two takes"
    assert "returning" in repr(hostile_app.job_history(job.id))


@pytest.mark.long
def test_what_a_handler_left_behind_does_not_block_the_loop_for_ever(
    fleet: Fleet, hostile_app: App, tmp_path: Path
) -> None:
    hand = start(fleet, lease=3)
    job = begin(hostile_app, "leave_a_callback", tmp_path / "callback")
    assert hand.end() == BLOCKED
    assert (fleet.state(job), job.result, row_of(job).crashes) == ("succeeded", "done", 0)
    assert "left behind" in hand.log


@pytest.mark.long
def test_once_it_records_it_ends_though_the_loop_answers_again(
    fleet: Fleet, hostile_app: App, tmp_path: Path
) -> None:
    """Or what it records late would run elsewhere and here at the same time."""
    hand = start(fleet)
    other = begin(hostile_app, "wait_in_thread", tmp_path / "thread", seconds=20)
    begin(hostile_app, "block_for_five_seconds", tmp_path / "block")
    with locked_for_writing(fleet.url):
        assert hand.end() == BLOCKED
    assert "answers again" not in hand.log
    begun = (tmp_path / "thread").read_text().splitlines()
    assert begun == ["start"], "one run, and it did not go on"
    assert fleet.state(other) == "running", "left for others to find"


@contextmanager
def locked_for_writing(url: str) -> Iterator[None]:
    """Nobody else writes jobs meanwhile."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            yield
    else:
        with psycopg.connect(url) as connection:
            connection.execute("LOCK TABLE perdure.job IN EXCLUSIVE MODE")
            yield
            connection.rollback()


@pytest.mark.long
def test_its_processes_die_with_it(fleet: Fleet, hostile_app: App, tmp_path: Path) -> None:
    hand, notes = start(fleet, processes=1), tmp_path / "process"
    job = begin(hostile_app, "wait_in_process", notes)
    children = children_of(hand.process.pid)
    assert children
    begin(hostile_app, "block", tmp_path / "block")
    assert hand.end() == BLOCKED
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    assert (fleet.state(job), job.attempt) == ("ready", 0)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.long
def test_it_ends_two_workers_and_then_runs_in_a_process_of_its_own(
    fleet: Fleet, hostile_app: App, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    job = hostile_app.tasks["block"].using(max_attempts=3).enqueue(note_to=str(notes))
    for _ in range(2):
        assert start(fleet).end() == BLOCKED
    survivor = start(fleet)
    job.join(30)
    row = row_of(job)
    assert (row.state, row.attempt, row.crashes, row.error_kind) == ("failed", 3, 2, "timeout")
    assert survivor.stop() == 0
    pids = [int(line.split()[1]) for line in notes.read_text().splitlines()]
    assert pids[:2] == [hand.process.pid for hand in fleet.workers[:2]]
    assert pids[2] != survivor.process.pid


@pytest.mark.long
@pytest.mark.parametrize("task", ["block_in_a_task", "block_in_a_callback"])
def test_a_loop_that_no_handler_is_seen_to_block_is_given_up_too(
    fleet: Fleet, hostile_app: App, tmp_path: Path, task: str
) -> None:
    hand = start(fleet)
    other = begin(hostile_app, "wait", tmp_path / "wait")
    blocker = begin(hostile_app, task, tmp_path / "block")
    assert hand.end() == BLOCKED
    assert {fleet.state(job) for job in (blocker, other)} == {"ready"}
    assert (row_of(other).attempt, row_of(other).crashes) == (0, 0)


@pytest.mark.long
def test_one_that_was_given_up_before_ends_its_worker(fleet: Fleet, hostile_app: App, tmp_path: Path) -> None:
    hand = start(fleet)
    other = begin(hostile_app, "wait", tmp_path / "wait")
    blocker = begin(hostile_app, "block_once_given_up", tmp_path / "block")
    assert hand.end() == BLOCKED
    assert (row_of(blocker).error_kind, row_of(blocker).crashes) == ("timeout", 0)
    row = row_of(other)
    assert (row.state, row.attempt, row.crashes, row.error_kind) == ("ready", 0, 0, "interrupted")
    assert f"Job {blocker.id} of block_once_given_up" in hand.log


@pytest.mark.long
def test_one_that_holds_the_log_is_given_up_too(fleet: Fleet, hostile_app: App, tmp_path: Path) -> None:
    hand = start(fleet)
    other = begin(hostile_app, "wait", tmp_path / "wait")
    blocker = begin(hostile_app, "block_and_hold_the_log", tmp_path / "block")
    assert hand.end() == BLOCKED
    assert row_of(blocker).error_code == "job.blocked_loop"
    assert (row_of(other).state, row_of(other).attempt) == ("ready", 0)


@pytest.mark.parametrize(
    ("beside", "task"),
    [
        ("wait", "block_in_a_transaction"),
        pytest.param("wait_in_a_transaction", "block", marks=pytest.mark.long),
    ],
)
def test_a_transaction_block_does_not_keep_its_worker_from_recording(
    fleet: Fleet, hostile_app: App, tmp_path: Path, beside: str, task: str
) -> None:
    other, blocker = (
        hostile_app.tasks[name].enqueue(note_to=str(tmp_path / name)) for name in (beside, task)
    )
    hand = start(fleet)
    assert hand.end() == BLOCKED
    row = row_of(blocker)
    assert (row.state, row.attempt, row.crashes) == ("ready", 1, 1)
    assert row.error_code == "job.blocked_loop"
    row = row_of(other)
    assert (row.state, row.attempt, row.crashes, row.error_kind) == ("ready", 0, 0, "interrupted")


@pytest.mark.long
def test_one_without_a_timeout_is_not_given_up(fleet: Fleet, hostile_app: App, tmp_path: Path) -> None:
    hand = start(fleet)
    overdue = begin(hostile_app, "wait_two_seconds", tmp_path / "overdue")
    blocker = begin(hostile_app, "block_without_timeout", tmp_path / "block", seconds=8)
    blocker.join(30)
    assert blocker.state == "succeeded"
    until(lambda: row_of(overdue).error_kind == "timeout")
    assert hand.process.poll() is None


def _has_timed_out(job: Job[Any]) -> bool:
    return row_of(job).error_kind == "timeout"


@pytest.mark.long
def test_a_worker_that_was_stopped_for_a_while_goes_on(
    fleet: Fleet, hostile_app: App, tmp_path: Path
) -> None:
    """The handler is past its timeout and grace when it wakes up, but it never held the loop for its grace."""
    hand = start(fleet)
    for n in range(3):
        job = begin(hostile_app, "block_in_parts", tmp_path / f"block-{n}")
        hand.signal(signal.SIGSTOP)
        time.sleep(6)
        hand.signal(signal.SIGCONT)
        until(partial(_has_timed_out, job))
        job.cancel()
    assert hand.stop() == 0


@pytest.mark.parametrize(
    ("url", "number"),
    [
        ("sqlite", signal.SIGTERM),
        pytest.param("sqlite", signal.SIGINT, marks=pytest.mark.long),
        pytest.param("postgres", signal.SIGTERM, marks=pytest.mark.long),
    ],
    indirect=["url"],
)
def test_the_first_signal_ends_a_worker_whose_loop_never_answers(
    fleet: Fleet, hostile_app: App, tmp_path: Path, number: int
) -> None:
    hand = start(fleet, drain=0.2)
    other = begin(hostile_app, "wait", tmp_path / "wait")
    blocker = begin(hostile_app, "block_without_timeout", tmp_path / "block")
    hand.signal(number)
    assert hand.end() == 10
    for row in map(row_of, (blocker, other)):
        assert (row.state, row.attempt, row.crashes) == ("ready", 0, 0)
        assert row.error_kind == "interrupted"
    assert hostile_app.list_workers() == []


def test_a_program_beside_its_worker_lives_on_and_others_can_take_the_job(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The process is the program's own: only the attempt that blocks is recorded."""
    app, codes = hostile.make(url), []

    @app.task(name="watch", timeout=0.3, timeout_grace=0.3, max_attempts=1)
    async def watch(*, ctx: Context = CONTEXT) -> None:
        def until_failed() -> None:
            assert ctx.job_id is not None
            job = app.get_job(ctx.job_id)
            until(lambda: job.refresh().state == "failed")
            codes.append(job.error.code if job.error else None)

        thread = threading.Thread(target=until_failed)
        thread.start()
        thread.join()

    async def main() -> None:
        async with app.worker(processes=0) as worker:
            other = await app.tasks["wait"].aenqueue(note_to=str(tmp_path / "wait"))
            await (await watch.aenqueue()).ajoin(30)
            await auntil(lambda: [lease.job for lease in worker.leases()] == [other.id])
            assert (worker.status, (await other.arefresh()).state) == (None, "running")
            await other.acancel()

    asyncio.run(main())
    app.close()
    assert codes == ["job.blocked_loop"]
    assert "blocks the event loop" in caplog.text
