"""The states that people see: of jobs that are ``ready``, what cannot run yet is told apart.

In SQL the fragment ``visible_state`` says the same. This module imports nothing heavy: a line of help names the states.
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
"""Not due yet, as if never tried, or after an error: both are listed soonest first."""


def visible_state(state: State, *, held: str | None, due: bool, error_kind: str | None) -> VisibleState:
    """One for each job. ``held``: no worker claims it, due or not."""
    if state != "ready":
        return state
    if held not in (None, "later"):
        return "held"
    if due:
        return "ready"
    return "scheduled" if error_kind is None else "retrying"
