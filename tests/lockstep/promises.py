"""Promises that must hold between any two states of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perdure.model.job import ENDED, JobRow, Lease
from perdure.ops.topics import queue_topic


class Witness:
    """Remembers the last rows, and which worker got each lease."""

    def __init__(self) -> None:
        self._last: Mapping[str, JobRow] = {}
        self._owners: dict[Lease, str] = {}

    def see(self, rows: Mapping[str, JobRow]) -> None:
        for row in rows.values():
            assert (row.state == "running") == (row.worker is not None)
            assert (row.state in ENDED) == (row.finished_at is not None)
            assert 0 <= row.attempt <= row.max_attempts
            if row.id in self._last:
                _compare(self._last[row.id], row)
        self._last = rows

    def see_wakes(self, rows: Mapping[str, JobRow], now: int, topics: frozenset[str]) -> None:
        """Every job that became claimable was announced."""
        for id in _due(rows, now) - _due(self._last, now):
            assert queue_topic(rows[id].queue) in topics

    def see_claims(self, worker: str, leases: Iterable[Lease]) -> None:
        """No lease is given twice."""
        for lease in leases:
            assert lease not in self._owners
            self._owners[lease] = worker

    def see_nothing_changed(self, rows: Mapping[str, JobRow]) -> None:
        """After a refused writer."""
        assert rows == self._last


def _compare(before: JobRow, after: JobRow) -> None:
    assert after.token >= before.token
    if before.state in ENDED:
        requeued = before.state != "succeeded" and after.run == before.run + 1
        assert after == before or requeued
    if before.cancel_requested_at is not None and after.run == before.run:
        assert after.token == before.token, "a new attempt began after an accepted cancel"


def _due(rows: Mapping[str, JobRow], now: int) -> set[str]:
    return {row.id for row in rows.values() if row.state == "ready" and row.run_at <= now}
