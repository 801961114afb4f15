"""``app.testing()`` for users' tests: a throw-away database, a clock that the test moves, the real worker."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from perdure import (
    CONTEXT,
    App,
    Cancel,
    Context,
    Fatal,
    Job,
    JobFailed,
    Retry,
    Snooze,
    Step,
    Throttle,
    WaitTimeout,
    Workflow,
)
from perdure.errors import (
    BlockingCall,
    InvalidOption,
    JobNotFound,
    Refused,
    StoreClosed,
    UnsupportedConnection,
)
from perdure.request.middleware import Middleware
from perdure.testing import Testing
from tests.harness.processes import run_script

ROOT = Path(__file__).parent.parent
NOON = datetime(2030, 5, 1, 12, tzinfo=UTC)


class Shop:
    """An app whose own database must never be opened: there is no such directory."""

    def __init__(self, url: str = "sqlite:////nowhere/at/all/jobs.db") -> None:
        self.app = app = App(url)
        self.calls: list[object] = []
        self.failures = 0

        @app.task(name="send", backoff=60, max_attempts=3)
        async def send(to: str, when: datetime | None = None, *, copies: int = 1) -> str:
            self.calls.append(to)
            self._fail_if_asked()
            return to

        @app.task(name="print", backoff=60, max_attempts=3)
        def print_(page: int) -> int:
            self.calls.append(page)
            self._fail_if_asked()
            return page

        @app.task(name="fan_out")
        def fan_out(n: int) -> None:
            for page in range(n):
                print_.enqueue(page)

        @app.task(name="afan_out")
        async def afan_out(n: int) -> None:
            for page in range(n):
                await send.aenqueue(str(page))

        self.send, self.print, self.fan_out, self.afan_out = send, print_, fan_out, afan_out

    def _fail_if_asked(self) -> None:
        if self.failures:
            self.failures -= 1
            raise LookupError("out of paper")


@pytest.fixture
def shop() -> Shop:
    return Shop()


def states(jobs: list[Job[Any]]) -> list[tuple[str, str | None]]:
    return [(job.task, job.state) for job in jobs]


# The block


def test_jobs_are_run_by_the_worker_in_order_and_returned(shop: Shop) -> None:
    with shop.app.testing() as t:
        first = shop.send.enqueue("ann")
        shop.print.enqueue(7)
        shop.send.using(priority=9).enqueue("bob")
        jobs = t.run_until_idle()
        assert states(jobs) == [("send", "succeeded"), ("send", "succeeded"), ("print", "succeeded")]
        assert [job.result for job in jobs] == ["bob", "ann", 7]
        assert shop.calls == ["bob", "ann", 7]
        assert first.get(timeout=1) == "ann"
        assert t.run_until_idle() == []


async def test_the_same_in_async_code_on_its_own_event_loop(shop: Shop) -> None:
    loops: list[object] = []

    @shop.app.task(name="where")
    async def where() -> None:
        loops.append(asyncio.get_running_loop())

    async with shop.app.testing() as t:
        await where.aenqueue()
        await shop.print.aenqueue(7)
        assert states(await t.arun_until_idle()) == [("where", "succeeded"), ("print", "succeeded")]
        assert loops == [asyncio.get_running_loop()]


def test_jobs_that_running_jobs_enqueue_are_run_too(shop: Shop) -> None:
    with shop.app.testing() as t:
        shop.fan_out.enqueue(3)
        shop.afan_out.enqueue(2)
        assert len(t.run_until_idle()) == 7
        assert sorted(map(str, shop.calls)) == ["0", "0", "1", "1", "2"]


def test_the_own_database_of_the_app_is_restored_and_was_never_opened(tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'jobs.db'}")
    with shop.app.testing():
        shop.send.enqueue("ann")
    assert list(tmp_path.iterdir()) == []
    assert shop.app._store is None
    job = shop.send.enqueue("bob")
    assert (tmp_path / "jobs.db").exists()
    assert [one.id for one in shop.app.list_jobs()] == [job.id]
    shop.app.close()


def test_an_app_in_use_goes_on_after_the_block_as_before_it(sqlite_url: str) -> None:
    shop = Shop(sqlite_url)
    before = shop.send.enqueue("ann")
    store, operations = shop.app.store, shop.app.operations
    with shop.app.testing() as t:
        assert shop.app.operations is not operations
        inside = shop.send.enqueue("bob")
        with pytest.raises(JobNotFound):
            shop.app.get_job(before.id)
        t.run_until_idle()
    assert (shop.app.store, shop.app.operations) == (store, operations)
    assert shop.app.get_job(before.id).state == "ready"
    with pytest.raises(JobNotFound):
        shop.app.get_job(inside.id)
    shop.app.close()


def test_a_task_registered_in_the_block_is_new_to_the_own_database(sqlite_url: str) -> None:
    shop = Shop(sqlite_url)
    shop.app.save_tasks()
    with shop.app.testing() as t:
        late = shop.app.task(name="late")(lambda: 5)
        late.enqueue()
        assert [job.result for job in t.run_until_idle()] == [5]
    assert late.enqueue().state == "ready"
    shop.app.close()


def test_an_error_in_the_block_restores_too_and_leaves_no_file(shop: Shop) -> None:
    files: list[Path] = []
    with pytest.raises(ZeroDivisionError), shop.app.testing() as t:  # noqa: PT012
        shop.send.enqueue("ann")
        files.append(Path(t.url.removeprefix("sqlite:///")))
        assert files[0].exists()
        raise ZeroDivisionError
    assert shop.app._store is None
    assert not files[0].parent.exists()


def test_a_block_inside_a_block_is_refused_and_the_outer_one_goes_on(shop: Shop) -> None:
    with shop.app.testing() as t:
        with pytest.raises(Refused, match="leave that block first"), shop.app.testing():
            pass
        shop.send.enqueue("ann")
        assert len(t.run_until_idle()) == 1


def test_a_block_that_is_over_runs_and_reads_nothing(shop: Shop) -> None:
    with shop.app.testing() as t:
        shop.send.enqueue("ann")
    with pytest.raises(Refused, match="has ended"):
        t.run_until_idle()
    with pytest.raises(StoreClosed):
        t.enqueued()
    assert shop.app._store is None


def test_every_block_begins_empty(shop: Shop) -> None:
    for _ in range(2):
        with shop.app.testing() as t:
            assert t.enqueued() == []
            shop.send.using(idempotency_key="once").enqueue("ann")
            assert len(t.enqueued()) == 1


def test_modules_of_the_app_are_imported_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_by_testing.py").write_text("loaded = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with App("sqlite:////nowhere/jobs.db", imports=["imported_by_testing"]).testing():
        assert "imported_by_testing" in sys.modules


def test_a_transaction_of_ones_own_can_be_joined_in_the_throw_away_database(shop: Shop) -> None:
    with shop.app.testing() as t:
        shop.app.save_tasks()
        conn = sqlite3.connect(t.url.removeprefix("sqlite:///"))
        shop.send.using(conn=conn).enqueue("ann")
        assert t.enqueued() == []
        conn.commit()
        conn.close()
        assert len(t.run_until_idle()) == 1


def test_a_few_trivial_jobs_wait_for_no_poll(shop: Shop) -> None:
    def took() -> float:
        with shop.app.testing() as t:
            for page in range(3):
                shop.print.enqueue(page)
            began = perf_counter()
            assert len(t.run_until_idle()) == 3
            return perf_counter() - began

    # The best of a few: the machine may be busy.
    assert min(took() for _ in range(5)) < 1


# The clock


def test_the_clock_stands_still_and_is_moved_by_hand(shop: Shop) -> None:
    with shop.app.testing(at=NOON) as t:
        assert t.now == NOON
        assert t.advance(hours=1) == t.now == NOON + timedelta(hours=1)
        assert t.advance(timedelta(days=1), minutes=1) == NOON + timedelta(days=1, hours=1, minutes=1)
        job = shop.send.enqueue("ann").refresh()
        assert job.run_at == t.now


def test_without_a_time_it_begins_now(shop: Shop) -> None:
    before = datetime.now(UTC)
    with shop.app.testing() as t:
        assert before - timedelta(milliseconds=1) <= t.now <= datetime.now(UTC)


@pytest.mark.parametrize("by", [timedelta(seconds=-1), timedelta(days=365 * 300)])
def test_the_clock_goes_neither_back_nor_out_of_bounds(shop: Shop, by: timedelta) -> None:
    with shop.app.testing(at=NOON) as t:
        with pytest.raises(InvalidOption):
            t.advance(by)
        assert t.now == NOON


@pytest.mark.parametrize("by", [60, 1.5, "1h"])
def test_a_number_says_not_of_what(shop: Shop, by: Any) -> None:
    with shop.app.testing() as t, pytest.raises(InvalidOption, match=r"advance\(seconds=60\)"):
        t.advance(by)


def test_a_time_without_a_zone_is_refused(shop: Shop) -> None:
    with pytest.raises(InvalidOption, match="time zone"):
        shop.app.testing(at=datetime(2030, 5, 1))


def test_delayed_jobs_run_when_the_clock_gets_there(shop: Shop) -> None:
    with shop.app.testing(at=NOON) as t:
        shop.send.using(delay=3600).enqueue("ann")
        shop.send.using(run_at=NOON + timedelta(hours=2)).enqueue("bob")
        assert t.run_until_idle() == []
        t.advance(minutes=59, seconds=59)
        assert t.run_until_idle() == []
        t.advance(seconds=1)
        assert [job.result for job in t.run_until_idle()] == ["ann"]
        t.advance(hours=1)
        assert [job.result for job in t.run_until_idle()] == ["bob"]


def test_a_failed_attempt_is_tried_again_after_its_back_off(shop: Shop) -> None:
    shop.failures = 1
    with shop.app.testing() as t:
        job = shop.send.enqueue("ann")
        (tried,) = t.run_until_idle()
        assert (tried.state, tried.attempt) == ("ready", 1)
        assert tried.error is not None
        assert tried.error.message == "LookupError: out of paper"
        assert t.run_until_idle() == []
        t.advance(minutes=5)
        (again,) = t.run_until_idle()
        assert (again.id, again.state, again.attempt) == (job.id, "succeeded", 2)


def test_what_was_not_started_in_time_expires(shop: Shop) -> None:
    with shop.app.testing() as t:
        job = shop.send.using(expires=60).enqueue("ann")
        t.advance(seconds=60)
        assert t.run_until_idle() == []
        assert (job.refresh().state, job.reason) == ("canceled", "expired")


def test_a_worker_that_falls_silent_loses_its_job_to_the_next_run(shop: Shop) -> None:
    with shop.app.testing() as t:
        job = shop.send.enqueue("ann")
        operations = shop.app.operations
        operations.register("gone", name="gone", lease=30_000_000)
        assert [one.id for one in operations.claim("gone", tasks=["send"], n=1)] == [job.id]
        assert t.run_until_idle() == []
        t.advance(seconds=30)
        assert [(one.id, one.state, one.attempt) for one in t.run_until_idle()] == [(job.id, "succeeded", 2)]


def test_a_handler_may_move_the_clock_without_losing_its_job(shop: Shop) -> None:
    with shop.app.testing() as t:

        @shop.app.task(name="slow")
        def slow() -> int:
            t.advance(days=1)
            return len(shop.app.operations.rescue())

        slow.enqueue()
        assert [(job.state, job.result) for job in t.run_until_idle()] == [("succeeded", 0)]


# To the end


def test_run_until_done_follows_retries_and_delays_to_their_end(shop: Shop) -> None:
    shop.failures = 2
    with shop.app.testing(at=NOON) as t:
        shop.send.enqueue("ann")
        shop.send.using(delay=86_400).enqueue("bob")
        jobs = t.run_until_done()
        assert [(job.result, job.state, job.attempt) for job in jobs] == [
            ("ann", "succeeded", 3),
            ("bob", "succeeded", 1),
        ]
        assert t.now == NOON + timedelta(days=1)


async def test_run_until_done_in_async_code_ends_with_jobs_that_fail_for_good(shop: Shop) -> None:
    shop.failures = 99
    async with shop.app.testing() as t:
        await shop.send.aenqueue("ann")
        assert [(job.state, job.attempt) for job in await t.arun_until_done()] == [("failed", 3)]


def test_run_until_done_waits_for_queues_that_cool_down(shop: Shop) -> None:
    throttled = [True]

    @shop.app.task(name="call", queue="api")
    def call(n: int) -> int:
        if throttled:
            throttled.clear()
            raise Throttle(delay=600)
        return n

    with shop.app.testing(at=NOON) as t:
        call.enqueue(1)
        call.enqueue(2)
        assert states(t.run_until_done()) == [("call", "succeeded")] * 2
        assert t.now >= NOON + timedelta(seconds=600)


def test_jobs_that_come_back_for_ever_end_at_the_limit(shop: Shop) -> None:
    @shop.app.task(name="again")
    def again() -> None:
        raise Snooze(60)

    with shop.app.testing() as t:
        again.enqueue()
        with pytest.raises(Refused, match="after 5 attempts"):
            t.run_until_done(limit=5)


def test_run_until_done_says_so_when_something_can_never_run(shop: Shop) -> None:
    with shop.app.testing() as t:
        shop.app.pause_queue("default")
        job = shop.send.enqueue("ann")
        assert t.run_until_idle() == []
        with pytest.raises(Refused, match=rf"1 jobs are left that cannot run.*{job.id}"):
            t.run_until_done()
        shop.app.resume_queue("default")
        assert len(t.run_until_done()) == 1


def test_run_until_done_waits_for_a_pause_that_ends_by_itself(shop: Shop) -> None:
    with shop.app.testing() as t:
        begin = t.now
        shop.app.pause_queue("default", resume_at=timedelta(hours=1))
        job = shop.send.enqueue("ann")
        assert t.run_until_idle() == []
        assert [one.id for one in t.run_until_done()] == [job.id]
        assert t.now - begin >= timedelta(hours=1)


def test_declared_queues_are_in_the_database_of_a_test_and_then_in_the_own_one(tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path}/jobs.db")
    shop.app.queue("mail", concurrency=3)
    with shop.app.testing() as t:
        shop.app.set_queue("mail", concurrency=1)
        shop.app.queue("late", timeout=5)
        shop.send.enqueue("ann")
        t.run_until_done()
        assert [(queue.name, queue.concurrency) for queue in shop.app.list_queues()] == [
            ("late", None),
            ("mail", 1),
        ]
    shop.send.enqueue("bob")
    assert [(queue.name, queue.concurrency) for queue in shop.app.list_queues()] == [
        ("late", None),
        ("mail", 3),
    ]
    shop.app.close()


def test_run_until_done_waits_for_the_expiry_of_what_cannot_run(shop: Shop) -> None:
    with shop.app.testing() as t:
        shop.app.pause_queue("default")
        job = shop.send.using(expires=60).enqueue("ann")
        assert t.run_until_done() == []
        assert job.refresh().state == "canceled"


def test_run_until_done_waits_for_workers_that_fell_silent(shop: Shop) -> None:
    with shop.app.testing() as t:
        job = shop.send.enqueue("ann")
        shop.app.operations.register("gone", name="gone", lease=30_000_000)
        shop.app.operations.claim("gone", tasks=["send"], n=1)
        assert [(one.id, one.state) for one in t.run_until_done()] == [(job.id, "succeeded")]


# Errors


def test_the_first_error_is_raised_with_its_own_traceback_when_asked(shop: Shop) -> None:
    shop.failures = 1
    with shop.app.testing() as t:
        shop.print.enqueue(1)
        shop.print.enqueue(2)
        with pytest.raises(LookupError, match="out of paper") as caught:
            t.run_until_idle(raise_errors=True)
        assert caught.traceback[-1].name == "_fail_if_asked"
        assert [one.job.state for one in t.enqueued(shop.print)] == ["ready", "succeeded"]


async def test_the_error_of_an_async_handler_is_the_very_object(shop: Shop) -> None:
    error = ValueError("mine")

    @shop.app.task(name="fail")
    async def fail() -> None:
        raise error

    async with shop.app.testing() as t:
        await fail.aenqueue()
        with pytest.raises(ValueError, match="mine") as caught:
            await t.arun_until_idle(raise_errors=True)
        assert caught.value is error


@pytest.mark.parametrize("error", [Fatal("no"), Retry("later"), SystemExit(3)])
def test_signals_that_fail_an_attempt_are_errors_too(shop: Shop, error: BaseException) -> None:
    def fail() -> None:
        raise error

    with shop.app.testing(raise_errors=True) as t:
        shop.app.task(name="fail")(fail).enqueue()
        with pytest.raises(type(error)):
            t.run_until_idle()


@pytest.mark.parametrize("signal", [Snooze(60), Throttle(60), Cancel("enough")])
def test_signals_that_fail_nothing_are_not_raised(shop: Shop, signal: BaseException) -> None:
    def end() -> None:
        raise signal

    with shop.app.testing(raise_errors=True) as t:
        shop.app.task(name="end")(end).enqueue()
        assert len(t.run_until_idle()) == 1


def test_a_handler_whose_time_was_up_is_an_error_too(shop: Shop) -> None:
    @shop.app.task(name="slow", timeout=0.05)
    async def slow() -> None:
        await asyncio.Event().wait()

    with shop.app.testing() as t:
        slow.enqueue()
        with pytest.raises(JobFailed, match="timeout"):
            t.run_until_idle(raise_errors=True)


def test_what_was_recorded_instead_of_a_success_is_an_error_too(shop: Shop) -> None:
    @shop.app.task(name="grow", max_attempts=1)
    def grow(*, ctx: Context = CONTEXT) -> None:
        ctx.append([Step("b", grow.job(), after=["nobody"])])

    flow = Workflow("flow")
    flow.step("a", grow.job())
    with shop.app.testing() as t:
        shop.app.start_workflow(flow)
        with pytest.raises(JobFailed, match="nobody"):
            t.run_until_idle(raise_errors=True)


def test_a_run_that_takes_too_long_names_what_is_at_work(shop: Shop) -> None:
    @shop.app.task(name="hang")
    async def hang() -> None:
        await asyncio.Event().wait()

    with shop.app.testing() as t:
        job = hang.enqueue()
        with pytest.raises(WaitTimeout, match=r"after 1 s; running tasks: hang\.$"):
            t.run_until_idle(timeout=1)
        assert job.refresh().state != "running"
        with pytest.raises(WaitTimeout, match=r"after 0 s"):
            t.run_until_idle(timeout=0)


async def test_blocking_runs_are_refused_in_an_event_loop(shop: Shop) -> None:
    with shop.app.testing() as t:
        with pytest.raises(BlockingCall, match=r"await arun_until_idle\(\)"):
            t.run_until_idle()
        with pytest.raises(BlockingCall, match=r"await arun_until_done\(\)"):
            t.run_until_done()


def test_a_run_leaves_the_threads_event_loop_as_it_was(shop: Shop) -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        with shop.app.testing() as t:
            shop.send.enqueue("ann")
            t.run_until_idle()
        assert asyncio.get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


# The real worker


def test_handlers_have_a_real_context_and_the_apps_middleware(shop: Shop) -> None:
    seen: ContextVar[str] = ContextVar("seen")

    class Mark(Middleware):
        def run(self, task: str, context: Context) -> Any:
            seen.set(task)
            return super().run(task, context)

    @shop.app.task(name="look", backoff=1)
    def look(*, ctx: Context = CONTEXT) -> str:
        if ctx.attempt == 1:
            ctx.save({"page": 3})
            raise Retry
        return f"{seen.get()} {ctx.checkpoint['page']} {ctx.attempt}"

    shop.app.use(Mark())
    with shop.app.testing() as t:
        look.enqueue()
        assert [job.result for job in t.run_until_done()] == ["look 3 2"]


def test_those_who_subscribed_hear_of_it_and_what_they_enqueue_is_run(shop: Shop) -> None:
    @shop.app.task(name="doomed", on_failed=lambda event: shop.print.enqueue(9))
    def doomed() -> None:
        raise Fatal("no")

    with shop.app.testing() as t:
        doomed.enqueue()
        assert states(t.run_until_idle()) == [("doomed", "failed"), ("print", "succeeded")]


def test_tasks_for_processes_run_here_where_a_test_can_patch(shop: Shop) -> None:
    patched = threading.get_ident

    @shop.app.task(name="plain", run_in="process")
    def plain() -> bool:
        return patched is threading.get_ident

    @shop.app.task(name="async", run_in="process")
    async def async_() -> bool:
        return patched is threading.get_ident

    with shop.app.testing() as t:
        plain.enqueue()
        async_.enqueue()
        assert [job.result for job in t.run_until_idle()] == [True, True]


def test_jobs_run_one_by_one_unless_told_otherwise(shop: Shop) -> None:
    meeting = threading.Barrier(2)

    @shop.app.task(name="meet", max_attempts=1)
    def meet(patience: float) -> None:
        meeting.wait(patience)

    with shop.app.testing() as t:
        meet.enqueue(0)
        meet.enqueue(0)
        assert [job.state for job in t.run_until_idle()] == ["failed", "failed"]
        meeting.reset()
        meet.enqueue(60)
        meet.enqueue(60)
        assert [job.state for job in t.run_until_idle(concurrency=2)] == ["succeeded", "succeeded"]


def test_jobs_obey_their_limits() -> None:
    app, running, most = App("sqlite:////nowhere/at/all/jobs.db"), Counter[str](), Counter[str]()
    app.limit("printer", concurrency=2)

    @app.task(name="print", limits=["printer"])
    async def print_page(page: int) -> None:
        await run("printer")

    @app.task(name="sync", concurrency=1, concurrency_key="{customer}")
    async def sync_customer(customer: str) -> None:
        await run(customer)

    async def run(name: str) -> None:
        running[name] += 1
        most[name] = max(most[name], running[name])
        await asyncio.sleep(0.01)
        running[name] -= 1

    with app.testing() as t:
        for n in range(6):
            print_page.enqueue(n)
            sync_customer.enqueue("ann")
        sync_customer.enqueue("bob")
        assert len(t.run_until_idle(concurrency=20)) == 13
        assert most == {"printer": 2, "ann": 1, "bob": 1}
        app.set_limit("printer", concurrency=None)
        for n in range(6):
            print_page.enqueue(n)
        t.run_until_done(concurrency=20)
        assert most["printer"] == 6, "the limit was lifted"
    with app.testing():
        app.save_tasks()
        assert [(limit.name, limit.concurrency) for limit in app.list_limits()] == [
            ("sync", 1),
            ("printer", 2),
        ]


# What was enqueued


def test_what_was_enqueued_is_told_in_order_with_typed_arguments(shop: Shop) -> None:
    with shop.app.testing() as t:
        first = shop.send.enqueue("ann", NOON)
        shop.print.enqueue(1)
        second = shop.send.using(delay=60).enqueue("bob", copies=2)
        sent = t.enqueued(shop.send)
        assert [one.job.id for one in sent] == [first.id, second.id]
        assert [one.args for one in sent] == [{"to": "ann", "when": NOON}, {"to": "bob", "copies": 2}]
        assert [one.job.task for one in t.enqueued()] == ["send", "print", "send"]
        assert [one.args for one in t.enqueued("print")] == [{"page": 1}]
        t.run_until_idle()
        assert [one.job.id for one in t.enqueued(shop.send, state="ready")] == [second.id]
        assert [one.job.result for one in t.enqueued(shop.send, state="succeeded")] == ["ann"]


async def test_what_was_enqueued_can_be_read_in_async_code(shop: Shop) -> None:
    async with shop.app.testing() as t:
        await shop.send.aenqueue("ann")
        assert [one.args for one in t.enqueued()] == [{"to": "ann"}]


def test_more_than_a_page_is_told_completely(shop: Shop) -> None:
    with shop.app.testing() as t:
        shop.app.enqueue_many([shop.print.job(page) for page in range(1001)])
        assert [one.args["page"] for one in t.enqueued(shop.print)] == list(range(1001))


def test_an_assertion_finds_a_job_by_some_of_its_arguments_or_tells_what_there_is(shop: Shop) -> None:
    with shop.app.testing() as t:
        with pytest.raises(AssertionError, match="none at all"):
            t.assert_enqueued(shop.send, to="ann")
        job = shop.send.enqueue("ann", NOON)
        assert t.assert_enqueued(shop.send, to="ann").job.id == job.id
        assert t.assert_enqueued("send").args == {"to": "ann", "when": NOON}
        with pytest.raises(AssertionError, match=r"with \{'to': 'bob'\}; there are:\n  \{'to': 'ann'"):
            t.assert_enqueued(shop.send, to="bob")


# Inline


def test_inline_an_enqueue_has_run_its_job_when_it_returns(shop: Shop) -> None:
    with shop.app.testing(inline=True):
        job = shop.send.enqueue("ann")
        assert (job.state, job.result, job.created) == ("succeeded", "ann", True)
        many = shop.app.enqueue_many([shop.print.job(1), shop.print.job(2)])
        assert [one.result for one in many] == [1, 2]
        assert shop.app.enqueue("print", {"page": 3}).result == 3
        assert shop.app.enqueue_many([]) == []


async def test_inline_in_async_code(shop: Shop) -> None:
    async with shop.app.testing(inline=True):
        assert (await shop.send.aenqueue("ann")).result == "ann"
        assert (await shop.print.aenqueue(7)).result == 7


def test_inline_is_over_with_the_block(shop: Shop) -> None:
    with shop.app.testing(inline=True):
        pass
    with shop.app.testing() as t:
        assert shop.send.enqueue("ann").state == "ready"
        assert len(t.run_until_idle()) == 1


@pytest.mark.parametrize("depth", [1, 12])
def test_inline_jobs_enqueue_jobs_inline(shop: Shop, depth: int) -> None:
    @shop.app.task(name="down")
    def down(n: int) -> int:
        return 0 if n == 0 else 1 + (down.enqueue(n - 1).result or 0)

    with shop.app.testing(inline=True):
        assert down.enqueue(depth).result == depth


@pytest.mark.parametrize("depth", [1, 40])
async def test_inline_async_jobs_enqueue_jobs_inline(shop: Shop, depth: int) -> None:
    @shop.app.task(name="down")
    async def down(n: int) -> int:
        return 0 if n == 0 else 1 + ((await down.aenqueue(n - 1)).result or 0)

    async with shop.app.testing(inline=True):
        assert (await down.aenqueue(depth)).result == depth


def test_inline_errors_are_raised_to_the_enqueuer_and_the_attempt_is_recorded(shop: Shop) -> None:
    shop.failures = 1
    with shop.app.testing(inline=True) as t:
        with pytest.raises(LookupError, match="out of paper") as caught:
            shop.send.enqueue("ann")
        assert caught.traceback[-1].name == "_fail_if_asked"
        (failed,) = t.enqueued()
        assert (failed.job.state, failed.job.attempt) == ("ready", 1)
        assert [job.state for job in t.run_until_done()] == ["succeeded"]


def test_inline_errors_can_stay_with_the_job_as_in_production(shop: Shop) -> None:
    shop.failures = 1
    with shop.app.testing(inline=True, raise_errors=False):
        job = shop.send.enqueue("ann")
        assert (job.state, job.attempt) == ("ready", 1)


def test_inline_a_nested_error_that_is_caught_goes_no_further(shop: Shop) -> None:
    @shop.app.task(name="careful")
    def careful() -> str:
        try:
            shop.print.enqueue(1)
        except LookupError:
            return "caught"
        return "missed"

    shop.failures = 1
    with shop.app.testing(inline=True):
        assert careful.enqueue().result == "caught"


def test_inline_what_is_not_due_yet_waits_for_the_clock(shop: Shop) -> None:
    with shop.app.testing(inline=True) as t:
        job = shop.send.using(delay=60).enqueue("ann")
        assert (job.state, shop.calls) == ("ready", [])
        t.advance(seconds=60)
        assert len(t.run_until_idle()) == 1


def test_inline_a_workflow_has_run_when_its_start_returns(shop: Shop) -> None:
    flow = Workflow("flow", result="end")
    first = flow.step("first", shop.send.job("ann"))
    flow.gate("approve", after=[first])
    flow.step("end", shop.send.job("bob"), after=["approve"])
    with shop.app.testing(inline=True):
        started = shop.app.start_workflow(flow)
        assert started.status == "open"
        shop.app.resolve_gate(started.id, "approve", "succeeded")
        assert started.refresh().status == "succeeded"
        failed = Workflow("failed")
        failed.gate("approve")
        failed.step("end", shop.send.job("cy"), after=["approve"])
        again = shop.app.start_workflow(failed)
        shop.app.append_steps(
            again.id, window="approve", mutation_key="m", steps=[Step("more", shop.send.job("dan"))]
        )
        assert {step.key: step.state for step in again.steps()}["more"] == "succeeded"


def test_run_until_done_moves_the_clock_to_the_time_out_of_a_gate(shop: Shop) -> None:
    flow = Workflow("flow")
    flow.gate("approve", timeout=timedelta(days=3), on_timeout="succeeded")
    flow.step("end", shop.send.using(delay=60).job("ann"), after=["approve"])
    flow.gate("for ever")
    with shop.app.testing() as t:
        began = t.now
        started = shop.app.start_workflow(flow)
        assert [job.state for job in t.run_until_done()] == ["succeeded"]
        assert t.now - began == timedelta(days=3, seconds=60)
        assert started.refresh().status == "open", "nobody says when the other one ends"


def test_inline_inside_ones_own_transaction_is_refused(shop: Shop) -> None:
    with shop.app.testing(inline=True) as t:
        shop.app.save_tasks()
        conn = sqlite3.connect(t.url.removeprefix("sqlite:///"))
        with pytest.raises(UnsupportedConnection, match="inline"):
            shop.send.using(conn=conn).enqueue("ann")
        conn.close()
        assert t.enqueued() == []


# The plugin

PROJECT = """
from perdure import App
app = App("sqlite:////nowhere/at/all/jobs.db")

@app.task
async def send(to: str) -> str:
    return to

def test_plain(perdure_testing):
    send.enqueue("ann")
    assert [job.result for job in perdure_testing.run_until_idle()] == ["ann"]

def test_begins_empty(perdure_testing):
    assert perdure_testing.enqueued() == []
"""


class Project:
    """A user's project whose tests are run by a pytest of their own, with these plugins and no others."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._root.joinpath("pytest.ini").write_text("[pytest]\nfilterwarnings = error\npythonpath = .\n")

    def write(self, name: str, text: str) -> None:
        self._root.joinpath(name).write_text(text)

    def configure(self, *lines: str) -> None:
        with self._root.joinpath("pytest.ini").open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def run(self, *options: str, plugins: tuple[str, ...] = ()) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "perdure.pytest_plugin"]
        for plugin in plugins:
            command += ["-p", plugin]
        environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "", "PYTHONPATH": ":".join(sys.path)}
        ran = subprocess.run(
            [*command, *options], cwd=self._root, env=environment, capture_output=True, text=True
        )
        return ran.stdout + ran.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_the_fixture_takes_the_app_from_the_configuration(project: Project) -> None:
    project.write("test_shop.py", PROJECT)
    project.configure("perdure_app = test_shop:app")
    assert "2 passed" in project.run()


def test_the_fixture_takes_the_app_from_a_fixture(project: Project) -> None:
    project.write(
        "test_shop.py", PROJECT + "\nimport pytest\n@pytest.fixture\ndef perdure_app(): return app\n"
    )
    assert "2 passed" in project.run()


def test_without_an_app_the_fixture_says_what_to_do(project: Project) -> None:
    project.write("test_shop.py", PROJECT)
    told = project.run()
    assert "2 errors" in told
    assert 'set perdure_app = "module:app"' in told


def test_what_is_no_app_is_refused(project: Project) -> None:
    project.write("test_shop.py", PROJECT)
    project.configure("perdure_app = test_shop:send")
    assert "test_shop:send is not a perdure App" in project.run()


def test_the_fixture_works_in_processes_of_xdist(project: Project) -> None:
    project.write("test_shop.py", PROJECT)
    project.configure("perdure_app = test_shop:app")
    assert "2 passed" in project.run("-n2", plugins=("xdist.plugin",))


ASYNC = """
async def test_async(perdure_testing):
    await send.aenqueue("ann")
    assert [job.result for job in await perdure_testing.arun_until_idle()] == ["ann"]
"""


@pytest.mark.parametrize(
    ("plugin", "mark"),
    [
        ("pytest_asyncio.plugin", "import pytest\npytestmark = pytest.mark.asyncio\n"),
        (
            "anyio.pytest_plugin",
            "import pytest\npytestmark = pytest.mark.anyio\n"
            "@pytest.fixture\ndef anyio_backend(): return 'asyncio'\n",
        ),
    ],
)
def test_the_fixture_serves_async_tests(project: Project, plugin: str, mark: str) -> None:
    project.write("shop.py", PROJECT.partition("def test_plain")[0])
    project.write("test_shop.py", f"from shop import send\n{mark}{ASYNC}")
    project.configure("perdure_app = shop:app", "asyncio_default_fixture_loop_scope = function")
    assert "1 passed" in project.run("-W", "ignore:Unknown config option", plugins=(plugin,))


def test_the_plugin_is_found_by_pytest_and_costs_nothing_until_it_is_used() -> None:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert described["project"]["entry-points"]["pytest11"] == {"perdure": "perdure.pytest_plugin"}
    unwanted = {"perdure.app", "perdure.testing", "msgspec", "sqlite3", "psycopg"}
    program = (
        "import sys, pytest; before = set(sys.modules); import perdure.pytest_plugin; "
        f"print(*sorted((set(sys.modules) - before) & {unwanted | {'asyncio'}}))"
    )
    assert run_script(program).split() == []


# The page about it


def test_every_example_of_the_page_runs() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(program, "docs/testing.md", "exec"), names)
    tests: dict[str, Callable[..., Any]] = {
        name: value for name, value in names.items() if name.startswith("test_")
    }
    assert len(tests) >= 6
    for test in tests.values():
        with names["app"].testing() as t:
            arguments = {"perdure_testing": t} if "perdure_testing" in test.__code__.co_varnames else None
            if arguments is not None:
                test(**arguments)
        if arguments is None:
            given = test()
            if asyncio.iscoroutine(given):
                asyncio.run(given)


def test_the_kit_is_not_taken_for_a_class_of_tests() -> None:
    assert Testing.__test__ is False


def test_jobs_of_one_state_are_in_the_order_of_their_enqueue_whenever_they_are_due(sqlite_url: str) -> None:
    app = App(sqlite_url)
    task = app.task(name="work")(lambda n: None)
    with app.testing() as t:
        for n, delay in enumerate((30, 60, 0, 10)):
            task.using(delay=delay).enqueue(n)
        assert [one.args["n"] for one in t.enqueued(state="ready")] == [0, 1, 2, 3]
    app.close()
