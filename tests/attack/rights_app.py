"""A program for a worker with no more rights than it needs: its database is $PERDURE_URL."""

from __future__ import annotations

from perdure import CONTEXT, App, Context, Step, Throttle

app = App()


@app.task(name="talk", max_attempts=2, backoff=0)
def talk(n: int, *, ctx: Context = CONTEXT) -> int:
    ctx.log("on the way")
    ctx.progress(1, 2)
    ctx.save({"n": n})
    if ctx.attempt == 1:
        raise ValueError("the first time it fails")
    return n


@app.task(name="grow")
def grow(*, ctx: Context = CONTEXT) -> None:
    ctx.append([Step("grown", talk.job(3))])
    ctx.enqueue(talk.job(4))
    talk.enqueue(5)


@app.task(name="rest")
def rest(*, ctx: Context = CONTEXT) -> None:
    if ctx.checkpoint is None:
        ctx.save(1)
        raise Throttle(0, cool_queue=False)


@app.task(name="alone", run_in="process")
def alone(*, ctx: Context = CONTEXT) -> str:
    ctx.log("from a process of its own")
    return "done"
