"""What a claim and a finish look at on PostgreSQL, counted by the server; what they did is taken back."""

from __future__ import annotations

from typing import NamedTuple

from bench.workload import RESULT
from perdure import App
from perdure.model.job import SECOND, Lease
from perdure.model.lifecycle import Succeeded
from perdure.ops import claim, finish
from tests.sql.plans_postgres import Connection, Plan

WORKER = "pages"
RUNNING = "SELECT CAST(id AS text), token FROM perdure.job WHERE state = 'running' AND worker = %(worker)s"


class Cycle(NamedTuple):
    claimed: int
    claim: Plan
    finish: Plan


class Pages:
    """A worker that only looks what its work would cost."""

    def __init__(self, url: str, tasks: list[str]) -> None:
        with App(url) as app:
            app.operations.register(WORKER, name=WORKER, lease=3600 * SECOND)
        self._connection = Connection(url)
        self._tasks = tasks

    def of_a_cycle(self, n: int) -> Cycle:
        with self._connection.taken_back():
            claimed = self._connection.plan(claim.claim(claim.ClaimRequest(WORKER, self._tasks, n)))
            rows = self._connection.execute(RUNNING, {"worker": WORKER}).fetchall()
            outcomes = [Succeeded(Lease(*row), RESULT) for row in rows]
            finished = Plan({}, 0)
            if outcomes:
                finished = self._connection.plan(finish.finish(outcomes, jitter=lambda: 0.5))
        return Cycle(len(outcomes), claimed, finished)

    def of_a_front(self, n: int, window: claim.ClaimWindow) -> Plan:
        """Of a claim as most are: from a little before the last one on."""
        with self._connection.taken_back():
            return self._connection.plan(
                claim.claim(claim.ClaimRequest(WORKER, self._tasks, n, window=window))
            )

    def close(self) -> None:
        self._connection.close()
