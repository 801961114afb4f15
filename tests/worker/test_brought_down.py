"""A handler that brings its worker down is charged for it, at once or as a suspect in a process of its own."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from perdure import App
from perdure.model.suspect import SUSPECT_AFTER, SUSPECT_AFTER_INTERRUPTIONS
from tests.harness.waiting import until
from tests.worker.fleet import Fleet
from tests.worker.hostile import begin, row_of, start

CRASHED, GAVE_BACK = 1, 10


@pytest.mark.parametrize(
    "task",
    [
        "cancel_all",
        pytest.param("stop_loop", marks=pytest.mark.long),
        pytest.param("exit_in_a_task", marks=pytest.mark.long),
    ],
)
def test_a_worker_that_nobody_told_to_stop_charges_what_it_ran(
    fleet: Fleet, hostile_app: App, tmp_path: Path, task: str
) -> None:
    """Any of them may have done it, as where a worker is killed."""
    hand = start(fleet)
    jobs = [begin(hostile_app, name, tmp_path / name) for name in ("wait", task)]
    assert hand.end() == CRASHED
    for row in map(row_of, jobs):
        assert (row.state, row.attempt, row.crashes, row.interruptions) == ("ready", 1, 1, 0)
        assert row.error_kind == "lost"
    assert hostile_app.list_workers() == []
    assert "Code on the event loop" in hand.log


def test_a_worker_whose_loop_cannot_run_records_everything_and_ends(
    fleet: Fleet, hostile_app: App, tmp_path: Path
) -> None:
    hand = start(fleet, processes=1)
    names = ("wait", "wait_in_thread", "wait_in_process", "close_selector")
    jobs = [begin(hostile_app, name, tmp_path / name) for name in names]
    assert hand.end() == CRASHED
    for row in map(row_of, jobs):
        assert (row.state, row.attempt, row.crashes, row.interruptions) == ("ready", 1, 1, 0)
        assert row.error_kind == "lost"
    assert hostile_app.list_workers() == []
    assert hand.log.count("Code on the event loop") == 3, "once for what ended its turn, twice without a turn"


@pytest.mark.long
@pytest.mark.parametrize("task", ["cancel_all", "stop_loop", "exit_in_a_task"])
def test_it_ends_two_workers_and_then_only_its_own_processes(
    fleet: Fleet, hostile_app: App, tmp_path: Path, task: str
) -> None:
    job = hostile_app.tasks[task].enqueue(note_to=str(tmp_path / "notes"))
    for _ in range(SUSPECT_AFTER):
        assert start(fleet).end() == CRASHED
    survivor = start(fleet)
    job.join(60)
    row = row_of(job)
    assert row.state == "failed"
    assert row.error_kind in ("panic", "error")
    assert survivor.stop() == 0


@pytest.mark.long
def test_one_that_signals_its_worker_is_a_suspect_after_three(
    fleet: Fleet, hostile_app: App, tmp_path: Path
) -> None:
    """In a process of its own the signal has no effect: only the worker stops its children."""
    job = hostile_app.tasks["terminate_self"].enqueue(note_to=str(tmp_path / "notes"))
    for n in range(1, SUSPECT_AFTER_INTERRUPTIONS + 1):
        assert start(fleet, drain=0.1).end() == GAVE_BACK
        assert (row_of(job).attempt, row_of(job).interruptions) == (0, n)
    survivor = start(fleet, drain=0.1)
    job.join(60)
    row = row_of(job)
    assert (row.state, row.attempt, row.interruptions) == ("succeeded", 1, 3)
    assert survivor.stop() == 0


@pytest.mark.long
def test_a_suspect_is_not_charged_for_a_worker_that_is_told_to_stop(
    fleet: Fleet, hostile_app: App, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    job = hostile_app.tasks["wait"].enqueue(note_to=str(notes))
    for n in range(1, SUSPECT_AFTER_INTERRUPTIONS + 3):
        hand = start(fleet, drain=0.1)
        until(partial(has_lines, notes, n))
        assert hand.stop() == GAVE_BACK
        row = row_of(job)
        assert (row.state, row.attempt, row.crashes, row.interruptions) == ("ready", 0, 0, n)


def has_lines(path: Path, n: int) -> bool:
    return path.exists() and len(path.read_text().splitlines()) == n


async def test_beside_a_program_a_cancelled_worker_is_an_interruption(app: App) -> None:
    """The program may have cancelled it: nobody is charged, but it is counted."""
    begun = asyncio.Event()

    @app.task(name="wait")
    async def wait() -> None:
        begun.set()
        await asyncio.sleep(60)

    async def live() -> None:
        async with app.worker():
            await begun.wait()
            (running,) = [task for task in asyncio.all_tasks() if task.get_name() == "perdure worker"]
            running.cancel()
            await asyncio.sleep(60)

    job = await wait.aenqueue()
    program = asyncio.create_task(live())
    await begun.wait()
    await asyncio.sleep(0)
    program.cancel()
    with pytest.raises(asyncio.CancelledError):
        await program
    row = (await job.arefresh()).row
    assert row is not None
    assert (row.state, row.attempt, row.crashes, row.interruptions) == ("ready", 0, 0, 1)
