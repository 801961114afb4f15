"""One line at INFO for each outcome, with the ids as extra fields."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

import perdure
from perdure import CONTEXT, App, Context, Snooze, Step, Throttle, Workflow
from perdure.errors import InvalidConfig
from tests.harness.waiting import auntil
from tests.worker.refusing import refusing

FAR = 3600


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(None, "succeeded"), (ValueError(), "retried"), (Snooze(FAR), "snoozed")],
)
async def test_an_outcome_is_one_line(
    app: App, caplog: pytest.LogCaptureFixture, error: Any, outcome: str
) -> None:
    caplog.set_level(logging.INFO, "perdure.worker")

    @app.task(name="work", queue="q", backoff=FAR)
    async def work() -> None:
        if error is not None:
            raise error

    def lines() -> list[Any]:
        return [record for record in caplog.records if hasattr(record, "job")]

    async with app.worker():
        job = await work.aenqueue()
        await auntil(lines)
    (line,) = lines()
    assert (line.levelname, line.name) == ("INFO", "perdure.worker")
    assert (line.job, line.task, line.queue, line.run, line.attempt) == (job.id, "work", "q", 1, 1)
    assert line.outcome == outcome
    assert line.seconds >= 0
    when = " after " if error is None else r", due in \d+\.\d{3} s, after it ran for "
    assert re.match(rf"Job {job.id} of work {outcome}{when}\d+\.\d{{3}} s \(attempt 1\)", line.getMessage())


async def test_the_line_of_a_throttled_job_says_how_long_its_queue_cools(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "perdure.worker")

    @app.task(name="call", queue="maps")
    async def call() -> None:
        raise Throttle(1800)

    async with app.worker():
        await call.aenqueue()
        await auntil(lambda: any(hasattr(line, "job") for line in caplog.records))
    (line,) = [line.getMessage() for line in caplog.records if hasattr(line, "job")]
    assert "due in 1800.000 s" in line
    assert line.endswith("; queue maps cools for 1800.000 s")


async def test_a_result_that_is_not_kept_is_told(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="work")
    async def work(size: int) -> object:
        return "x" * size if size else object()

    async with app.worker():
        jobs = [await work.aenqueue(size) for size in (0, 2**20, 1)]
        for job in jobs:
            await job.ajoin(30)
    told = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert sorted(told) == sorted(
        [
            f"The result of job {jobs[0].id} of work is not kept: it cannot be written as JSON",
            f"The result of job {jobs[1].id} of work is not kept: it takes more than 1048576 bytes of JSON",
        ]
    )


async def test_a_result_that_only_the_database_refuses_is_told(
    app: App, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.worker.damaged_rows.KEEP_FOR", 0.0)

    @app.task(name="work")
    async def work(n: int) -> str:
        return "hunter2" if n else "fine"

    with refusing(url, "CAST(NEW.result AS text) LIKE '%hunter2%'"):
        async with app.worker():
            job, other = await app.aenqueue_many([work.job(1), work.job(0)])
            await job.ajoin(30)
            assert await other.aget(30) == "fine"
            await job.arefresh()
    assert (job.state, job.reason, job.result) == ("succeeded", "result.refused", None)
    told = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert told == [f"The result of job {job.id} of work is not kept: the database refuses it"]


@pytest.mark.usefixtures("brief_flush")
async def test_a_worker_that_stops_names_the_jobs_whose_outcomes_the_database_refuses(
    app: App, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="work")
    async def work() -> None: ...

    with refusing(url, "OLD.state = 'running'"):
        async with app.worker(drain=0.1):
            job = await work.aenqueue()
            await auntil(lambda: "cannot be recorded yet" in caplog.text)
    (line,) = (line for line in caplog.messages if "other workers run them again" in line)
    assert job.id in line


@pytest.mark.usefixtures("brief_flush")
async def test_outcomes_that_the_database_refuses_take_no_slots(app: App, url: str) -> None:
    @app.task(name="work")
    async def work() -> None: ...

    with refusing(url, "OLD.state = 'running' AND OLD.tenant = 'poison'"):
        refused = await app.aenqueue_many([work.using(tenant="poison", priority=5).job() for _ in range(3)])
        jobs = await app.aenqueue_many([work.job() for _ in range(9)])
        async with app.worker(concurrency=2, drain=3600):  # no handler runs, so there is nothing to drain
            for job in jobs[:3]:
                await job.ajoin(30)
    assert {(await job.arefresh()).state for job in refused} <= {"ready", "running"}


async def test_steps_that_are_refused_are_told_with_their_cause(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    caplog.set_level(logging.INFO, "perdure.worker")

    @app.task(name="grow", max_attempts=2, backoff=0)
    async def grow(*, ctx: Context = CONTEXT) -> None:
        await ctx.aappend([Step("b", grow.job(), after=["nobody"])])

    for name in ("succeeded", "retried", "failed"):
        app.on(name)(lambda event: heard.append(f"{event.name} {event.code}"))
    flow = Workflow("flow")
    flow.step("a", grow.job())
    async with app.worker():
        started = await app.astart_workflow(flow)
        await started.ajoin(30)
        await auntil(lambda: len(heard) == 2)
    assert heard == ["retried job.steps_refused", "failed job.steps_refused"]
    retried, failed = (line for line in caplog.records if hasattr(line, "job"))
    cause = ": Its steps could not be appended. The step b waits for nobody, which is not a step of this workflow."
    for line, outcome in ((retried, "retried"), (failed, "failed")):
        assert vars(line)["outcome"] == outcome
        assert line.getMessage().endswith(cause)


async def test_a_queue_that_nobody_knows_is_told(app: App, caplog: pytest.LogCaptureFixture) -> None:
    app.task(name="pay", queue="money")(len)
    await app.asave_tasks()
    await app.apause_queue("idle")
    await app.aenqueue("pay", {"obj": "x"}, queue="ad hoc")
    async with app.worker(queues=["mony", "ad hoc", "idle", "money", "else"], concurrency=1):
        pass
    assert [line.getMessage() for line in caplog.records if line.levelname == "WARNING"] == [
        f"Queue {name} is served, though no task goes there and nothing in it is due.{meant}"
        for name, meant in (("mony", " Did you mean 'money'?"), ("else", ""))
    ]


async def test_payloads_and_results_are_in_no_line(app: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    @app.task(name="work")
    async def work(word: str) -> str:
        return word

    async with app.worker():
        await (await work.aenqueue("a secret word")).aget(30)
    assert "secret" not in caplog.text


async def test_the_first_line_says_who_does_what_where(app: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "perdure.worker")
    for n in range(12):
        app.task(name=f"work-{n:02}")(len)
    async with app.worker(queues={"mail": 3, "slow": 1}, concurrency=7, name="ann", processes=2):
        pass
    line: Any = next(record for record in caplog.records if hasattr(record, "database"))
    assert line.levelname == "INFO"
    assert (line.worker, line.version, line.queues) == ("ann", perdure.__version__, ["mail", "slow"])
    assert (line.concurrency, line.processes, line.lease) == (7, 0, 30.0)
    assert line.tasks == [f"work-{n:02}" for n in range(12)]
    assert line.database == app.store.address
    assert line.getMessage() == (
        f"Worker ann of perdure {perdure.__version__} on {line.database}; queues: mail=3, slow=1; "
        f"tasks (12): {', '.join(line.tasks[:10])} and 2 more; "
        "at a time: 7 on the loop or in threads, 0 in processes; lease 30 s"
    )


async def test_a_worker_to_which_nothing_is_left_is_refused(app: App) -> None:
    app.task(name="press", run_in="process")(len)
    with pytest.raises(InvalidConfig, match="nothing is left to run"):
        async with app.worker(processes=0):
            pass
