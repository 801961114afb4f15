"""One app on one database for all fuzzing, and the rule that every call must keep."""

from __future__ import annotations

import asyncio
import sqlite3
import traceback
from collections.abc import Callable
from contextlib import closing
from functools import cache
from typing import Any

import psycopg

from perdure import App, Step, Workflow
from perdure.client.job import Job
from perdure.errors import PerdureError
from perdure.model.job import SECOND
from perdure.store.statements import Dialect, render
from tests.fuzz.odd import SECRET
from tests.sql.tally import TABLES
from tests.test_errors import CLASSES, codes_in_the_package

MOST_JOBS = 300
"""With more rows, they are deleted: the tables that each example reads must stay small."""

SETTINGS = ("queue", "named_limit", "limit_lock")

_COUNT = "SELECT " + ", ".join(f"(SELECT count(*) FROM perdure.{table})" for table in TABLES)


@cache
def codes() -> set[str]:
    """Those of docs/errors.md."""
    return {error.code for error in CLASSES.values()} | {code for _, code in codes_in_the_package()}


class Ground:
    def __init__(self, url: str) -> None:
        self.url = url
        self.dialect: Dialect = "sqlite" if url.startswith("sqlite") else "postgres"
        self.driver_error = sqlite3.Error if self.dialect == "sqlite" else psycopg.Error
        self.app = App(url, synchronous="normal")
        self.work = self.app.task(name="work", queue="default")(_work)
        # Known to the database, but not to the app.
        with App(url) as elsewhere:
            elsewhere.task(name="elsewhere")(lambda **_: None)
            elsewhere.save_tasks()
        self.app.save_tasks()
        self.app.operations.register("fuzz", name="fuzz", lease=36_000 * SECOND, tasks=["work"])
        self.loop = asyncio.new_event_loop()
        self._connection = self._connect()

    def close(self) -> None:
        self._connection.close()
        self.loop.close()
        self.app.close()

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        """Run SQL as another program would, on a separate connection. Parameters are ``?``."""
        text = render(text, self.dialect)
        if self.dialect == "postgres":
            text = text.replace("?", "%s")
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(text, params)
            return cursor.fetchall() if cursor.description else []

    def rows(self) -> tuple[object, ...]:
        """How many each table has, and all settings."""
        (counts,) = self.sql(_COUNT)
        return *counts, *(self.sql(f"SELECT * FROM perdure.{table} ORDER BY 1") for table in SETTINGS)

    def tidy(self) -> None:
        (jobs,) = self.sql("SELECT count(*) FROM perdure.job")[0]
        if jobs > MOST_JOBS:
            for table in TABLES:
                if table not in ("task", "worker"):
                    self.sql(f"DELETE FROM perdure.{table}")

    def call(self, method: str, /, *, waits: bool = False, **asked: Any) -> Any:
        """A method of the app, in blocking code or in an event loop."""
        if waits:
            return self.loop.run_until_complete(getattr(self.app, f"a{method}")(**asked))
        return getattr(self.app, method)(**asked)

    def ask(self, do: Callable[[], Any]) -> Any:
        """The answer, or the refusal: a perdure error that helps, shows no secret and has changed nothing."""
        self.tidy()
        before = self.rows()
        try:
            return do()
        except PerdureError as error:
            judge(error)
            assert self.rows() == before, "a refusal has written"
            return error

    def job(self, **options: Any) -> Job[Any]:
        return self.work.using(**options).enqueue(1)

    def workflow(self) -> str:
        """One whose gate is open."""
        flow = Workflow("flow")
        gate = flow.gate("gate")
        flow.add(Step("behind", self.work.job(1), after=[gate]))
        return self.app.start_workflow(flow).id

    def _connect(self) -> Any:
        if self.dialect == "postgres":
            return psycopg.connect(self.url, autocommit=True)
        return sqlite3.connect(
            self.url.removeprefix("sqlite:///"), isolation_level=None, timeout=10, check_same_thread=False
        )


def judge(error: PerdureError) -> None:
    assert error.code in codes(), f"{error.code} is not in docs/errors.md"
    # These are errors of perdure itself, never of the input.
    assert error.code not in ("perdure.internal", "perdure.error", "store.refused", "store.constraint")
    assert len(str(error)) > 10
    assert SECRET not in shown(error)


def shown(error: BaseException) -> str:
    """What a log or a client may print of an error and of those it came from, without the lines of code."""
    parts = [str(error), repr(error), repr(error.args)]
    for line in traceback.TracebackException.from_exception(error).format():
        parts += [text for text in line.splitlines() if not text.startswith("    ")]
    return "\n".join(parts)


def _work(n: Any = 0, *, note: Any = "") -> Any:
    return n
