"""Ways in which a worker was once brought down, misled or left behind; each stays closed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from perdure import CONTEXT, App, Context, Continue, Snooze
from tests.harness.waiting import auntil


@pytest.fixture
def app(url: str) -> Iterator[App]:
    app = App(url, lease=2)
    app.migrate()
    yield app
    app.close()


@pytest.mark.parametrize("delay", [None, float("nan"), "30", -1])
def test_a_signal_with_a_delay_that_is_none_ends_no_other_job(app: App, delay: Any) -> None:
    class Later(Snooze):
        def __init__(self) -> None:
            Exception.__init__(self)
            self.delay = delay

    @app.task(name="bad", max_attempts=1)
    async def bad() -> None:
        raise Later

    @app.task(name="good")
    async def good() -> None: ...

    jobs = [good.enqueue(), bad.enqueue(), good.enqueue()]
    assert app.run_worker(burst=True) == 0
    assert [job.refresh().state for job in jobs] == ["succeeded", "failed", "succeeded"]


def test_an_error_that_raises_when_it_is_shown_is_recorded(app: App) -> None:
    class Evil(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

    @app.task(name="evil", max_attempts=1)
    async def evil() -> None:
        raise Evil

    job = evil.enqueue()
    assert app.run_worker(burst=True) == 0
    assert job.refresh().state == "failed"


def test_a_success_that_was_rolled_back_is_written_again(app: App, url: str) -> None:
    with _connection(url) as connection:
        connection.execute("CREATE TABLE effect (n integer)")
        connection.commit()

    @app.task(name="twice", max_attempts=1)
    def twice(*, ctx: Context = CONTEXT) -> None:
        for n in (1, 2):
            try:
                with ctx.transaction() as conn:
                    conn.execute(f"INSERT INTO effect VALUES ({n})")
                    ctx.succeed(n, conn=conn)
                    if n == 1:
                        raise ValueError("a later statement failed")
            except ValueError:
                continue

    job = twice.enqueue()
    assert app.run_worker(burst=True) == 0
    assert job.refresh().state == "succeeded"
    assert job.row is not None
    assert job.row.result == "2"
    with _connection(url) as connection:
        assert connection.execute("SELECT n FROM effect").fetchall() == [(2,)]


def test_a_burst_goes_on_with_what_its_jobs_leave_behind(app: App) -> None:
    @app.task(name="again")
    async def again(*, ctx: Context = CONTEXT) -> int:
        if ctx.run < 5:
            raise Continue
        return ctx.run

    job = again.enqueue()
    assert app.run_worker(burst=True, poll=60) == 0
    assert (job.refresh().state, job.result) == ("succeeded", 5)


def test_a_plain_function_that_returns_a_coroutine_has_failed(app: App) -> None:
    async def inner() -> None: ...

    @app.task(name="wrapped", max_attempts=1)
    def wrapped() -> Any:
        return inner()

    job = wrapped.enqueue()
    assert app.run_worker(burst=True) == 0
    assert job.refresh().state == "failed"
    assert job.error is not None
    assert "coroutine" in job.error.message


def test_a_worker_that_ends_with_its_loop_gives_back_what_it_runs(app: App) -> None:
    begun = asyncio.Event()

    @app.task(name="rest", max_attempts=1)
    async def rest() -> None:
        begun.set()
        await asyncio.sleep(60)

    job = rest.enqueue()

    async def serve() -> None:
        async with app.worker():
            await asyncio.sleep(60)

    async def main() -> None:
        worker = asyncio.create_task(serve())
        await begun.wait()
        assert not worker.done()

    asyncio.run(main())
    job.refresh()
    assert (job.state, job.attempt, job.error and job.error.kind) == ("ready", 0, "interrupted")


def test_who_leaves_in_a_hurry_leaves_no_handler_behind(app: App) -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    @app.task(name="rest")
    async def rest() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("stopped")

    job = rest.enqueue()

    async def serve() -> None:
        async with app.worker():
            await begun.wait()

    async def main() -> None:
        task = asyncio.create_task(serve())
        await begun.wait()
        # The block ends by itself and drains; it is cancelled meanwhile, however far it has come.
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (ended, job.refresh().state, app.list_workers()) == (["stopped"], "ready", [])


def _connection(url: str) -> Any:
    if url.startswith("sqlite"):
        return _Closing(sqlite3.connect(url.removeprefix("sqlite:///")))
    return psycopg.connect(url)


class _Closing:
    """sqlite3's own block ends a transaction, not the connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, *exc: object) -> None:
        self._connection.close()


async def test_rows_that_somebody_holds_do_not_slow_a_worker_down(postgres_url: str) -> None:
    """It once waited for its next poll after every claim that came home short."""
    app = App(postgres_url)
    ran: list[int] = []

    @app.task(name="work")
    async def work(n: int) -> None:
        ran.append(n)

    await app.amigrate()
    held = await app.aenqueue_many([work.using(priority=5).job(-1) for _ in range(3)])
    await app.aenqueue_many([work.job(n) for n in range(40)])
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        for job in held:
            await app.acancel_job(job.id, conn=connection)
        async with app.worker(concurrency=5, poll=300):
            await auntil(lambda: sorted(ran) == list(range(40)))
            await connection.commit()
    await app.aclose()


def test_a_burst_does_not_end_before_expired_jobs_are_out_of_the_way(url: str) -> None:
    app = App(url)

    @app.task(name="work")
    async def work(n: int) -> None: ...

    app.migrate()
    app.enqueue_many([work.using(expires=0.001).job(n) for n in range(20_000)])
    live = work.enqueue(-1)
    assert app.run_worker(burst=True, concurrency=1) == 0
    assert live.refresh().state == "succeeded"
    app.close()
