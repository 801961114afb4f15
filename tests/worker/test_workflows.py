"""Workflows run by a real worker: results on their way, steps that add steps, waiting for the end."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Any

import pytest

from perdure import (
    CONTEXT,
    App,
    Context,
    Continue,
    Fatal,
    Step,
    WaitTimeout,
    Workflow,
    WorkflowFailed,
    chain,
    group,
)
from perdure.errors import BlockingCall, InvalidOption, ResultMissing
from tests.worker import step_process_app

PATIENCE = 60


def fallible(app: App) -> Any:
    @app.task(name="fail", max_attempts=1)
    async def fail() -> int:
        raise RuntimeError("no")

    return fail


async def test_results_of_parents_and_ancestors_reach_a_step(app: App) -> None:
    @app.task(name="start")
    async def start(n: int) -> dict[str, int]:
        return {"n": n}

    @app.task(name="double")
    def double(*, ctx: Context = CONTEXT) -> int:
        return 2 * int(ctx.results["a"]["n"])

    @app.task(name="end")
    async def end(*, ctx: Context = CONTEXT) -> list[Any]:
        with pytest.raises(ResultMissing, match="a is no direct parent"):
            ctx.results["a"]
        with pytest.raises(ResultMissing, match="x is none of this step's ancestors"):
            await ctx.aresult_of("x")
        return [dict(ctx.results), await ctx.aresult_of("a"), "a" in ctx.results]

    flow = Workflow("flow", result="c")
    flow.step("a", start.job(21))
    flow.step("b", double.job(), after=["a"])
    flow.step("c", end.job(), after=["b"])
    flow.step("x", start.job(1))
    async with app.worker():
        started = await app.astart_workflow(flow)
        assert await started.aget(PATIENCE) == [{"b": 42}, {"n": 21}, False]
    assert started.status == "succeeded"


async def test_parents_come_in_the_order_in_which_they_were_made(app: App) -> None:
    """Whatever order the database keeps them in."""

    @app.task(name="start")
    async def start() -> None: ...

    @app.task(name="gather")
    async def gather(*, ctx: Context = CONTEXT) -> list[str]:
        return [*ctx.results]

    flow = Workflow("flow", result="all")
    for key in "abc":
        flow.step(key, start.job())
    flow.step("all", gather.job(), after=["c", "a", "b"])
    async with app.worker():
        started = await app.astart_workflow(flow)
        assert await started.aget(PATIENCE) == ["a", "b", "c"]
    (end,) = [step for step in await started.asteps() if step.key == "all"]
    assert end.after == ["a", "b", "c"]


async def test_a_result_is_an_argument_typed_and_checked_when_it_starts(app: App) -> None:
    @app.task(name="today")
    async def today() -> date:
        return date(2026, 11, 16)

    @app.task(name="show")
    async def show(day: date, more: list[date], note: dict[str, Any]) -> list[Any]:
        return [day.isoformat(), [one.year for one in more], note]

    flow = Workflow("flow", result="show")
    when = flow.step("when", today.job())
    between = flow.step("between", today.job(), after=[when])
    forged = {"perdure.result": "when", "perdure.result~": 1}
    flow.step("show", show.job(when.result, more=[when.result, between.result], note=forged), after=[between])
    plain = flow.step("plain", show.job(date(2026, 1, 1), [], forged))
    async with app.worker():
        started = await app.astart_workflow(flow)
        assert await started.aget(PATIENCE) == ["2026-11-16", [2026, 2026], forged]
        job = await app.aget_job((await started.asteps())[-1].id)
        assert (await job.aget(PATIENCE))[2] == forged
    assert plain.key == "plain"


async def test_an_argument_that_does_not_fit_fails_the_step(app: App) -> None:
    @app.task(name="text")
    async def text() -> str:
        return "no number"

    @app.task(name="number", max_attempts=1)
    async def number(n: int) -> int:
        return n

    flow = Workflow("flow")
    first = flow.step("a", text.job())
    flow.step("b", number.job(first.result), after=[first])  # type: ignore[arg-type]
    async with app.worker():
        started = await app.astart_workflow(flow)
        with pytest.raises(WorkflowFailed):
            await started.aget(PATIENCE)
        step = (await started.asteps())[1]
    assert (step.state, step.error and step.error.code) == ("failed", "job.bad_arguments")


async def test_the_result_of_a_step_that_failed_is_a_clear_error(app: App) -> None:
    fail = fallible(app)

    @app.task(name="use")
    async def use(n: int) -> int:
        return n

    @app.task(name="look")
    async def look(*, ctx: Context = CONTEXT) -> str:
        assert list(ctx.results) == []
        try:
            ctx.results["a"]
        except KeyError as error:
            return str(error)
        return ""

    flow = Workflow("flow", result="c")
    first = flow.step("a", fail.job())
    flow.step("b", use.job(first.result), after_done=[first])
    flow.step("c", look.job(), after_done=[first])
    async with app.worker():
        started = await app.astart_workflow(flow)
        await started.ajoin(PATIENCE)
        steps = {step.key: step for step in await started.asteps()}
    assert steps["b"].state == "failed"
    assert steps["b"].error == (
        "fatal",
        "workflow.result_missing",
        "The step a has no result: it failed.",
        None,
    )
    assert started.result == "The step a has no result: it failed."


async def test_a_result_that_was_too_large_to_keep_is_no_none(app: App) -> None:
    @app.task
    async def export() -> str:
        return "x" * 2_000_000

    @app.task(max_attempts=1)
    async def use(text: str | None) -> str:
        return f"got {text}"

    @app.task(max_attempts=1)
    async def ask(*, ctx: Context = CONTEXT) -> str:
        return f"got {ctx.results['export']}"

    flow = Workflow("flow")
    first = flow.step("export", export.job())
    flow.step("use", use.job(first.result), after=[first])
    flow.step("ask", ask.job(), after=[first])
    async with app.worker():
        started = await app.astart_workflow(flow)
        await started.ajoin(30)
    for step in (await started.asteps())[1:]:
        assert step.error is not None
        assert step.error.code == "workflow.result_missing"
        assert "not kept (result.too_large)" in step.error.message


async def test_a_handler_without_a_context_reads_results_in_a_thread_only(app: App) -> None:
    @app.task(name="one")
    def one() -> int:
        return 1

    @app.task(name="thread")
    def thread() -> int:
        return int(Context.current().results["a"])

    @app.task(name="loop")
    async def loop() -> str:
        with pytest.raises(BlockingCall, match="as a parameter"):
            Context.current().results["a"]
        return "told"

    flow = Workflow("flow", result="b")
    flow.step("a", one.job())
    flow.step("b", thread.job(), after=["a"])
    flow.step("c", loop.job(), after=["a"])
    async with app.worker():
        assert await (await app.astart_workflow(flow)).aget(PATIENCE) == 1


async def test_a_step_adds_steps_of_a_number_that_nobody_knew(app: App) -> None:
    @app.task(name="split")
    async def split(words: list[str], *, ctx: Context = CONTEXT) -> int:
        parts = [Step(f"count-{i}", count.job(word), after=["split"]) for i, word in enumerate(words)]
        ids = ctx.append([*parts, Step("total", total.job([part.result for part in parts]), after=parts)])
        assert len(ids) == len(words) + 1
        if ctx.attempt == 1:
            raise RuntimeError("a failed attempt leaves nothing")
        return len(words)

    @app.task(name="count")
    def count(word: str) -> int:
        return len(word)

    @app.task(name="total")
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    app.tasks["split"].definition  # noqa: B018
    flow = Workflow("words")
    flow.step("split", split.using(max_attempts=2).job(["a", "bb", "ccc"]))
    await app.aset_queue("default", backoff=0.001)
    async with app.worker():
        started = await app.astart_workflow(flow)
        await started.ajoin(PATIENCE)
        steps = {step.key: step for step in await started.asteps()}
        assert (await app.aget_job(steps["total"].id)).result == 6
    assert started.status == "succeeded"
    assert list(steps) == ["split", "count-0", "count-1", "count-2", "total"]


async def test_steps_can_be_added_at_once_and_again_by_the_next_attempt(app: App) -> None:
    @app.task(name="thread")
    def thread(*, ctx: Context = CONTEXT) -> int:
        (id,) = ctx.append([Step("x", leaf.job(1))], at_once=True)
        if ctx.attempt == 1:
            raise RuntimeError("what was written at once stays")
        return app.get_job(id).get(PATIENCE)

    @app.task(name="loop")
    async def loop(*, ctx: Context = CONTEXT) -> int:
        with pytest.raises(BlockingCall, match="aappend"):
            ctx.append([Step("y", leaf.job(2))], at_once=True)
        (id,) = await ctx.aappend([Step("y", leaf.job(2))], at_once=True)
        return int(await (await app.aget_job(id)).aget(PATIENCE))

    @app.task(name="leaf")
    async def leaf(n: int) -> int:
        return n

    flow = Workflow("flow")
    for task in (thread, loop):
        flow.step(task.name, task.using(max_attempts=2).job())
    await app.aset_queue("default", backoff=0.001)
    async with app.worker():
        started = await app.astart_workflow(flow)
        await started.ajoin(PATIENCE)
        steps = {step.key: step for step in await started.asteps()}
        results = {key: (await app.aget_job(step.id)).result for key, step in steps.items()}
    assert results == {"thread": 1, "loop": 2, "x": 1, "y": 2}


async def test_a_requeued_step_that_appended_appends_again(app: App) -> None:
    broken = True

    @app.task(name="split")
    async def split(*, ctx: Context = CONTEXT) -> None:
        ctx.append([Step("part", part.job(), after=["split"])])

    @app.task(name="part")
    async def part() -> None:
        if broken:
            raise Fatal("not yet")

    flow = Workflow("flow")
    flow.step("split", split.job())
    async with app.worker():
        started = await app.astart_workflow(flow)
        await started.ajoin(PATIENCE)
        assert started.status == "failed"
        broken = False
        assert await started.arequeue(steps="all") == "requeued"
        await started.ajoin(PATIENCE)
    assert (started.status, started.run) == ("succeeded", 2)


async def test_a_step_knows_its_key_and_its_workflow(app: App) -> None:
    @app.task(name="there")
    async def there(*, ctx: Context = CONTEXT) -> list[str | None]:
        return [ctx.workflow_id, ctx.step_key]

    @app.task(name="in_a_thread")
    def in_a_thread() -> list[str | None]:
        return [Context.current().workflow_id, Context.current().step_key]

    flow = Workflow("flow")
    for key, task in (("loop", there), ("thread", in_a_thread)):
        flow.step(key, task.job())
    async with app.worker():
        alone = await there.aenqueue()
        started = await app.astart_workflow(flow)
        await started.ajoin(PATIENCE)
        assert await alone.aget(PATIENCE) == await there() == [None, None]
        found = [await app.aget_job(step.id) for step in await started.asteps()]
    assert [job.result for job in found] == [[started.id, "loop"], [started.id, "thread"]]


async def test_only_a_step_can_append(app: App) -> None:
    @app.task(name="alone")
    async def alone(*, ctx: Context = CONTEXT) -> str:
        assert dict(ctx.results) == {}
        with pytest.raises(InvalidOption, match="Only a step"):
            await ctx.aappend([])
        return "refused"

    async with app.worker():
        assert await (await alone.aenqueue()).aget(PATIENCE) == "refused"


async def test_steps_in_processes_have_all_that_others_have(url: str) -> None:
    app = step_process_app.make(url)
    try:
        spin, weave, fan_out = (app.tasks[name] for name in ("spin", "weave", "fan_out"))
        flow = Workflow("loom", result="end")
        a = flow.step("a", spin.job(1))
        b = flow.step("b", spin.job(2), after=[a])
        flow.step("end", weave.job([a.result, b.result]), after=[b])
        flow.step("split", fan_out.job(3), after=[a])
        flow.step("at once", app.tasks["fan_out_at_once"].job(4), after=[a])
        async with app.worker(processes=2, target=step_process_app.TARGET):
            started = await app.astart_workflow(flow)
            await started.ajoin(60)
            assert started.result == {"threads": [1, 2], "results": {"b": 2}, "first": 1, "alone": True}
            states = {step.key: step.state for step in await started.asteps()}
            assert states["all"] == states["beside"] == states["at once"] == "succeeded"
    finally:
        await app.aclose()


async def test_each_run_that_continues_keeps_the_steps_it_added(app: App) -> None:
    @app.task(name="more")
    async def more(*, ctx: Context = CONTEXT) -> None:
        ctx.append([Step(f"run-{ctx.run}", leaf.job(), after=["more"])])
        if ctx.run < 3:
            raise Continue

    @app.task(name="leaf")
    async def leaf() -> None: ...

    flow = Workflow("growing")
    flow.step("more", more.job())
    async with app.worker():
        started = await app.astart_workflow(flow)
        await started.ajoin(PATIENCE)
        states = {step.key: step.state for step in await started.asteps()}
    assert states == dict.fromkeys(["more", "run-1", "run-2", "run-3"], "succeeded")


async def test_a_success_in_the_handlers_own_transaction_releases_what_follows(app: App) -> None:
    @app.task(name="own")
    def own(*, ctx: Context = CONTEXT) -> None:
        with ctx.transaction() as conn:
            ctx.append([Step("more", after.job(), after=["a"])])
            ctx.succeed(7, conn=conn)

    @app.task(name="after")
    async def after(*, ctx: Context = CONTEXT) -> Any:
        return ctx.results["a"]

    flow = Workflow("flow", result="b")
    flow.step("a", own.job())
    flow.step("b", after.job(), after=["a"])
    async with app.worker():
        started = await app.astart_workflow(flow)
        assert await started.aget(PATIENCE) == 7
        assert {step.key: step.state for step in await started.asteps()}["more"] == "succeeded"


async def test_chains_and_groups_are_workflows(app: App) -> None:
    @app.task(name="jobs.one")
    async def one(*, ctx: Context = CONTEXT) -> int:
        return 1 + sum(ctx.results.values())

    async with app.worker():
        line = await app.astart_workflow(chain(one.job(), one.job(), one.job()))
        assert await line.aget(PATIENCE) == 3
        fan = await app.astart_workflow(group([one.job(), one.job()], then=one.job()))
        assert await fan.aget(PATIENCE) == 3
    assert [step.key for step in await fan.asteps()] == ["one", "one-2", "one-3"]


async def test_a_waiter_hears_of_the_end_at_once(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.client import job

    monkeypatch.setattr(job, "FIRST_LOOK", 3600.0)
    monkeypatch.setattr(job, "SLOWEST_LOOK", 3600.0)
    flow = Workflow("flow")
    flow.gate("gate")
    started = await app.astart_workflow(flow)
    with pytest.raises(WaitTimeout):
        await started.ajoin(0.01)
    waiter = asyncio.create_task(started.ajoin(PATIENCE))
    await asyncio.sleep(0.05)
    await app.aresolve_gate(started.id, "gate", "succeeded")
    await waiter
    assert started.status == "succeeded"


async def test_the_time_of_a_gate_runs_out(app: App) -> None:
    flow = Workflow("flow")
    flow.gate("gate", timeout=0.05, on_timeout="succeeded")

    @app.task(name="noop")
    async def noop() -> None: ...

    async with app.worker():
        started = await app.astart_workflow(flow)
        await started.ajoin(PATIENCE)
    assert started.status == "succeeded"


def test_workflows_run_in_the_kit_for_tests(app: App) -> None:
    @app.task(name="kit")
    async def kit(n: int, *, ctx: Context = CONTEXT) -> int:
        return n + sum(ctx.results.values())

    flow = Workflow("kit", result="c")
    a = flow.step("a", kit.job(1))
    flow.gate("gate", after=[a])
    flow.step("c", kit.job(a.result), after=["a", "gate"])
    with app.testing() as t:
        started = app.start_workflow(flow)
        assert [one.args for one in t.enqueued(kit)] == [{"n": 1}, {"n": {"perdure.result": "a"}}]
        t.run_until_idle()
        assert started.refresh().status == "open"
        app.resolve_gate(started.id, "gate", "succeeded", output=10)
        t.run_until_idle()
        assert started.get(timeout=0) == 12
