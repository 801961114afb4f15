"""Find jobs by a filter: newest first, one scan range at a time.

Most filters have no index, because an index would make every insert slower. So all jobs are scanned, even to find a few
among millions. One statement scans one range and returns where the range ended. The time of a statement is therefore
bounded, however large the table is.
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
"""Greater than every id."""

LONGEST, LONGEST_READ = 20_000, 1000
"""The most jobs per scan range.

The second limit is for scans that read the jobs' arguments, which have up to a megabyte each. A statement may take at
most 30 s.
"""


class Found(NamedTuple):
    """A job that matched a filter when it was read."""

    id: str
    state: State
    workflow: str | None


class ScanRange(NamedTuple):
    """The matches of one range. ``end``: where the next range begins; None after the last range."""

    jobs: list[Found]
    end: str | None


def find(
    filter: Filter, *, among: Sequence[VisibleState] | None = None, before: str = LAST, length: int, n: int
) -> Op[ScanRange]:
    """The first n matching jobs among the next ``length`` jobs below the id ``before``.

    ``among``: the states to find, unless the filter names a state.
    """
    rows = yield from ask("find_jobs", **_conditions(filter, among), before=before, length=length, n=n)
    jobs = [Found(id, state, workflow) for id, state, workflow in rows if state is not None]
    return ScanRange(jobs, next((id for id, state, _ in rows if state is None), None))


class Due(NamedTuple):
    """The position of a job in the order in which jobs become due."""

    at: Instant
    id: str


FIRST = Due(0, "00000000-0000-0000-0000-000000000000")
"""A position before every job."""


def find_later(filter: Filter, *, behind: Due, length: int, n: int) -> Op[tuple[list[str], Due | None]]:
    """The first n matching jobs among the next ``length`` jobs that are not due yet, soonest first.

    Return their ids, and the position where the next range begins, or None after the last range.
    """
    conditions = _conditions(filter, None)
    del conditions["through"]
    rows = yield from ask("find_later", **conditions, due=behind.at, after=behind.id, length=length, n=n)
    ids = [id for id, _, fits in rows if fits]
    return ids, next((Due(at, id) for id, at, fits in rows if not fits), None)


def longer(length: int, filter: Filter) -> int:
    """The length of the next range, if the last range had too few matches: four times as long, up to a limit."""
    return max(length, min(4 * length, LONGEST if filter.text is None else LONGEST_READ))


def _conditions(filter: Filter, among: Sequence[VisibleState] | None) -> dict[str, Param]:
    """A filter as parameters of ``find_jobs`` and ``find_later``."""
    states: Sequence[VisibleState] | None = among if filter.state is None else [filter.state]
    params = msgspec.structs.asdict(filter)
    del params["state"]
    return {
        **params,
        "states": None if states is None else rows_of(states),
        # The text as it is written in a JSON string, for example with a backslash before each quote.
        "escaped": None if filter.text is None else rows_of([filter.text])[2:-2],
        "through": _through(filter, states or ()),
    }


def _through(filter: Filter, states: Sequence[VisibleState]) -> str:
    """Which index to scan. Some indexes exist for other reasons and happen to fit a filter."""
    if filter.idempotency_key is not None:
        return "key"
    if states and LATER.issuperset(states):
        return "claim"
    return "running" if [*states] == ["running"] else "id"
