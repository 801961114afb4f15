"""The ``Job`` that a caller gets: refresh it, wait for it, get its result."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.client.job import JobError, Progress
from perdure.errors import JobCanceled, JobFailed, JobGone, WaitTimeout
from perdure.model.lifecycle import Canceled, Failed, Report, Snoozed, Succeeded
from tests.conformance.world import World


@contextmanager
def meanwhile(act: Callable[[], Any]) -> Iterator[None]:
    """Do something in another thread; its error is raised at the end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    for error in errors:
        raise error


def test_a_handle_is_as_old_as_its_last_look(world: World) -> None:
    job = world.task().enqueue()
    world.claim_one()
    assert (job.state, job.attempt) == ("ready", 0)
    assert job.refresh() is job
    assert (job.state, job.attempt) == ("running", 1)


def test_a_handle_tells_progress_and_errors(world: World) -> None:
    job = world.task().enqueue()
    world.attempt(
        Failed,
        "fatal",
        code="http.503",
        message="no route",
        trace="at line 1",
        report=Report(done=1, total=2, message="half", stage="fetch"),
    )
    job.refresh()
    assert job.error == JobError("fatal", "http.503", "no route", "at line 1")
    assert job.progress == Progress(1, 2, "half", "fetch")
    assert (job.result, job.reason) == (None, "fatal")


def test_a_result_arrives_in_its_type(world: World) -> None:
    @world.app.task(name="when")
    def when() -> list[datetime]:
        return []

    job = when.enqueue()
    world.attempt(Succeeded, '["2030-01-02T03:04:05Z"]')
    assert job.get(timeout=0) == [datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)]
    assert world.app.get_job(job.id).result == job.result
    plain = world.producer().get_job(job.id)
    assert plain.result == ["2030-01-02T03:04:05Z"], "without the code it is plain JSON"


def test_get_waits_for_the_end(world: World) -> None:
    job = world.task().enqueue()
    with meanwhile(lambda: world.attempt(Succeeded, "42")):
        assert job.get(timeout=30) == 42


def test_get_without_a_timeout_waits_as_long_as_it_takes(world: World) -> None:
    job = world.task().enqueue()
    with meanwhile(lambda: world.attempt(Succeeded, "42")):
        assert job.get() == 42


def test_get_says_how_it_ended(world: World) -> None:
    work = world.task()
    for end, error in (
        (lambda lease: Failed(lease, "fatal", code="http.503", message="secret"), JobFailed),
        (lambda lease: Canceled(lease, "secret"), JobCanceled),
    ):
        job = work.enqueue()
        world.attempt(end)
        with pytest.raises(error, match=job.id) as raised:
            job.get(timeout=0)
        assert "secret" not in str(raised.value)
        job.join(timeout=0)


def test_a_failure_tells_all_and_its_text_what_may_be_shown(world: World) -> None:
    job = world.task(max_attempts=5).enqueue()
    world.attempt(Snoozed, 0)
    world.attempt(Failed, "fatal", code="http.503", message="to ann@b.c", trace="at line 1")
    with pytest.raises(JobFailed) as raised:
        job.get(timeout=0)
    failed = raised.value
    assert str(failed) == (
        f"Job {job.id} of work failed: http.503 (fatal), attempt 1 of 5. Its error_message says more."
    )
    for error in (failed, pickle.loads(pickle.dumps(failed))):
        assert (error.job_id, error.task, error.attempt, error.code) == (job.id, "work", 1, "job.failed")
        assert (error.error_kind, error.error_code) == ("fatal", "http.503")
        assert (error.error_message, error.error_trace) == ("to ann@b.c", "at line 1")
        assert str(error) == str(failed)


def test_a_job_that_was_canceled_names_itself(world: World) -> None:
    job = world.task().enqueue()
    job.cancel(reason="withdrawn")
    with pytest.raises(JobCanceled, match=f"Job {job.id} of work was canceled.") as raised:
        job.get(timeout=0)
    assert (raised.value.job_id, raised.value.task, raised.value.attempt) == (job.id, "work", 0)


def test_a_job_that_is_gone_says_so(world: World) -> None:
    job = world.task().enqueue()
    world.app.delete_job(job.id)
    for verb in (job.get, job.join, job.refresh):
        with pytest.raises(JobGone):
            verb()
    assert job.state is None


def test_patience_ends(world: World) -> None:
    job = world.task().enqueue()
    for verb in (job.get, job.join):
        for timeout in (0, -1, 0.02):
            before = time.monotonic()
            with pytest.raises(WaitTimeout) as raised:
                verb(timeout)
            assert isinstance(raised.value, TimeoutError)
            assert time.monotonic() - before >= timeout


def test_a_handle_cancels_and_requeues(world: World) -> None:
    job = world.task().enqueue()
    assert job.cancel(reason="withdrawn") == "canceled"
    assert job.refresh().reason == "withdrawn"
    assert job.requeue(reason="after all") == "requeued"
    assert (job.refresh().state, job.run) == ("ready", 2)
    assert job.requeue() == "not_ended"
    claimed = world.claim_one()
    assert job.cancel() == "cancel_requested"
    world.finish(Failed(claimed.lease, "error", report=Report(checkpoint="1")))
    assert job.requeue(keep_checkpoint=True) == "requeued"
    assert world.claim_one().checkpoint == "1"


def test_a_handle_shows_no_payload(world: World) -> None:
    job = world.task().using(tenant="hidden", meta={"hidden": 1}).enqueue(note="hidden")
    assert "hidden" not in repr(job.refresh())
    assert job.id in repr(job)
