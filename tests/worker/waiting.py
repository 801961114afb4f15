"""Waiting for the state of a job."""

from __future__ import annotations

from typing import Any

from perdure.client.job import Job
from perdure.worker.worker import Worker
from tests.harness.waiting import auntil


async def until_state(job: Job[Any], *states: str) -> None:
    """Return as soon as the job is in one of these."""

    async def arrived() -> bool:
        return (await job.arefresh()).state in states

    await auntil(arrived)


def free_slots(worker: Worker) -> int:
    """How many more jobs it would take, apart from those in processes."""
    return worker._slots.free
