"""The audit log. An act records what an operator did to many jobs, or to a queue, a limit, a task or a workflow.

An action on one job is recorded as an event of that job instead, which is deleted with the job. The deletion of a job
is therefore an act.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from perdure.model.job import Instant
from perdure.ops.op import Op, Query, ask_last, operation

LAST = 2**63 - 1
"""Greater than the id of every act."""


class ActRow(NamedTuple):
    id: int
    at: Instant
    actor: str | None
    action: str
    subject: str
    detail: str | None


def act(action: str, subject: str, by: str | None, **detail: object) -> Query:
    """The statement that records an act. It runs in the transaction that performs the action."""
    return Query("record_act", {"actor": by, "verb": action, "subject": subject, "detail": as_json(detail)})


def amend(id: int, **detail: object) -> Query:
    """The statement that updates the detail of an act, for an action that takes several transactions."""
    return Query("amend_act", {"id": id, "detail": as_json(detail)})


def as_json(detail: Mapping[str, object]) -> str | None:
    """The fields that are not None, as JSON; None if there are no such fields."""
    known = {name: value for name, value in detail.items() if value is not None}
    return msgspec.json.encode(known).decode() if known else None


@operation("read")
def list_acts(
    *,
    action: str | None = None,
    actor: str | None = None,
    subject: str | None = None,
    before: int = LAST,
    n: int = 50,
) -> Op[list[ActRow]]:
    """A page of acts, newest first. The last id of a page is ``before`` of the next page."""
    rows = yield from ask_last("list_acts", verb=action, actor=actor, subject=subject, before=before, n=n)
    return [ActRow(*row) for row in rows]
