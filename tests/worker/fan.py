"""An app whose steps join many parents, in every kind of handler; a child finds it as ``tests.worker.fan:app``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perdure import CONTEXT, App, Context, StartedWorkflow, Workflow
from perdure.model.job import SECOND
from perdure.model.lifecycle import Outcome, Succeeded
from perdure.ops import claim, finish, worker
from perdure.ops.results import PAGE_BYTES
from perdure.request.ids import new_id
from perdure.worker.context import JobContext

TARGET = "tests.worker.fan:app"
KINDS = ("async", "thread", "process")
LEAVES = "leaves"
MOST_HELD_BY_ONE = 2 * PAGE_BYTES
"""What came along with the parents, and the last page that was read."""


def leaf(n: int) -> int:
    """Never run by a worker: ``settle`` ends it."""
    raise NotImplementedError


def seen(results: Mapping[str, Any]) -> dict[str, Any]:
    """Every way to ask a mapping for what it has."""
    keys = [*results]
    return {
        "len": len(results),
        "iterated": len(keys),
        "contained": sum(key in results for key in keys),
        "gotten": sum(results[key] for key in keys),
        "values": sum(results.values()),
        "items": sum(value for _, value in results.items()),
        "first and last": [keys[0], keys[-1]] if keys else [],
    }


async def look_async(*, ctx: Context = CONTEXT) -> dict[str, Any]:
    one_by_one = [await ctx.aresult_of(key) for key in ctx.results]
    streamed = [value async for _, value in ctx.aresults()]
    return {**seen(ctx.results), "result_of": sum(one_by_one), "streamed": sum(streamed)}


def look(*, ctx: Context = CONTEXT) -> dict[str, Any]:
    return {**seen(ctx.results), "result_of": sum(ctx.result_of(key) for key in ctx.results)}


async def add_async(numbers: list[int]) -> int:
    return sum(numbers)


def add(numbers: list[int]) -> int:
    return sum(numbers)


def weigh(*, ctx: Context = CONTEXT) -> int:
    """Go through results that are large together, and never hold many of them."""
    total = 0
    for n, value in enumerate(ctx.results.values()):
        total += len(value)
        if n % 10 == 0 and n < 100:
            assert held_by(ctx) <= MOST_HELD_BY_ONE
    return total


def held_by(ctx: Context) -> int:
    """Bytes of results that a context holds."""
    assert isinstance(ctx, JobContext)
    results = ctx.step_results
    held = [parent.result for parent in (*(results.parents or ()), *results._page.values())]
    return sum(len(result) for result in {id(result): result for result in held if result}.values())


def make(url: str) -> App:
    made = App(url, synchronous="normal")
    add_leaf(made)
    made.task(name="weigh", run_in="process", max_attempts=1)(weigh)
    functions: Mapping[str, Sequence[Callable[..., Any]]] = {
        "async": (look_async, add_async),
        "thread": (look, add),
        "process": (look, add),
    }
    for kind, (looks, adds) in functions.items():
        options: Any = {"max_attempts": 1, **({"run_in": "process"} if kind == "process" else {})}
        made.task(name=f"look in {kind}", **options)(looks)
        made.task(name=f"add in {kind}", **options)(adds)
    return made


def add_leaf(app: App) -> None:
    app.task(name="leaf", queue=LEAVES)(leaf)


def settle(app: App, started: StartedWorkflow, *, result: Callable[[int], str] = str) -> None:
    """End all leaves as a worker does, with ``result(n)`` as the JSON of the nth, without running them."""
    store = app.store
    name = new_id()
    store.perform(worker.register, name, name="settler", lease=60 * SECOND)
    n = 0
    while jobs := store.perform(claim.claim, claim.ClaimRequest(name, ["leaf"], 500, [LEAVES])).jobs:
        ends: list[Outcome] = []
        for job in jobs:
            ends.append(Succeeded(job.lease, result(n), workflow=started.id))
            n += 1
        assert store.perform(finish.finish, ends, jitter=lambda: 0.5).refused == []
    store.perform(worker.retire, name)


def fan_in(app: App, n: int, *tasks: str) -> Workflow:
    """So many leaves, and behind all of them one step of each of these tasks, named like it."""
    flow = Workflow("fan-in", most_steps=n + len(tasks))
    leaves = [flow.step(f"leaf-{i}", app.tasks["leaf"].job(i)) for i in range(n)]
    for task in tasks:
        arguments = [[each.result for each in leaves]] if task.startswith("add") else []
        flow.step(task, app.tasks[task].job(*arguments), after=leaves)
    return flow


app = make("sqlite:///unused.db")
