"""Explains why a job is not running: the first reason, further reasons, and remarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perdure.model.advice import ADVICE, advise
from perdure.model.coverage import Lack, Server, lack
from perdure.model.job import ENDED, LATER, UNCLAIMABLE, Instant, JobRow, State
from perdure.model.limit_use import Holding, limit_name
from perdure.model.pause import Pause
from perdure.model.silence import Silence
from perdure.model.suspect import is_suspect
from perdure.model.time_text import distance, stamp

MOST_AHEAD = 1000
"""Jobs that come before the job in its queue are counted up to this number."""
MOST_NAMED = 3
"""At most this many parents, and this many jobs that have slots of a limit, are named."""


class Parent(NamedTuple):
    id: str
    key: str
    state: State


class Case(NamedTuple):
    """A job, and all other data that decides whether it is claimed."""

    now: Instant
    job: JobRow
    paused: bool = False
    pause: Pause | None = None
    """The pause of the job's queue, if the queue is paused and the pause was recorded."""
    cool_until: Instant | None = None
    servers: Sequence[Server] = ()
    runner: str | None = None
    """The name of the live worker that runs the job."""
    silent: Silence | None = None
    """Set if the worker that runs the job does not renew its lease."""
    taken_over: Silence | None = None
    """Set if the worker of the previous attempt died."""
    enabled: bool | None = True
    """Whether the job's task is enabled; None if the database does not know the task."""
    ahead: int = 0
    full: Sequence[Holding] = ()
    """The limits that have no free slot for the job; empty if the job is not due."""
    parents: Sequence[Parent] = ()
    """The parents that a waiting step still waits for."""
    holder: str | None = None
    """The id of the active job that has this job's unique key."""


class Reason(NamedTuple):
    """One reason. ``code`` is stable, ``sentence`` is for people.

    ``advice`` says what to do in Python, ``shell`` gives the same advice as commands.
    """

    code: str
    sentence: str
    advice: str
    shell: str


class Explanation(NamedTuple):
    """The first reason. ``also``: further reasons that keep the job from running, and remarks."""

    code: str
    sentence: str
    also: list[Reason]
    advice: str
    shell: str


def explain(case: Case) -> Explanation:
    first, *others = [*_reasons(case), *_remarks(case)]
    return Explanation(first.code, first.sentence, others, first.advice, first.shell)


def _reasons(case: Case) -> list[Reason]:
    job = case.job
    if job.state in ENDED:
        return [_ended(case)]
    if job.state == "running":
        return [_running(case), *_nobody_sweeps(case, needed=case.runner is None)]
    if job.state == "waiting":
        sentence = f"It waits for {_named(case.parents)} to end{_place(job)}."
        return [_reason(case, "waiting", sentence, advice=None if case.parents else "ready")]
    if job.state == "open":
        return [*_open(case)]
    if job.expires_at is not None and job.expires_at <= case.now:
        sentence = f"It expired at {_when(case, job.expires_at)} and is about to be canceled."
        return [_reason(case, "expired", sentence), *_nobody_sweeps(case)]
    return [*_obstacles(case)] or [
        _reason(case, "ready", "It is first in its queue; the next free worker claims it.")
    ]


def _remarks(case: Case) -> Iterator[Reason]:
    """Remarks that are worth knowing but do not keep the job from running."""
    job = case.job
    if case.holder is not None:
        sentence = f"Job {case.holder} has its unique key: a requeue is refused until that job has ended."
        yield _reason(case, "unique_key_taken", sentence)
    if job.state not in ("ready", "running"):
        return
    if is_suspect(job.crashes, job.interruptions):
        times = f"Workers or processes died under it {job.crashes} times"
        if job.interruptions:
            times += f" and were stopped under it {job.interruptions} times"
        sentence = f"{times}, so it runs alone in a process."
        yield _reason(case, "alone", sentence)
    if case.enabled is False and job.state == "ready":
        sentence = f"Its task {job.task} is disabled; jobs that were enqueued before still run."
        yield _reason(case, "task_disabled", sentence)
    yield from _worker_remarks(case)


def _reason(
    case: Case, code: str, sentence: str, *, advice: str | None = None, **others: str | None
) -> Reason:
    """Make a Reason. ``others``: further fields for the advice, which override the job's fields."""
    job = case.job
    fields = {
        "id": job.id,
        "queue": job.queue,
        "task": job.task,
        "workflow": job.workflow_id,
        "step": job.step_key,
        "holder": case.holder,
        "parent": case.parents[0].id if case.parents else None,
    }
    advised = advise(ADVICE[advice or code], **{**fields, **others})
    return Reason(code, sentence, str(advised), advised.shell)


def _ended(case: Case) -> Reason:
    job = case.job
    why = f": {_line(job.reason)}" if job.reason else ""
    if job.state == "failed":
        why = f"{_LAST_WORDS.get(job.reason or '', '')}: {_error(job)}"
    sentence = f"It {_ENDS[job.state]} at {_when(case, job.finished_at)}{why}."
    return _reason(case, "ended", sentence, advice="step_ended" if job.workflow_id else job.state)


def _running(case: Case) -> Reason:
    job = case.job
    since = f"since {_when(case, job.started_at)}"
    if case.runner is None and case.silent is not None:
        silent = f"{case.silent.worker} has been silent since {_when(case, case.silent.since)}"
        sentence = f"It runs {since}, but its worker {silent}; the next sweep takes it over."
        return _reason(case, "lost", sentence)
    if case.runner is None:
        sentence = f"It runs {since}, but its worker {job.worker} is silent; the next sweep rescues it."
        return _reason(case, "lost", sentence)
    if job.cancel_requested_at is not None:
        asked = _when(case, job.cancel_requested_at)
        sentence = f"It runs on {case.runner} and was asked to stop at {asked}."
        return _reason(case, "cancel_requested", sentence)
    return _reason(case, "running", f"It runs on {case.runner} {since}.")


def _worker_remarks(case: Case) -> Iterator[Reason]:
    """Remarks that the job's worker does not renew its lease, or that the worker of the previous attempt died."""
    if (silent := case.silent) is not None and case.runner is not None:
        sentence = (
            f"Its worker {silent.worker} has been silent since {_when(case, silent.since)}; if it stays so, its jobs "
            f"are taken over at {_when(case, silent.until)}."
        )
        yield _reason(case, "worker_silent", sentence)
    if (before := case.taken_over) is not None:
        sentence = (
            f"It was taken over from the worker {before.worker} at {_when(case, before.until)}, which had been silent "
            f"since {_when(case, before.since)}."
        )
        yield _reason(case, "taken_over", sentence)


def _open(case: Case) -> Iterator[Reason]:
    """The reason of an open gate: it waits to be resolved, or its timeout has passed."""
    job = case.job
    until = f" until {_when(case, job.run_at)}" if job.timeout is not None else ""
    if job.timeout is not None and job.run_at <= case.now:
        sentence = f"Its timeout passed at {_when(case, job.run_at)}{_place(job)}; a sweep resolves it soon."
        yield _reason(case, "gate_overdue", sentence)
        yield from _nobody_sweeps(case)
    else:
        sentence = f"It is open: it waits to be resolved{until}{_place(job)}."
        yield _reason(case, "open", sentence)


def _nobody_sweeps(case: Case, *, needed: bool = True) -> Iterator[Reason]:
    if needed and not case.servers:
        yield _reason(case, "no_worker", "No worker is live.")


def _obstacles(case: Case) -> Iterator[Reason]:
    """Why a ready job does not run: holds, times and pauses, missing workers, limits, busy workers, jobs ahead."""
    job, now = case.job, case.now
    if job.held == UNCLAIMABLE:
        yield _reason(
            case, "unclaimable", f"No worker can claim it: {_line(job.reason or 'the reason is unknown')}."
        )
    elif job.held not in (None, LATER):
        yield _reason(case, "held", f"It is held by {job.held}.")
    cools = case.cool_until is not None and case.cool_until > now
    if cools and _cools_longest(case):
        yield _cooling(case)
    if job.run_at > now:
        yield _later(case)
    if case.paused:
        pause = "paused" if case.pause is None else _line(str(case.pause))
        yield _reason(case, "queue_paused", f"Its queue {job.queue} is {pause}.")
    if cools and not _cools_longest(case):
        yield _cooling(case)
    missing = lack(job.queue, job.task, case.servers)
    if missing is not None:
        yield _unserved(case, missing)
    if job.run_at <= now:
        yield from _limited(case)
    if missing is None and job.run_at <= now:
        yield from _busy(case)
    if case.ahead and job.run_at <= now:
        yield _behind(case)


def _cools_longest(case: Case) -> bool:
    """Whether the queue's cool-down ends later than the job's own delay. False if the queue is paused."""
    return not case.paused and case.cool_until is not None and case.cool_until > case.job.run_at > case.now


def _cooling(case: Case) -> Reason:
    assert case.cool_until is not None
    sentence = f"Its queue {case.job.queue} cools down until {_when(case, case.cool_until)}."
    return _reason(case, "queue_cooling", sentence)


def _later(case: Case) -> Reason:
    job = case.job
    due = _when(case, job.run_at)
    code, sentence = "scheduled", f"It is scheduled for {due}."
    if job.error_kind is not None:
        tried = f"attempt {job.attempt} of {job.max_attempts}"
        sentence = f"It waits for its retry at {due}; {tried} ended with {_error(job)}."
        code = "retrying"
    elif job.snoozes or job.throttles:
        code, sentence = "put_off", f"Its handler postponed it until {due}."
    return _reason(case, code, sentence, advice="step_later" if job.workflow_id else None)


def _unserved(case: Case, missing: Lack) -> Reason:
    job = case.job
    if missing == "worker":
        return _reason(case, "no_worker", "No worker is live.")
    if missing == "queue":
        return _reason(case, "queue_unserved", f"No live worker serves its queue {job.queue}.")
    if missing == "both":
        sentence = f"No live worker that serves {job.queue} knows the task {job.task}."
        return _reason(case, "unserved", sentence)
    if case.enabled is None:
        sentence = f"Neither the database nor a live worker knows its task {job.task}."
        return _reason(case, "task_unknown", sentence)
    return _reason(case, "task_unserved", f"No live worker knows its task {job.task}.")


def _limited(case: Case) -> Iterator[Reason]:
    """A reason for each limit that has no free slot."""
    for full in case.full:
        more = len(full.jobs) - MOST_NAMED
        jobs = [*full.jobs[:MOST_NAMED], *([f"{more:,} more"] if more > 0 else ())]
        who = f"jobs {_listed(jobs)} have them" if len(jobs) > 1 else f"job {jobs[0]} has it"
        sentence = f"It waits for a slot of {_line(limit_name(full.limit))} ({full.concurrency:,}): {who}."
        kind, name, *_ = full.limit
        advice = {"named": "limit_full", "queue": "queue_limit_full"}.get(kind, "declared_limit_full")
        yield _reason(case, "limit_full", sentence, advice=advice, holder=full.jobs[0], limit=name)


def _busy(case: Case) -> Iterator[Reason]:
    """A reason if every slot is taken.

    The database does not know which jobs run in process slots, so all slots count.
    """
    job = case.job
    takers = [one for one in case.servers if one.serves(job.queue) and job.task in one.tasks]
    if all(one.running >= one.slots for one in takers):
        many = len(takers) > 1
        who = f"The {len(takers)} workers that take it run" if many else "The worker that takes it runs"
        running, slots = sum(one.running for one in takers), sum(one.slots for one in takers)
        yield _reason(case, "workers_busy", f"{who} {running} jobs, and none of the {slots} slots is free.")


def _behind(case: Case) -> Reason:
    if case.ahead == 1:
        return _reason(case, "behind", "One job of its queue comes before it.")
    number = f"{case.ahead:,} or more" if case.ahead >= MOST_AHEAD else f"{case.ahead:,}"
    return _reason(case, "behind", f"{number} jobs of its queue come before it.")


_LAST_WORDS = {
    "attempts": ", in its last attempt",
    "fatal": " at once",
    "crashes": ", after too many of its processes crashed",
}
_ENDS = {"succeeded": "succeeded", "failed": "failed", "canceled": "was canceled"}


def _error(job: JobRow) -> str:
    message = f" ({_line(job.error_message)})" if job.error_message else ""
    return f"{job.error_code or job.error_kind or 'no error'}{message}"


def _place(job: JobRow) -> str:
    return f", as step {job.step_key} of workflow {job.workflow_id}" if job.workflow_id else ""


def _named(parents: Sequence[Parent]) -> str:
    """List the parents, each with its state."""
    advised = [f"{parent.key} ({parent.state})" for parent in parents]
    if len(advised) > MOST_NAMED:
        advised = [*advised[: MOST_NAMED - 1], f"{len(advised) - MOST_NAMED + 1} others"]
    return _listed(advised) or "its parents"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _line(text: str, most: int = 200) -> str:
    first = text.strip().partition("\n")[0].rstrip(". ")
    return first if len(first) <= most else first[: most - 1] + "…"


def _when(case: Case, at: Instant | None) -> str:
    return "an unknown time" if at is None else f"{stamp(at)} ({distance(at, case.now)})"
