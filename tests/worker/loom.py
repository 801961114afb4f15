"""An app whose steps run in processes of their own; a child finds it as ``tests.worker.loom:app``."""

from __future__ import annotations

import os

from perdure import CONTEXT, App, Context, Step

TARGET = "tests.worker.loom:app"


def spin(n: int) -> int:
    return n


def weave(threads: list[int], *, ctx: Context = CONTEXT) -> dict[str, object]:
    """What a child sees of the steps before it."""
    return {
        "threads": threads,
        "results": dict(ctx.results),
        "first": ctx.result_of("a"),
        "alone": os.getpid() != os.getppid(),
    }


def fan_out(n: int, *, ctx: Context = CONTEXT) -> int:
    from tests.worker import loom

    parts = [Step(f"part-{i}", loom.app.tasks["spin"].job(i), after=[str(ctx.step_key)]) for i in range(n)]
    ctx.append([*parts, Step("all", loom.app.tasks["weave"].job([p.result for p in parts]), after=parts)])
    return n


def fan_out_at_once(n: int, *, ctx: Context = CONTEXT) -> bool:
    """Whether steps run beside the one that appended them."""
    from tests.worker import loom

    (id,) = ctx.append([Step("beside", loom.app.tasks["spin"].job(n))], at_once=True)
    return bool(loom.app.get_job(id).get(timeout=60) == n)


def make(url: str) -> App:
    made = App(url, synchronous="normal")
    for function in (spin, weave, fan_out, fan_out_at_once):
        made.task(name=function.__name__, run_in="process")(function)
    return made


app = make("sqlite:///unused.db")
