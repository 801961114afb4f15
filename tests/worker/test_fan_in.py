"""Steps that join many parents: every result is there, read in few statements, and few bytes are held."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any

import psycopg
import pytest

from perdure import CONTEXT, App, Context, Workflow
from perdure.errors import BlockingCall, ResultMissing
from perdure.ops.op import Operation
from perdure.ops.results import PAGE_BYTES
from perdure.worker import held_results, step_needs
from tests.harness.waiting import auntil
from tests.worker import fan
from tests.worker.waiting import until_state

PATIENCE = 60
LARGE = 1_000_000


def large(_: int) -> str:
    return f'"{"x" * (LARGE - 2)}"'


class Reads:
    """The reads of results on every connection of an app, by the names of their operations."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = Counter[str]()
        self.ids = Counter[str]()
        self.allowed = asyncio.Event()
        self.allowed.set()
        store = type(app.store)
        perform, aperform = store.perform, store.aperform

        def counting(store: Any, operation: Operation[..., Any], *args: Any, **kwargs: Any) -> Any:
            self._count(operation, args)
            return perform(store, operation, *args, **kwargs)

        async def acounting(store: Any, operation: Operation[..., Any], *args: Any, **kwargs: Any) -> Any:
            if self._count(operation, args):
                await self.allowed.wait()
            return await aperform(store, operation, *args, **kwargs)

        monkeypatch.setattr(store, "perform", counting)
        monkeypatch.setattr(store, "aperform", acounting)

    def _count(self, operation: Operation[..., Any], args: Any) -> bool:
        if operation.start.__module__ != "perdure.ops.results":
            return False
        self.made[operation.name] += 1
        if operation.name == "read_results":
            self.ids.update(args[0])
        return True


@pytest.fixture
def reads(app: App, monkeypatch: pytest.MonkeyPatch) -> Reads:
    fan.add_leaf(app)
    return Reads(app, monkeypatch)


async def results_of(app: App, started: Any) -> dict[str, Any]:
    """Of the steps behind the leaves, all of which must have succeeded."""
    steps = [step for step in await started.asteps() if step.task != "leaf"]
    assert {step.key: step.error for step in steps} == {step.key: None for step in steps}
    return {step.key: (await app.aget_job(step.id)).result for step in steps}


@pytest.mark.parametrize("n", [1_001, *(pytest.param(n, marks=pytest.mark.long) for n in (1_000, 2_500))])
async def test_a_join_sees_every_parent_however_it_asks(url: str, n: int) -> None:
    app = fan.make(url)
    tasks = [f"{verb} in {kind}" for kind in fan.KINDS for verb in ("look", "add")]
    try:
        started = await app.astart_workflow(fan.fan_in(app, n, *tasks))
        fan.settle(app, started)
        async with app.worker(processes=1, target=fan.TARGET):
            await started.ajoin(PATIENCE)
        results = await results_of(app, started)
    finally:
        await app.aclose()
    total = n * (n - 1) // 2
    for kind in fan.KINDS:
        found = results[f"look in {kind}"]
        assert found.pop("first and last") == ["leaf-0", f"leaf-{n - 1}"]
        assert found.pop("len") == found.pop("iterated") == found.pop("contained") == n
        assert set(found.values()) == {total}, kind
        assert results[f"add in {kind}"] == total


@pytest.mark.parametrize("n", [1_500, *(pytest.param(n, marks=pytest.mark.long) for n in (999, 3_500))])
async def test_a_page_of_parents_costs_one_statement(app: App, reads: Reads, n: int) -> None:
    """Also as arguments, and those asked for one by one are there already."""

    @app.task(name="add", max_attempts=1)
    async def add(numbers: list[int], *, ctx: Context = CONTEXT) -> list[int]:
        each = [await ctx.aresult_of(key) for key in ctx.results]
        return [sum(numbers), sum(each), sum(ctx.results.values())]

    started = await app.astart_workflow(fan.fan_in(app, n, "add"))
    fan.settle(app, started)
    async with app.worker():
        await started.ajoin(PATIENCE)
    assert await results_of(app, started) == {"add": [n * (n - 1) // 2] * 3}
    assert reads.made == {"read_parents": n // 1000 + 1}


async def test_one_walk_finds_all_ancestors_that_arguments_name(app: App, reads: Reads) -> None:
    n = 300

    @app.task(name="between")
    async def between() -> None: ...

    @app.task(name="add", max_attempts=1)
    async def add(numbers: list[int], *, ctx: Context = CONTEXT) -> list[int]:
        return [sum(numbers), len(ctx.results), await ctx.aresult_of("leaf-7")]

    flow = Workflow("far")
    leaves = [flow.step(f"leaf-{i}", app.tasks["leaf"].job(i)) for i in range(n)]
    middle = flow.step("between", between.job(), after=leaves)
    flow.step("add", add.job([leaf.result for leaf in leaves]), after=[middle])
    started = await app.astart_workflow(flow)
    fan.settle(app, started)
    async with app.worker():
        await started.ajoin(PATIENCE)
    assert (await results_of(app, started))["add"] == [n * (n - 1) // 2, 1, 7]
    # The handler itself asked for one more.
    assert reads.made == {"read_parents": 1, "find_ancestors": 2}


async def test_results_that_steps_share_are_read_and_held_once(app: App, reads: Reads) -> None:
    """Five joins behind some parents of a megabyte, all running at the same time."""
    n = 4
    running: list[Context] = []
    together = asyncio.Event()

    @app.task(name="join", max_attempts=1)
    async def join(*, ctx: Context = CONTEXT) -> int:
        running.append(ctx)
        await together.wait()
        return sum(len(value) for value in ctx.results.values())

    flow = Workflow("shared")
    leaves = [flow.step(f"leaf-{i}", app.tasks["leaf"].job(i)) for i in range(n)]
    for i in range(5):
        flow.step(f"join-{i}", join.job(), after=leaves)
    started = await app.astart_workflow(flow)
    fan.settle(app, started, result=large)
    async with app.worker(queues=["default"]) as worker:
        held = worker._slots._steps.held
        await auntil(lambda: len(running) == 5)
        # The first result came along with the parents of each.
        assert held.bytes == (n - 1) * LARGE
        assert sum(fan.held_by(ctx) for ctx in running) == 5 * n * LARGE
        texts = {id(p.result) for ctx in running for p in ctx.step_results.parents}  # type: ignore[attr-defined]
        assert len(texts) <= (n - 1) + 5
        together.set()
        await started.ajoin(PATIENCE)
        await auntil(lambda: held.bytes == 0)
    assert set((await results_of(app, started)).values()) == {n * (LARGE - 2)}
    assert set(reads.ids.values()) == {1}
    assert len(reads.ids) == n - 1


@pytest.mark.parametrize(
    ("n", "most"), [(3, 9 * LARGE), pytest.param(15, held_results.MOST_HELD, marks=pytest.mark.long)]
)
async def test_large_needs_wait_for_room_and_nobody_waits_for_them(
    app: App, reads: Reads, n: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six joins of which no more than four fit at the same time."""
    monkeypatch.setattr(held_results, "MOST_HELD", most)
    running: list[str | None] = []
    together = asyncio.Event()

    @app.task(name="join", max_attempts=1)
    async def join(*, ctx: Context = CONTEXT) -> int:
        running.append(ctx.step_key)
        await together.wait()
        return sum(len(value) for value in ctx.results.values())

    @app.task(name="small", max_attempts=1)
    async def small(*, ctx: Context = CONTEXT) -> int:
        return sum(ctx.results.values())

    flow, beside = Workflow("large"), Workflow("small", result="small")
    for i in range(6):
        leaves = [flow.step(f"leaf-{i}-{k}", app.tasks["leaf"].job(k)) for k in range(n)]
        flow.step(f"join-{i}", join.job(), after=leaves)
    beside.step("small", small.job(), after=[beside.step("leaf", app.tasks["leaf"].job(0))])
    started = await app.astart_workflow(flow)
    fan.settle(app, started, result=large)
    async with app.worker(queues=["default"]) as worker:
        held = worker._slots._steps.held
        await auntil(lambda: len(running) == 4)
        late = await app.astart_workflow(beside)
        await asyncio.to_thread(fan.settle, app, late, result=lambda _: "7")
        assert await late.aget(PATIENCE) == 7
        assert len(running) == 4
        assert held.bytes == 4 * (n - 1) * LARGE <= most  # the first of each came along with its parents
        together.set()
        await started.ajoin(PATIENCE)
        await auntil(lambda: held.bytes == 0)
    assert set((await results_of(app, started)).values()) == {n * (LARGE - 2)}


@pytest.mark.parametrize(
    ("n", "most"), [(5, 4 * LARGE), pytest.param(60, step_needs.MOST_AHEAD, marks=pytest.mark.long)]
)
async def test_results_beyond_what_is_read_ahead_are_read_when_asked_for(
    app: App, n: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four joins behind parents of a megabyte: none ever holds more than two of them."""
    fan.add_leaf(app)
    monkeypatch.setattr(step_needs, "MOST_AHEAD", most)

    @app.task(name="loop", max_attempts=1)
    async def loop(*, ctx: Context = CONTEXT) -> int:
        assert (len(ctx.results), "leaf-4" in ctx.results) == (n, True)
        for ask in (ctx.results.get, ctx.results.__getitem__, lambda _: dict(ctx.results)):
            with pytest.raises(
                BlockingCall, match=r"await ctx.aresult_of\(key\), or go through ctx.aresults"
            ):
                ask("leaf-4")
        assert len(await ctx.aresult_of("leaf-4")) == LARGE - 2
        assert len(await asyncio.to_thread(lambda: ctx.results["leaf-3"])) == LARGE - 2
        total = 0
        async for _, value in ctx.aresults():
            total += len(value)
            assert fan.held_by(ctx) <= fan.MOST_HELD_BY_ONE
        return total

    app.task(name="thread", max_attempts=1)(fan.weigh)
    flow = Workflow("lazy")
    leaves = [flow.step(f"leaf-{i}", app.tasks["leaf"].job(i)) for i in range(n)]
    for i in range(2):
        flow.step(f"loop-{i}", app.tasks["loop"].job(), after=leaves)
        flow.step(f"thread-{i}", app.tasks["thread"].job(), after=leaves)
    started = await app.astart_workflow(flow)
    fan.settle(app, started, result=large)
    async with app.worker():
        await started.ajoin(PATIENCE)
    results = await results_of(app, started)
    assert set(results.values()) == {n * (LARGE - 2)}


@pytest.mark.long
async def test_a_process_reads_what_it_asks_for_itself(url: str) -> None:
    app = fan.make(url)
    try:
        started = await app.astart_workflow(fan.fan_in(app, 60, "weigh"))
        fan.settle(app, started, result=large)
        async with app.worker(processes=1, target=fan.TARGET):
            await started.ajoin(PATIENCE)
        assert await results_of(app, started) == {"weigh": 60 * (LARGE - 2)}
    finally:
        await app.aclose()


async def test_pages_are_read_ahead_by_whoever_goes_through_them(app: App, reads: Reads) -> None:
    """A hundred results of 30 kB are three pages, not a hundred reads."""
    n, size = 100, 30_000

    app.task(name="thread", max_attempts=1)(fan.weigh)
    started = await app.astart_workflow(fan.fan_in(app, n, "thread"))
    fan.settle(app, started, result=lambda _: f'"{"x" * (size - 2)}"')
    async with app.worker():
        await started.ajoin(PATIENCE)
    assert await results_of(app, started) == {"thread": n * (size - 2)}
    pages = -(-n * size // PAGE_BYTES)
    assert reads.made["read_parents"] == 1
    assert reads.made["read_results"] <= pages


async def test_arguments_that_grow_too_large_are_a_clear_error(
    app: App, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One result may be referred to a thousand times: that is known before it is read."""
    monkeypatch.setattr(step_needs, "MOST_ARGUMENTS", 2 * LARGE)

    @app.task(name="add", max_attempts=3)
    async def add(texts: list[str]) -> int:
        return sum(map(len, texts))

    flow = Workflow("amplified")
    leaf = flow.step("leaf", app.tasks["leaf"].job(0))
    flow.step("fits", add.job([leaf.result] * 2), after=[leaf])
    flow.step("amplified", add.job([leaf.result] * 3), after=[leaf])
    started = await app.astart_workflow(flow)
    fan.settle(app, started, result=large)
    async with app.worker():
        await started.ajoin(PATIENCE)
    steps = {step.key: step for step in await started.asteps()}
    assert steps["fits"].state == "succeeded"
    error = steps["amplified"].error
    assert error is not None
    assert (error.kind, error.code) == ("fatal", "job.payload_too_large")
    assert "read one result at a time" in error.message


async def test_the_timeout_of_a_step_covers_the_reading_of_its_results(app: App, reads: Reads) -> None:
    @app.task(name="join", max_attempts=1, timeout=0.2)
    async def join(*, ctx: Context = CONTEXT) -> None: ...

    reads.allowed.clear()
    started = await app.astart_workflow(fan.fan_in(app, 1, "join"))
    fan.settle(app, started)
    async with app.worker():
        await started.ajoin(PATIENCE)
        step = (await started.asteps())[-1]
        assert step.error is not None
        assert step.error.kind == "timeout"
        assert step.error.message == "The results it needs were not read within 0.2 s."
        reads.allowed.set()


async def test_a_step_can_be_canceled_while_its_results_are_read(app: App, reads: Reads) -> None:
    @app.task(name="join", max_attempts=1)
    async def join(*, ctx: Context = CONTEXT) -> None: ...

    reads.allowed.clear()
    started = await app.astart_workflow(fan.fan_in(app, 1, "join"))
    fan.settle(app, started)
    async with app.worker():
        await auntil(lambda: reads.made["read_parents"])
        job = await app.aget_job((await started.asteps())[-1].id)
        await app.acancel_job(job.id)
        await until_state(job, "canceled")
        reads.allowed.set()


async def test_a_parent_that_failed_is_told_among_thousands(app: App, reads: Reads) -> None:
    n = 1_100

    @app.task(name="fail", max_attempts=1)
    async def fail() -> None:
        raise RuntimeError("no")

    @app.task(name="join", max_attempts=1)
    async def join(*, ctx: Context = CONTEXT) -> list[Any]:
        with pytest.raises(ResultMissing, match="it failed"):
            ctx.results["failed"]
        with pytest.raises(ResultMissing, match="no direct parent"):
            ctx.results["nobody"]
        return [len(ctx.results), "failed" in ctx.results, ctx.results.get("failed")]

    flow = Workflow("flow", result="join")
    leaves = [flow.step(f"leaf-{i}", app.tasks["leaf"].job(i)) for i in range(n)]
    failed = flow.step("failed", fail.job())
    flow.step("join", join.job(), after_done=[*leaves, failed])
    started = await app.astart_workflow(flow)
    fan.settle(app, started)
    async with app.worker():
        await started.ajoin(PATIENCE)
    steps = {step.key: step.id for step in await started.asteps()}
    assert (await app.aget_job(steps["join"])).result == [n, False, None]


async def test_arguments_that_cannot_be_read_fail_their_step_alone(app: App, url: str, reads: Reads) -> None:
    """Nested more deeply than Python goes, by hand: with references they are read before the handler begins."""

    @app.task(name="look", max_attempts=1)
    async def look(deep: list[Any], *, ctx: Context = CONTEXT) -> int:
        return len(ctx.results)

    flow = Workflow("flow")
    leaf = flow.step("leaf", app.tasks["leaf"].job(0))
    for key in ("bad", "good"):
        flow.step(key, look.job([leaf.result]), after=[leaf])
    started = await app.astart_workflow(flow)
    bad = next(step.id for step in await started.asteps() if step.key == "bad")
    write_payload(url, bad, f'{{"deep":{"[" * 990}{{"perdure.result":"leaf"}}{"]" * 990}}}')
    fan.settle(app, started)
    async with app.worker(queues=["default"]):
        await started.ajoin(PATIENCE)
    steps = {step.key: step for step in await started.asteps()}
    assert (steps["bad"].state, steps["good"].state) == ("failed", "succeeded")


def write_payload(url: str, job: str, payload: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
            file.execute("UPDATE perdure_job SET payload = ? WHERE id = ?", (payload, job))
    else:
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE perdure.job SET payload = %s WHERE id = %s", (payload, job))
