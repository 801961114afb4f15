"""Every line of this file is right, and each type is what it says: both checkers must agree."""

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from perdure import (
    CONTEXT,
    App,
    Backoff,
    Context,
    Fatal,
    Job,
    PerdureError,
    Retry,
    StartedWorkflow,
    Step,
    Task,
    Workflow,
    chain,
    group,
)
from perdure.model.job import State

app = App("sqlite:///jobs.db")
addresses = ["ann@example.com", "bob@example.com"]


@app.task(queue="mail", max_attempts=8, timeout=30)
async def send(to: str, subject: str, *, ctx: Context = CONTEXT) -> dict[str, str]:
    ctx.progress(1, 2, "half")
    if not to:
        raise Fatal("nobody to send to")
    if Context.current().cancel_requested:
        raise Retry("later", delay=timedelta(minutes=1), code="mail.canceled")
    return {"to": to}


@app.task
def add(a: int, b: int = 1) -> int:
    return a + b


@app.task
async def tidy_up() -> None: ...


@app.task(name="shout", aliases=["yell"], backoff=Backoff(base=1, cap=60, codes={"http.503": 60}))
def shout(word: str, /, *words: str, **options: bool) -> list[str]:
    return [word.upper(), *words]


def blocking_code() -> None:
    job = send.enqueue("a@b.c", subject="hi")
    assert_type(job, Job[dict[str, str]])
    assert_type(job.get(), dict[str, str])
    assert_type(job.get(timeout=2.5), dict[str, str])
    assert_type(job.result, dict[str, str] | None)
    assert_type(job.refresh(), Job[dict[str, str]])
    assert_type(job.created, bool)
    assert_type(job.state, State | None)
    job.join(1)
    job.cancel(reason="withdrawn")
    assert_type(send.delay("a@b.c", "hi"), Job[dict[str, str]])
    assert_type(add(1), int)
    assert_type(add.enqueue(1).get(), int)
    assert_type(add.enqueue(a=1, b=2), Job[int])
    assert_type(tidy_up.enqueue(), Job[None])
    assert_type(shout.enqueue("a", "b", loud=True), Job[list[str]])
    by_name = app.enqueue("mail.send", {"to": "a@b.c", "subject": "hi"}, queue="mail", delay=5)
    assert_type(by_name, Job[Any])


def workflows() -> None:
    flow = Workflow("sums", result="both")
    first = flow.step("first", add.job(1))
    assert_type(first, Step[int])
    assert_type(first.result, int)
    both = flow.step("both", add.job(first.result, b=2), after=[first])
    gate = flow.gate("gate", after=[both, "first"], timeout=60, on_timeout="canceled")
    flow.step("tidy", tidy_up.job(), after_done=[gate])
    started = app.start_workflow(flow)
    assert_type(started, StartedWorkflow)
    assert_type(app.resolve_gate(started.id, "gate", "succeeded", output={"by": "ann"}), bool)
    late = Step("late", add.job(first.result), after=["first"])
    app.append_steps(started.id, window="gate", mutation_key="late", steps=[late])
    app.cancel_workflow(started.id, reason="withdrawn")
    app.start_workflow(chain(add.job(1), tidy_up.job(), tenant="acme"))
    app.start_workflow(group([add.job(n) for n in range(3)], then=tidy_up.job()))


def options() -> None:
    later = send.using(delay=60, priority=5, idempotency_key="welcome-7")
    assert_type(later.enqueue("a@b.c", "hi"), Job[dict[str, str]])
    assert_type(later.using(delay=timedelta(hours=1)).delay("a@b.c", subject="hi"), Job[dict[str, str]])
    send.using(run_at=datetime.now(UTC), expires=60, max_attempts=1, timeout=5, tenant="acme").enqueue(
        "a", "b"
    )
    send.using(unique_key="u", tags=["a", "b"], meta={"who": {"id": 7}}, conn=object(), queue=None).enqueue(
        "a", "b"
    )


def many() -> None:
    assert_type(app.enqueue_many([send.job(to, "hi") for to in addresses]), list[Job[dict[str, str]]])
    app.set_queue("mail", backoff=5)
    app.set_queue("mail", backoff=None, by="ann")
    for job in app.enqueue_many([send.job("a@b.c", "hi"), add.using(delay=5).job(1)], conn=object()):
        print(job.id, job.result)


def handles() -> None:
    handles: list[Job[object]] = [send.enqueue("a", "b"), add.enqueue(1)]
    tasks: list[Task[..., Any]] = [send, add, tidy_up, shout]
    assert_type(app.get_job(handles[0].id), Job[Any])
    assert_type(app.list_jobs(queue="mail", state="failed", limit=10), list[Job[Any]])
    assert_type(app.list_jobs(tag="a", created_after=datetime.now(UTC)), list[Job[Any]])
    assert_type(app.list_jobs(task=send), list[Job[Any]])
    assert_type(app.enqueue(send, {"to": "a@b.c"}), Job[Any])
    app.set_task(add, enabled=False)
    assert_type(app.requeue_jobs(queue="mail", progress=lambda counts: counts["requeued"]).act_id, int | None)
    assert_type(app.count_jobs(), dict[str, dict[str, int]])
    print([task.name for task in tasks], app.job_history(handles[0].id)[0].at.isoformat())
    try:
        app.pause_queue("mail")
    except PerdureError as error:
        assert_type(error.code, str)


async def async_code() -> None:
    call = assert_type(send("a@b.c", "hi"), Coroutine[Any, Any, dict[str, str]])
    assert_type(await call, dict[str, str])
    job = await send.aenqueue("a@b.c", subject="hi")
    assert_type(job, Job[dict[str, str]])
    assert_type(await job.aget(timeout=3), dict[str, str])
    assert_type(await send.using(delay=1).aenqueue("a@b.c", "hi"), Job[dict[str, str]])
    assert_type(await send.adelay("a@b.c", "hi"), Job[dict[str, str]])
    assert_type(await app.aenqueue_many([add.job(1)]), list[Job[int]])
    assert_type(await app.aenqueue("mail.send", {}), Job[Any])
    assert_type(await app.aget_job(job.id), Job[Any])
    await app.apause_queue("mail")
