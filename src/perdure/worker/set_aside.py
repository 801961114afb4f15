"""Sets aside jobs that are due much later, and brings back those that are due soon, page by page."""

from __future__ import annotations

import logging

from perdure.ops import set_aside as ops
from perdure.ops.find import FIRST
from perdure.plan.plan import Plan, perform
from perdure.worker.bounded_log import BoundedLog
from perdure.worker.split import split

MOST_PAGES = 20
"""The most pages that are set aside in one sweep, so that the other duties do not wait for long."""

_log = BoundedLog(logging.getLogger("perdure.worker"))


def set_aside(*, page: int = 5000) -> Plan[int]:
    """Set aside jobs of queues and priorities in which nothing is due soon. Return how many were set aside."""
    total, after = 0, ""
    for _ in range(MOST_PAGES):
        done = yield from perform(ops.set_aside, after=after, n=page)
        total += done.n
        if done.n < page:
            if done.last is None:
                break
            after = done.last
    return total


def bring_back(*, page: int = 1000) -> Plan[int]:
    """Bring back every job that is due soon, except rows that the database refuses. Return how many came back."""
    total, behind = 0, FIRST
    while True:
        found = yield from perform(ops.find_due_soon, behind=behind, n=page)
        done = yield from split([due.id for due in found], lambda ids: perform(ops.bring_back, ids))
        if done.outage is not None:
            raise done.outage
        for id, error in done.refused:
            _log.write(logging.ERROR, "Job %s is due soon and cannot be brought back", id, error=error)
        total += sum(done.done)
        if len(found) < page:
            return total
        behind = found[-1]
