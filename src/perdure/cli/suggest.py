"""Suggestions for a mistyped or unknown command."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.model.suggest import did_you_mean

__all__ = ["did_you_mean", "other_command"]

_DELETE = "perdure delete --state succeeded --finished-before 30d deletes old jobs."
_JOBS = "perdure jobs lists jobs, perdure workflows lists workflows."
_REQUEUE = (
    "perdure requeue starts a new run of jobs that failed or were canceled; "
    "perdure run-now makes retrying jobs due now."
)
_STATS = "perdure stats shows queues, workers and the database; perdure job ID shows one job."
_WORKER = "perdure worker MODULE:APP runs jobs."

OTHER_TOOLS = {
    **dict.fromkeys(("clean", "cleanup", "prune", "purge"), _DELETE),
    **dict.fromkeys(("list", "ls"), _JOBS),
    **dict.fromkeys(("rerun", "restart", "retry"), _REQUEUE),
    **dict.fromkeys(("inspect", "show", "status"), _STATS),
    **dict.fromkeys(("run", "serve", "start"), _WORKER),
}
"""Command names that other job queues use, each with a sentence that names perdure's command."""


def other_command(word: str, commands: Iterable[str]) -> str:
    """A suggestion for a ``word`` that is not a command, with a leading space; empty if there is no suggestion."""
    known = OTHER_TOOLS.get(word.lower())
    return did_you_mean(word, commands) if known is None else f" {known}"
