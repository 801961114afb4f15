"""Record how attempts ended: many outcomes of any kind at once, each only if its lease holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from operator import attrgetter
from typing import NamedTuple, TypeGuard

from msgspec.structs import replace

from perdure.model.job import Lease, NewJob
from perdure.model.lifecycle import (
    PUT_OFF,
    Change,
    Continued,
    Outcome,
    Running,
    Succeeded,
    Throttled,
    is_recorded,
    settle,
)
from perdure.model.progress import merge_progress
from perdure.ops.append import add_steps
from perdure.ops.batch import CHARACTERS, CHUNK, portions, rows_of
from perdure.ops.claim import ClaimRequest, Claims, claim_queries, read_claims
from perdure.ops.cool_down import cool
from perdure.ops.enqueue import put
from perdure.ops.finish_steps import succeed_at_once
from perdure.ops.op import Answers, Op, Query, announce, ask_all, operation
from perdure.ops.release import Tallies, ends_of, release
from perdure.ops.running import (
    Record,
    event_row,
    read_running,
    report_row,
    stage_events,
    write_reports,
)
from perdure.ops.topics import queue_topics

EMPTY: Mapping[str, str] = {}
Jitter = Callable[[], float]
Failing = Set[str]
"""Workflows in which a step has failed or was canceled.

Recording successes of their steps takes several round trips.
"""

PUT_OFF_KEPT = 100
"""The record of a snoozed or throttled attempt is deleted once its job was claimed this many times more.

Otherwise a job that snoozes every minute would fill the table.
"""


class Finished(NamedTuple):
    """The outcomes that were recorded (``accepted``) and those that came too late (``refused``).

    An outcome that is in neither list must be sent again.

    The statement ``finish_same_result`` returns only a count. If it refuses one outcome, all of its outcomes are in
    ``refused``. The caller then finds the recorded outcomes with ``find_recorded``.

    ``changes``: the changes of accepted outcomes, without those of plain successes. A plain success has no reports,
    children or new steps.
    """

    accepted: list[Lease]
    refused: list[Lease]
    changes: Sequence[Change] = ()
    failing: frozenset[str] = frozenset()
    """Workflows in which a step has failed or was canceled: successes of their steps must be sent again."""
    instead: Sequence[Outcome] = ()
    """The outcomes that were recorded instead of outcomes that cannot be stored."""


@operation("write", priority="urgent", retries=1)
def finish(outcomes: Sequence[Outcome], *, jitter: Jitter, failing: Failing | None = None) -> Op[Finished]:
    """Record outcomes. An outcome whose lease was taken away is refused, and changes nothing."""
    finished, _ = yield from _finish(outcomes, jitter, None, failing)
    return finished


@operation("write", priority="urgent", pipelined=True, retries=1)
def cycle(
    outcomes: Sequence[Outcome], *, jitter: Jitter, claim: ClaimRequest, failing: Failing | None = None
) -> Op[tuple[Finished, Claims]]:
    """Record outcomes and claim the next jobs, in one transaction.

    This takes one round trip if all outcomes are plain successes and, for steps, ``failing`` is given and does not
    contain their workflows.
    """
    return (yield from _finish(outcomes, jitter, claim, failing))


@operation("write", priority="urgent", retries=0)
def finish_skipping_locked(outcomes: Sequence[Outcome], *, jitter: Jitter) -> Op[Finished]:
    """Like ``finish``, but skip rows that other transactions have locked: their outcomes must be sent again."""
    leases = rows_of(sorted({outcome.lease for outcome in outcomes}))
    steps, rows = yield from ask_all(
        Query("lock_workflows_skipping_locked", {"leases": leases}, only="server"),
        Query("lock_skipping_locked", {"leases": leases}),
    )
    skipped = {Lease(id, token) for id, token, got_lock in rows if not got_lock}
    skipped_steps = {row[0] for row in steps}
    to_record = [o for o in outcomes if o.lease not in skipped and o.lease.job not in skipped_steps]
    finished, _ = yield from _finish(to_record, jitter, None)
    return finished


@operation("read")
def find_recorded(outcomes: Sequence[Outcome]) -> Op[list[Lease]]:
    """The leases of refused outcomes that are recorded already: the commit succeeded and its reply was lost."""
    (rows,) = yield from ask_all(Query("find_outcomes", {"leases": rows_of([o.lease for o in outcomes])}))
    recorded = {Lease(id, token): (state, kind) for id, token, state, kind in rows}
    return [o.lease for o in outcomes if o.lease in recorded and is_recorded(o, *recorded[o.lease])]


def _finish(
    outcomes: Sequence[Outcome], jitter: Jitter, claim: ClaimRequest | None, failing: Failing | None = None
) -> Op[tuple[Finished, Claims]]:
    # If a lease has two outcomes, the first outcome counts.
    by_lease = {outcome.lease: outcome for outcome in outcomes}
    if len(by_lease) < len(outcomes):
        by_lease = {outcome.lease: outcome for outcome in reversed(outcomes)}
    plain = [
        o
        for o in by_lease.values()
        if isinstance(o, Succeeded) and o.report is None and not o.children and o.appended is None
    ]
    steps = [o for o in plain if o.workflow is not None]
    others: dict[Lease, Outcome] = {}
    if len(plain) < len(by_lease):
        simple = {o.lease for o in plain}
        others = {lease: o for lease, o in by_lease.items() if lease not in simple}
    if steps and not others and failing is not None:
        workflows = {o.workflow for o in steps if o.workflow is not None}
        if workflows.isdisjoint(failing):
            return (yield from _finish_steps_in_one_trip(outcomes, plain, [*workflows], claim))
    successes = _success_queries(plain)
    if others:
        decided = yield from _decide(by_lease, others, plain, successes, jitter)
    elif steps:
        decided = yield from _finish_steps(plain, successes)
    else:
        decided = Decided(successes)
    writes = [*decided.writes]
    if claim:
        writes += claim_queries(claim)
    answers: Answers = []
    if writes or decided.wake:
        answers = yield from ask_all(*writes, final=True, wake=decided.wake)
    claims = read_claims(answers[-1], claim) if claim else Claims([])
    if decided.released:
        taken = {job.id for job in claims.jobs}
        left = {queue for id, queue in decided.released.items() if id not in taken}
        yield from announce(queue_topics(left))
    accepted = decided.accepted
    if accepted is None:
        accepted = _recorded(plain, successes, answers)
    refused: list[Lease] = []
    if len(accepted) < len(outcomes):
        settled = {*accepted}
        refused = [o.lease for o in outcomes if o.lease not in settled]
    return Finished([*accepted], refused, decided.changes), claims


def _finish_steps_in_one_trip(
    outcomes: Sequence[Outcome],
    plain: Sequence[Succeeded],
    workflows: Sequence[str],
    claim: ClaimRequest | None,
) -> Op[tuple[Finished, Claims]]:
    recorded, claims, failing = yield from succeed_at_once(_success_batches(plain), workflows, claim)
    done = {*recorded}
    to_send_again = {o.lease for o in plain if o.workflow in failing} - done
    accepted = [o.lease for o in plain if o.lease in done]
    refused = [o.lease for o in outcomes if o.lease not in done and o.lease not in to_send_again]
    return Finished(accepted, refused, failing=failing), claims


class Decided(NamedTuple):
    """The statements that are left to write, and the results that are known so far.

    ``accepted`` is None if it depends on the statements for successes, which are then the first of ``writes``.
    """

    writes: Sequence[Query]
    accepted: Sequence[Lease] | None = None
    changes: Sequence[Change] = ()
    wake: frozenset[str] = frozenset()
    released: Mapping[str, str] = EMPTY
    """The queues of steps that can run now, by step id. A step that the same operation claims needs no wake-up."""


def _finish_steps(plain: Sequence[Succeeded], successes: Sequence[Query]) -> Op[Decided]:
    """Record plain successes under the locks of their workflows, and release the steps that waited for them."""
    workflows = {o.lease: o.workflow for o in plain}
    ids = sorted({id for id in workflows.values() if id is not None})
    locked, *answers = yield from ask_all(Query("lock_workflows", {"ids": rows_of(ids)}), *successes)
    recorded = _recorded(plain, successes, answers)
    tallies = Tallies(locked)
    ends = ends_of((lease.job, workflows.get(lease), "succeeded") for lease in recorded)
    released: Mapping[str, str] = {}
    if ends:
        released = (yield from release(tallies, ends)).queues
    return Decided(tallies.settle(), recorded, released=released)


def _decide(
    by_lease: dict[Lease, Outcome],
    others: dict[Lease, Outcome],
    plain: Sequence[Succeeded],
    successes: Sequence[Query],
    jitter: Jitter,
) -> Op[Decided]:
    """Lock the jobs and settle their outcomes."""
    # Lock every job, including jobs with plain successes, in the order of leases. A concurrent report locks in that
    # order, and would deadlock with another order.
    leases = rows_of(sorted(by_lease))
    workflows, locked = yield from ask_all(
        Query("lock_workflows_of", {"leases": leases}), Query("lock_running", {"leases": leases})
    )
    # The database may return the rows in another order, for example with a merge join.
    running = sorted(map(read_running, locked), key=attrgetter("lease"))
    jobs = [job for job in running if job.lease in others]
    changes = [settle(job, others[job.lease], roll=jitter()) for job in jobs]
    cooled = yield from cool(jobs, others)
    writes = [*successes, *_reports(jobs, others), *change_queries(changes), *cooled.writes]
    if cooled.queues:
        changes = [
            replace(change, queue_cools=cooled.queues.get(job.queue))
            if change.attempt_kind == Throttled.event
            else change
            for job, change in zip(jobs, changes, strict=True)
        ]
    wake = ready_topics(jobs, changes) | (yield from _enqueue_children(jobs, others))
    succeeding = _still_leased(plain, running)
    accepted = [job.lease for job in (*jobs, *succeeding)]
    if not workflows and all(job.workflow is None for job in running):
        return Decided(writes, accepted, changes, wake)
    tallies = Tallies(workflows)
    ends = ends_of((job.id, job.workflow, "succeeded") for job in succeeding)
    ends |= ends_of((job.id, job.workflow, one.state) for job, one in zip(jobs, changes, strict=True))
    # Add steps before their parents end, so that the parents' ends release them.
    wake |= yield from _append(tallies, jobs, others)
    if not ends:
        return Decided([*writes, *tallies.settle()], accepted, changes, wake)
    _, released, _ = yield from release(tallies, ends, *writes)
    return Decided(tallies.settle(), accepted, changes, wake | released)


def _still_leased(plain: Sequence[Succeeded], running: Sequence[Running]) -> list[Running]:
    """The running jobs whose plain success will be recorded by ``finish_succeeded`` or ``finish_same_result``.

    Both statements skip a step whose outcome names no workflow, so such a step is left out.
    """
    by_lease = {o.lease: o.workflow for o in plain}
    return [
        j for j in running if j.lease in by_lease and (j.workflow is None or by_lease[j.lease] is not None)
    ]


def _append(tallies: Tallies, jobs: Sequence[Running], outcomes: dict[Lease, Outcome]) -> Op[frozenset[str]]:
    """Add the steps that successful attempts append; return the topics to announce.

    This is done for one attempt at a time, because two attempts may append the same step.
    """
    wake: frozenset[str] = frozenset()
    for job in jobs:
        outcome = outcomes[job.lease]
        if _keeps_additions(outcome, job) and outcome.appended is not None and job.workflow is not None:
            writes, woken, _ = yield from add_steps(tallies, job.workflow, outcome.appended, by=job.id)
            yield from ask_all(*writes)
            wake |= woken
    return wake


def _enqueue_children(jobs: Sequence[Running], outcomes: dict[Lease, Outcome]) -> Op[frozenset[str]]:
    """Enqueue the children of successful attempts; return the topics to announce."""
    children: list[NewJob] = []
    for job in jobs:
        outcome = outcomes[job.lease]
        if _keeps_additions(outcome, job):
            children += outcome.children
    if not children:
        return frozenset()
    _, queues = yield from put(children)
    return queue_topics(queues)


def _keeps_additions(outcome: Outcome, job: Running) -> TypeGuard[Succeeded | Continued]:
    """Whether the children and appended steps of this outcome are written."""
    return isinstance(outcome, Succeeded) or (isinstance(outcome, Continued) and not job.cancel_requested)


def _success_queries(plain: Sequence[Succeeded]) -> list[Query]:
    if plain and (alike := _same_result_query(plain)):
        return [alike]
    return [Query("finish_succeeded", {"outcomes": batch}) for batch in _success_batches(plain)]


def _same_result_query(plain: Sequence[Succeeded]) -> Query | None:
    """One statement for all successes, if their results are equal. This is common: most tasks return nothing."""
    result, reason = plain[0].result, plain[0].reason
    if any(o.result != result or o.reason != reason or o.workflow is not None for o in plain):
        return None
    tokens = {o.lease.job: o.lease.token for o in plain}
    if len(tokens) < len(plain) or len(plain) > CHUNK or len(plain) * len(result or "") > CHARACTERS:
        return None
    return Query("finish_same_result", {"leases": rows_of(tokens), "result": result, "reason": reason})


def _success_batches(plain: Sequence[Succeeded]) -> list[str]:
    if not plain:
        return []
    ordered = sorted(plain, key=attrgetter("lease"))
    parts = portions(ordered, [len(o.result or "") for o in ordered])
    return [rows_of(_by_job(part)) for part in parts]


def _by_job(ordered: Iterable[Succeeded]) -> dict[str, tuple[int | str | None, ...]]:
    """Successes by job.

    If a job has two leases here, only the later lease is kept. The earlier one is refused, because its token is stale.
    """
    return {
        o.lease.job: (o.lease.token, o.result, o.reason)
        if o.workflow is None
        else (o.lease.token, o.result, o.reason, o.workflow)
        for o in ordered
    }


def _recorded(plain: Sequence[Succeeded], successes: Sequence[Query], answers: Answers) -> list[Lease]:
    """The leases that the statements recorded. ``finish_same_result`` returns only their number."""
    if [query.name for query in successes] == ["finish_same_result"]:
        ((n,),) = answers[0]
        return [o.lease for o in plain] if n == len(plain) else []
    done = {Lease(*row) for rows in answers[: len(successes)] for row in rows}
    return [o.lease for o in plain if o.lease in done]


def change_queries(changes: Sequence[Change]) -> list[Query]:
    """The statements that write changes, and that add attempts that did not end their jobs to the table of attempts."""
    writes: list[Query] = []
    sizes = [len(change.result or "") + len(change.error_trace or "") for change in changes]
    for some in portions(changes, sizes):
        rows = rows_of(some)
        if any(change.attempt_kind is not None for change in some):
            writes.append(Query("record_attempts", {"changes": rows}))
        for change in some:
            if change.attempt_kind in PUT_OFF and change.token > PUT_OFF_KEPT:
                writes.append(
                    Query("forget_put_off", {"id": change.id, "token": change.token - PUT_OFF_KEPT})
                )
        writes.append(Query("apply_changes", {"changes": rows}))
    return writes


def ready_topics(jobs: Sequence[Running], changes: Sequence[Change]) -> frozenset[str]:
    """The topics of the queues whose jobs may run again at once."""
    pairs = zip(jobs, changes, strict=True)
    return queue_topics(job.queue for job, change in pairs if change.state == "ready" and change.delay == 0)


def _reports(jobs: Sequence[Running], outcomes: dict[Lease, Outcome]) -> list[Query]:
    """The statements that write the final reports of attempts.

    Contradictory progress is not written. An event is recorded instead.
    """
    reports: list[Record] = []
    events: list[Record] = []
    for job in jobs:
        report = outcomes[job.lease].report
        if report is None:
            continue
        pair = merge_progress(job, report)
        if pair is None:
            events.append(event_row(job, "progress dropped"))
        reports.append(report_row(job, report, pair or (job.progress_done, job.progress_total)))
        events += stage_events(job, report)
    return write_reports(reports, events)
