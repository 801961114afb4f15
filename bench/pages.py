"""The pages of PostgreSQL that a claim and a finish touch, counted by the server; what they did is taken back."""

from __future__ import annotations

from typing import NamedTuple

from bench.workload import RESULT
from perdure import App
from perdure.model.job import SECOND, Lease
from perdure.model.lifecycle import Succeeded
from perdure.ops import claim, finish
from tests.sql.plans_postgres import Connection

WORKER = "pages"
RUNNING = "SELECT CAST(id AS text), token FROM perdure.job WHERE state = 'running' AND worker = %(worker)s"


class Cycle(NamedTuple):
    claimed: int
    claim: int
    """Pages, of all its jobs."""
    finish: int


class Pages:
    """A worker that only looks what its work would cost."""

    def __init__(self, url: str, tasks: list[str]) -> None:
        with App(url) as app:
            app.ledger.register(WORKER, name=WORKER, lease=3600 * SECOND)
        self._connection = Connection(url)
        self._tasks = tasks

    def of_a_cycle(self, n: int) -> Cycle:
        with self._connection.taken_back():
            claimed = self._connection.pages(claim.claim(claim.Appetite(WORKER, self._tasks, n)))
            rows = self._connection.execute(RUNNING, {"worker": WORKER}).fetchall()
            outcomes = [Succeeded(Lease(*row), RESULT) for row in rows]
            finished = 0
            if outcomes:
                finished = self._connection.pages(finish.finish(outcomes, dice=lambda: 0.5))
        return Cycle(len(outcomes), claimed, finished)

    def close(self) -> None:
        self._connection.close()
