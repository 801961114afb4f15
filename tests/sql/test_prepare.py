"""Every statement on a live database of each kind, with exactly the parameters its operations give it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import psycopg
import pytest
from psycopg import postgres

from perdure.store.postgres.adapt import LOADERS, Statement
from perdure.store.statements import Dialect, load
from perdure.store.store import open_store
from tests.sql import texts
from tests.sql.recorder import Recorder, perform_everything


def given(url: str) -> Mapping[str, set[frozenset[str]]]:
    """The parameters each statement was given when every operation was performed once."""
    store = open_store(url)
    store.migrate()
    recorder = Recorder(store)
    perform_everything(recorder)
    store.close()
    params: dict[str, set[frozenset[str]]] = {}
    for query in recorder.queries:
        if query.only in (None, "embedded" if store.embedded else "server"):
            params.setdefault(query.name, set()).add(frozenset(query.params))
    return params


def wanted(dialect: Dialect) -> Mapping[str, set[frozenset[str]]]:
    """The parameters each statement names; the store adds ``now``."""
    statements = texts.read("shared.sql") + texts.read(f"{dialect}.sql")
    return {text.name: {frozenset(text.params - {"now"})} for text in statements}


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_operations_give_each_statement_what_it_names_and_nothing_else(
    dialect: Dialect, request: pytest.FixtureRequest
) -> None:
    assert given(request.getfixturevalue(f"{dialect}_url")) == wanted(dialect)


def test_sqlite_can_prepare_every_statement(sqlite_url: str) -> None:
    open_store(sqlite_url).migrate()
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    refused = {}
    for text in texts.read("shared.sql") + texts.read("sqlite.sql"):
        try:
            connection.execute(f"EXPLAIN {load('sqlite')[text.name]}", dict.fromkeys(text.params))
        except sqlite3.Error as error:
            refused[text.name] = str(error)
    connection.close()
    assert refused == {}


def test_postgres_can_prepare_every_statement_and_the_store_can_read_its_rows(postgres_url: str) -> None:
    open_store(postgres_url).migrate()
    readable = {postgres.types[name].oid for name in LOADERS}
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for name, text in load("postgres").items():
            connection.execute(f"PREPARE {name} AS ".encode() + Statement.parse(text).text)
            shape = connection.pgconn.describe_prepared(name.encode())
            assert {shape.ftype(i) for i in range(shape.nfields)} <= readable, name
            assert shape.nparams == len(Statement.parse(text).params), name
