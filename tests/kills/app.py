"""The app whose workers are killed. Its database, and the lease of its workers, come from the environment."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import cast

from perdure import CONTEXT, App, Backoff, Context, Continue, Fatal, Retry, Snooze
from perdure.internal import journal
from perdure.worker.context import JobContext

LEASE = "KILLS_LEASE"
EFFECTS = "effect"
"""The table into which handlers write beside their success."""
STEPS, RUNS = 3, 3

# A killed process loses nothing that was written; only a crash of the machine would.
app = App(lease=float(os.environ.get(LEASE, "1")), synchronous="normal")
tough = app.task(max_attempts=10_000, max_crashes=None, backoff=Backoff(base=0.01, cap=0.1))


@tough
async def quick(n: int) -> int:
    await asyncio.sleep(random.uniform(0, 0.02))
    return n


@tough
def in_a_thread(n: int) -> int:
    time.sleep(random.uniform(0, 0.05))
    return n


@app.task(run_in="process", max_attempts=10_000, max_crashes=None, backoff=Backoff(base=0.01, cap=0.1))
def in_a_process(n: int, *, ctx: Context = CONTEXT) -> int:
    """The first attempt takes its child along."""
    ctx.enqueue(quick.job(n))
    if not find(ctx):
        ctx.save(1)
        saved(ctx, 1)
        raise Retry("not yet")
    return n


@tough
async def talks(n: int, *, ctx: Context = CONTEXT) -> int:
    """Long enough to be reported about while it runs."""
    ctx.stage("talking")
    for done in range(5):
        ctx.progress(done, 5)
        ctx.log(f"{done} of 5")
        await asyncio.sleep(random.uniform(0, 0.1))
    return n


@tough
def fails_once(n: int, *, ctx: Context = CONTEXT) -> int:
    if ctx.attempt == 1:
        raise Retry("not yet")
    return n


@tough
async def snoozes_once(n: int, *, ctx: Context = CONTEXT) -> int:
    if not find(ctx):
        await ctx.asave(1)
        saved(ctx, 1)
        raise Snooze(0.02)
    return n


@tough
def in_steps(n: int, *, ctx: Context = CONTEXT) -> int:
    for step in range(find(ctx), STEPS):
        ctx.save(step + 1)
        saved(ctx, step + 1)
    return n


@tough
async def goes_on(n: int, *, ctx: Context = CONTEXT) -> int:
    """A child in each run."""
    await ctx.aenqueue(quick.job(n))
    await asyncio.sleep(random.uniform(0, 0.02))
    if ctx.run < RUNS:
        raise Continue
    return n


@tough
def has_children(n: int, *, ctx: Context = CONTEXT) -> int:
    """The first attempt takes its children along."""
    ctx.enqueue(quick.job(n), in_a_thread.job(n))
    time.sleep(random.uniform(0, 0.02))
    if ctx.attempt == 1:
        raise Retry("not yet")
    return n


@tough
def pays(n: int, *, ctx: Context = CONTEXT) -> None:
    with ctx.transaction() as connection:
        connection.execute(payment(ctx))


@tough
async def pays_async(n: int, *, ctx: Context = CONTEXT) -> None:
    async with ctx.transaction() as connection:
        paid = connection.execute(payment(ctx))
        if asyncio.iscoroutine(paid):
            await paid


@tough
async def is_doomed(n: int) -> None:
    raise Fatal("as it was meant to be")


def payment(ctx: Context) -> str:
    return f"INSERT INTO {EFFECTS} (job) VALUES ('{ctx.job_id}')"


def find(ctx: Context) -> int:
    """The checkpoint of the attempts before this one."""
    journal.note("found", [_job(ctx)], token=_token(ctx), checkpoint=ctx.checkpoint)
    return ctx.checkpoint or 0


def saved(ctx: Context, checkpoint: int) -> None:
    journal.note("saved", [_job(ctx)], token=_token(ctx), checkpoint=checkpoint)


def _job(ctx: Context) -> str:
    return cast(JobContext, ctx).row.id


def _token(ctx: Context) -> int:
    return cast(JobContext, ctx).row.token
