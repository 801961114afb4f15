"""Finding jobs by a filter: from the newest down, a stretch of them at a time.

No index serves most filters, for every job would pay for it. Few jobs among millions are found by looking at all, so
that a statement looks at a stretch and says where it ended: each takes a bounded time, whatever the table has become.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, get_args

import msgspec

from perdure.model.job import Later, State
from perdure.ops.batch import rows_of
from perdure.ops.op import Op, Param, ask
from perdure.request.filter import Filter, Shown

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
    filter: Filter, *, among: Sequence[Shown] | None = None, before: str = LAST, length: int, n: int
) -> Op[ScanRange]:
    """The first n that fit, in a stretch of that length below ``before``; of no other state than ``among`` these."""
    rows = yield from ask("find_jobs", **_conditions(filter, among), before=before, length=length, n=n)
    jobs = [Found(id, state, workflow) for id, state, workflow in rows if state is not None]
    return ScanRange(jobs, next((id for id, state, _ in rows if state is None), None))


def longer(length: int, filter: Filter) -> int:
    """Where little was found, more is looked at in one go."""
    return max(length, min(4 * length, LONGEST if filter.text is None else LONGEST_READ))


def _conditions(filter: Filter, among: Sequence[Shown] | None) -> dict[str, Param]:
    """A filter as the parameters of ``find_jobs``."""
    states: Sequence[Shown] | None = among if filter.state is None else [filter.state]
    params = msgspec.structs.asdict(filter)
    del params["state"]
    return {
        **params,
        "states": None if states is None else rows_of(states),
        # As it stands inside of a text in JSON: there a quote has a backslash before it.
        "escaped": None if filter.text is None else rows_of([filter.text])[2:-2],
        "through": _through(filter, states or ()),
    }


def _through(filter: Filter, states: Sequence[Shown]) -> str:
    """Which index leads to what may be few among many; there are some, for other reasons."""
    if filter.idempotency_key is not None:
        return "key"
    if states and set(states) <= set(get_args(Later)):
        return "claim"
    return "running" if [*states] == ["running"] else "id"
