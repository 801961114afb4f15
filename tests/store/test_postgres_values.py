"""Parameters and returned values are the same on every database."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import set_json_loads
from psycopg.types.numeric import IntLoader

from perdure.errors import Invalid
from perdure.store.postgres.adapt import Statement
from perdure.store.postgres.store import PostgresStore
from tests.store.things import insert, postgres_store, read, run

UUID = "0192d5f0-0000-7abc-8def-0123456789ab"


@pytest.mark.parametrize("prepare", [True, False])
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT NULL", None),
        ("SELECT true", True),
        ("SELECT CAST(7 AS smallint)", 7),
        ("SELECT 2147483647", 2147483647),
        ("SELECT -9223372036854775808", -(2**63)),
        ("SELECT CAST(1.5 AS double precision)", 1.5),
        ("SELECT 'ä€😀'", "ä€😀"),
        ("SELECT CAST('x' AS varchar)", "x"),
        ('SELECT CAST(\'{ "b":1e16,  "a": "\\u00e4" }\' AS json)', '{ "b":1e16,  "a": "\\u00e4" }'),
        (f"SELECT CAST('{UUID}' AS uuid)", UUID),
        ("SELECT timestamptz 'epoch'", 0),
        ("SELECT timestamptz '2000-01-01 00:00:00.000001+00'", 946_684_800_000_001),
        ("SELECT timestamptz '1969-12-31 23:59:59.999999+00'", -1),
        ("SELECT timestamptz '9999-12-31 23:59:59.999999+00'", 253_402_300_799_999_999),
        ("SELECT timestamptz '290000-01-01 00:00:00+00'", 253_402_300_799_999_999),
        ("SELECT timestamptz 'infinity'", 253_402_300_799_999_999),
        ("SELECT timestamptz '-infinity'", -62_135_596_800_000_000),
        ("SELECT count(*) FROM perdure_thing", 0),
    ],
)
def test_what_comes_back(admin, postgres_url: str, sql: str, expected: object, prepare: bool) -> None:
    store = postgres_store(postgres_url, more={"ask": sql}, prepare=prepare)
    [(value,)] = store.perform(run, "ask")
    assert value == expected
    assert type(value) is type(expected)
    store.close()


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("text", 'it\'s 100% \\ "fine" $1 %(x)s'),
        ("text", ""),
        ("text", None),
        ("bigint", 2**63 - 1),
        ("smallint", -1),
        ("integer", None),
        ("double precision", 1e300),
        ("double precision", 3),
        ("boolean", True),
        ("boolean", False),
        ("uuid", UUID),
        ("json", '{"a": [1, 2.50, null]}'),
    ],
)
def test_what_goes_in_comes_back(admin, postgres_url: str, type: str, value: Any) -> None:
    store = postgres_store(postgres_url, more={"echo": f"SELECT CAST(:value AS {type})"})
    assert store.perform(run, "echo", value=value) == [(value,)]
    store.close()


def test_one_prepared_statement_serves_whatever_is_null(store: PostgresStore) -> None:
    with store._pool.lend("normal", timeout=1) as session:
        for note in ("x", None, "y"):
            session.send(store._parsed["update"], {"id": "a", "note": note})
        session.send(store._parsed["prepared"])
        session.sync()
        assert session.receive()[-1] == [(2,)]


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b"])
def test_a_text_that_cannot_be_stored_is_refused_and_not_cut(store: PostgresStore, bad: str) -> None:
    with pytest.raises(Invalid) as refused:
        store.perform(insert, bad)
    assert refused.value.code == "store.bad_value"
    assert refused.value.__cause__ is None
    assert store.perform(read) == []


def test_the_server_s_clock_rules_unless_a_test_brings_its_own(
    admin: psycopg.Connection[Any], postgres_url: str, store: PostgresStore
) -> None:
    store.perform(insert, "a")
    [(at,)] = store.perform(run, "read_times")
    (passed,) = admin.execute(
        "SELECT statement_timestamp() - (timestamptz 'epoch' + %s * interval '1 microsecond')", [at]
    ).fetchone() or (timedelta.min,)
    assert timedelta() <= passed < timedelta(minutes=1)

    at_noon = postgres_store(postgres_url, clock=lambda: 1_000_000_000_000_001)
    at_noon.perform(insert, "b")
    assert at_noon.perform(run, "read_times")[1] == (1_000_000_000_000_001,)
    at_noon.close()


def test_what_the_program_does_to_psycopg_does_not_reach_us(admin, postgres_url: str) -> None:
    class Shout(IntLoader):
        def load(self, data: object) -> Any:
            return "seven"

    psycopg.adapters.register_loader("int4", Shout)
    set_json_loads(lambda data: "loaded")
    try:
        store = postgres_store(postgres_url, more={"ask": "SELECT 7, CAST('{}' AS json)"})
        assert store.perform(run, "ask") == [(7, "{}")]
        store.close()
    finally:
        psycopg.adapters.register_loader("int4", IntLoader)
        set_json_loads(json.loads)


def test_our_adapters_stay_with_us(store: PostgresStore, postgres_url: str) -> None:
    store.perform(run, "one")
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute("SELECT CAST(%s AS json), timestamptz 'epoch'", ['{"a": 1}']).fetchone()
    assert row is not None
    assert row[0] == {"a": 1}
    assert row[1].year == 1970


def test_statements_are_numbered_by_parameter() -> None:
    statement = Statement.parse("SELECT %(b)s, %(a)s, %(b)s, 100 %% 7, '%%(a)s'")
    assert statement.text == b"SELECT $1, $2, $1, 100 % 7, '%(a)s'"
    assert statement.bind({"a": 1, "b": None, "c": 3}) == [None, b"1"]
