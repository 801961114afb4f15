"""An app whose handlers, in processes of their own, commit their success with what they write."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from typing import Any

import psycopg

from perdure import CONTEXT, App, Context
from tests.worker.process_app import wait_for
from tests.worker.worker_app import note

TARGET = "tests.worker.own_commit_app:app"
WRITE = "INSERT INTO takings VALUES (1)"


def connect(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    return psycopg.connect(url)


def in_block(url: str, when: str, *, ctx: Context = CONTEXT) -> None:
    """Where it dies, if it does, a failpoint says."""
    with ctx.transaction() as conn:
        conn.execute(WRITE)


async def in_async_block(url: str, when: str, *, ctx: Context = CONTEXT) -> None:
    async with ctx.transaction() as conn:
        if isinstance(conn, sqlite3.Connection):
            conn.execute(WRITE)
        else:
            await conn.execute(WRITE)


def on_own_connection(url: str, when: str, *, ctx: Context = CONTEXT) -> None:
    conn = connect(url)
    conn.execute(WRITE)
    ctx.succeed("done", conn=conn)
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    conn.commit()
    os.kill(os.getpid(), signal.SIGKILL)


def roll_back(*, ctx: Context = CONTEXT) -> str:
    """Has nothing to commit after all, and succeeds like any other."""
    try:
        with ctx.transaction() as conn:
            conn.execute(WRITE)
            ctx.succeed("written", conn=conn)
            raise ValueError("not like this")
    except ValueError:
        return "returned"


def roll_back_and_wait(note_to: str, *, ctx: Context = CONTEXT) -> None:
    roll_back(ctx=ctx)
    note(note_to, "rolled back")
    wait_for(f"{note_to}.never")


def roll_back_unseen(url: str, note_to: str, *, ctx: Context = CONTEXT) -> None:
    """On its own connection: nobody else knows that nothing was committed."""
    with closing(connect(url)) as conn:
        conn.execute(WRITE)
        ctx.succeed("written", conn=conn)
        conn.rollback()
    note(note_to, "rolled back")
    wait_for(f"{note_to}.go")


def commit_late(note_to: str, *, ctx: Context = CONTEXT) -> None:
    """Commits although it was told to stop."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(note_to, f"{os.getpid()}")
    wait_for(f"{note_to}.go")
    with ctx.transaction() as conn:
        conn.execute(WRITE)


def make(url: str | None = None, **options: Any) -> App:
    app = App(url, synchronous="normal", **options)
    for function in (
        in_block,
        in_async_block,
        on_own_connection,
        roll_back,
        roll_back_and_wait,
        roll_back_unseen,
        commit_late,
    ):
        app.task(name=function.__name__, run_in="process", max_attempts=1)(function)
    return app


app = make()
