"""Whatever the server says, the caller gets an error of perdure's that quotes nothing."""

from __future__ import annotations

import logging
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from perdure.errors import (
    InternalError,
    Invalid,
    InvalidConfig,
    PerdureError,
    RowsLocked,
    SchemaMissing,
    SchemaOutdated,
    StoreAway,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    Unavailable,
    UnsupportedDatabase,
)
from perdure.store.postgres import connect
from perdure.store.postgres.store import PostgresStore
from perdure.store.store import open_store
from tests.chain import assert_carries_no_driver_error, told
from tests.harness.processes import run_script
from tests.store.things import insert, postgres_store, run

SECRET = "hunter2"

RAISE = """
CREATE FUNCTION public.raise(state text, secret text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = secret, DETAIL = secret, HINT = secret;
END $$
"""


def assert_secret_is_kept(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    assert SECRET not in told(error)
    assert SECRET not in repr(vars(error))
    assert SECRET not in caplog.text
    assert_carries_no_driver_error(error)


@pytest.mark.parametrize(
    ("state", "kind", "code"),
    [
        ("40001", StoreBusy, "store.busy"),
        ("40P01", StoreBusy, "store.busy"),
        ("40000", StoreBusy, "store.busy"),
        ("40003", StoreBusy, "store.busy"),
        ("25P04", StoreBusy, "store.busy"),
        ("55000", StoreBusy, "store.busy"),
        ("55006", StoreBusy, "store.busy"),
        ("55P03", RowsLocked, "store.rows_locked"),
        ("57014", StoreBusy, "store.busy"),
        ("08006", StoreAway, "store.away"),
        ("57P01", StoreAway, "store.away"),
        ("57P02", StoreAway, "store.away"),
        ("57P03", StoreAway, "store.away"),
        ("57P05", StoreAway, "store.away"),
        ("53400", StoreAway, "store.away"),
        ("53300", StoreAway, "store.away"),
        ("53200", StoreAway, "store.away"),
        ("58030", StoreAway, "store.away"),
        ("25P03", StoreAway, "store.away"),
        ("25006", StoreReadOnly, "store.read_only"),
        ("53100", StoreFull, "store.full"),
        ("28P01", StoreAway, "store.away"),
        ("28000", StoreAway, "store.away"),
        ("3D000", StoreAway, "store.away"),
        ("42P01", SchemaMissing, "schema.missing"),
        ("3F000", SchemaMissing, "schema.missing"),
        ("42703", SchemaOutdated, "schema.outdated"),
        ("42501", StoreReadOnly, "store.forbidden"),
        ("23502", InternalError, "store.constraint"),
        ("23503", InternalError, "store.constraint"),
        ("23505", InternalError, "store.constraint"),
        ("23514", InternalError, "store.constraint"),
        ("22P02", Invalid, "store.bad_value"),
        ("22003", Invalid, "store.bad_value"),
        ("54001", Invalid, "store.bad_value"),
        ("54000", Invalid, "store.limit"),
        ("0A000", InternalError, "store.refused"),
        ("26000", InternalError, "store.unprepared"),
        ("42601", InternalError, "store.refused"),
        ("XX000", InternalError, "store.refused"),
    ],
)
def test_what_the_server_says_means(
    admin: psycopg.Connection[Any],
    postgres_url: str,
    caplog: pytest.LogCaptureFixture,
    state: str,
    kind: type[PerdureError],
    code: str,
) -> None:
    caplog.set_level(logging.DEBUG, "perdure")
    admin.execute(RAISE)
    store = postgres_store(postgres_url, more={"raise": "SELECT public.raise(:state, :secret)"}, patience=0)
    with pytest.raises(PerdureError) as raised:
        store.perform(run, "raise", state=state, secret=SECRET)
    assert type(raised.value) is kind
    assert raised.value.code == code
    assert_secret_is_kept(raised.value, caplog)
    assert state in caplog.text
    store.close()


@pytest.mark.parametrize(
    ("name", "params", "answered"),
    [
        ("raise", {"state": "57P01", "secret": ""}, True),
        ("raise", {"state": "55P03", "secret": ""}, True),
        ("nowait", {}, True),
        ("cancel", {}, False),
        ("cut", {}, False),
    ],
)
def test_only_what_the_server_refuses_at_once_may_be_about_a_row(
    admin: psycopg.Connection[Any], postgres_url: str, name: str, params: dict[str, str], answered: bool
) -> None:
    admin.execute(RAISE)
    admin.execute("CREATE TABLE public.busy (id int); INSERT INTO public.busy VALUES (1)")
    more = {
        "raise": "SELECT public.raise(:state, :secret)",
        "nowait": "SELECT 1 FROM public.busy FOR UPDATE NOWAIT",
        "cancel": "SELECT pg_catalog.pg_cancel_backend(pg_catalog.pg_backend_pid()), pg_catalog.pg_sleep(9)",
    }
    store = postgres_store(postgres_url, more=more, patience=0)
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT 1 FROM public.busy FOR UPDATE")
        with pytest.raises(Unavailable) as raised:
            store.perform(run, name, **params)
    assert raised.value.answered is answered
    store.close()


def test_a_row_the_schema_refuses_is_not_shown(
    store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "perdure")
    store.perform(insert, SECRET)
    with pytest.raises(InternalError) as raised:
        store.perform(insert, SECRET)
    assert_secret_is_kept(raised.value, caplog)


def test_missing_tables_name_the_way_to_make_them(postgres_url: str) -> None:
    store = postgres_store(postgres_url)
    with pytest.raises(SchemaMissing, match=r"app\.migrate\(\)"):
        store.perform(insert, "a")
    store.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"password": SECRET}, "refused the login"),
        ({"user": SECRET, "password": "x"}, "refused the login"),
        ({"dbname": SECRET}, "no database of this name"),
    ],
)
def test_a_login_that_cannot_succeed_fails_at_once(
    postgres_url: str, caplog: pytest.LogCaptureFixture, wrong: dict[str, str], message: str
) -> None:
    caplog.set_level(logging.DEBUG, "perdure")
    store = PostgresStore(make_conninfo(postgres_url, **wrong), patience=None)
    for verb in (lambda: store.perform(run, "one"), store.migrate, store.check_schema):
        with pytest.raises(StoreAway, match=message) as raised:
            verb()
        assert_secret_is_kept(raised.value, caplog)
    store.close()


@pytest.mark.parametrize("host", ["nowhere.invalid", "127.0.0.1"])
async def test_a_server_that_is_not_there_is_away_and_named(
    caplog: pytest.LogCaptureFixture, host: str
) -> None:
    caplog.set_level(logging.DEBUG, "perdure")
    store = PostgresStore(f"postgresql://{SECRET}:{SECRET}@{host}:1/{SECRET}", patience=0.1)
    said = rf"^The database cannot be reached \({host}:1\)\.$"
    with pytest.raises(StoreAway, match=said) as raised:
        store.check_schema()
    assert_secret_is_kept(raised.value, caplog)
    with pytest.raises(StoreAway, match=said) as raised:
        await store.aconnect()
    assert_secret_is_kept(raised.value, caplog)
    store.close()


def test_an_old_server_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "OLDEST_SERVER", 99)
    store = PostgresStore(postgres_url)
    for verb in (lambda: store.perform(run, "one"), store.migrate):
        with pytest.raises(UnsupportedDatabase, match="PostgreSQL 99 or newer"):
            verb()
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://{SECRET}",
        f"postgresql+psycopg://{SECRET}",
        f"sqlite://{SECRET}",
        f"sqlite:{SECRET}",
        f"sqlite:///{SECRET}?mode=ro",
        SECRET,
        "",
    ],
)
def test_a_url_of_another_kind_is_refused(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidConfig) as raised:
        open_store(url)
    assert_secret_is_kept(raised.value, caplog)


def test_a_url_that_cannot_be_read_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(f"postgresql://x/y?{SECRET}=1")
    with pytest.raises(InvalidConfig) as raised:
        store.check_schema()
    assert_secret_is_kept(raised.value, caplog)
    store.close()


@pytest.mark.parametrize("schema", ["", "x" * 64, "ä" * 32, "a\0b"])
def test_a_schema_s_name_that_postgres_would_change_is_refused(schema: str) -> None:
    with pytest.raises(InvalidConfig, match="63 bytes"):
        open_store("postgresql://", schema=schema)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_postgres_has_two_spellings(postgres_url: str, scheme: str) -> None:
    store = open_store(f"{scheme}://{postgres_url.partition('://')[2]}")
    assert store.dialect == "postgres"
    with pytest.raises(SchemaMissing):
        store.check_schema()
    store.close()


def test_sqlite_is_opened_by_its_path(sqlite_url: str) -> None:
    for url in (sqlite_url, "sqlite:///:memory:"):
        store = open_store(url)
        assert store.dialect == "sqlite"
        store.close()


def test_without_a_driver_the_way_to_get_one_is_named() -> None:
    script = """
import sys
sys.modules["psycopg"] = None
from perdure.errors import InvalidConfig
from perdure.store.store import open_store
try:
    open_store("postgresql://host/db")
except InvalidConfig as error:
    print(error)
open_store("sqlite:///:memory:").close()
"""
    assert "pip install 'perdure[postgres]'" in run_script(script)
