"""Processes are killed at any point; all promises still hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from perdure.model.job import ENDED, JobRow, Lease
from perdure.ops import browse
from perdure.ops.browse import AttemptRow
from perdure.worker.operations import WorkerOperations
from tests.harness.waiting import until
from tests.races.journal import Journals
from tests.races.processes import Processes, spawning
from tests.races.roles import live_dangerously, prepare

PROCESSES = 3

Past = dict[int, AttemptRow]
"""A job's attempts before its last, by token."""


def test_nothing_is_lost_or_done_twice_when_processes_are_killed(url: str, tmp_path: Path) -> None:
    kill_and_check(url, tmp_path, kills=4)


@pytest.mark.long
def test_nothing_is_lost_or_done_twice_through_many_kills(url: str, tmp_path: Path) -> None:
    kill_and_check(url, tmp_path, kills=120, seed=1)


def kill_and_check(url: str, directory: Path, *, kills: int, seed: int = 0) -> None:
    operations, journals = prepare(url), Journals(directory / "journals")
    enough, stop, rng = directory / "enough", directory / "stop", random.Random(seed)

    def hire(processes: Processes) -> None:
        processes.start(live_dangerously, url, journals.directory, enough, stop, rng.getrandbits(32))

    with spawning() as processes:
        for _ in range(PROCESSES):
            hire(processes)
        for _ in range(kills):
            sweep_until(operations, partial(journals.have_grown_to, journals.size() + rng.randint(1, 15_000)))
            processes.kill(rng.choice(processes.running))
            hire(processes)
        enough.touch()
        sweep_until(operations, partial(all_ended, operations))
        stop.touch()
        processes.join()
    rows = {row.id: row for row in operations.store.perform(browse.list_jobs, n=1_000_000)}
    pasts = {id: past_of(operations, id) for id in rows}
    operations.store.close()
    check_jobs(rows, journals)
    check_claims(rows, journals)
    check_attempts(rows, pasts)
    check_acceptances(rows, pasts, journals)
    check_refusals(rows, pasts, journals)


def sweep_until(operations: WorkerOperations, condition: Callable[[], bool]) -> None:
    def sweep() -> bool:
        operations.rescue()
        return condition()

    until(sweep)


def all_ended(operations: WorkerOperations) -> bool:
    counts = operations.store.perform(browse.count_jobs)
    return all(view in ENDED for views in counts.values() for view in views)


def past_of(operations: WorkerOperations, id: str) -> Past:
    traces = operations.store.perform(browse.trace_job, id)
    return {attempt.token: attempt for attempt in traces.attempts} if traces else {}


def check_jobs(rows: dict[str, JobRow], journals: Journals) -> None:
    """Every enqueue that was answered is there, and whatever is there has ended."""
    assert {id for ids in journals.all("enqueued") for id in ids} <= rows.keys()
    assert all(row.state in ENDED for row in rows.values())


def check_claims(rows: dict[str, JobRow], journals: Journals) -> None:
    """No lease was given twice, and none beyond the token of its job."""
    claimed = [Lease(*lease) for leases in journals.all("claimed") for lease in leases]
    assert len(claimed) == len(set(claimed))
    assert all(lease.token <= rows[lease.job].token for lease in claimed)


def check_attempts(rows: dict[str, JobRow], pasts: dict[str, Past]) -> None:
    """The attempts before the last have lower tokens, in the order of time."""
    for id, past in pasts.items():
        assert all(attempt.token < rows[id].token for attempt in past.values())
        ends = [attempt.finished_at for _, attempt in sorted(past.items())]
        assert ends == sorted(ends)


def check_acceptances(rows: dict[str, JobRow], pasts: dict[str, Past], journals: Journals) -> None:
    """What a process was told to be recorded is recorded, once, and an ending under the highest token."""
    accepted = [one for many in journals.all("accepted") for one in many]
    assert len({(job, token) for job, token, _ in accepted}) == len(accepted)
    for id, token, kind in accepted:
        row, attempt = rows[id], pasts[id].get(token)
        if kind == "succeeded":
            assert (row.state, row.token, row.result) == ("succeeded", token, str(token))
        elif kind == "fatal":
            assert (row.state, row.token, row.reason) == ("failed", token, "fatal")
        elif kind == "error":
            assert attempt.kind == "error" if attempt else (row.token, row.reason) == (token, "attempts")
        else:
            assert (attempt.kind if attempt else None) == (kind if kind == "snoozed" else None)
            assert row.token > token


def check_refusals(rows: dict[str, JobRow], pasts: dict[str, Past], journals: Journals) -> None:
    """Only a rescue takes a lease away here, and nobody writes under another's lease."""
    for id, token, _ in [one for many in journals.all("refused") for one in many]:
        row, attempt = rows[id], pasts[id].get(token)
        assert attempt.kind == "lost" if attempt else (row.token, row.error_kind) == (token, "lost")
    succeeded = [row for row in rows.values() if row.state == "succeeded"]
    assert [row.result for row in succeeded] == [str(row.token) for row in succeeded]
