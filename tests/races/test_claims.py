"""Processes that claim from one queue share it: no job is claimed twice, and none is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.model.job import Lease
from perdure.ops import browse
from tests.races.journal import Journals
from tests.races.processes import spawning, starting_line
from tests.races.roles import claim_until_empty, prepare, send


def test_every_job_is_claimed_by_one_process_and_finished_once(url: str, tmp_path: Path) -> None:
    share(url, tmp_path, processes=3, jobs=1500)


@pytest.mark.long
def test_every_one_of_many_jobs_is_claimed_once(url: str, tmp_path: Path) -> None:
    share(url, tmp_path, processes=4, jobs=20_000)


def share(url: str, directory: Path, *, processes: int, jobs: int) -> None:
    operations, journals = prepare(url), Journals(directory / "journals")
    ids = send(operations.store, jobs)
    start = starting_line(processes)
    with spawning() as spawned:
        for seed in range(processes):
            spawned.start(claim_until_empty, url, journals.directory, start, seed)
        spawned.join()

    first = sorted(Lease(id, 1) for id in ids)
    assert sorted(Lease(*lease) for leases in journals.all("claimed") for lease in leases) == first
    assert sorted(Lease(*lease) for leases in journals.all("accepted") for lease in leases) == first
    assert journals.authors("claimed") > 1
    rows = operations.store.perform(browse.list_jobs, n=jobs + 1)
    operations.store.close()
    assert {(row.id, row.state, row.attempt, row.token) for row in rows} == {
        (id, "succeeded", 1, 1) for id in ids
    }
