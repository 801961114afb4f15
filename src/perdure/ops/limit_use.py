"""Read how limits are used: the jobs that have slots, and the jobs that wait for a slot."""

from __future__ import annotations

from typing import NamedTuple

from perdure.model.limit_use import MOST_WAITING, DueJobs, LimitUse, RunningJob, limit_uses
from perdure.ops.limits import NamedLimit, named_limits, read_limits
from perdure.ops.op import Op, Query, ask_all, operation


class LimitsInUse(NamedTuple):
    """The use of every limit, and the settings of the named limits."""

    uses: list[LimitUse]
    named: dict[str, NamedLimit]


@operation("read")
def read_use() -> Op[LimitsInUse]:
    # Running jobs are read before the limits: a limit that is raised in between must not look exceeded.
    running, due, named = yield from ask_all(
        Query("list_running_jobs", {}),
        Query("count_due_limited", {"most": MOST_WAITING}),
        Query("list_named_limits", {}),
    )
    limits = yield from read_limits()
    uses = limit_uses(limits, [RunningJob(*row) for row in running], [DueJobs(*row) for row in due])
    return LimitsInUse(uses, {limit.name: limit for limit in named_limits(named)})
