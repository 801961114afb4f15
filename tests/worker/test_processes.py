"""Handlers in processes of their own: they run, speak, are stopped and die without disturbing anybody."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import App, JobCanceled, JobFailed
from perdure.client.job import Job
from perdure.client.worker_run import find_program
from perdure.errors import InvalidConfig, LeaseLost
from perdure.model.job import SECOND, Lease
from perdure.model.lifecycle import Canceled, Continued, Failed, Outcome, Snoozed, Succeeded, Throttled
from perdure.ops.report import JobReport, ReportAnswer
from perdure.plan.plan import Plan
from perdure.worker.process import pool, slot
from perdure.worker.process.protocol import FRAME, Ended, Fault, Logged, Stream, packed
from perdure.worker.worker import Worker
from tests.harness.processes import Process
from tests.harness.waiting import auntil, until
from tests.worker import process_app
from tests.worker.waiting import time_out, until_state

PATIENCE = 60


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with process_app.make(url) as app:
        yield app


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[Worker]:
    async with app.worker(**{"processes": 1, "target": process_app.TARGET, **options}) as worker:
        yield worker
    assert children(worker) == []


def children(worker: Worker) -> list[int]:
    return worker._slots._processes.pids


async def enqueue(app: App, task: str, **arguments: Any) -> Job[Any]:
    return await app.aenqueue(task, arguments)


def alive(pid: int) -> bool:
    """Not if it is a zombie whose parent has not looked yet."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


async def make_suspect(app: App, task: str) -> Job[Any]:
    """A job whose worker died twice while it had it."""
    job = await enqueue(app, task)
    for worker in ("first", "second"):
        await app.operations.aregister(worker, name=worker, lease=30 * SECOND)
        await auntil(partial(app.operations.aclaim, worker, tasks=[task], n=1))
        await app.operations.aretire(worker)
        await app.operations.arescue()
    return job


def noted(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def test_handlers_in_a_child_have_all_that_others_have(app: App) -> None:
    async with working(app) as worker:
        await run_in_one_child_that_is_kept(app, worker)
        await know_their_job(app, worker)
        await are_heard_and_keep_what_they_save(app)
        await fail_as_they_would_elsewhere(app)
        await enqueue_jobs_and_commit_transactions(app, worker)


async def run_in_one_child_that_is_kept(app: App, worker: Worker) -> None:
    found = [await (await enqueue(app, task)).aget(PATIENCE) for task in ("pid", "async_pid", "pid")]
    assert children(worker) == [found[0]]
    assert len(set(found)) == 1
    assert os.getpid() not in found


async def know_their_job(app: App, worker: Worker) -> None:
    job = await app.tasks["tell"].using(tenant="acme", meta={"k": 1}).aenqueue()
    assert await job.aget(PATIENCE) == {
        "job": job.id,
        "attempt": 1,
        "run": 1,
        "tenant": "acme",
        "meta": {"k": 1},
        "worker": worker.identity,
        "deadline": True,
        "thread": True,
    }


async def are_heard_and_keep_what_they_save(app: App) -> None:
    first, second = await enqueue(app, "speak"), await enqueue(app, "aspeak")
    assert await first.aget(PATIENCE) == {"at": 1}
    assert await second.aget(PATIENCE) == [1, "two"]
    await first.arefresh()
    assert first.progress is not None
    assert (first.progress.stage, first.progress.done, first.progress.total) == ("half", 1, 2)
    assert first.attempt == 2
    said = [entry for entry in await app.ajob_history(first.id) if "a line" in repr(entry)]
    assert said


async def fail_as_they_would_elsewhere(app: App) -> None:
    plain, fatal = await enqueue(app, "fail", how="luck"), await enqueue(app, "fail", how="fatal")
    for job in (plain, fatal):
        with pytest.raises(JobFailed):
            await job.aget(PATIENCE)
    assert plain.error is not None
    assert fatal.error is not None
    assert plain.error.message.startswith("ValueError: no luck")
    assert (fatal.error.kind, fatal.error.code, fatal.error.message) == ("fatal", "process.jam", "no good")
    trace = str(plain.error.trace)
    assert "process_app.py" in trace
    assert f"worker{os.sep}child.py" not in trace


async def enqueue_jobs_and_commit_transactions(app: App, worker: Worker) -> None:
    parent = await enqueue(app, "parent")
    child = await app.aget_job(await parent.aget(PATIENCE))
    assert child is not None
    assert await child.aget(PATIENCE) in children(worker)
    job = await enqueue(app, "commit")
    await job.aget(PATIENCE)
    assert job.attempt == 1


@pytest.mark.parametrize(
    ("url", "how", "said"),
    [
        ("sqlite", "exit", "exit code 3"),
        ("sqlite", "kill", "SIGKILL"),
        ("sqlite", "fault", "SIGSEGV"),
        ("postgres", "kill", "SIGKILL"),
    ],
    indirect=["url"],
)
async def test_a_child_that_dies_takes_only_its_own_job_with_it(
    app: App, how: str, said: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    async with working(app, processes=2):
        neighbour = await enqueue(app, "wait_for", path=str(go))
        await until_state(neighbour, "running")
        job = await enqueue(app, "die", how=how)
        with pytest.raises(JobFailed):
            await job.aget(PATIENCE)
        assert job.error is not None
        assert (job.error.kind, said in job.error.message) == ("panic", True)
        await (await enqueue(app, "pid")).aget(PATIENCE)
        go.touch()
        assert await neighbour.aget(PATIENCE) == "waited"
        assert neighbour.attempt == 1


@pytest.mark.parametrize("task", ["overrun", "be_deaf"])
async def test_a_handler_that_takes_too_long_is_killed_with_all_it_started(
    app: App, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if task == "be_deaf":
        monkeypatch.setattr(slot, "GRACE", 0.1)
    notes = tmp_path / "notes"
    async with working(app) as worker:
        job = await enqueue(app, task, note_to=str(notes))
        await auntil(lambda: noted(notes))
        time_out(worker)
        with pytest.raises(JobFailed):
            await job.aget(PATIENCE)
        assert job.error is not None
        assert job.error.kind == "timeout"
        pids = [int(pid) for pid in noted(notes)[0].split()]
        await auntil(lambda: not any(map(alive, pids)))
        assert ("cleaned up" in noted(notes)) == (task == "overrun")
        assert await (await enqueue(app, "pid")).aget(PATIENCE) not in pids
        assert not set(children(worker)) & set(pids)


@pytest.mark.parametrize("task", ["linger", "alinger"])
async def test_a_cancelled_handler_may_clean_up_and_is_gone(app: App, task: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with working(app):
        job = await enqueue(app, task, note_to=str(notes))
        await auntil(lambda: noted(notes))
        await job.acancel()
        with pytest.raises(JobCanceled):
            await job.aget(PATIENCE)
        await auntil(lambda: not any(alive(int(pid)) for pid in noted(notes)[0].split()))
        assert noted(notes)[1:] == ["cleaned up"]


@pytest.mark.parametrize("task", ["wait_for", "await_for"])
async def test_a_signal_that_its_worker_did_not_send_stops_no_child(
    app: App, task: str, tmp_path: Path
) -> None:
    """A supervisor may send SIGTERM to every process of a service: whether a job ends is the worker's decision."""
    go, begun = tmp_path / "go", tmp_path / "go.begun"
    async with working(app) as worker:
        (child,) = children(worker)
        os.kill(child, signal.SIGTERM)
        job = await enqueue(app, task, path=str(go))
        await auntil(begun.exists)
        os.kill(child, signal.SIGTERM)
        go.touch()
        assert await job.aget(PATIENCE) == "waited"
        assert (job.attempt, children(worker)) == (1, [child])


async def test_at_the_end_of_the_worker_its_job_goes_back_and_its_child_is_gone(
    app: App, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    async with working(app, drain=0):
        job = await enqueue(app, "linger", note_to=str(notes))
        await auntil(lambda: noted(notes))
    await job.arefresh()
    assert (job.state, job.attempt) == ("ready", 0)
    child, others = map(int, noted(notes)[0].split())
    assert not alive(child)
    await auntil(lambda: not alive(others))  # killed, and nobody waits for it


async def test_a_handler_whose_lease_is_gone_is_told_so_when_it_saves(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    async with working(app) as worker:
        monkeypatch.setattr(
            worker._heartbeat, "check_now", lambda: None
        )  # or it may be stopped before it saves
        job = await enqueue(app, "save_late", note_to=str(notes))
        await auntil(lambda: noted(notes))
        await app.operations.aretire(worker.identity)
        await app.operations.arescue()
        (tmp_path / "notes.go").touch()
        await auntil(lambda: len(noted(notes)) > 1)
        assert noted(notes)[1] == "LeaseLost job.lease_lost"
        assert job.id


async def test_a_handler_in_a_child_is_told_that_its_checkpoint_cannot_be_stored(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the error is: a child without an answer would wait until its timeout."""

    def refuse(report: JobReport) -> Plan[ReportAnswer]:
        yield from ()
        raise ValueError("a damaged row")

    async with process_app.make(sqlite_url) as app, working(app):
        monkeypatch.setattr(app.operations, "_save", refuse, raising=False)
        saved = await app.aenqueue("swell", {"size": 1, "save": True}, max_attempts=1)
        with pytest.raises(JobFailed):
            await saved.aget(PATIENCE)
    assert saved.error is not None
    assert saved.error.code == "perdure.internal"


async def test_a_handler_whose_lease_is_gone_is_stopped(url: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with process_app.make(url, lease=1) as app, working(app, drain=0) as worker:
        await enqueue(app, "linger", note_to=str(notes))
        await auntil(lambda: noted(notes))
        pids = [int(pid) for pid in noted(notes)[0].split()]
        await app.operations.aretire(worker.identity)
        await app.operations.arescue()
        await auntil(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("url", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True)
async def test_a_handler_in_a_child_enqueues_as_much_as_it_likes(app: App) -> None:
    async with working(app, queues=["default"]):
        job = await enqueue(app, "spread", n=70, size=1_000_000)
        assert await job.aget(PATIENCE) == 70
        assert job.attempt == 1
    assert (await app.acount_jobs())["kept"] == {"ready": 70}


async def test_what_is_too_large_to_store_is_refused_as_it_would_be_elsewhere(sqlite_url: str) -> None:
    async with process_app.make(sqlite_url) as app, working(app):
        returned = await enqueue(app, "swell", size=70_000_000, save=False)
        saved = await enqueue(app, "swell", size=70_000_000, save=True)
        assert await returned.aget(PATIENCE) is None
        with pytest.raises(JobFailed):
            await saved.aget(PATIENCE)
    assert returned.row is not None
    assert returned.row.reason == "result.too_large"
    assert saved.error is not None
    assert (saved.error.kind, saved.error.code) == ("error", "job.payload_too_large")
    assert "the checkpoint takes more than 1048576 bytes" in saved.error.message


async def test_there_are_never_more_claimed_than_free_slots_and_others_do_not_wait(
    app: App, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    async with working(app, processes=1, concurrency=1):
        jobs = [await enqueue(app, "wait_for", path=str(go)) for _ in range(3)]
        await until_state(jobs[0], "running")
        assert await (await enqueue(app, "anywhere")).aget(PATIENCE) == os.getpid()
        assert (await app.acount_jobs())["default"]["running"] == 1
        go.touch()
        assert [await job.aget(PATIENCE) for job in jobs] == ["waited"] * 3


async def test_a_suspect_runs_alone_in_a_process_of_its_own(app: App) -> None:
    job = await make_suspect(app, "anywhere")
    async with working(app, processes=1) as worker:
        (kept,) = children(worker)
        alone = await job.aget(PATIENCE)
        assert alone not in (os.getpid(), kept)
        await auntil(lambda: not alive(alone))
        assert await (await enqueue(app, "anywhere")).aget(PATIENCE) == os.getpid()


async def test_a_suspect_runs_in_place_where_there_are_no_processes(app: App) -> None:
    job = await make_suspect(app, "anywhere")
    async with app.worker(processes=0):
        assert await job.aget(PATIENCE) == os.getpid()


@pytest.mark.parametrize("task", ["linger", "seize"])
def test_a_child_and_what_it_started_die_with_their_worker(url: str, task: str, tmp_path: Path) -> None:
    notes, forks = tmp_path / "notes", tmp_path / "forks"
    with process_app.make(url) as app:
        worker = Process("-m", "tests.worker.process_app", log=tmp_path / "log", env={"PERDURE_URL": url})
        try:
            app.enqueue(task, {"note_to": str(notes)})
            until(lambda: noted(notes))
            # What the worker itself forked lives on, and has a copy of all that the worker had.
            app.enqueue("fork", {"note_to": str(forks)})
            until(lambda: noted(forks))
        finally:
            worker.kill()
        pids = [int(pid) for pid in noted(notes)[0].split()]
        (fork,) = map(int, noted(forks))
        try:
            until(lambda: not any(map(alive, pids)))
            assert alive(fork)
        finally:
            for pid in filter(alive, [*pids, fork]):
                os.kill(pid, signal.SIGKILL)


async def test_a_worker_is_refused_whose_app_no_new_process_would_find(sqlite_url: str) -> None:
    async with process_app.make(sqlite_url) as app:
        with pytest.raises(InvalidConfig, match="a new process cannot find this app"):
            async with app.worker():
                pass
        with pytest.raises(
            InvalidConfig, match=r"cannot load tests\.worker\.nowhere:app: ModuleNotFoundError"
        ):
            async with app.worker(target="tests.worker.nowhere:app"):
                pass
        app.task(name="unknown there", run_in="process")(process_app.pid)
        with pytest.raises(InvalidConfig, match="the task unknown there is unknown there"):
            async with app.worker(target=process_app.TARGET):
                pass
        async with app.worker(processes=0):
            pass


def test_an_app_is_found_by_its_name_in_a_module() -> None:
    program = find_program(process_app.app)
    assert program is not None
    assert program.target == process_app.TARGET
    assert find_program(process_app.make()) is None


async def test_children_without_work_end(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.05)
    async with process_app.make(sqlite_url) as app, working(app) as worker:
        await (await enqueue(app, "pid")).aget(PATIENCE)
        await auntil(lambda: children(worker) == [])
        await (await enqueue(app, "pid")).aget(PATIENCE)


def footprint(worker: Worker) -> dict[str, int]:
    gc.collect()
    (kept,) = children(worker)
    return {
        "threads": threading.active_count(),
        "fds": len(os.listdir("/proc/self/fd")),
        "fds of the child": len(os.listdir(f"/proc/{kept}/fd")),
        "threads of the child": len(os.listdir(f"/proc/{kept}/task")),
    }


async def test_nothing_is_left_behind_by_many_jobs(sqlite_url: str) -> None:
    async with process_app.make(sqlite_url) as app, working(app) as worker:
        for task in ("pid", "async_pid"):
            await (await enqueue(app, task)).aget(PATIENCE)
        before, resident, kept = footprint(worker), rss(), children(worker)
        jobs = await app.aenqueue_many([app.tasks["pid"].job() for _ in range(200)])
        for job in jobs:
            await job.aget(PATIENCE)
        after = footprint(worker)
        # The store may have opened a reader or two; a leak would show with each job.
        assert {what: count for what, count in after.items() if count > before[what] + 5} == {}
        # As many, but perhaps another: after a thousand jobs a child is replaced.
        assert len(children(worker)) == len(kept)
        assert rss() < resident + 32 * 1024 * 1024


def rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


LEASE = Lease("0", 1)


@pytest.mark.parametrize(
    "outcome",
    [
        Succeeded(LEASE, "1"),
        Failed(LEASE, "error", "a.code", "what", "where", 5),
        Snoozed(LEASE, 7),
        Throttled(LEASE, None, False),
        Continued(LEASE, 1),
        Canceled(LEASE, "because"),
        None,
    ],
    ids=repr,
)
def test_every_outcome_travels(outcome: Outcome | None) -> None:
    assert Ended.of(1, outcome, resident=0).decoded() == outcome


def test_what_cannot_be_encoded_does_not_keep_an_outcome_from_travelling() -> None:
    failed = Ended.of(1, Failed(LEASE, "fatal", message="\ud800", trace="x" * 10**6), resident=0).decoded()
    assert isinstance(failed, Failed)
    assert failed.kind == "fatal"
    assert len(str(failed.trace)) < 20_000
    assert isinstance(Ended.of(1, Canceled(LEASE, "\ud800"), resident=0).decoded(), Canceled)


@pytest.mark.parametrize("size", [10, FRAME - 60, FRAME, 5 * FRAME])
def test_a_message_of_any_length_arrives_however_it_is_cut(size: int) -> None:
    messages = [Logged(1, "info", "x" * n) for n in (size, 1, size + 1)]
    data = b"".join(map(packed, messages))
    stream = Stream(msgspec.msgpack.Decoder(Logged))
    cut = 100_003
    assert [m for i in range(0, len(data), cut) for m in stream.feed(data[i : i + cut])] == messages


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        list(Stream(msgspec.msgpack.Decoder(Logged)).feed(b"Hello, worker"))


def test_an_error_keeps_its_class_on_its_way() -> None:
    error = Fault.of(LeaseLost()).error()
    assert type(error) is LeaseLost
    assert (error.code, str(error)) == (LeaseLost.code, str(LeaseLost()))
