"""What is particular to SQLAlchemy's connections and sessions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from perdure.errors import Refused, StoreAway
from perdure.store.borrowed import join
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite.store import SqliteStore
from perdure.store.store import Store
from tests.conn.drivers import with_driver
from tests.conn.refusals import arefuses, refuses
from tests.store.things import insert, insert_and_refuse, read


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
