"""A role that may create objects in ``public`` and has no rights on our schema cannot make us call its code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from perdure import App
from perdure.move import move
from perdure.store.postgres.adapt import Statement
from perdure.store.statements import load
from perdure.store.store import open_store
from tests.attack import hostile_functions
from tests.attack.roles import database, role
from tests.sql.recorder import Recorder, perform_everything

# Syntax that has the form of a call: the grammar itself names the function in pg_catalog.
SYNTAX = {"extract"}


class Ground(NamedTuple):
    """A database with hostile functions: the URLs of the superuser, of the schema's owner and of a role that works."""

    url: str
    owner: str
    worker: str


@pytest.fixture(scope="module")
def ground(postgres_server: str) -> Iterator[Ground]:
    """Planted once: there are thousands of hostile_functions."""
    with (
        database(postgres_server) as postgres_url,
        role(postgres_url, "attacker") as (attacker, attacker_url),
        role(postgres_url, "owner") as (owner, owner_url),
        role(postgres_url, "worker") as (worker, worker_url),
        psycopg.connect(postgres_url, autocommit=True) as admin,
    ):
        admin.execute(SQL("GRANT CREATE ON SCHEMA public TO {}").format(Identifier(attacker)))
        name = Identifier(admin.info.dbname)
        admin.execute(SQL("GRANT CREATE ON DATABASE {} TO {}").format(name, Identifier(owner)))
        functions, operators = hostile_functions.plant(attacker_url)
        # Otherwise the attack has found nothing to imitate.
        assert functions >= {"array_agg", "cardinality", "count", "json_to_recordset", "pg_notify"}
        assert operators >= {"=", "<", "+", "*", "->", "->>"}
        with closing(open_store(owner_url)) as store:
            store.migrate()
        for grant in (
            "USAGE ON SCHEMA perdure",
            "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA perdure",
        ):
            admin.execute(SQL("GRANT {} TO {}").format(SQL(grant), Identifier(worker)))
        yield Ground(postgres_url, owner_url, worker_url)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT CAST($1 AS bigint) * interval '1 microsecond'",
        "SELECT CAST($1 AS bigint) < CAST($1 AS numeric)",
        "SELECT CAST($1 AS json) ->> 'name'",
        "SELECT cardinality(CAST($1 AS uuid[]))",
        "SELECT array_agg(id) FROM perdure.job",
    ],
)
def test_hostile_functions_are_called_where_pg_catalog_has_no_exact_match(
    ground: Ground, statement: str
) -> None:
    """Otherwise the tests below would prove nothing."""
    with psycopg.connect(ground.worker, autocommit=True) as connection:
        assert _refusal(connection, Statement(statement.encode(), b"", ("x",) * ("$1" in statement)))


def test_no_statement_of_ours_calls_one(ground: Ground) -> None:
    with psycopg.connect(ground.worker, autocommit=True) as connection:
        refused = {
            name: _refusal(connection, Statement.parse(text)) for name, text in load("postgres").items()
        }
    assert {name: why for name, why in refused.items() if why} == {}


def test_no_function_is_called_by_its_bare_name(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        known = {name for (name,) in connection.execute("SELECT proname FROM pg_catalog.pg_proc")} - SYNTAX
    calls = [
        (where, name, safe)
        for where, text in hostile_functions.texts()
        for name, safe in hostile_functions.calls(text)
    ]
    assert {name for _, name, safe in calls if safe} >= {"count", "set_config", "now", "pg_notify"}
    assert [(where, name) for where, name, safe in calls if name in known and not safe] == []


def test_nothing_that_migrations_make_calls_one(ground: Ground) -> None:
    """Defaults, checks and indexes: which function they call is decided when they are made."""
    with psycopg.connect(ground.url) as connection:
        assert connection.execute(_DEPENDS).fetchall() == []


def test_work_goes_on_among_hostile_functions(ground: Ground, tmp_path: Path) -> None:
    with closing(App(ground.worker)) as app:
        app.check_schema()
        perform_everything(Recorder(app.store))
        app.stats()
        task = app.task(name="joined")(nothing)
        task.enqueue()
        app.enqueue_many([task.job(), task.job()])
        with psycopg.connect(ground.worker) as conn:
            app.enqueue_many([task.job(), task.using(unique_key="u").job()], conn=conn)
    file = f"sqlite:///{tmp_path / 'jobs.db'}"
    with psycopg.connect(ground.url, autocommit=True) as admin:
        admin.execute("DELETE FROM perdure.worker")
    assert move(ground.owner, file) is not None


def nothing() -> None: ...


def _refusal(connection: psycopg.Connection[Any], statement: Statement) -> str | None:
    """Why it cannot be planned for any parameters. The rights on functions are checked when a plan is made ready."""
    with connection.transaction(force_rollback=True):
        try:
            connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            connection.execute(b"PREPARE one AS " + statement.text)
            given = f"({', '.join(['NULL'] * len(statement.params))})" if statement.params else ""
            connection.execute(f"EXPLAIN EXECUTE one{given}".encode())
        except psycopg.Error as error:
            return str(error)
        finally:
            if not connection.info.transaction_status.name.startswith("INERROR"):
                connection.execute("DEALLOCATE one")
    return None


# pg_depend lists everything that an object refers to, except objects of pg_catalog.
_DEPENDS = """
SELECT pg_describe_object(classid, objid, objsubid), pg_describe_object(refclassid, refobjid, refobjsubid)
  FROM pg_depend
 WHERE refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass)
   AND classid IN ('pg_constraint'::regclass, 'pg_attrdef'::regclass, 'pg_class'::regclass, 'pg_trigger'::regclass)
   AND refobjid >= 16384
"""
