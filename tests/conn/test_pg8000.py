"""What is particular to connections of pg8000."""

from __future__ import annotations

from contextlib import closing

import pg8000.native

from perdure.store.borrowed import join
from perdure.store.postgres.store import PostgresStore
from tests.conn.drivers import parts, with_slow_login
from tests.conn.refusals import refuses
from tests.store.things import insert, read


def test_pg8000_in_autocommit_needs_a_transaction(store: PostgresStore, postgres_url: str) -> None:
    with closing(pg8000.dbapi.connect(**parts(with_slow_login(postgres_url)))) as connection:
        connection.autocommit = True
        refuses(connection, store, "conn.autocommit")
        connection.autocommit = False
        theirs = connection.pg_types
        join.perform(connection, store, insert, "a")
        connection.commit()
        assert connection.pg_types is theirs
    assert store.perform(read) == ["a"]


def test_pg8000_s_native_kind_is_taken_in_a_transaction(store: PostgresStore, postgres_url: str) -> None:
    with closing(pg8000.native.Connection(**parts(with_slow_login(postgres_url)))) as connection:
        refuses(connection, store, "conn.autocommit")
        connection.run("BEGIN")
        join.perform(connection, store, insert, "a")
        connection.run("COMMIT")
    assert store.perform(read) == ["a"]


def test_an_encoding_other_than_utf8_is_refused(store: PostgresStore, postgres_url: str) -> None:
    with closing(pg8000.dbapi.connect(**parts(with_slow_login(postgres_url)))) as connection:
        connection.cursor().execute("SET client_encoding = 'latin1'")
        refuses(connection, store, "conn.encoding")
