"""Compare the journals of all processes with the ledger.

``verdict(directory, url)`` reads both, once everything has ended, and returns what contradicts: nothing, if all is
well. Each rule is a function from both to violations. They hold whoever was killed, and wherever; they do not
know of jobs that an operator touched (requeued, deleted, pruned).

A lease is a job and a token. The ledger tells of a lease in one of three ways: an attempt under its token, the
job's own row if it ended under that token, or not at all. Only a claim given back is not told; the journals count it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from perdure.model.job import ENDED, Instant, Lease
from perdure.ops import browse
from perdure.ops.browse import Traces
from perdure.store.store import Store, open_store
from tests.kills.history import History


class Books(dict[str, Traces]):
    """The ledger: all that is stored of each job, and when workers were retired."""

    retired: Mapping[str, Instant] = {}


UNCOUNTED = frozenset(("snoozed", "throttled"))
"""Attempts that cost none; the row counts them apart."""
CRASHES = frozenset(("lost", "panic"))


class Violation(NamedTuple):
    rule: str
    job: str
    said: str

    def __str__(self) -> str:
        return f"{self.rule}: job {self.job}: {self.said}"


Finding: TypeAlias = tuple[str, str]
"""A job and what is wrong with it."""
Rule: TypeAlias = Callable[[History, Books], Iterator[Finding]]


def verdict(directory: Path, url: str) -> list[Violation]:
    """Everything in the journals of this directory that the database contradicts, and the other way round."""
    store = open_store(url)
    try:
        return judge(History.read(directory), read_books(store))
    finally:
        store.close()


def judge(history: History, books: Books) -> list[Violation]:
    return [Violation(rule.__name__, *finding) for rule in RULES for finding in rule(history, books)]


def read_books(store: Store) -> Books:
    jobs = store.perform(browse.list_jobs, n=1_000_000)
    traces = (store.perform(browse.trace_job, job.id) for job in jobs)
    books = Books({trace.job.id: trace for trace in traces if trace is not None})
    connection = store.connect()
    books.retired = {str(id): at for id, at in connection.execute(RETIRED[store.dialect]).fetchall()}
    connection.close()
    return books


RETIRED = {
    "sqlite": "SELECT id, retired_at FROM perdure_worker WHERE retired_at IS NOT NULL",
    "postgres": "SELECT id, CAST(extract(epoch FROM retired_at) * 1000000 AS bigint)"
    "  FROM perdure.worker WHERE retired_at IS NOT NULL",
}


def tell(trace: Traces, token: int) -> str | None:
    """How the ledger says that this lease ended: a kind of failure, ``continued``, ``succeeded``, ``canceled``."""
    for attempt in trace.attempts:
        if attempt.token == token:
            return attempt.kind
    job = trace.job
    # A job that was canceled while nobody ran it keeps its token and no start.
    if job.token != token or job.state not in ENDED or job.started_at is None:
        return None
    return job.error_kind if job.state == "failed" else job.state


# Jobs


def acknowledged_jobs_are_there(history: History, books: Books) -> Iterator[Finding]:
    for note in history.enqueues("ok"):
        for id in note.answered:
            if id not in books:
                yield id, "its enqueue was acknowledged, and it is not there"


def jobs_come_from_somewhere(history: History, books: Books) -> Iterator[Finding]:
    asked = {id for note in history.enqueues("invoke") for id in note.jobs}
    born = {id: note.parent for note in history.all("children") for id in note.jobs}
    for id, trace in books.items():
        if id not in asked and id not in born:
            yield id, "nobody asked for it"
        elif trace.job.parent_job != born.get(id):
            yield id, f"it is a child of {trace.job.parent_job}, and was asked for by {born.get(id)}"


def every_job_has_ended(history: History, books: Books) -> Iterator[Finding]:
    for id, trace in books.items():
        if trace.job.state not in ENDED:
            yield id, f"it is still {trace.job.state}"


def a_key_has_one_job(history: History, books: Books) -> Iterator[Finding]:
    asked = {id: key for note in history.enqueues("invoke") for id, key in note.keys.items()}
    jobs: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for id, key in asked.items():
        if id in books:
            jobs[key].add(id)
    for note in history.enqueues("ok"):
        for id, answer in zip(note.jobs, note.answered, strict=True):
            if id in asked:
                jobs[asked[id]].add(answer)
            elif id != answer:
                yield id, f"it was asked for without a key, and {answer} was answered"
    for key, ids in jobs.items():
        if len(ids) > 1:
            yield min(ids), f"the key {key} has {len(ids)} jobs"


# Leases


def a_lease_starts_once(history: History, books: Books) -> Iterator[Finding]:
    for (job, token), times in Counter(history.leases("started")).items():
        if times > 1:
            yield job, f"token {token} was started {times} times"


def a_lease_is_answered_once(history: History, books: Books) -> Iterator[Finding]:
    answers = Counter(history.leases("accepted") + history.leases("refused"))
    for (job, token), times in answers.items():
        if times > 1:
            yield job, f"token {token} was accepted or refused {times} times"


def what_was_accepted_is_recorded(history: History, books: Books) -> Iterator[Finding]:
    for note in history.all("accepted"):
        job, token = note.lease
        if job not in books:
            yield job, f"{note.outcome} was accepted under token {token}, and the job is not there"
            continue
        told = tell(books[job], token)
        untold = told is None and note.outcome == "released"
        # After an accepted cancel every end but a success is one.
        canceled = told == "canceled" and note.outcome != "succeeded"
        if told != note.outcome and not untold and not canceled:
            yield job, f"{note.outcome} was accepted under token {token}, and the ledger tells: {told}"


def what_was_refused_is_lost(history: History, books: Books) -> Iterator[Finding]:
    """Only a rescue takes a lease away, and the ledger records it."""
    for job, token in history.leases("refused"):
        told = tell(books[job], token) if job in books else None
        if told not in ("lost", "canceled"):
            yield job, f"token {token} was refused, and the ledger tells: {told}"


def what_is_recorded_was_started(history: History, books: Books) -> Iterator[Finding]:
    started = set(history.leases("started"))
    for id, trace in books.items():
        for token in {attempt.token for attempt in trace.attempts} | {trace.job.token} - {0}:
            told = tell(trace, token)
            if told not in (None, "lost", "canceled") and Lease(id, token) not in started:
                yield id, f"token {token} is {told}, and no handler was started"


def executions_are_explained(history: History, books: Books) -> Iterator[Finding]:
    """The ledger has each start; every other token was given back. The row counts postponed attempts."""
    started, released = history.by_job("started"), history.by_job("released")
    turned_away: dict[str, set[int]] = defaultdict(set)
    for note in history.all("ended"):
        if note.outcome == "released":  # there was no process for its handler
            turned_away[note.lease.job].add(note.token)
    for id in started.keys() - books.keys():
        yield id, "it was started, and is not there"
    for id, trace in books.items():
        job, ran = trace.job, started.get(id, set())
        untold = {token for token in range(1, job.token + 1) if tell(trace, token) is None}
        delayed = sum(attempt.kind in UNCOUNTED for attempt in trace.attempts)
        if beyond := [token for token in ran if token > job.token]:
            yield id, f"it was started under {beyond}, beyond its token {job.token}"
        if forgotten := (untold & ran) - turned_away[id]:
            yield id, f"tokens {sorted(forgotten)} were started, and the ledger tells nothing of them"
        if delayed != job.snoozes + job.throttles:
            yield id, f"{delayed} attempts were put off, and its row counts {job.snoozes + job.throttles}"
        if unexplained := untold - ran - released.get(id, set()):
            yield id, f"tokens {sorted(unexplained)} were claimed, and never started, lost or given back"
        if both := ran & released.get(id, set()):
            yield id, f"tokens {sorted(both)} were started, and given back as if they had not been"


def attempts_are_counted(history: History, books: Books) -> Iterator[Finding]:
    """A run begins after each continuation; in it each attempt is one more than those before that counted."""
    for id, trace in books.items():
        run, counted, crashes = 1, 0, 0
        for attempt in sorted(trace.attempts, key=lambda attempt: attempt.token):
            if (attempt.run, attempt.attempt) != (run, counted + 1):
                said = f"token {attempt.token} is attempt {attempt.attempt} of run {attempt.run}"
                yield id, f"{said}, and should be {counted + 1} of {run}"
            counted += attempt.kind not in ("interrupted", *UNCOUNTED)
            crashes += attempt.kind in CRASHES
            if attempt.kind == "continued":
                run, counted, crashes = run + 1, 0, 0
        job = trace.job
        ended_by = tell(trace, job.token)
        if ended_by is not None and job.token not in {attempt.token for attempt in trace.attempts}:
            counted += 1
            crashes += ended_by in CRASHES
        if (job.run, job.attempt, job.crashes) != (run, counted, crashes):
            said = f"it counts run {job.run}, attempt {job.attempt}, {job.crashes} crashes"
            yield id, f"{said}, and had run {run}, attempt {counted}, {crashes} crashes"


def only_the_dead_lose_jobs(history: History, books: Books) -> Iterator[Finding]:
    """Or workers taken for dead: a worker is retired first, and then its jobs are rescued."""
    for id, trace in books.items():
        for attempt in trace.attempts:
            since = books.retired.get(attempt.worker or "")
            if attempt.kind == "lost" and (since is None or since > attempt.finished_at):
                yield id, f"token {attempt.token} was taken from {attempt.worker}, which was not retired"


# What handlers leave


def children_come_with_success(history: History, books: Books) -> Iterator[Finding]:
    for note in history.all("children"):
        assert note.parent is not None
        told = tell(books[note.parent], note.token) if note.parent in books else None
        succeeded = told in ("succeeded", "continued")
        for id in note.jobs:
            if succeeded and id not in books:
                yield note.parent, f"token {note.token} {told}, and its child {id} is not there"
            if not succeeded and not note.at_once and id in books:
                yield note.parent, f"token {note.token} ended {told}, and left its child {id}"


def what_was_saved_is_found(history: History, books: Books) -> Iterator[Finding]:
    """Handlers that note what they ``saved`` and ``found``; their checkpoints only grow."""
    saved: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for note in history.all("saved"):
        saved[note.lease.job].append((note.token, note.checkpoint))
    for note in history.all("found"):
        job, token = note.lease
        most = max((value for earlier, value in saved[job] if earlier < token), default=None)
        if most is not None and (note.checkpoint is None or note.checkpoint < most):
            yield job, f"token {token} found the checkpoint {note.checkpoint}, and {most} had been saved"


RULES: list[Rule] = [
    acknowledged_jobs_are_there,
    jobs_come_from_somewhere,
    every_job_has_ended,
    a_key_has_one_job,
    a_lease_starts_once,
    a_lease_is_answered_once,
    what_was_accepted_is_recorded,
    what_was_refused_is_lost,
    what_is_recorded_was_started,
    executions_are_explained,
    attempts_are_counted,
    only_the_dead_lose_jobs,
    children_come_with_success,
    what_was_saved_is_found,
]
