"""Enqueue one job or many jobs. If one insert fails, no job is inserted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from perdure.errors import IdempotencyConflict, InternalError, LeaseLost
from perdure.model.canonical import difference
from perdure.model.job import Lease, NewJob, Options, State, StepOptions
from perdure.ops.batch import portions, portions_by_key, rows_of
from perdure.ops.isolation import SHOW_ISOLATION, require_read_committed
from perdure.ops.op import Op, Query, ask_all, operation
from perdure.ops.topics import all_of, queue_topics

PATIENCE = 20
"""How often to try an insert if the conflicting row is deleted each time before it can be read."""


class Enqueued(NamedTuple):
    """The answer to one request. ``queue`` and ``state`` are None if the job's row is gone."""

    id: str
    created: bool
    queue: str | None
    state: State | None = "ready"
    run: int = 1
    attempt: int = 0


@operation("write")
def enqueue(jobs: Sequence[NewJob], wake: frozenset[str] | None = frozenset()) -> Op[list[Enqueued]]:
    """Insert jobs without keys, in one round trip.

    ``wake``: the topics to announce. If it is None, the topics are taken from the inserted rows, which needs a second
    round trip.

    For an unknown or disabled task, the insert violates a NOT NULL constraint. The caller finds out which task it was,
    and whether it is unknown or disabled.
    """
    answers = yield from ask_all(*_inserts(jobs), final=wake is not None, wake=wake or frozenset())
    rows = [row for rows in answers for row in rows]
    if wake is None:
        yield from ask_all(final=True, wake=queue_topics(queue for _, queue, due in rows if due))
    queues = {id: queue for id, queue, _ in rows}
    return [Enqueued(job.id, True, queues.get(job.id)) for job in jobs]


class Single(NamedTuple):
    """A job without a key that one call enqueues. ``wake``: as in ``enqueue``."""

    job: NewJob
    options: Options
    wake: frozenset[str] | None


@operation("write")
def enqueue_each(asked: Sequence[Single]) -> Op[list[Enqueued]]:
    """Insert the jobs of several calls. If one insert fails, no job is inserted."""
    (job, options, wake), *others = asked
    alike = all(one.options is options and one.job.task == job.task for one in others)
    if others and alike and wake is not None:
        payloads = {one.job.id: one.job.payload for one in asked}
        queue = yield from enqueue_alike(job.task, options, payloads, wake)
        return [Enqueued(id, True, queue) for id in payloads]
    return (yield from enqueue([one.job for one in asked], all_of([one.wake for one in asked])))


@operation("write")
def enqueue_alike(
    task: str, options: Options, jobs: Mapping[str, str], wake: frozenset[str]
) -> Op[str | None]:
    """Insert jobs without keys that differ only in id and payload; return their queue. ``jobs``: payloads by id."""
    shared = {"task": task, **{name: getattr(options, name) for name in _SHARED}}
    inserts = [
        Query("insert_same_options", {**shared, "first": next(iter(some)), "jobs": rows_of(some)})
        for some in portions_by_key(jobs, [*map(len, jobs.values())])
    ]
    *_, found = yield from ask_all(*inserts, Query("find_queue", {"task": task}), final=True, wake=wake)
    return options.queue or (found[0][0] if found else None)


_SHARED = tuple(name for name in StepOptions.__struct_fields__ if name != "run_at")


@operation("write")
def enqueue_keyed(jobs: Sequence[NewJob]) -> Op[list[Enqueued]]:
    """Insert jobs, some of which have an idempotency key or a unique key."""
    outcomes, queues = yield from put(jobs)
    yield from ask_all(final=True, wake=queue_topics(queues))
    return outcomes


@operation("write", priority="urgent")
def enqueue_under(lease: Lease, jobs: Sequence[NewJob]) -> Op[list[Enqueued]]:
    """Insert jobs on behalf of a running job, if its lease still holds."""
    (held,) = yield from ask_all(Query("lock_running", {"leases": rows_of([lease])}))
    if not held:
        raise LeaseLost
    outcomes, queues = yield from put(jobs)
    yield from ask_all(final=True, wake=queue_topics(queues))
    return outcomes


def put(jobs: Sequence[NewJob]) -> Op[tuple[list[Enqueued], set[str]]]:
    """Insert jobs with or without keys, as a part of an operation.

    Also return the queues of the inserted jobs that are due.
    """
    keyed = sorted((job for job in jobs if job.idempotency_key is not None), key=_key_order)
    outcomes = yield from _claim_keys(keyed)
    fresh = [job for job in jobs if job.id not in outcomes]
    # The jobs are sorted, because two batches with the same unique keys in opposite order would deadlock.
    inserted, queues = yield from _insert(sorted(fresh, key=_unique_order))
    for asked, owner in outcomes.items():
        if owner.id in inserted:
            # Another request of this batch owns the key: its outcome is the answer.
            outcomes[asked] = inserted[owner.id]._replace(created=False)
    outcomes.update(inserted)
    return [outcomes[job.id] for job in jobs], queues


def _claim_keys(keyed: Sequence[NewJob]) -> Op[dict[str, Enqueued]]:
    """Insert the free keys, in key order. Return the answers to requests whose key already belongs to a job."""
    outcomes: dict[str, Enqueued] = {}
    missing = keyed
    for _ in range(PATIENCE):
        isolation, *taken = yield from ask_all(
            SHOW_ISOLATION,
            *(Query("insert_keys", {"jobs": rows_of(some)}) for some in _portions(missing)),
        )
        require_read_committed(isolation)
        mine = {row[0] for rows in taken for row in rows}
        found = yield from _find_owners([job for job in missing if job.id not in mine])
        missing = [job for job in missing if job.id not in mine and job.id not in found]
        outcomes.update(found)
        if not missing:
            return outcomes
    raise InternalError("An idempotency key kept appearing and vanishing.", code="job.key_unstable")


def _find_owners(jobs: Sequence[NewJob]) -> Op[dict[str, Enqueued]]:
    answers = yield from ask_all(
        *(Query("find_key", _scope(job) | {"key": job.idempotency_key}) for job in jobs)
    )
    owners: dict[str, str] = {}
    for job, rows in zip(jobs, answers, strict=True):
        for owner, request in rows:
            field = difference(request, job.request or "")
            if field is not None:
                raise IdempotencyConflict(field)
            owners[job.id] = owner
    return (yield from _describe(owners))


def _describe(owners: dict[str, str]) -> Op[dict[str, Enqueued]]:
    """The jobs that own the keys, by the id of the request.

    If a request's own job owns the key, an earlier try of this request was committed, and its reply was lost.
    """
    answers = yield from ask_all(*(Query("find_job", {"id": owner}) for owner in owners.values()))
    described: dict[str, Enqueued] = {}
    for (asked, owner), rows in zip(owners.items(), answers, strict=True):
        queue, state, run, attempt = rows[0][1:] if rows else (None, None, 1, 0)
        described[asked] = Enqueued(owner, owner == asked, queue, state, run, attempt)
    return described


def _insert(jobs: Sequence[NewJob]) -> Op[tuple[dict[str, Enqueued], set[str]]]:
    """Insert jobs. If an active job has the same unique key, that job is the answer."""
    outcomes: dict[str, Enqueued] = {}
    queues: set[str] = set()
    missing = jobs
    for _ in range(PATIENCE):
        answers = yield from ask_all(*_inserts(missing))
        for id, queue, due in (row for rows in answers for row in rows):
            outcomes[id] = Enqueued(id, True, queue)
            queues |= {queue} if due else set()
        missing = [job for job in missing if job.id not in outcomes]
        if not missing:
            return outcomes, queues
        outcomes.update((yield from _find_holders(missing)))
        missing = [job for job in missing if job.id not in outcomes]
        if not missing:
            return outcomes, queues
    raise InternalError("A unique key kept appearing and vanishing.", code="job.key_unstable")


def _find_holders(jobs: Sequence[NewJob]) -> Op[dict[str, Enqueued]]:
    keys = [_scope(job) | {"unique_key": job.unique_key} for job in jobs]
    pairs = zip(jobs, keys, strict=True)
    yield from ask_all(*(Query("expire_active", key | {"id": job.id}) for job, key in pairs))
    own = yield from ask_all(*(Query("find_job", {"id": job.id}) for job in jobs))
    active = yield from ask_all(*(Query("find_active", key) for key in keys))
    holders: dict[str, Enqueued] = {}
    for job, mine, others in zip(jobs, own, active, strict=True):
        for id, queue, state, run, attempt in (*mine, *others)[:1]:
            holders[job.id] = Enqueued(id, id == job.id, queue, state, run, attempt)
    yield from ask_all(
        *(
            Query("point_key", _scope(job) | {"key": job.idempotency_key, "job": holders[job.id].id})
            for job in jobs
            if job.id in holders and job.idempotency_key is not None
        )
    )
    return holders


def _inserts(jobs: Sequence[NewJob]) -> Iterable[Query]:
    return (Query("insert_jobs", {"jobs": rows_of(some)}) for some in _portions(jobs))


def _portions(jobs: Sequence[NewJob]) -> Iterable[Sequence[NewJob]]:
    return portions(jobs, [len(job.payload) + len(job.request or "") for job in jobs])


def _scope(job: NewJob) -> dict[str, str | None]:
    return {"task": job.task, "tenant": job.tenant or ""}


def _key_order(job: NewJob) -> tuple[str, str, str]:
    return job.task, job.tenant or "", job.idempotency_key or ""


def _unique_order(job: NewJob) -> tuple[str, str, str]:
    return job.task, job.tenant or "", job.unique_key or ""
