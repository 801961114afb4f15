"""Suggestions for a word that is no command, option or name here."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.model.suggest import did_you_mean

__all__ = ["did_you_mean", "other_command"]

_DELETE = "perdure delete --state succeeded --finished-before 30d deletes old jobs."
_JOBS = "perdure jobs lists jobs, perdure workflows lists workflows."
_REQUEUE = (
    "perdure requeue starts a new run of jobs that failed or were canceled; "
    "perdure run-now makes jobs due that wait for a retry."
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
"""Commands of other queues, and what does the same here."""


def other_command(word: str, commands: Iterable[str]) -> str:
    """A sentence to append where ``word`` is no command, or nothing."""
    known = OTHER_TOOLS.get(word.lower())
    return did_you_mean(word, commands) if known is None else f" {known}"
