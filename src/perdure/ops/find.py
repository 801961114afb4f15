"""Finding jobs by a filter: from the newest down, a stretch of them at a time.

No index serves most filters, for every job would pay for it. Few jobs among millions are found by looking at all, so
that a statement looks at a stretch and says where it ended: each takes a bounded time, whatever the table has become.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from perdure.model.job import Instant, State
from perdure.model.visible_state import LATER, VisibleState
from perdure.ops.batch import rows_of
from perdure.ops.op import Op, Param, ask
from perdure.request.filter import Filter

LAST = "ffffffff-ffff-ffff-ffff-ffffffffffff"
"""After every id."""

LONGEST, LONGEST_READ = 20_000, 1000
"""Jobs in a stretch; and where arguments are read, up to a megabyte each. A statement has 30 s."""


class Found(NamedTuple):
    """A job that fits a filter, at the moment it was looked at."""

    id: str
    state: State
    workflow: str | None


class ScanRange(NamedTuple):
    """``end``: below it nothing was looked at; None if there is nothing."""

    jobs: list[Found]
    end: str | None


def find(
    filter: Filter, *, among: Sequence[VisibleState] | None = None, before: str = LAST, length: int, n: int
) -> Op[ScanRange]:
    """The first n that fit, in a stretch of that length below ``before``; of no other state than ``among`` these."""
    rows = yield from ask("find_jobs", **_conditions(filter, among), before=before, length=length, n=n)
    jobs = [Found(id, state, workflow) for id, state, workflow in rows if state is not None]
    return ScanRange(jobs, next((id for id, state, _ in rows if state is None), None))


class Due(NamedTuple):
    """Where a job stands among those that are not due yet."""

    at: Instant
    id: str


FIRST = Due(0, "00000000-0000-0000-0000-000000000000")
"""Before every job that is not due."""


def find_later(filter: Filter, *, behind: Due, length: int, n: int) -> Op[tuple[list[str], Due | None]]:
    """The first n ids of those that are not due and fit, soonest first, in a stretch of that length.

    Also where the stretch ended; None if there is nothing behind it.
    """
    conditions = _conditions(filter, None)
    del conditions["through"]
    rows = yield from ask("find_later", **conditions, due=behind.at, after=behind.id, length=length, n=n)
    ids = [id for id, _, fits in rows if fits]
    return ids, next((Due(at, id) for id, at, fits in rows if not fits), None)


def longer(length: int, filter: Filter) -> int:
    """Where little was found, more is looked at in one go."""
    return max(length, min(4 * length, LONGEST if filter.text is None else LONGEST_READ))


def _conditions(filter: Filter, among: Sequence[VisibleState] | None) -> dict[str, Param]:
    """A filter as the parameters of ``find_jobs``."""
    states: Sequence[VisibleState] | None = among if filter.state is None else [filter.state]
    params = msgspec.structs.asdict(filter)
    del params["state"]
    return {
        **params,
        "states": None if states is None else rows_of(states),
        # As it stands inside of a text in JSON: there a quote has a backslash before it.
        "escaped": None if filter.text is None else rows_of([filter.text])[2:-2],
        "through": _through(filter, states or ()),
    }


def _through(filter: Filter, states: Sequence[VisibleState]) -> str:
    """Which index leads to what may be few among many; there are some, for other reasons."""
    if filter.idempotency_key is not None:
        return "key"
    if states and LATER.issuperset(states):
        return "claim"
    return "running" if [*states] == ["running"] else "id"
