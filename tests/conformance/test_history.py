"""A job's history, built from row, attempts, events and log: nothing twice, nothing left out."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.client.job import Job
from perdure.errors import JobNotFound
from perdure.model.job import SECOND
from perdure.model.lifecycle import (
    Canceled,
    Continued,
    Failed,
    Outcome,
    Released,
    Report,
    Snoozed,
    Succeeded,
    Throttled,
)
from perdure.ops.report import JobReport, LogLine
from perdure.request.times import from_us
from tests.conformance.world import NOON, World


def story(world: World, job: Job[Any]) -> list[str]:
    """What happened, each with the seconds since the world began."""
    begin = from_us(NOON)
    return [
        f"{(entry.at - begin).total_seconds():.0f} {entry.what}" for entry in world.app.job_history(job.id)
    ]


def attempt(world: World, seconds: float, end: Any, *args: Any, **options: Any) -> None:
    """Claim a second from now, and end with this outcome after so many seconds."""
    world.advance(1)
    (job,) = world.claim()
    world.advance(seconds)
    assert world.finish(end(job.lease, *args, **options)).refused == []


def test_a_job_that_succeeds_at_once_is_told_by_its_row_alone(world: World) -> None:
    job = world.task(queue="mail").enqueue(1)
    attempt(world, 4, Succeeded, "1")
    assert world.attempts(job) == []
    assert world.events(job) == []
    enqueued, started, succeeded = world.app.job_history(job.id)
    assert (enqueued.at, enqueued.run, enqueued.token, enqueued.detail) == (
        from_us(NOON),
        1,
        0,
        {"queue": "mail"},
    )
    assert (started.run, started.token, started.detail) == (1, 1, {"attempt": 1})
    assert (succeeded.run, succeeded.token, succeeded.detail) == (1, 1, {})
    assert story(world, job) == ["0 enqueued", "1 started", "5 succeeded"]


def test_a_job_that_runs_names_its_worker(world: World) -> None:
    job = world.task().enqueue(1)
    world.claim_one()
    *_, started = world.app.job_history(job.id)
    assert (started.what, started.detail) == ("started", {"attempt": 1, "worker": world.worker})


def test_attempts_that_failed_are_told_with_what_decided_the_wait(world: World) -> None:
    job = world.task(max_attempts=2).enqueue(1)
    attempt(world, 2, Failed, "error", "http.503", "no route", "File …", 60 * SECOND)
    world.advance(60)
    attempt(world, 1, Failed, "timeout", message="too slow")
    assert story(world, job) == ["0 enqueued", "1 started", "3 error", "64 started", "65 failed"]
    _, started, error, _, failed = world.app.job_history(job.id)
    assert started.detail == {"attempt": 1, "worker": world.worker}
    assert error.detail == {
        "attempt": 1,
        "code": "http.503",
        "message": "no route",
        "delay": 60.0,
        "decided_by": "handler",
    }
    assert failed.detail == {"code": "job.timeout", "message": "too slow", "reason": "attempts"}


@pytest.mark.parametrize(
    ("end", "args", "what", "delay", "decided_by"),
    [
        (Snoozed, (5 * SECOND,), "snoozed", 5.0, "handler"),
        (Throttled, (5 * SECOND, False), "throttled", 5.0, "handler"),
        (Throttled, (None, False), "throttled", None, "policy"),
    ],
    ids=["snooze", "throttle", "throttle by policy"],
)
def test_what_is_put_off_is_told_and_the_next_attempt_has_its_number(
    world: World, end: type[Outcome], args: tuple[Any, ...], what: str, delay: float | None, decided_by: str
) -> None:
    job = world.task(backoff=3).enqueue(1)
    attempt(world, 1, end, *args)
    assert story(world, job) == ["0 enqueued", "1 started", f"2 {what}"]
    started, put_off = world.app.job_history(job.id)[1:]
    assert started.detail == {"attempt": 1, "worker": world.worker}
    waited = put_off.detail.pop("delay")
    assert waited == delay if delay is not None else 0 <= waited <= 3
    assert put_off.detail == {"attempt": 1, "decided_by": decided_by}
    world.advance(5)
    attempt(world, 1, Succeeded)
    assert story(world, job)[3:] == ["8 started", "9 succeeded"]
    assert world.row(job).attempt == 1


def test_a_claim_given_back_leaves_no_trace_of_a_start(world: World) -> None:
    job = world.task().enqueue(1)
    attempt(world, 1, Failed, "lost")
    attempt(world, 1, Released)
    assert story(world, job) == ["0 enqueued", "1 started", "2 lost"]
    attempt(world, 1, Succeeded)
    assert story(world, job) == ["0 enqueued", "1 started", "2 lost", "5 started", "6 succeeded"]


def test_a_run_that_goes_on_is_told_as_two(world: World) -> None:
    job = world.task().enqueue(1)
    attempt(world, 1, Continued)
    attempt(world, 1, Succeeded)
    assert story(world, job) == ["0 enqueued", "1 started", "2 continued", "3 started", "4 succeeded"]
    assert [entry.run for entry in world.app.job_history(job.id)] == [1, 1, 1, 2, 2]


def test_a_cancel_before_the_start_is_told_once_with_who_and_why(world: World) -> None:
    job = world.task().enqueue(1)
    world.advance(1)
    world.app.cancel_job(job.id, reason="withdrawn", by="ann")
    assert story(world, job) == ["0 enqueued", "1 canceled"]
    assert world.app.job_history(job.id)[-1].detail == {"reason": "withdrawn", "by": "ann"}


def test_a_cancel_between_two_attempts_is_told_once_and_is_no_failure(world: World) -> None:
    job = world.task().enqueue(1)
    attempt(world, 1, Failed, "error", message="no route")
    world.app.cancel_job(job.id, reason="withdrawn")
    assert story(world, job) == ["0 enqueued", "1 started", "2 error", "2 canceled"]
    assert world.app.job_history(job.id)[-1].detail == {"reason": "withdrawn"}


def test_a_cancel_of_a_running_job_is_told_when_asked_and_when_done(world: World) -> None:
    job = world.task().enqueue(1)
    claimed = world.claim_one()
    world.advance(1)
    world.app.cancel_job(job.id, by="ann")
    world.advance(1)
    world.finish(Failed(claimed.lease, "error", message="stopped"))
    assert story(world, job) == ["0 enqueued", "0 started", "1 cancel requested", "2 canceled"]


def test_a_handler_that_gives_up_is_told_with_its_reason(world: World) -> None:
    job = world.task().enqueue(1)
    attempt(world, 1, Canceled, "no such customer")
    assert story(world, job) == ["0 enqueued", "1 started", "2 canceled"]
    assert world.app.job_history(job.id)[-1].detail == {"reason": "no such customer"}


@pytest.mark.parametrize("way", ["claim", "sweep"])
@pytest.mark.parametrize("tried", [False, True])
def test_a_job_that_expires_is_told_so_and_did_not_start_again(world: World, way: str, tried: bool) -> None:
    job = world.task().using(expires=10).enqueue(1)
    if tried:
        attempt(world, 1, Failed, "lost")
    world.advance(20)
    if way == "claim":
        assert world.claim() == []
    else:
        assert world.operations.expire() == 1
    before = ["1 started", "2 lost"] if tried else []
    assert story(world, job) == ["0 enqueued", *before, f"{22 if tried else 20} canceled"]
    assert world.app.job_history(job.id)[-1].detail == {"reason": "expired"}


def test_a_requeue_keeps_what_was_before(world: World) -> None:
    job = world.task(max_attempts=1).enqueue(1)
    attempt(world, 1, Failed, "error", message="no route", trace="File …")
    world.advance(1)
    world.app.requeue_job(job.id, reason="fixed", by="ann")
    attempt(world, 1, Succeeded)
    assert story(world, job) == [
        "0 enqueued",
        "1 started",
        "2 error",
        "3 requeued",
        "4 started",
        "5 succeeded",
    ]
    assert [entry.run for entry in world.app.job_history(job.id)] == [1, 1, 1, 1, 2, 2]


def test_stages_and_log_lines_stand_where_they_were_said(world: World) -> None:
    job = world.task().enqueue(1)
    claimed = world.claim_one()
    for second, stage in enumerate(["fetch", "fetch", "store"], 1):
        world.advance(1)
        world.operations.report(
            [JobReport(claimed.lease, Report(stage=stage), [LogLine("info", f"line {second}")])]
        )
    world.advance(1)
    world.finish(Succeeded(claimed.lease))
    assert story(world, job) == [
        "0 enqueued",
        "0 started",
        "1 stage",
        "1 log",
        "2 log",
        "3 stage",
        "3 log",
        "4 succeeded",
    ]
    details = [entry.detail for entry in world.app.job_history(job.id) if entry.what in ("stage", "log")]
    assert details[:2] == [{"stage": "fetch"}, {"level": "info", "message": "line 1"}]


@pytest.mark.parametrize(
    ("end", "told"), [(Succeeded, "succeeded"), (Failed, "failed"), (Continued, "continued")]
)
def test_what_was_said_with_the_end_stands_before_it(world: World, end: Any, told: str) -> None:
    job = world.task(max_attempts=1).enqueue()
    (claimed,) = world.claim()
    world.operations.report([JobReport(claimed.lease, Report(), [LogLine("info", "hi")])])
    words = ("error",) if end is Failed else ()
    world.finish(end(claimed.lease, *words, report=Report(stage="last", done=2, total=1)))
    assert story(world, job) == [
        f"0 {what}" for what in ("enqueued", "started", "progress dropped", "stage", "log", told)
    ]


def test_a_lost_worker_is_told_with_its_name(world: World) -> None:
    job = world.task().enqueue(1)
    world.claim_one()
    worker = world.worker
    world.lose_worker()
    assert story(world, job) == ["0 enqueued", "0 started", "30 lost"]
    started, lost = world.app.job_history(job.id)[1:]
    assert started.detail["worker"] == worker
    assert (lost.detail["decided_by"], lost.detail["delay"]) == ("first loss", 0.0)


@pytest.mark.parametrize("id", ["0198a1b2-0000-7000-8000-000000000000", "no id at all", ""])
def test_there_is_no_history_of_a_job_that_is_not_there(world: World, id: str) -> None:
    with pytest.raises(JobNotFound):
        world.app.job_history(id)
