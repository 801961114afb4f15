"""The arguments of each method of the app, one line per method. ``tests/test_sync_and_async.py`` lists the methods."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from perdure import Backoff, Workflow
from perdure.model.visible_state import VISIBLE_STATES
from perdure.request.step import Gate
from tests.fuzz.ground import Ground
from tests.fuzz.odd import (
    SECRET,
    Fancy,
    Values,
    anything,
    datetimes,
    floats,
    integers,
    mostly,
    parameters,
    plain,
    some,
    spans,
    texts,
)


class Mark:
    """Stands for an object of the ``Ground`` that exists when the method is called."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __repr__(self) -> str:
        return f"<{self.what}>"


JOB, SCHEDULED, CANCELED, FLOW, REQUEST = map(Mark, ("job", "scheduled", "canceled", "flow", "request"))

job: Values = mostly(JOB, SCHEDULED, CANCELED, UUID(int=5), str(UUID(int=5)), texts)
workflow: Values = mostly(FLOW, JOB, UUID(int=5), texts)
name: Values = mostly("default", "work", Fancy("mail"), texts)
said: Values = mostly(None, f"because {SECRET}", texts)
conn: Values = st.one_of(*(st.none(),) * 9, st.sampled_from((0, "", object(), "postgresql://")))
key: Values = mostly("gate", "behind", texts)
number: Values = mostly(None, 1, integers)
flag: Values = mostly(True, False)

options: Values = some(
    queue=name,
    priority=mostly(None, 0, -5, integers),
    delay=mostly(None, 0, 5, spans),
    run_at=mostly(None, None, None, datetimes),
    expires=mostly(None, 60, spans, datetimes),
    max_attempts=mostly(None, 3, integers),
    timeout=mostly(None, 3, spans),
    tenant=mostly(None, SECRET, texts),
    idempotency_key=mostly(None, SECRET, texts),
    unique_key=mostly(None, SECRET, texts),
    concurrency_key=mostly(None, SECRET, texts),
    tags=mostly(None, [], ["a"], st.lists(texts, max_size=3)),
    meta=mostly(None, {}, {"a": SECRET}, st.dictionaries(texts, plain, max_size=3)),
)
"""Of a job."""

backoff: Values = mostly(
    None, 5, floats, st.sampled_from([Backoff(), Backoff(base=0), Backoff(base=1, cap=0, codes={SECRET: 3})])
)
arguments: Values = mostly(
    None,
    {},
    {"n": SECRET},
    st.dictionaries(parameters | integers, anything, max_size=2),
)
steps: Values = mostly(
    st.lists(st.sampled_from(("a", "b", "c", "gate")), min_size=1, max_size=3).map(
        lambda keys: [Gate(one) for one in keys]
    ),
    [REQUEST],
)


def _flow(asked: dict[str, Any], keys: list[str]) -> Workflow:
    flow = Workflow("flow", **asked)
    for one in keys:
        flow.add(Gate(one))
    return flow


keyed = some(
    idempotency_key=st.sampled_from((SECRET, "k", "é" * 256)), unique_key=st.sampled_from((SECRET, "u'"))
)
flow: Values = mostly(
    st.builds(_flow, keyed, st.lists(st.sampled_from("abc'🎉"), min_size=0, max_size=3, unique=True))
)

NOTHING: Values = st.just({})


def asked(**needed: Values) -> Values:
    return st.fixed_dictionaries(needed)


def also(needed: Values, **optional: Values) -> Values:
    return st.builds(lambda one, more: {**one, **more}, needed, some(**optional))


conditions = {
    "queue": name,
    "task": name,
    "state": mostly(*VISIBLE_STATES),
    "tenant": texts,
    "tag": texts,
    "idempotency_key": texts,
    "unique_key": texts,
    "error_code": texts,
    "text": mostly("n", "%", "_", texts),
    "created_after": datetimes,
    "created_before": datetimes,
    "finished_after": datetimes,
    "finished_before": datetimes,
}
"""Of those that a list, or an act on many, is about."""


def many(**more: Values) -> Values:
    return some(all=flag, by=said, dry_run=flag, **conditions, **more)


VERBS: dict[str, Values] = {
    "append_steps": also(asked(id=workflow, window=key, mutation_key=texts, steps=steps), conn=conn),
    "cancel_job": also(asked(id=job), reason=said, by=said, conn=conn),
    "cancel_jobs": many(reason=said),
    "cancel_workflow": also(asked(id=workflow), reason=said, by=said, conn=conn),
    "check_schema": NOTHING,
    "count_jobs": some(queue=name, tenant=texts),
    "count_jobs_by": also(
        asked(by=mostly("state", "queue", "task", "tenant", "error_code", texts)), **conditions
    ),
    "delete_job": also(asked(id=job), by=said),
    "delete_jobs": many(reason=said),
    "enqueue": st.builds(
        lambda one, more: {**one, **more},
        also(asked(task=mostly("work", "elsewhere", texts)), arguments=arguments),
        options,
    ),
    "enqueue_many": also(asked(jobs=mostly([], [REQUEST], [REQUEST, REQUEST], [REQUEST, 3])), conn=conn),
    "explain_job": asked(id=job),
    "get_job": asked(id=job),
    "get_jobs": asked(ids=mostly([], st.lists(job, max_size=3))),
    "get_task": asked(name=mostly("work", "elsewhere", texts)),
    "get_workflow": asked(id=workflow),
    "job_history": asked(id=job),
    "list_acts": some(action=texts, actor=said, subject=said, before=number, limit=mostly(1, 50, integers)),
    "list_jobs": some(**conditions, before=job, limit=mostly(1, 50, integers)),
    "list_limits": NOTHING,
    "list_queues": NOTHING,
    "list_tasks": NOTHING,
    "list_workers": NOTHING,
    "list_workflows": some(
        name=name,
        status=mostly("running", "failed"),
        tenant=texts,
        before=workflow,
        limit=mostly(1, integers),
    ),
    "migrate": some(to=mostly(None, integers)),
    "oldest_ready": some(queue=name),
    "pause_queue": also(
        asked(name=name),
        resume_at=mostly(None, timedelta(hours=1), timedelta(0), timedelta.max, spans, datetimes),
        reason=said,
        by=said,
    ),
    "replay_job": also(asked(id=job), request_key=mostly(None, SECRET, texts), reason=said, by=said),
    "requeue_job": also(asked(id=job), run=number, keep_checkpoint=flag, reason=said, by=said, conn=conn),
    "requeue_jobs": many(keep_checkpoint=flag, reason=said),
    "requeue_workflow": also(
        asked(id=workflow),
        run=number,
        steps=mostly("failed", "following", "all"),
        reason=said,
        by=said,
        conn=conn,
    ),
    "reset_limit": also(asked(name=name), by=said),
    "resolve_gate": also(
        asked(id=workflow, key=key, resolution=mostly("succeeded", "failed", "canceled")),
        output=anything,
        reason=said,
        by=said,
        conn=conn,
    ),
    "resume_queue": also(asked(name=name), by=said),
    "warm_queue": also(asked(name=name), by=said),
    "run_jobs_now": many(),
    "run_now": also(asked(id=job), by=said),
    "reset_queue": also(asked(name=name), by=said),
    "set_queue": also(
        asked(name=name),
        backoff=backoff,
        timeout=mostly(None, 3, spans),
        concurrency=mostly(None, 3, integers),
        by=said,
    ),
    "set_limit": also(asked(name=name, concurrency=mostly(None, 1, integers)), by=said),
    "set_task": also(
        asked(name=mostly("elsewhere", texts)),
        enabled=flag,
        config=mostly(None, {}, {"a": SECRET}, st.dictionaries(texts, plain, max_size=3)),
        by=said,
    ),
    "start_workflow": also(asked(flow=flow), conn=conn),
    "stats": some(since=mostly(None, 60, spans, datetimes)),
    "save_tasks": some(exact=flag),
}

NOT_HERE = {"close": "it is asked in test_options.py, of apps of its own"}


def settle(ground: Ground, value: Any) -> Any:
    """With what exists in the place of its marks."""
    if isinstance(value, Mark):
        return _make(ground, value)
    if type(value) is list:
        return [settle(ground, part) if isinstance(part, Mark) else part for part in value]
    return value


def _make(ground: Ground, mark: Mark) -> Any:
    match mark.what:
        case "job":
            return ground.job().id
        case "scheduled":
            return UUID(ground.job(delay=3600).id)
        case "canceled":
            job = ground.job()
            job.cancel()
            return job.id
        case "flow":
            return ground.workflow()
        case "request":
            return ground.work.job(1)
    raise AssertionError(mark)
