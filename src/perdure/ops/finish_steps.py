"""Record successes of steps in one round trip, which is possible if no step of their workflows failed or was canceled.

In such workflows all waiting steps can still run, so no rows need to be read to decide about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.model.job import Lease
from perdure.ops.batch import rows_of
from perdure.ops.claim import ClaimRequest, Claims, claim_queries, read_claims
from perdure.ops.op import Op, Query, announce, ask_all
from perdure.ops.topics import queue_topics

SPOILED = 5
"""The column of ``lock_workflows`` with the number of steps that failed or were canceled."""


class Succeeding(NamedTuple):
    """The result of ``succeed_at_once``.

    ``failing``: workflows in which a step has failed or was canceled, or whose row is gone. Outcomes of their steps
    must be sent again, without this shortcut.
    """

    recorded: list[Lease]
    claims: Claims
    failing: frozenset[str]


def succeed_at_once(
    parts: Sequence[str], workflows: Sequence[str], claim: ClaimRequest | None
) -> Op[Succeeding]:
    """Record successes of steps without reports, children or new steps, release the next steps, and claim jobs.

    All this takes one round trip. A separate statement takes the locks first, because a statement sees only the rows
    that were committed when it began.
    """
    ids = rows_of(sorted(workflows))
    queries = [Query("lock_workflows", {"ids": ids})]
    queries += [Query("succeed_steps", {"outcomes": part, "workflows": ids}) for part in parts]
    if claim:
        queries += claim_queries(claim)
    locked, *answers = yield from ask_all(*queries, final=True)
    claims = read_claims(answers[-1], claim) if claim else Claims([])
    recorded: list[Lease] = []
    released: dict[str, str] = {}
    for id, token, queue in (row for rows in answers[: len(parts)] for row in rows):
        if queue is None:
            recorded.append(Lease(id, token))
        else:
            released[id] = queue
    taken = {job.id for job in claims.jobs}
    yield from announce(queue_topics({queue for id, queue in released.items() if id not in taken}))
    sound = {row[0] for row in locked if not row[SPOILED]}
    return Succeeding(recorded, claims, frozenset(workflows) - sound)
