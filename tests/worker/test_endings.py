"""However a handler ends, its attempt is recorded as that, and the worker goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, get_args

import pytest

from perdure import CONTEXT, App, Cancel, Context, Continue, Fatal, Retry, Snooze, Throttle
from perdure.client.job import Job
from perdure.model.job import SECOND
from perdure.request.signals import OutcomeSignal, Signal
from perdure.worker.outcome import traced
from tests.harness.waiting import auntil

FAR = 3600


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Halfway(Snooze):
    """A signal that forgot to call its parent."""

    def __init__(self) -> None:
        pass


@pytest.fixture(params=["async", "thread"])
def ends(request: pytest.FixtureRequest, app: App) -> Callable[..., Any]:
    """Run a job whose handler ends so, until its first attempt is recorded."""

    async def run(end: Callable[[], Any], *, state: str, **options: Any) -> Job[Any]:
        async def on_loop() -> Any:
            return end()

        function = on_loop if request.param == "async" else end
        options = {"max_attempts": 2, "backoff": FAR, **options}
        task = app.task(name="end", **options)(function)
        async with app.worker():
            job = await task.aenqueue()

            await auntil(lambda: recorded(job))
            # It is none the worse for it.
            assert await (await app.tasks["well"].aenqueue()).aget(30) == "well"
        assert (await job.arefresh()).state == state
        return job

    @app.task(name="well")
    async def well() -> str:
        return "well"

    return run


async def recorded(job: Job[Any]) -> bool:
    """Whether its first attempt is over."""
    row = (await job.arefresh()).row
    return row is not None and row.token > 0 and row.state != "running"


def throwing(error: BaseException | type[BaseException]) -> Callable[[], None]:
    def throw() -> None:
        raise error

    return throw


def failure(job: Job[Any]) -> tuple[str, str]:
    assert job.error is not None
    return job.error.kind, job.error.code


async def test_an_error_is_retried_and_says_where_it_happened(ends: Any) -> None:
    job = await ends(throwing(ZeroDivisionError("by nothing")), state="ready")
    assert (*failure(job), job.error.message) == ("error", "job.error", "ZeroDivisionError: by nothing")
    assert "in throw" in job.error.trace
    assert "runners.py" not in job.error.trace
    assert job.attempt == 1


async def test_the_last_error_fails_the_job(ends: Any) -> None:
    job = await ends(throwing(ZeroDivisionError), state="failed", max_attempts=1)
    assert (job.error.message, job.reason) == ("ZeroDivisionError", "attempts")


async def test_an_error_may_be_fatal_by_its_class(ends: Any) -> None:
    job = await ends(throwing(KeyError("x")), state="failed", fatal=(LookupError,))
    assert (*failure(job), job.reason) == ("fatal", "job.fatal", "fatal")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
async def test_what_would_end_a_program_ends_an_attempt(ends: Any, error: BaseException) -> None:
    job = await ends(throwing(error), state="ready")
    assert failure(job) == ("error", "job.error")
    assert job.error.message.startswith(type(error).__name__)


async def test_a_handler_that_cancels_itself_has_failed(ends: Any) -> None:
    job = await ends(throwing(asyncio.CancelledError()), state="ready")
    assert failure(job) in (
        ("error", "job.canceled_itself"),
        ("error", "job.error"),
    )  # on the loop, in a thread
    assert "CancelledError" in job.error.message


async def test_an_error_that_cannot_be_shown_is_recorded_all_the_same(ends: Any) -> None:
    job = await ends(throwing(Unspeakable()), state="ready")
    assert job.error.message == "Unspeakable"


async def test_a_message_of_5_megabytes_is_cut(ends: Any) -> None:
    job = await ends(throwing(ValueError("x" * 5_000_000)), state="ready")
    assert len(job.error.message) <= 2_000
    assert len(job.error.trace) <= 16_384


async def test_a_message_that_no_database_takes_is_mended(ends: Any) -> None:
    job = await ends(throwing(ValueError("nul \0 half \ud800")), state="ready")
    assert job.error.message.startswith("ValueError: nul")


@pytest.mark.parametrize("value", [object(), {1, "a", object()}, float, "x" * 2_000_000])
async def test_a_result_that_cannot_be_kept_is_a_success_without_one(ends: Any, value: Any) -> None:
    job = await ends(lambda: value, state="succeeded")
    assert job.result is None
    assert job.reason in ("result.unencodable", "result.too_large")


async def test_retry_names_its_code_and_delay(ends: Any) -> None:
    job = await ends(throwing(Retry("later", delay=7200, code="http.503")), state="ready", backoff=1)
    assert (*failure(job), job.error.message) == ("error", "http.503", "later")
    assert job.row.run_at - job.row.created_at >= 7200 * SECOND


async def test_fatal_ends_the_job(ends: Any) -> None:
    job = await ends(throwing(Fatal("no such user", code="user.unknown")), state="failed")
    assert (*failure(job), job.error.message) == ("fatal", "user.unknown", "no such user")


async def test_snooze_costs_no_attempt(ends: Any) -> None:
    job = await ends(throwing(Snooze(FAR)), state="ready")
    assert (job.attempt, job.row.snoozes, job.error) == (0, 1, None)


async def test_throttle_costs_no_attempt(ends: Any) -> None:
    job = await ends(throwing(Throttle(FAR, cool_queue=False)), state="ready")
    assert (job.attempt, job.row.throttles, job.error) == (0, 1, None)


async def test_cancel_ends_the_job_with_a_reason(ends: Any) -> None:
    job = await ends(throwing(Cancel("not wanted any more")), state="canceled")
    assert (job.reason, job.error) == ("not wanted any more", None)


@pytest.mark.parametrize(
    ("signal", "state"),
    [
        (lambda: Retry("x", code=503), "ready"),  # type: ignore[arg-type]
        (lambda: Fatal("x", code=404), "failed"),  # type: ignore[arg-type]
        (lambda: Cancel(404), "canceled"),  # type: ignore[arg-type]
        (lambda: Retry(None), "ready"),  # type: ignore[arg-type]
        (Halfway, "ready"),
    ],
)
async def test_a_signal_of_odd_content_costs_nobody_but_its_job(ends: Any, signal: Any, state: str) -> None:
    def throw() -> None:
        raise signal()

    await ends(throw, state=state)


async def test_continue_starts_a_new_run_with_the_checkpoint(app: App) -> None:
    seen: list[tuple[int, Any]] = []

    @app.task(name="page")
    async def page(*, ctx: Context = CONTEXT) -> str:
        seen.append((ctx.run, ctx.checkpoint))
        if ctx.run < 3:
            await ctx.asave({"page": ctx.run})
            raise Continue
        return "all"

    async with app.worker():
        job = await page.aenqueue()
        assert await job.aget(30) == "all"
    assert seen == [(1, None), (2, {"page": 1}), (3, {"page": 2})]
    assert job.run == 3


async def test_arguments_that_no_longer_fit_fail_the_attempt(app: App) -> None:
    old = App(app.database.url)
    old.task(name="greet", backoff=FAR)(lambda name, greeting: None)
    job = await old.tasks["greet"].aenqueue(name="ann", greeting="hi")
    await old.aclose()

    @app.task(name="greet", backoff=FAR)
    async def greet(name: str) -> None: ...

    async with app.worker():
        mine = await app.aget_job(job.id)
        await auntil(lambda: recorded(mine))
    assert mine.error is not None
    assert (mine.state, mine.error.code, mine.error.kind) == ("ready", "job.bad_arguments", "error")


async def test_a_handler_of_a_disabled_task_still_runs_its_queued_jobs(app: App) -> None:
    @app.task(name="old")
    async def old() -> str:
        return "done"

    job = await old.aenqueue()
    await app.aset_task("old", enabled=False)
    async with app.worker():
        assert await job.aget(30) == "done"


def _chain(length: int) -> BaseException:
    error: BaseException = ValueError("the last of many")
    first = error
    for number in range(length):
        first.__context__ = KeyError(number)
        first = first.__context__
    return error


@pytest.mark.parametrize(
    "error",
    [_chain(20_000), ExceptionGroup("the last of many", [ValueError(number) for number in range(20_000)])],
    ids=["chain", "group"],
)
def test_an_error_with_thousands_of_others_is_traced_alone(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised:
        raise error
    trace = traced(raised.value)
    assert trace is not None
    assert "the last of many" in trace
    assert "test_endings.py" in trace
    assert len(trace.splitlines()) < 20


def test_an_error_with_a_few_others_is_traced_with_all_of_them() -> None:
    trace = traced(_chain(50))
    assert trace is not None
    assert all(f"KeyError: {number}\n" in trace for number in range(50))


def test_every_signal_stands_for_an_outcome() -> None:
    """One that does not would be recorded as an unexpected error."""
    ours = {signal for signal in Signal.__subclasses__() if signal.__module__ == Signal.__module__}
    assert ours == {*get_args(OutcomeSignal)}
