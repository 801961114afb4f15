"""An app whose steps run in processes of their own; a child finds it as ``tests.worker.step_process_app:app``."""

from __future__ import annotations

import os

from perdure import CONTEXT, App, Context, Step

TARGET = "tests.worker.step_process_app:app"


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
    from tests.worker import step_process_app

    parts = [
        Step(f"part-{i}", step_process_app.app.tasks["spin"].job(i), after=[str(ctx.step_key)])
        for i in range(n)
    ]
    ctx.append(
        [*parts, Step("all", step_process_app.app.tasks["weave"].job([p.result for p in parts]), after=parts)]
    )
    return n


def fan_out_at_once(n: int, *, ctx: Context = CONTEXT) -> bool:
    """Whether steps run beside the one that appended them."""
    from tests.worker import step_process_app

    (id,) = ctx.append([Step("beside", step_process_app.app.tasks["spin"].job(n))], at_once=True)
    return bool(step_process_app.app.get_job(id).get(timeout=60) == n)


def make(url: str) -> App:
    made = App(url, synchronous="normal")
    for function in (spin, weave, fan_out, fan_out_at_once):
        made.task(name=function.__name__, run_in="process")(function)
    return made


app = make("sqlite:///unused.db")
