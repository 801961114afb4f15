"""The states that people see: ``ready`` jobs that cannot run yet are shown as held, scheduled or retrying.

The SQL fragment ``visible_state`` is the same rule. This module imports little: the command line's help names the
states.
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
"""Not due yet, without or after an error. Both are listed soonest first."""


def visible_state(state: State, *, held: str | None, due: bool, error_kind: str | None) -> VisibleState:
    """The state of a job that people see. A held job is never claimed, due or not."""
    if state != "ready":
        return state
    if held not in (None, "later"):
        return "held"
    if due:
        return "ready"
    return "scheduled" if error_kind is None else "retrying"
