"""What a vacuum of a table full of finished jobs does about those that were claimed since."""

from __future__ import annotations

from contextlib import closing

import psycopg

from bench.filled_database import FilledDatabase, Jobs
from bench.workload import TASK


def test_a_vacuum_tidies_the_indexes_however_little_of_the_table_is_dead(postgres_url: str) -> None:
    """Or each claim that looks everywhere walks past all that was claimed before."""
    said: list[str] = []
    with (
        closing(FilledDatabase(postgres_url)) as filled,
        psycopg.connect(postgres_url, autocommit=True) as connection,
    ):
        connection.execute("ALTER TABLE perdure.job SET (autovacuum_enabled = off)")
        filled.fill(Jobs(20_000, finished=True), Jobs(100))
        filled.take(100, tasks=[TASK])
        connection.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        connection.execute("VACUUM (VERBOSE) perdure.job")
    assert not [one for one in said if "index scan bypassed" in one]
    assert [one for one in said if '"job_claim"' in one]
