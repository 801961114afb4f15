"""Why a job is not running, in a sentence: the first reason that holds, and what would keep it next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perdure.model.job import ENDED, Instant, JobRow
from perdure.model.serving import Lack, Server, lack
from perdure.model.telling import distance, stamp

MOST_AHEAD = 1000
"""Up to here the jobs ahead are counted."""
MOST_NAMED = 3
"""Of more parents only some are named."""


class Case(NamedTuple):
    """A job and everything around it that decides whether it is claimed."""

    now: Instant
    job: JobRow
    paused: bool = False
    cool_until: Instant | None = None
    servers: Sequence[Server] = ()
    runner: str | None = None
    """The name of the live worker that runs it."""
    ahead: int = 0
    parents: Sequence[str] = ()
    """Of a step that waits, those that have not ended."""


class Reason(NamedTuple):
    """``code`` is stable, ``sentence`` is for people."""

    code: str
    sentence: str


class Explanation(NamedTuple):
    """``also``: what would keep the job from running once the first reason is gone."""

    code: str
    sentence: str
    also: list[Reason]


def explain(case: Case) -> Explanation:
    first, *others = _reasons(case)
    return Explanation(first.code, first.sentence, others)


def _reasons(case: Case) -> list[Reason]:
    job = case.job
    if job.state in ENDED:
        return [_ended(case)]
    if job.state == "running":
        return [_running(case)]
    if job.state == "waiting":
        return [Reason("waiting", f"It waits for {_named(case.parents)} to end{_place(job)}.")]
    if job.state == "open":
        return [Reason("open", f"It is open: {_awaited(case)}{_place(job)}.")]
    if job.expires_at is not None and job.expires_at <= case.now:
        return [
            Reason("expired", f"It expired at {_when(case, job.expires_at)} and is about to be canceled.")
        ]
    return [*_obstacles(case)] or [
        Reason("ready", "It is first in its queue; the next free worker claims it.")
    ]


def _ended(case: Case) -> Reason:
    job = case.job
    why = f": {_line(job.reason)}" if job.reason else ""
    if job.state == "failed":
        why = f"{_LAST_WORDS.get(job.reason or '', '')}: {_error(job)}"
    return Reason("ended", f"It {_ENDS[job.state]} at {_when(case, job.finished_at)}{why}.")


def _running(case: Case) -> Reason:
    job = case.job
    since = f"since {_when(case, job.started_at)}"
    if case.runner is None:
        return Reason(
            "lost", f"It runs {since}, but its worker {job.worker} is silent; the next sweep rescues it."
        )
    if job.cancel_requested_at is not None:
        asked = _when(case, job.cancel_requested_at)
        return Reason("cancel_requested", f"It runs on {case.runner} and was asked to stop at {asked}.")
    return Reason("running", f"It runs on {case.runner} {since}.")


def _obstacles(case: Case) -> Iterator[Reason]:
    """What keeps a ready job: first what somebody decided, last what passes by itself."""
    job, now = case.job, case.now
    if job.held is not None:
        yield Reason("held", f"It is held by {job.held}.")
    if job.run_at > now:
        yield _later(case)
    if case.paused:
        yield Reason("queue_paused", f"Its queue {job.queue} is paused.")
    if case.cool_until is not None and case.cool_until > now:
        yield Reason("queue_cooling", f"Its queue {job.queue} cools until {_when(case, case.cool_until)}.")
    missing = lack(job.queue, job.task, case.servers)
    if missing is not None:
        yield _unserved(job, missing)
    if case.ahead and job.run_at <= now:
        yield _behind(case.ahead)


def _later(case: Case) -> Reason:
    job = case.job
    due = _when(case, job.run_at)
    if job.error_kind is None:
        return Reason("scheduled", f"It is scheduled for {due}.")
    tried = f"attempt {job.attempt} of {job.max_attempts}"
    return Reason("retrying", f"It waits for its retry at {due}; {tried} ended with {_error(job)}.")


def _unserved(job: JobRow, missing: Lack) -> Reason:
    match missing:
        case "worker":
            return Reason("no_worker", "No worker is live.")
        case "queue":
            return Reason("queue_unserved", f"No live worker serves its queue {job.queue}.")
        case "task":
            return Reason("task_unserved", f"No live worker knows its task {job.task}.")
        case "both":
            return Reason("unserved", f"No live worker that serves {job.queue} knows the task {job.task}.")


def _behind(ahead: int) -> Reason:
    if ahead == 1:
        return Reason("behind", "One job of its queue comes before it.")
    number = f"{ahead} or more" if ahead >= MOST_AHEAD else str(ahead)
    return Reason("behind", f"{number} jobs of its queue come before it.")


_LAST_WORDS = {
    "attempts": ", with its last attempt",
    "fatal": " at once",
    "crashes": ", having brought down too many processes",
}
_ENDS = {"succeeded": "succeeded", "failed": "failed", "canceled": "was canceled"}


def _error(job: JobRow) -> str:
    said = f" ({_line(job.error_message)})" if job.error_message else ""
    return f"{job.error_code or job.error_kind or 'no error'}{said}"


def _place(job: JobRow) -> str:
    return f", as step {job.step_key} of workflow {job.workflow_id}" if job.workflow_id else ""


def _named(parents: Sequence[str]) -> str:
    if not parents:
        return "its parents"
    shown = (
        [*parents]
        if len(parents) <= MOST_NAMED
        else [*parents[: MOST_NAMED - 1], f"{len(parents) - 2} others"]
    )
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _awaited(case: Case) -> str:
    """A gate's time may run out."""
    until = f" until {_when(case, case.job.run_at)}" if case.job.timeout is not None else ""
    return f"it waits for somebody outside{until}"


def _line(text: str, most: int = 200) -> str:
    first = text.strip().partition("\n")[0].rstrip(". ")
    return first if len(first) <= most else first[: most - 1] + "…"


def _when(case: Case, at: Instant | None) -> str:
    return "an unknown time" if at is None else f"{stamp(at)} ({distance(at, case.now)})"
