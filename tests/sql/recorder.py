"""Performs operations on a real store and records every statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import msgspec

from perdure.errors import InvalidWorkflow
from perdure.model.canonical_workflow import StepRequest
from perdure.model.graph import GATE, Shape
from perdure.model.job import SECOND, Lease, NewJob, NewStep, NewWorkflow, Options, TaskDefinition
from perdure.model.lifecycle import Change, Failed, Outcome, Report, Succeeded, Throttled
from perdure.model.new_steps import NewSteps
from perdure.model.queue_settings import Settings
from perdure.ops import (
    append,
    audit,
    browse,
    bulk_actions,
    catalog,
    claim,
    cool_down,
    count,
    enqueue,
    explain,
    finish,
    job_actions,
    limit_use,
    limits,
    queues,
    release,
    replay,
    report,
    results,
    set_aside,
    stats,
    sweep,
    tasks,
    worker,
    workers_read,
    workflow_actions,
)
from perdure.ops import insert_steps as insert_ops
from perdure.ops import workflow as workflows
from perdure.ops.batch import rows_of
from perdure.ops.find import LAST, Found
from perdure.ops.op import Op, Operation, Query, ask_all, operation
from perdure.request.filter import Filter
from perdure.request.ids import new_id
from perdure.store.store import Store

P = ParamSpec("P")
T = TypeVar("T")

DEFINITION = TaskDefinition(
    name="work", queue="default", priority=0, max_attempts=8, timeout=None, backoff="{}", max_crashes=3
)


class Recorder:
    """A store with a memory."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.queries: list[Query] = []

    def perform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.store.perform(replace(operation, start=self._listen(operation.start)), *args, **kwargs)

    def _listen(self, start: Callable[P, Op[T]]) -> Callable[P, Op[T]]:
        def listening(*args: P.args, **kwargs: P.kwargs) -> Op[T]:
            op = start(*args, **kwargs)
            try:
                step = next(op)
                while True:
                    self.queries += step.queries
                    step = op.send((yield step))
            except StopIteration as end:
                value: T = end.value
                return value

        return listening


def new_job(**options: Any) -> NewJob:
    request = '{"v":1,"arguments":{}}' if "idempotency_key" in options else None
    return NewJob(**{"id": new_id(), "task": "work", "payload": "{}", "request": request, **options})


def jitter() -> float:
    return 0.5


def perform_everything(store: Recorder) -> None:
    """Every operation there is, each so that it asks for all it may ask for."""
    set_up(store)
    flow(store)
    live(store)
    look(store)
    operate_on(store)
    operate_on_many(store)
    sweep_up(store)
    limit(store)  # last: claims that do not know its limits get nothing


def set_up(store: Recorder) -> None:
    store.perform(tasks.sync, [DEFINITION])
    store.perform(tasks.sync, [DEFINITION], exact=True)
    store.perform(tasks.set_task, "work", enabled=True, config="{}")
    store.perform(tasks.list_tasks)
    store.perform(queues.pause, "default")
    store.perform(queues.resume, "default")
    store.perform(queues.pause, "default", resume_in=1)
    store.perform(queues.end_pauses)
    store.perform(queues.set_queue, "other", {"backoff": None})
    store.perform(queues.reset_queue, "other")
    store.perform(queues.sync_queues, {"other": Settings(timeout=SECOND)}, exact=True)
    store.perform(queues.list_queues)
    store.perform(queues.list_live_settings)
    store.perform(queues.find_unknown, ["mony"])
    store.perform(worker.register, "ann", name="ann", lease=SECOND)
    store.perform(worker.list_workers)
    store.perform(worker.peek, "ann")
    store.perform(worker.knows, "ann")
    store.perform(worker.lead, "sweeper", "ann", lease=SECOND)


def limit(store: Recorder) -> None:
    """Jobs under limits, with a full key in front."""
    store.perform(worker.register, "bob", name="bob", lease=SECOND)
    definition = msgspec.structs.replace(
        DEFINITION, name="one", concurrency=1, keyed=True, limits='["named"]'
    )
    store.perform(tasks.sync, [definition], limits={"named": 5})
    store.perform(limits.set_limit, "named", 5)
    store.perform(queues.set_queue, "narrow", {"concurrency": 3})
    store.perform(limits.reset_limit, "named")
    store.perform(limits.list_limits)
    store.perform(limits.read_version)
    store.perform(limits.find_superseded)
    store.perform(limit_use.read_use)
    known = store.perform(limits.read_limits)
    keys = ("a", "a", "a", "b")
    store.perform(enqueue.enqueue, [new_job(task="one", concurrency_key=key) for key in keys], None)
    request = claim.ClaimRequest("bob", ["one"], 2, limits=known.version)
    for _ in range(2):
        fitting = store.perform(limits.find_fitting, request, known, {})
        chosen = [job.id for job in fitting.jobs[:1]]
        store.perform(claim.claim, request._replace(limited=chosen))


def live(store: Recorder) -> None:
    """Jobs from their enqueue to their end, and requests that meet one which is there already."""
    store.perform(enqueue.enqueue, [new_job() for _ in range(4)], None)
    store.perform(enqueue.enqueue_alike, "work", Options(), {new_id(): "{}"}, frozenset())
    store.perform(enqueue.enqueue_keyed, [new_job(idempotency_key="k", unique_key="u")])
    store.perform(enqueue.enqueue_keyed, [new_job(idempotency_key="k", unique_key="u")])
    store.perform(enqueue.enqueue_keyed, [new_job(idempotency_key="l", unique_key="u")])
    first, second, third, *_ = take(store, n=4)
    if not store.store.embedded:
        window = claim.ClaimWindow("default", 0)
        store.perform(claim.claim, claim.ClaimRequest("ann", ["other"], 1, window=window))
        store.perform(claim.claim_skipping_locked, claim.ClaimRequest("ann", ["work"], 1))
    unclaimable(store)
    store.perform(worker.heartbeat, "ann")
    said = report.JobReport(first, Report(stage="half", checkpoint="1"), [report.LogLine("info", "so far")])
    store.perform(report.report, [said])
    outcomes: list[Outcome] = [Succeeded(first), Failed(second, "error"), Throttled(third)]
    store.perform(finish.cycle, outcomes, jitter=jitter, claim=claim.ClaimRequest("ann", ["work"], 0))
    store.perform(cool_down.warm_queue, "default")
    unlike: list[Outcome] = [Succeeded(first, "1"), Succeeded(second, "2")]
    store.perform(finish.finish, unlike, jitter=jitter)
    store.perform(put_off_for_long)
    store.perform(finish.find_recorded, outcomes)


def unclaimable(store: Recorder) -> None:
    store.perform(enqueue.enqueue, [new_job()], None)
    for id in store.perform(claim.find_due, claim.ClaimRequest("ann", ["work"], 1), n=1):
        store.perform(claim.claim_chosen, "ann", [id])
        store.perform(claim.hold_damaged, [id])
    store.perform(claim.hold_unclaimable, new_job().id, reason="It cannot be claimed.")


def flow(store: Recorder) -> None:
    """A workflow from its start to its second run, and how it grows."""
    ids = {key: new_id() for key in ("a", "b", "c", "gate", "late", "later", "twice")}
    workflow = NewWorkflow(
        id=new_id(), name="flow", idempotency_key="k", request='{"v":1,"steps":[]}', unique_key="u"
    )
    shapes = [Shape("a"), Shape("b", ["a"]), Shape("c", [], ["b"]), Shape("gate", gate=True)]

    def step(key: str) -> NewStep:
        task = GATE if key == "gate" else "work"
        return NewStep(
            id=ids[key], workflow_id=workflow.id, step_key=key, task=task, payload="{}", queue="flow"
        )

    for again in (workflow, msgspec.structs.replace(workflow, id=new_id())):
        store.perform(
            workflows.start, again, shapes, {shape.key: step(shape.key) for shape in shapes}, frozenset()
        )
    store.perform(many_alike, workflow.id)
    (first,) = take(store, n=1, queues=["flow"])
    failed = Failed(first, "fatal")
    store.perform(finish.finish, [failed], jitter=jitter)
    (second,) = take(store, n=1, queues=["flow"])
    failing: set[str] | None = None if store.store.embedded else set()
    ended = Succeeded(second, "1", workflow=workflow.id)
    store.perform(finish.finish, [ended], jitter=jitter, failing=failing)
    store.perform(finish.finish, [Succeeded(second, "1", workflow=workflow.id)], jitter=jitter)
    appended = NewSteps(
        (Shape("late", ["gate"]), Shape("later", ["late"], (), ["a"])), (step("late"), step("later"))
    )
    options: Any = {"window": "gate", "mutation_key": "m", "appended": appended}
    with suppress(InvalidWorkflow):
        store.perform(append.append_steps, workflow.id, **options)
    appended = NewSteps((Shape("late", ["gate"]), Shape("later", ["late"])), (step("late"), step("later")))
    store.perform(append.append_steps, workflow.id, **{**options, "appended": appended})
    store.perform(results.read_parents, [ids["b"]])
    store.perform(results.read_results, [ids["a"]])
    store.perform(results.find_ancestors, ids["c"], workflow.id, ["b", "a"])
    store.perform(explain.examine, ids["late"])
    store.perform(append_again, workflow.id, second.job, step)
    store.perform(workflow_actions.resolve_gate, workflow.id, "gate", "canceled")
    store.perform(workflow_actions.requeue_workflow, workflow.id, stand_in=new_id())
    store.perform(workflows.list_spoilers, workflow.id, n=1)
    store.perform(workflows.find_failed_steps, [workflow.id])
    store.perform(workflow_actions.cancel_workflow, workflow.id)
    store.perform(workflows.get_workflow, workflow.id)
    store.perform(workflows.list_workflows)
    store.perform(workflows.get_graph, workflow.id)
    store.perform(sweep_one_workflow, workflow.id)


@operation("write")
def append_again(workflow: str, by: str, step: Callable[[str], NewStep]) -> Op[None]:
    """As a step does that runs once more."""
    appended = NewSteps((Shape("twice"),), (step("twice"),), (StepRequest(key="twice"),))
    (rows,) = yield from ask_all(Query("lock_workflows", {"ids": rows_of([workflow])}))
    for _ in range(2):
        writes, *_ = yield from append.add_steps(release.Tallies(rows), workflow, appended, by=by)
        yield from ask_all(*writes)


@operation("write")
def many_alike(workflow: str) -> Op[None]:
    """Steps that differ in little are written together."""
    shapes = [Shape(f"s{n}", [], ["s0"] if n else []) for n in range(insert_ops.ALIKE + 1)]
    steps = {
        shape.key: NewStep(
            id=new_id(), workflow_id=workflow, step_key=shape.key, task="work", payload="{}", queue="flow"
        )
        for shape in shapes[1:]
    }
    steps["s0"] = NewStep(
        id=new_id(),
        workflow_id=workflow,
        step_key="s0",
        task="work",
        payload="{}",
        queue="flow",
        delay=SECOND,
    )
    more = (
        Shape("more"),
        NewStep(
            id=new_id(),
            workflow_id=workflow,
            step_key="more",
            task="work",
            payload="{}",
            queue="flow",
            delay=SECOND,
        ),
    )
    writes, _ = insert_ops.insert_steps([*shapes, more[0]], {**steps, "more": more[1]}, {})
    yield from ask_all(*writes)


@operation("write")
def sweep_one_workflow(workflow: str) -> Op[None]:
    """As if some of its steps had expired and some of its gates were overdue."""
    yield from ask_all(
        Query("find_expired_steps", {"n": 1}),
        Query("find_overdue_gates", {"n": 1}),
        Query("expire_steps", {"workflow": workflow}),
        Query("time_out_gates", {"workflow": workflow}),
    )


def replay_one(store: Recorder) -> None:
    """Twice under one key."""
    done = next(
        job.id for job in store.perform(browse.list_jobs, Filter(state="succeeded")) if not job.workflow_id
    )
    assert store.perform(replay.find_task_of, done) == "work"
    for new in (new_id(), new_id()):
        assert store.perform(replay.replay, done, new, request_key="again", reason=None, by=None) is not None


@operation("write")
def put_off_for_long() -> Op[None]:
    """A job that asks again and again; the ledger forgets the first times."""
    change = Change(id=new_id(), token=101, state="ready", run=1, attempt=0, attempt_kind="snoozed")
    yield from ask_all(*finish.change_queries([change]))


def look(store: Recorder) -> None:
    (job, *_) = store.perform(browse.list_jobs)
    store.perform(browse.list_jobs, Filter(state="scheduled"), before=job.id)
    store.perform(audit.list_acts)
    store.perform(browse.get_job, job.id)
    store.perform(browse.get_jobs, [job.id])
    store.perform(browse.trace_job, job.id)
    store.perform(browse.find_between, job.id, job.id, n=6)
    store.perform(browse.count_jobs)
    store.perform(count.count_stretch, Filter(), "state", before=LAST, length=10)
    store.perform(browse.oldest_ready)
    store.perform(explain.examine, job.id)
    store.perform(stats.measure, since=SECOND)
    store.perform(workers_read.list_workers_now)
    store.perform(catalog.list_catalog)


def operate_on(store: Recorder) -> None:
    later, gone = new_job(delay=SECOND, queue="b", unique_key="v"), new_job(queue="b", idempotency_key="m")
    store.perform(enqueue.enqueue_keyed, [later, gone])
    assert store.perform(job_actions.run_now, later.id) == "due_now"
    replay_one(store)
    assert store.perform(job_actions.cancel, later.id) == "canceled"
    assert store.perform(job_actions.requeue, later.id) == "requeued"
    assert store.perform(job_actions.delete, later.id) == "deleted"
    assert store.perform(job_actions.delete, gone.id, keep_key=SECOND) == "deleted"


def operate_on_many(store: Recorder) -> None:
    """A job and a step through every act; the batches of one act share what is written down."""
    job = new_job(delay=SECOND, queue="many", unique_key="w")
    store.perform(enqueue.enqueue_keyed, [job])
    step = Found(new_id(), "waiting", new_id())
    bulk = bulk_actions.BulkProgress("cancel_jobs", Filter(queue="many"), bulk_actions.Counts())
    for verb in (
        bulk_actions.RUN_NOW,
        bulk_actions.CANCEL,
        bulk_actions.REQUEUE,
        bulk_actions.CANCEL,
        bulk_actions.DELETE,
    ):
        found = store.perform(bulk_actions.look, bulk.filter, among=verb.takes, length=9).jobs
        assert [one.id for one in found] == [job.id]
        bulk, locked = store.perform(verb.batch, [*found, step], bulk)
        assert locked == []
    assert bulk.counts == {"due_now": 1, "canceled": 2, "requeued": 1, "deleted": 1}


def sweep_up(store: Recorder) -> None:
    store.perform(finish.finish_skipping_locked, [], jitter=jitter)
    store.perform(sweep.expire)
    expired = store.perform(sweep.find_expired)
    store.perform(sweep.expire_chosen, expired)
    store.perform(set_aside.set_aside)
    store.perform(set_aside.find_due_soon)
    store.perform(set_aside.bring_back, [])
    store.perform(sweep.retire_silent)
    silent = store.perform(sweep.find_silent)
    store.perform(sweep.retire_silent_chosen, silent)
    store.perform(worker.retire, "ann")
    (lost, *_) = store.perform(sweep.list_orphans)
    assert [change.id for change in store.perform(sweep.rescue_chosen, [lost], jitter=jitter, n=1)] == [lost]
    store.perform(sweep.rescue, jitter=jitter)


def take(store: Recorder, *, n: int, queues: Sequence[str] | None = None) -> list[Lease]:
    claims = store.perform(claim.claim, claim.ClaimRequest("ann", ["work"], n, queues))
    return [job.lease for job in claims.jobs]
