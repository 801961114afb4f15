"""The states that people see: ``ready`` jobs that cannot run yet are shown as held, scheduled or retrying.

The SQL fragment ``visible_state`` is the same rule. This module imports little, because the help of the command line
needs it to name the states, and must appear at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from perdure.model.job import State

VisibleState: TypeAlias = Literal[
    "waiting",
    "ready",
    "scheduled",
    "retrying",
    "held",
    "running",
    "open",
    "succeeded",
    "failed",
    "canceled",
]
VISIBLE_STATES: tuple[VisibleState, ...] = get_args(VisibleState)

LATER: frozenset[VisibleState] = frozenset(("scheduled", "retrying"))
"""The states of jobs that are not due yet: ``retrying`` after an error, otherwise ``scheduled``.

Their jobs are listed soonest first.
"""


def visible_state(state: State, *, held: str | None, due: bool, error_kind: str | None) -> VisibleState:
    """The state that people see. A held job is shown as held whether it is due or not, because no worker claims it."""
    if state != "ready":
        return state
    if held not in (None, "later"):  # "later": set aside until shortly before it is due
        return "held"
    if due:
        return "ready"
    return "scheduled" if error_kind is None else "retrying"
