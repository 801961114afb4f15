"""A database that refuses certain updates of jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg


@contextmanager
def refusing(url: str, when: str, *, code: str = "P0001") -> Iterator[None]:
    """A trigger refuses such updates of jobs; on PostgreSQL with this SQLSTATE."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            file.execute(
                f"CREATE TRIGGER refuse BEFORE UPDATE ON perdure_job WHEN {when} "
                "BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
            yield
        return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql "
            f"AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$".encode()
        )
        connection.execute(
            f"CREATE TRIGGER refuse BEFORE UPDATE ON perdure.job FOR EACH ROW WHEN ({when}) "
            "EXECUTE FUNCTION public.refuse()".encode()
        )
        try:
            yield
        finally:
            connection.execute("DROP FUNCTION public.refuse CASCADE")
