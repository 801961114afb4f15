"""Connections by name of their driver, and the versions that are installed: ``python -m tests.conn.drivers``."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.errors import DuplicateObject, UniqueViolation

from tests.conn.caller import Caller, done


def sqlite_path(url: str) -> str:
    return url.removeprefix("sqlite:///")


class Sqlite3(Caller):
    def open(self) -> None:
        self.conn = sqlite3.connect(sqlite_path(self.url), timeout=30)


class Aiosqlite(Caller):
    mode = "async"

    async def open(self) -> None:
        import aiosqlite

        self.conn = await aiosqlite.connect(sqlite_path(self.url), timeout=30)


class Psycopg(Caller):
    def open(self) -> None:
        from psycopg.rows import dict_row

        self.conn = psycopg.connect(self.url, row_factory=dict_row)


class PsycopgAsync(Caller):
    mode = "async"

    async def open(self) -> None:
        self.conn = await psycopg.AsyncConnection.connect(self.url)


class Dbapi(Caller):
    """Cursors only."""

    def say(self, sql: str) -> None:
        with self.conn.cursor() as cursor:
            cursor.execute(sql)


class Psycopg2(Dbapi):
    def open(self) -> None:
        import psycopg2
        from psycopg2.extras import RealDictCursor

        self.conn = psycopg2.connect(self.url, cursor_factory=RealDictCursor)


class Pg8000(Caller):
    driver = "pg8000"

    def open(self) -> None:
        import pg8000.dbapi

        self.conn = pg8000.dbapi.connect(**parts(with_slow_login(self.url)))

    def say(self, sql: str) -> None:
        self.conn.cursor().execute(sql)


class Asyncpg(Caller):
    """With codecs that garble json unless they are bypassed."""

    mode = "async"

    async def open(self) -> None:
        import asyncpg

        self.conn = await asyncpg.connect(self.url)
        await self.begin()

    async def begin(self) -> None:
        for kind in ("json", "jsonb"):
            await self.conn.set_type_codec(kind, schema="pg_catalog", encoder=_refuse, decoder=_refuse)
        self.transaction = self.conn.transaction()
        await self.transaction.start()

    async def commit(self) -> None:
        await self.transaction.commit()
        await self.begin()

    async def rollback(self) -> None:
        await self.transaction.rollback()
        await self.begin()

    async def nested(self, act: Callable[[], Any]) -> None:
        inner = self.conn.transaction()
        await inner.start()
        await act()
        await inner.rollback()

    async def close(self) -> None:
        await self.transaction.rollback()
        await self.conn.close()


class AsyncpgPool(Asyncpg):
    async def open(self) -> None:
        import asyncpg

        self.pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
        self.conn = await self.pool.acquire()
        await self.begin()

    async def close(self) -> None:
        await self.transaction.rollback()
        await self.pool.release(self.conn)
        await self.pool.close()


class SqlalchemyConnection(Caller):
    def __init__(self, url: str, driver: str) -> None:
        self.driver = driver
        super().__init__(url)

    def open(self) -> None:
        from sqlalchemy import create_engine

        url = with_slow_login(self.url) if self.driver == "pg8000" else self.url
        self.engine = create_engine(with_driver(url, self.driver))
        self.conn = self.connect()

    def connect(self) -> Any:
        return self.engine.connect()

    def say(self, sql: str) -> Any:
        return self.conn.exec_driver_sql(sql)

    async def nested(self, act: Callable[[], Any]) -> None:
        inner = await done(self.conn.begin_nested())
        await done(act())
        await done(inner.rollback())

    def close(self) -> None:
        try:
            self.conn.close()
        finally:
            self.engine.dispose()


class SqlalchemySession(SqlalchemyConnection):
    def connect(self) -> Any:
        from sqlalchemy.orm import Session

        return Session(self.engine)

    def say(self, sql: str) -> Any:
        from sqlalchemy import text

        return self.conn.execute(text(sql))


class SqlalchemyScopedSession(SqlalchemySession):
    def connect(self) -> Any:
        from sqlalchemy.orm import scoped_session, sessionmaker

        return scoped_session(sessionmaker(self.engine))


class SqlalchemyAsyncConnection(SqlalchemyConnection):
    mode = "async"

    async def open(self) -> None:  # type: ignore[override]
        from sqlalchemy.ext.asyncio import create_async_engine

        self.engine: Any = create_async_engine(with_driver(self.url, self.driver))
        self.conn = await done(self.connect())

    async def close(self) -> None:  # type: ignore[override]
        await self.conn.close()
        await self.engine.dispose()


class SqlalchemyAsyncSession(SqlalchemyAsyncConnection):
    def connect(self) -> Any:
        from sqlalchemy.ext.asyncio import AsyncSession

        return AsyncSession(self.engine)

    def say(self, sql: str) -> Any:
        from sqlalchemy import text

        return self.conn.execute(text(sql))


class SqlalchemyAsyncScopedSession(SqlalchemyAsyncSession):
    def connect(self) -> Any:
        from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker

        return async_scoped_session(async_sessionmaker(self.engine), scopefunc=lambda: 1)


class Django(Caller):
    """Always inside ``atomic()``; the connection is Django's own name for it, ``django.db.connection``."""

    def open(self) -> None:
        self.conn = with_django(self.url)
        self.begin()

    def begin(self) -> None:
        from django.db import transaction

        self.atomic = transaction.atomic()
        self.atomic.__enter__()

    def say(self, sql: str) -> None:
        with self.conn.cursor() as cursor:
            cursor.execute(sql)

    def begin_to_read(self) -> None:
        """It has begun, and without a lock."""

    def commit(self) -> None:
        self.atomic.__exit__(None, None, None)
        self.begin()

    def rollback(self) -> None:
        self.conn.set_rollback(True)
        self.commit()

    async def nested(self, act: Callable[[], Any]) -> None:
        from django.db import transaction

        with transaction.atomic():
            act()
            transaction.set_rollback(True)

    def close(self) -> None:
        self.conn.set_rollback(True)
        self.atomic.__exit__(None, None, None)
        self.conn.close()


Opener = Callable[[str], Caller]

SQLITE: Mapping[str, Opener] = {
    "sqlite3": Sqlite3,
    "aiosqlite": Aiosqlite,
    "SQLAlchemy Connection, sqlite3": partial(SqlalchemyConnection, driver="pysqlite"),
    "SQLAlchemy Session, sqlite3": partial(SqlalchemySession, driver="pysqlite"),
    "SQLAlchemy AsyncConnection, aiosqlite": partial(SqlalchemyAsyncConnection, driver="aiosqlite"),
    "SQLAlchemy AsyncSession, aiosqlite": partial(SqlalchemyAsyncSession, driver="aiosqlite"),
    "Django, sqlite3": Django,
}

POSTGRES: Mapping[str, Opener] = {
    "psycopg": Psycopg,
    "psycopg, async": PsycopgAsync,
    "psycopg2": Psycopg2,
    "pg8000": Pg8000,
    "asyncpg": Asyncpg,
    "asyncpg, of a pool": AsyncpgPool,
    **{
        f"SQLAlchemy {name}, {driver}": partial(kind, driver=driver)
        for name, kind in (("Connection", SqlalchemyConnection), ("Session", SqlalchemySession))
        for driver in ("psycopg", "psycopg2", "pg8000")
    },
    "SQLAlchemy scoped_session, psycopg": partial(SqlalchemyScopedSession, driver="psycopg"),
    **{
        f"SQLAlchemy {name}, {driver}": partial(kind, driver=driver)
        for name, kind in (
            ("AsyncConnection", SqlalchemyAsyncConnection),
            ("AsyncSession", SqlalchemyAsyncSession),
        )
        for driver in ("asyncpg", "psycopg_async")
    },
    "SQLAlchemy async_scoped_session, asyncpg": partial(SqlalchemyAsyncScopedSession, driver="asyncpg"),
    "Django, psycopg": Django,
}

PACKAGES = ("psycopg", "psycopg2-binary", "pg8000", "asyncpg", "aiosqlite", "SQLAlchemy", "Django")


def listing() -> str:
    versions = [f"{package} {version(package)}" for package in PACKAGES]
    return "\n".join(
        [
            f"Connections, with {', '.join(versions)}, SQLite {sqlite3.sqlite_version}:",
            *(f"  SQLite      {name}" for name in SQLITE),
            *(f"  PostgreSQL  {name}" for name in POSTGRES),
        ]
    )


def parts(url: str) -> dict[str, Any]:
    split = urlsplit(url)
    return {
        "user": split.username,
        "password": split.password,
        "host": split.hostname,
        "port": split.port or 5432,
        "database": split.path.removeprefix("/"),
    }


def with_driver(url: str, driver: str) -> str:
    scheme, rest = url.split("://", 1)
    return f"{scheme}+{driver}://{rest}" + ("?timeout=30" if scheme == "sqlite" else "")


@cache
def with_slow_login(url: str) -> str:
    """For pg8000, which refuses passwords of few rounds; those of the tests' server have one, for speed."""
    with psycopg.connect(url, autocommit=True) as admin, suppress(DuplicateObject, UniqueViolation):
        if admin.info.server_version >= 160000:
            admin.execute("SET scram_iterations = 4096")
        admin.execute("CREATE ROLE slow SUPERUSER LOGIN PASSWORD 'slow'")
    split = urlsplit(url)
    return split._replace(netloc=f"slow:slow@{split.hostname}:{split.port or 5432}").geturl()


def with_django(url: str) -> Any:
    """Django's connection: what it opens from now on, in whichever thread, leads there."""
    import django
    from django.conf import settings
    from django.db import connection, connections

    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    configured = connections.configure_settings({"default": django_database(url)})
    connections.settings["default"] = configured["default"]
    with suppress(AttributeError):
        del connections["default"]
    return connection


def django_database(url: str) -> dict[str, Any]:
    """As an entry of the setting DATABASES."""
    if url.startswith("sqlite"):
        engine = "django.db.backends.sqlite3"
        return {"ENGINE": engine, "NAME": sqlite_path(url), "OPTIONS": {"timeout": 30}}
    known = {name.upper(): value for name, value in parts(url).items()}
    return {"ENGINE": "django.db.backends.postgresql", **known, "NAME": known["DATABASE"]}


def _refuse(value: object) -> Any:
    raise AssertionError("json went through a codec of the caller's")


if __name__ == "__main__":
    print(listing())
