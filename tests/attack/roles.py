"""PostgreSQL databases and plain roles, removed at the end of a test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from tests.postgres import with_database, with_user


@contextmanager
def database(server: str) -> Iterator[str]:
    """The URL of a new, empty database."""
    name = f"perdure_attack_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
        try:
            yield with_database(server, name)
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def role(url: str, name: str) -> Iterator[tuple[str, str]]:
    """A role that may log in and nothing else: its name, which is unique on the server, and the URL it logs in with."""
    unique, password = f"{name}_{secrets.token_hex(4)}", secrets.token_hex(8)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(Identifier(unique), Literal(password)))
        try:
            yield unique, with_user(url, unique, password)
        finally:
            admin.execute(SQL("DROP OWNED BY {} CASCADE").format(Identifier(unique)))
            admin.execute(SQL("DROP ROLE {}").format(Identifier(unique)))
