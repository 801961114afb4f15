"""The jobs of ``perdure demo``: a few hundred jobs with different outcomes, in a temporary database."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from perdure.app import App
from perdure.cli.output import say, say_lines
from perdure.cli.tables import Column, table
from perdure.client.job import Job
from perdure.model.job import ENDED
from perdure.request.context import CONTEXT, Context
from perdure.request.job import JobRequest
from perdure.request.signals import Fatal, Retry, Snooze

LOOK = 0.2
BAR = 16
"""The length of the progress bar in characters."""
WIDTH = 79
"""The most characters of a line: a line fits a terminal or a log of 80 columns."""
UNFINISHED = ("running", "ready", "retrying", "scheduled")

logging.getLogger("perdure").addHandler(logging.NullHandler())


def show(seconds: int) -> None:
    """Run the demo's jobs and show their outcomes."""
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as directory:
        app = App(f"sqlite:///{Path(directory, 'jobs.db')}")
        try:
            with _without_log():
                jobs = asyncio.run(_run_jobs(app, seconds))
            _show_outcomes(app, jobs)
        finally:
            app.close()


@contextmanager
def _without_log() -> Iterator[None]:
    """Silence perdure's log: some jobs fail on purpose, and their log lines would hide the progress bar."""
    log = logging.getLogger("perdure")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


async def _run_jobs(app: App, seconds: int) -> list[Job[Any]]:
    jobs = await _enqueue(app)
    say(f"{len(jobs)} jobs are in an SQLite file; one worker with 20 slots runs them.")
    async with app.worker(concurrency=20, poll=0.2, drain=5):
        await jobs[-1].acancel(reason="nobody needs it any more")
        ends = time.monotonic() + seconds
        while await _show(app, len(jobs)) and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(LOOK)
    say()  # ends the line of the progress bar in a terminal
    return jobs


async def _enqueue(app: App) -> list[Job[Any]]:
    rng = random.Random(7)

    @app.task(name="demo.quick", queue="mail")
    async def quick(number: int) -> int:
        return number * number

    @app.task(name="demo.slow", queue="reports")
    def slow(pages: int, *, ctx: Context = CONTEXT) -> int:
        for page in range(pages):
            time.sleep(0.05)
            ctx.progress(page + 1, pages, "pages printed")
        return pages

    @app.task(name="demo.flaky", queue="mail", backoff=0.5)
    async def flaky(failures: int, *, ctx: Context = CONTEXT) -> str:
        if ctx.attempt <= failures:
            raise Retry("the mail server hung up", code="smtp.421")
        return f"sent at attempt {ctx.attempt}"

    @app.task(name="demo.doomed", queue="imports", max_attempts=3, backoff=0.3)
    def doomed() -> None:
        raise ValueError("no date")

    @app.task(name="demo.fatal", queue="imports")
    async def fatal() -> None:
        raise Fatal("unknown customer", code="customer.unknown")

    @app.task(name="demo.patient", queue="reports")
    async def patient(*, ctx: Context = CONTEXT) -> str:
        if ctx.checkpoint is None:
            await ctx.asave("asked")
            raise Snooze(1)
        return "the other side was ready at last"

    requests: list[JobRequest[Any]] = [
        *(quick.job(number) for number in range(200)),
        *(slow.job(rng.randint(5, 30)) for _ in range(20)),
        *(flaky.job(rng.randint(1, 3)) for _ in range(30)),
        *(doomed.job() for _ in range(10)),
        *(fatal.job() for _ in range(5)),
        *(patient.job() for _ in range(5)),
        *(quick.using(delay=timedelta(seconds=3)).job(number) for number in range(30)),
        *(quick.using(delay=3600).job(0) for _ in range(1)),
    ]
    return await app.aenqueue_many(requests)


async def _show(app: App, total: int) -> bool:
    """Draw the progress bar; return whether any job has not ended."""
    counts: dict[str, int] = {}
    for states in (await app.acount_jobs()).values():
        for state, number in states.items():
            counts[state] = counts.get(state, 0) + number
    done = sum(counts.get(state, 0) for state in ENDED)
    full = BAR * done // total
    shown = "".join(f"  {state} {counts[state]}" for state in UNFINISHED if counts.get(state))
    text = f"[{'#' * full}{'.' * (BAR - full)}] {done} of {total}{shown}"
    if sys.stdout.isatty():
        say(f"{text:{WIDTH}}", end="\r")
    else:
        say(text)
    return done < total


def _show_outcomes(app: App, jobs: Sequence[Job[Any]]) -> None:
    """Print the outcomes of each task."""
    seen = [job for job in app.get_jobs([job.id for job in jobs]) if job is not None]
    tasks = sorted({job.task for job in seen})
    rows = []
    for task in tasks:
        own = [job for job in seen if job.task == task]
        states = {
            state: sum(job.state == state for job in own) for state in ("succeeded", "failed", "canceled")
        }
        retried = sum(job.attempt > 1 for job in own)
        errors = sorted({job.error.message for job in own if job.error and job.state == "failed"})
        rows.append(
            [task, str(len(own)), *map(str, states.values()), str(retried), errors[0] if errors else ""]
        )
    right = [Column(title, right=True) for title in ("jobs", "succeeded", "failed", "canceled", "retried")]
    table([Column("task"), *right, Column("for example", rank=1, least=10)], rows)
    say_lines(
        "\nWhere to look next:\n"
        "  README.md                        your first task, and perdure's promises\n"
        "  perdure worker yourmodule:app    run your own jobs\n"
        "  perdure jobs, perdure job ID     list jobs, and show everything about one"
    )
