"""A worker that is told to stop claims nothing more, drains, gives back what does not end, and says how it ended."""

from __future__ import annotations

import asyncio
import ctypes
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perdure import App
from tests.harness.waiting import auntil, until
from tests.store.proxy import Proxy
from tests.worker.fleet import Fleet
from tests.worker.worker_app import make


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_what_runs_may_end_and_nothing_new_begins(fleet: Fleet, number: int) -> None:
    hand = fleet.start(concurrency=1)
    running, go_on = fleet.hold()
    waiting = fleet.enqueue("add", a=1, b=2)
    hand.signal(number)
    hand.wait_for("Stopping: 1 jobs still run")
    go_on()
    assert hand.end() == 0
    assert (fleet.state(running), fleet.state(waiting)) == ("succeeded", "ready")
    assert fleet.app.list_workers() == []


@pytest.mark.long
def test_heartbeats_go_on_while_it_drains(fleet: Fleet) -> None:
    hand = fleet.start(concurrency=1, lease=0.5)
    job, go_on = fleet.hold()
    hand.signal(signal.SIGTERM)
    hand.wait_for("Stopping")
    fleet.until_lease_was_renewed(lease=0.5)
    go_on()
    assert hand.end() == 0
    assert (fleet.state(job), job.attempt) == ("succeeded", 1)


@pytest.mark.parametrize("task", ["rest_until_canceled", "rest_until_asked"])
def test_what_does_not_end_is_given_back_with_its_attempt(fleet: Fleet, tmp_path: Path, task: str) -> None:
    """A handler that was asked and returned has succeeded; one that was stopped is interrupted."""
    hand = fleet.start(drain=0.2)
    notes = tmp_path / "notes"
    job = fleet.enqueue(task, note_to=str(notes))
    until(lambda: notes.exists())
    assert hand.stop() == 10
    assert notes.read_text() == "start\nasked\n"
    row = job.refresh().row
    assert row is not None
    if task == "rest_until_asked":
        assert row.state == "succeeded"
    else:
        assert (row.state, row.attempt, row.crashes, row.error_kind) == ("ready", 0, 0, "interrupted")
        assert row.run_at <= time.time_ns() // 1000


@pytest.mark.long
@pytest.mark.parametrize("task", ["rest_in_thread", "ignore_cancel"])
def test_a_handler_that_does_not_listen_is_given_back_all_the_same(
    fleet: Fleet, tmp_path: Path, task: str
) -> None:
    hand, notes = fleet.start(drain=0.1), tmp_path / "notes"
    job = fleet.enqueue(task, note_to=str(notes))
    until(notes.exists)  # a claim alone is given back without a word
    assert hand.stop() == 10
    row = job.refresh().row
    assert row is not None
    assert (row.state, row.attempt, row.crashes, row.error_kind) == ("ready", 0, 0, "interrupted")


def test_what_hangs_aside_does_not_hold_up_the_end_of_the_program(fleet: Fleet, tmp_path: Path) -> None:
    """Cancelled, ``asyncio.to_thread`` is no longer awaited; its thread lives on."""
    hand, notes = fleet.start(drain=0.1), tmp_path / "notes"
    job = fleet.enqueue("rest_aside", note_to=str(notes))
    until(notes.exists)
    assert hand.stop() == 10
    assert (fleet.state(job), job.attempt) == ("ready", 0)


def test_a_second_signal_ends_it_at_once(fleet: Fleet) -> None:
    hand = fleet.start()
    job = fleet.begin(60)
    hand.signal(signal.SIGTERM)
    hand.wait_for("Stopping")
    hand.signal(signal.SIGTERM)
    assert hand.end() == 128 + signal.SIGTERM
    assert fleet.state(job) == "running"


def test_a_signal_is_heard_while_a_handler_blocks_the_loop(fleet: Fleet, tmp_path: Path) -> None:
    hand, notes = fleet.start(), tmp_path / "notes"
    job = fleet.enqueue("block", seconds=1, note_to=str(notes))
    until(lambda: notes.exists())
    assert hand.stop() == 0
    assert fleet.state(job) == "succeeded"


@pytest.mark.long
def test_a_second_signal_is_heard_while_a_handler_blocks_the_loop(fleet: Fleet, tmp_path: Path) -> None:
    hand, notes = fleet.start(), tmp_path / "notes"
    fleet.enqueue("block", seconds=60, note_to=str(notes))
    until(lambda: notes.exists())
    # Two of one kind might arrive as one. Of two kinds, either may be handled first: threads may take one each.
    hand.signal(signal.SIGINT)
    hand.signal(signal.SIGTERM)
    assert hand.end() in (128 + signal.SIGTERM, 128 + signal.SIGINT)


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no tgkill")
def test_a_signal_that_another_thread_took_is_heard_while_a_handler_blocks_the_loop(
    fleet: Fleet, tmp_path: Path
) -> None:
    """It interrupts nothing in the main thread, which alone runs Python's signal handlers.

    The system does so with the second of two signals. One that arrives just before a blocking call has the same effect.
    """
    hand, notes = fleet.start(), tmp_path / "notes"
    fleet.enqueue("block", seconds=60, note_to=str(notes))
    until(lambda: notes.exists())
    other = max(int(task.name) for task in Path(f"/proc/{hand.pid}/task").iterdir())
    assert other != hand.pid
    for number in (signal.SIGINT, signal.SIGTERM):
        assert ctypes.CDLL(None).tgkill(hand.pid, other, number) == 0
    assert hand.end() == 128 + signal.SIGTERM


async def test_nothing_is_left_running_however_often_a_worker_stops(app: App) -> None:
    @app.task(name="quick")
    async def quick(n: int) -> int:
        return n

    jobs = await app.aenqueue_many([quick.job(n) for n in range(200)])
    left = len(jobs)
    while left:
        async with app.worker(concurrency=3):
            await asyncio.sleep(random.uniform(0, 0.05))
        counts = (await app.acount_jobs())["default"]
        assert counts.get("running", 0) == 0
        left = len(jobs) - counts.get("succeeded", 0)


async def test_a_claim_under_way_when_it_stops_is_given_back(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handlers are never started."""
    acycle = app.operations.acycle
    claimed, stopping = asyncio.Event(), asyncio.Event()

    async def answer_while_stopping(*args: Any, **options: Any) -> Any:
        answer = await acycle(*args, **options)
        if answer[1]:
            claimed.set()
            await stopping.wait()
        return answer

    monkeypatch.setattr(app.operations, "acycle", answer_while_stopping, raising=False)
    started: list[int] = []

    @app.task(name="quick")
    async def quick(n: int) -> None:
        started.append(n)

    async with app.worker(poll=60) as worker:
        jobs = await app.aenqueue_many([quick.job(n) for n in range(5)])
        await claimed.wait()
        worker.stop()
        await auntil(lambda: not worker._executor.cycle.claiming)
        stopping.set()
    assert started == []
    rows = [(await job.arefresh()).row for job in jobs]
    assert [row and (row.state, row.attempt) for row in rows] == [("ready", 0)] * 5
    assert any(row and row.token for row in rows), "they were claimed"


@pytest.mark.parametrize(
    "place",
    [
        "before_claim",
        pytest.param("before_flush", marks=pytest.mark.long),
        pytest.param("before_report", marks=pytest.mark.long),
        pytest.param("before_heartbeat", marks=pytest.mark.long),
    ],
)
def test_a_loop_that_dies_stops_the_worker_in_order(fleet: Fleet, place: str, tmp_path: Path) -> None:
    hand = fleet.start_only(env={"PERDURE_FAILPOINT": f"{place}:raise@2"}, drain=0.5)
    hand.wait_for("tasks")
    jobs = [fleet.enqueue("rest_until_canceled", note_to=str(tmp_path / "notes"))]
    if place == "before_flush":
        jobs += [fleet.enqueue("add", a=1, b=2)]
        jobs[-1].get(30)
        jobs += [fleet.enqueue("add", a=1, b=2)]
    elif place == "before_report":
        jobs += [fleet.enqueue("speak", seconds=30)]
    assert hand.end() == 1
    assert "died" in hand.log or "heartbeat ended" in hand.log
    assert "has stopped: crashed" in hand.log
    assert {fleet.state(job) for job in jobs} <= {"ready", "succeeded"}
    assert fleet.app.list_workers() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_heard_by_a_worker_whose_database_never_was_there(tmp_path: Path, number: int) -> None:
    """Without a handler of ours it would end by the signal, or, as the first process of a container, not at all."""
    hand = Fleet("postgresql://nobody@127.0.0.1:1/nothing", tmp_path).start_only(concurrency=1)
    try:
        hand.wait_for("WARNING")  # that the database is away
        hand.signal(number)
        assert hand.end() == 0
    finally:
        hand.process.kill()
    assert "was stopped before its database answered" in hand.log
    assert "Traceback" not in hand.log


def test_a_worker_that_waits_for_its_database_can_be_stopped(postgres_url: str) -> None:
    async def main() -> None:
        with Proxy(postgres_url) as proxy:
            app = make(proxy.url)
            app.use_database(patience=0.2)
            await app.asave_tasks()
            from perdure.client.worker_api import worker_options
            from perdure.worker.worker import Worker

            options = worker_options(
                app, queues=None, concurrency=1, processes=0, drain=1, poll=1, name=None, burst=False
            )
            worker = Worker(app.operations, app.handlers(), options)
            proxy.refuse()
            running = asyncio.create_task(worker.run())
            await asyncio.sleep(0.5)
            worker.stop()
            assert await asyncio.wait_for(running, 60) == 0
            await app.aclose()

    asyncio.run(main())
