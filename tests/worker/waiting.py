"""Waiting for the state of a job."""

from __future__ import annotations

from time import monotonic
from typing import Any

from perdure.client.job import Job
from perdure.worker.worker import Worker
from tests.harness.waiting import auntil


async def until_state(job: Job[Any], *states: str) -> None:
    """Return as soon as the job is in one of these."""

    async def arrived() -> bool:
        return (await job.arefresh()).state in states

    await auntil(arrived)


def time_out(worker: Worker) -> None:
    """Let the time of all that it runs be up now. Call it in the worker's loop."""
    attempts = worker._executor.attempts.values()
    for attempt in attempts:
        attempt.deadline = monotonic()
    worker._executor._deadlines.look_ahead(attempts)


def free_slots(worker: Worker) -> int:
    """How many more jobs it would take, apart from those in processes."""
    return worker._slots.free
