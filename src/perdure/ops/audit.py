"""What operators did to many jobs, or to something that is no job. Of one job it is an event, and goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from perdure.model.job import Instant
from perdure.ops.op import Op, Query, ask_last, operation

LAST = 2**63 - 1
"""After every act."""


class ActRow(NamedTuple):
    id: int
    at: Instant
    actor: str | None
    action: str
    subject: str
    detail: str | None


def act(action: str, subject: str, by: str | None, **detail: object) -> Query:
    """Write an act down, in the transaction that does it."""
    return Query("record_act", {"actor": by, "verb": action, "subject": subject, "detail": told(detail)})


def amend(id: int, **detail: object) -> Query:
    """An act that goes on from transaction to transaction: what it has come to."""
    return Query("amend_act", {"id": id, "detail": told(detail)})


def told(detail: Mapping[str, object]) -> str | None:
    """What is known of it, as JSON."""
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
    """A page of acts, newest first; the next page begins before the last id of this one."""
    rows = yield from ask_last("list_acts", verb=action, actor=actor, subject=subject, before=before, n=n)
    return [ActRow(*row) for row in rows]
