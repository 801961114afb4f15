"""What is particular to one library's connections, given as ``conn=``."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import aiosqlite
import asyncpg
import pg8000.native
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from perdure.errors import Refused, StoreAway, StoreBusy, UnsupportedConnection
from perdure.ops.op import Op, Query, ask, ask_all, operation
from perdure.store.borrowed import join
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite.store import SqliteStore
from perdure.store.store import Store
from tests.drivers.table import parts, with_django, with_driver, with_slow_login
from tests.store.test_borrowed import sqlite_store
from tests.store.things import insert, insert_and_refuse, read
from tests.store.waiting import auntil

__all__ = ["sqlite_store"]  # a fixture


def refuses(conn: object, store: Store, code: str, *, match: str | None = None) -> None:
    with pytest.raises(UnsupportedConnection, match=match) as refused:
        join.perform(conn, store, insert, "refused")
    assert refused.value.code == code


async def arefuses(conn: object, store: Store, code: str, *, match: str | None = None) -> None:
    with pytest.raises(UnsupportedConnection, match=match) as refused:
        await join.aperform(conn, store, insert, "refused")
    assert refused.value.code == code


# asyncpg


async def test_asyncpg_needs_a_transaction(store: PostgresStore, postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    await arefuses(connection, store, "conn.autocommit", match="begin one first")
    async with connection.transaction():
        await join.aperform(connection, store, insert, "a")
    await connection.close()
    assert store.perform(read) == ["a"]


async def test_asyncpg_given_back_to_its_pool_is_closed(store: PostgresStore, postgres_url: str) -> None:
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool:
        async with pool.acquire() as connection, connection.transaction():
            await join.aperform(connection, store, insert, "a")
        await arefuses(connection, store, "conn.closed")
    assert store.perform(read) == ["a"]


async def test_asyncpg_keeps_its_codecs_and_prepares_nothing_where_its_cache_is_off(
    store: PostgresStore, postgres_url: str
) -> None:
    connection = await asyncpg.connect(postgres_url, statement_cache_size=0)
    await connection.set_type_codec("json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    async with connection.transaction():
        await join.aperform(connection, store, insert, "a")
        assert await connection.fetchval("SELECT CAST('{}' AS json)") == {}
        assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements") == 0
    await connection.close()


async def test_asyncpg_runs_one_statement_at_a_time(store: PostgresStore, postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        other = asyncio.create_task(connection.execute("SELECT pg_sleep(0.5)"))
        await asyncio.sleep(0)
        await arefuses(connection, store, "conn.busy")
        await other
        await join.aperform(connection, store, insert, "a")
    await connection.close()


async def test_asyncpg_whose_statements_no_longer_fit_says_so(
    store: PostgresStore, postgres_url: str
) -> None:
    connection = await asyncpg.connect(postgres_url)
    for again in (False, True):
        transaction = connection.transaction()
        await transaction.start()
        if again:
            with psycopg.connect(postgres_url) as admin:
                admin.execute("ALTER TABLE perdure_thing ALTER id TYPE varchar")
            with pytest.raises(StoreBusy, match="again"):
                await join.aperform(connection, store, insert, "b")
            await transaction.rollback()
        else:
            await join.aperform(connection, store, insert, "a")
            await transaction.commit()
    async with connection.transaction():
        await join.aperform(connection, store, insert, "b")
    await connection.close()
    assert store.perform(read) == ["a", "b"]


@operation("write")
def insert_and_sleep() -> Op[None]:
    yield from ask_all(Query("insert", {"id": "a", "note": None}))
    yield from ask("sleep", seconds=60)


async def test_a_cancelled_call_undoes_itself_on_asyncpg(
    store: PostgresStore, admin: psycopg.Connection[Any], postgres_url: str
) -> None:
    connection = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        await connection.execute("INSERT INTO perdure_thing (id) VALUES ('theirs')")
        call = asyncio.create_task(join.aperform(connection, store, insert_and_sleep))
        sleeps = (
            "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        )
        await auntil(lambda: admin.execute(sleeps).fetchone())
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await connection.close()
    assert store.perform(read) == ["theirs"]


# psycopg2 and pg8000


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
    with closing(psycopg2.connect(postgres_url, client_encoding="latin1")) as connection:
        refuses(connection, store, "conn.encoding")
    with closing(pg8000.dbapi.connect(**parts(with_slow_login(postgres_url)))) as connection:
        connection.cursor().execute("SET client_encoding = 'latin1'")
        refuses(connection, store, "conn.encoding")


# aiosqlite


async def test_aiosqlite_in_autocommit_needs_a_transaction(sqlite_store: SqliteStore) -> None:
    async with aiosqlite.connect(sqlite_store.path, isolation_level=None) as connection:
        await arefuses(connection, sqlite_store, "conn.autocommit")
        await connection.execute("BEGIN")
        await join.aperform(connection, sqlite_store, insert, "a")
        await connection.execute("COMMIT")
    assert sqlite_store.perform(read) == ["a"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has another autocommit")
@pytest.mark.parametrize("autocommit", [True, False])
async def test_the_newer_autocommit_on_aiosqlite(sqlite_store: SqliteStore, autocommit: bool) -> None:
    async with aiosqlite.connect(sqlite_store.path, autocommit=autocommit) as connection:
        if autocommit:
            await arefuses(connection, sqlite_store, "conn.autocommit")
            return
        await join.aperform(connection, sqlite_store, insert, "a")
        await connection.commit()
    assert sqlite_store.perform(read) == ["a"]


async def test_aiosqlite_keeps_its_factories_and_a_refusal_holds_no_lock(sqlite_store: SqliteStore) -> None:
    async with aiosqlite.connect(sqlite_store.path) as connection:
        connection.row_factory, connection.text_factory = sqlite3.Row, bytes
        with pytest.raises(Refused):
            await join.aperform(connection, sqlite_store, insert_and_refuse, "a")
        assert not connection.in_transaction
        sqlite_store.perform(insert, "b")
        assert await join.aperform(connection, sqlite_store, read) == ["b"]
        assert (connection.row_factory, connection.text_factory) == (sqlite3.Row, bytes)


async def test_a_cancelled_wait_for_the_lock_leaves_nothing_open_on_aiosqlite(
    sqlite_store: SqliteStore,
) -> None:
    holder = sqlite3.connect(sqlite_store.path, isolation_level=None)
    async with aiosqlite.connect(sqlite_store.path, timeout=60) as connection:
        holder.execute("BEGIN IMMEDIATE")
        call = asyncio.create_task(join.aperform(connection, sqlite_store, insert, "a"))
        ran: list[str] = []
        await connection.set_trace_callback(ran.append)
        await auntil(lambda: any("BEGIN" in sql for sql in ran))
        call.cancel()
        holder.execute("ROLLBACK")
        with pytest.raises(asyncio.CancelledError):
            await call
        await connection.execute("SELECT 1")
        assert not connection.in_transaction
    holder.close()
    assert sqlite_store.perform(read) == []


# SQLAlchemy


class Base(DeclarativeBase):
    pass


class Thing(Base):
    __tablename__ = "perdure_thing"
    id: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[sqlalchemy.Engine, Store]]:
    sqlite = request.param == "sqlite"
    store: Store = request.getfixturevalue("sqlite_store" if sqlite else "store")
    url = request.getfixturevalue("sqlite_url" if sqlite else "postgres_url")
    engine = sqlalchemy.create_engine(with_driver(url, "pysqlite" if sqlite else "psycopg"))
    yield engine, store
    engine.dispose()


Engine = tuple[sqlalchemy.Engine, Store]


def test_a_refusal_undoes_nothing_that_a_session_keeps_in_mind(engine: Engine) -> None:
    with Session(engine[0]) as session, session.begin():
        session.add(Thing(id="theirs"))
        with pytest.raises(Refused):
            join.perform(session, engine[1], insert_and_refuse, "a")
        session.add(Thing(id="also theirs"))
    assert engine[1].perform(read) == ["also theirs", "theirs"]


def test_a_class_derived_from_a_session_is_one(engine: Engine) -> None:
    class Own(Session):
        pass

    with Own(engine[0]) as session:
        join.perform(session, engine[1], insert, "a")
        session.commit()
    assert engine[1].perform(read) == ["a"]


def test_a_connection_of_sqlalchemy_in_autocommit_is_refused(engine: Engine) -> None:
    with engine[0].connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        refuses(connection, engine[1], "conn.autocommit")
    assert engine[1].perform(read) == []


def test_a_session_that_begins_nothing_by_itself_is_refused_until_it_has_begun(engine: Engine) -> None:
    with Session(engine[0], autobegin=False) as session:
        refuses(session, engine[1], "conn.unsupported", match="cannot begin")
        with session.begin():
            join.perform(session, engine[1], insert, "a")
    assert engine[1].perform(read) == ["a"]


def test_a_session_without_one_database_is_refused(sqlite_store: SqliteStore) -> None:
    with Session() as session:
        refuses(session, sqlite_store, "conn.unsupported", match="no single database")


def test_a_session_whose_transaction_has_failed_is_refused(engine: Engine) -> None:
    engine[1].perform(insert, "twice")
    with Session(engine[0]) as session:
        session.add(Thing(id="twice"))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            session.flush()
        refuses(session, engine[1], "conn.aborted")
        session.rollback()
        join.perform(session, engine[1], insert, "once")
        session.commit()
    assert engine[1].perform(read) == ["once", "twice"]


def test_sqlite_s_begin_by_an_event_as_sqlalchemy_advises(sqlite_store: SqliteStore, sqlite_url: str) -> None:
    engine = sqlalchemy.create_engine(with_driver(sqlite_url, "pysqlite"))

    @event.listens_for(engine, "connect")
    def no_begin_by_the_driver(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    with engine.begin() as connection:
        join.perform(connection, sqlite_store, insert, "a")
    with Session(engine) as session:
        join.perform(session, sqlite_store, insert, "b")
        session.rollback()
    engine.dispose()
    assert sqlite_store.perform(read) == ["a"]


async def test_an_async_connection_in_autocommit_is_refused(store: PostgresStore, postgres_url: str) -> None:
    """Over asyncpg, where SQLAlchemy begins late, that must not be taken for a transaction about to begin."""
    engine = create_async_engine(with_driver(postgres_url, "asyncpg"), isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        assert isinstance(connection, AsyncConnection)
        await arefuses(connection, store, "conn.autocommit")
    await engine.dispose()
    assert store.perform(read) == []


async def test_async_sessions_and_connections_that_cannot_begin_are_refused(
    sqlite_store: SqliteStore, sqlite_url: str
) -> None:
    engine = create_async_engine(with_driver(sqlite_url, "aiosqlite"))
    await arefuses(engine.connect(), sqlite_store, "conn.unsupported", match="cannot begin")
    async with AsyncSession(engine, autobegin=False) as session:
        await arefuses(session, sqlite_store, "conn.unsupported", match="cannot begin")
    sqlite_store.perform(insert, "twice")
    async with AsyncSession(engine) as session:
        session.add(Thing(id="twice"))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            await session.flush()
        await arefuses(session, sqlite_store, "conn.aborted")
    await engine.dispose()


async def test_a_server_that_cannot_be_reached_is_away(store: PostgresStore) -> None:
    nowhere = "://nobody@127.0.0.1:1/nothing"
    session = Session(sqlalchemy.create_engine(f"postgresql+psycopg{nowhere}"))
    with pytest.raises(StoreAway):
        join.perform(session, store, insert, "a")
    async_session = AsyncSession(create_async_engine(f"postgresql+asyncpg{nowhere}"))
    with pytest.raises(StoreAway):
        await join.aperform(async_session, store, insert, "a")


def test_a_driver_that_is_not_known_is_named(sqlite_store: SqliteStore) -> None:
    """As SQLAlchemy over another database would have it."""

    class Connection:
        __module__ = "pymysql.connections"

    refuses(Connection(), sqlite_store, "conn.unsupported", match="pymysql's ")


# Django


@pytest.fixture(params=["sqlite", "postgres"])
def django(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Store]]:
    sqlite = request.param == "sqlite"
    store: Store = request.getfixturevalue("sqlite_store" if sqlite else "store")
    connection = with_django(request.getfixturevalue("sqlite_url" if sqlite else "postgres_url"))
    yield connection, store
    connection.close()


def test_django_outside_atomic_is_refused(django: tuple[Any, Store]) -> None:
    connection, store = django
    refuses(connection, store, "conn.autocommit", match=r"inside transaction\.atomic")
    assert store.perform(read) == []


def test_django_that_must_roll_back_is_refused(django: tuple[Any, Store]) -> None:
    from django.db import transaction

    connection, store = django
    with transaction.atomic():
        transaction.set_rollback(True)
        refuses(connection, store, "conn.aborted")


def test_django_s_wrapper_is_taken_like_its_proxy(django: tuple[Any, Store]) -> None:
    from django.db import connections, transaction

    with transaction.atomic():
        join.perform(connections["default"], django[1], insert, "a")
    assert django[1].perform(read) == ["a"]


def test_django_s_connection_of_another_thread_is_refused(django: tuple[Any, Store]) -> None:
    from django.db import connections

    connections["default"].ensure_connection()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(
            refuses, connections["default"], django[1], "conn.closed", match="another thread"
        ).result()
