"""What is particular to connections of psycopg2."""

from __future__ import annotations

from contextlib import closing

import psycopg2

from perdure.store.borrowed import join
from perdure.store.postgres.store import PostgresStore
from tests.conn.refusals import refuses
from tests.store.things import insert, read


def test_psycopg2_in_autocommit_needs_a_transaction(store: PostgresStore, postgres_url: str) -> None:
    with closing(psycopg2.connect(postgres_url)) as connection:
        connection.autocommit = True
        refuses(connection, store, "conn.autocommit")
        connection.cursor().execute("BEGIN")
        join.perform(connection, store, insert, "a")
        connection.cursor().execute("COMMIT")
    assert store.perform(read) == ["a"]


def test_psycopg2_s_asynchronous_kind_is_refused(store: PostgresStore, postgres_url: str) -> None:
    with closing(psycopg2.connect(postgres_url, async_=True)) as connection:
        refuses(connection, store, "conn.unsupported")


def test_an_encoding_other_than_utf8_is_refused(store: PostgresStore, postgres_url: str) -> None:
    with closing(psycopg2.connect(postgres_url, client_encoding="latin1")) as connection:
        refuses(connection, store, "conn.encoding")
