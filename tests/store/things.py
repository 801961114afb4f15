"""A table of things, the operations on it, and a store that knows them: what a store does, without jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.errors import Refused
from perdure.ops.op import Op, Query, Rows, announce, ask, ask_all, ask_last, operation
from perdure.store.postgres.store import PostgresStore
from perdure.store.statements import Dialect, render

TABLE = "CREATE TABLE perdure_thing (id text PRIMARY KEY, note text, at {time})"
TIMES: Mapping[Dialect, str] = {"sqlite": "integer", "postgres": "timestamptz"}

_TEXTS = {
    "insert": "INSERT INTO perdure_thing (id, note, at) VALUES (:id, :note, :now) RETURNING id",
    "insert_once": "INSERT INTO perdure_thing (id, note) VALUES (:id, :note) ON CONFLICT DO NOTHING",
    "update": "UPDATE perdure_thing SET note = :note WHERE id = :id RETURNING id",
    "read": "SELECT id, note FROM perdure_thing ORDER BY id",
    "read_times": "SELECT at FROM perdure_thing ORDER BY id",
    "one": "SELECT 1",
}
_POSTGRES_TEXTS = {
    "sleep": "SELECT pg_catalog.pg_sleep(CAST(:seconds AS double precision))",
    "cut": "SELECT pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid())",
    "backend": "SELECT pg_catalog.pg_backend_pid()",
    "setting": "SELECT pg_catalog.current_setting(:setting)",
    "isolation": "SELECT pg_catalog.current_setting('transaction_isolation')",
    "fail": "SELECT pg_catalog.json_array_length(CAST(CAST(:secret AS text) AS json))",
    "prepared": "SELECT count(*) FROM pg_catalog.pg_prepared_statements",
}


def statements(dialect: Dialect, **more: str) -> Mapping[str, str]:
    texts = _TEXTS | (_POSTGRES_TEXTS if dialect == "postgres" else {}) | more
    return {name: render(text, dialect) for name, text in texts.items()}


def postgres_store(url: str, *, more: Mapping[str, str] | None = None, **options: Any) -> PostgresStore:
    return PostgresStore(url, statements=statements("postgres", **(more or {})), **options)


@operation("write")
def insert(id: str, note: str | None = None, wake: frozenset[str] = frozenset()) -> Op[Rows]:
    return (yield from ask_last("insert", id=id, note=note, wake=wake))


@operation("write")
def insert_once(id: str, note: str | None = None) -> Op[Rows]:
    return (yield from ask_last("insert_once", id=id, note=note))


@operation("write")
def insert_two(first: str, second: str) -> Op[list[Rows]]:
    """Both or none, in one step."""
    queries = [Query("insert", {"id": id, "note": None}) for id in (first, second)]
    return list((yield from ask_all(*queries, final=True)))


@operation("write")
def insert_in_steps(first: str, second: str) -> Op[None]:
    """Both or none, in two steps."""
    yield from ask("insert", id=first, note=None)
    yield from ask_last("insert", id=second, note=None)


@operation("write")
def insert_without_end(id: str, wake: frozenset[str] = frozenset()) -> Op[Rows]:
    """No step is final, and the wake-up comes last."""
    rows = yield from ask("insert", id=id, note=None)
    yield from announce(wake)
    return rows


@operation("write")
def insert_and_refuse(id: str, wake: frozenset[str] = frozenset()) -> Op[None]:
    yield from ask("insert", id=id, note=None)
    yield from announce(wake)
    raise Refused("Not today.")


@operation("read")
def read() -> Op[list[str]]:
    rows = yield from ask("read")
    return [row[0] for row in rows]


@operation("read")
def read_twice() -> Op[list[int]]:
    first = yield from ask("read")
    second = yield from ask("read")
    return [len(first), len(second)]


@operation("read")
def run(name: str, **params: str | int | float | bool | None) -> Op[Rows]:
    """Any one statement."""
    (rows,) = yield from ask_all(Query(name, params), final=True)
    return rows


@operation("write", priority="urgent")
def run_urgently(name: str, **params: str | int | float | bool | None) -> Op[Rows]:
    (rows,) = yield from ask_all(Query(name, params), final=True)
    return rows
