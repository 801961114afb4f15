"""Rules for the statements themselves, read from their files."""

from __future__ import annotations

import re

import pytest

from perdure.model.job import STORED_AS_GIVEN, JobRow, Options, StepOptions
from perdure.store.statements import Dialect, load, render
from tests.sql import texts

SHARED, SQLITE, POSTGRES = (texts.read(f"{file}.sql") for file in ("shared", "sqlite", "postgres"))
EVERY = SHARED + SQLITE + POSTGRES

# What each would be mistaken for by some driver, and casts that only PostgreSQL reads.
DRIVERS = {"%": "a psycopg parameter", "?": "a positional parameter", "$": "a numbered one", "::": "a cast"}


def names(statements: list[texts.Text]) -> list[str]:
    return [statement.name for statement in statements]


def pairs() -> list[tuple[texts.Text, texts.Text]]:
    """The statements that both dialects have, each in its own text."""
    postgres = {statement.name: statement for statement in POSTGRES}
    return [(one, postgres[one.name]) for one in SQLITE if one.name in postgres]


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_statement_an_operation_asks_for_exists(dialect: Dialect) -> None:
    missing = {name: where for name, where in texts.asked().items() if name not in load(dialect)}
    assert missing.keys() == texts.ABSENT[dialect].keys(), missing


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_statement_is_asked_for_by_an_operation(dialect: Dialect) -> None:
    assert sorted(load(dialect).keys() - texts.asked().keys()) == []
    assert sorted(load(dialect).keys() & texts.ABSENT[dialect].keys()) == []


def test_a_name_that_is_not_written_out_is_refused() -> None:
    assert texts.names_in('[Query(name, {}) for name in ("a", "b")], ask("c")', "x.py") == {"a", "b", "c"}
    with pytest.raises(AssertionError, match=r"x\.py:2"):
        texts.names_in("def f(name):\n    return Query(name, {})\n", "x.py")


def test_both_dialects_carry_the_same_names_in_the_same_order() -> None:
    """Apart from those that one of them does not need."""
    assert [name for name in names(SQLITE) if name not in texts.ABSENT["postgres"]] == [
        name for name in names(POSTGRES) if name not in texts.ABSENT["sqlite"]
    ]


def test_no_statement_only_pretends() -> None:
    """One that can never find a row would be there for the sake of these tests alone."""
    assert [text.name for text in EVERY if re.search(r"\bwhere (false|0)\b", text.normal)] == []


def test_no_statement_is_written_twice() -> None:
    for statements in (SHARED + SQLITE, SHARED + POSTGRES):
        assert len(set(names(statements))) == len(statements)


def test_a_dialect_statement_says_why_it_differs() -> None:
    assert [text.name for text in SQLITE + POSTGRES if not re.match(r"-- differs: \w", text.heading)] == []


def test_a_dialect_statement_does_differ() -> None:
    """Otherwise it belongs into shared.sql."""
    assert [one.name for one, other in pairs() if one.normal == other.normal or one.raw == other.raw] == []


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_fragment_has_one_text_and_serves_more_than_one_place(dialect: Dialect) -> None:
    """Or it is what a shared statement leaves to the dialects."""
    names = texts.fragments("shared.sql") + texts.fragments(f"{dialect}.sql")
    assert sorted(names) == sorted(set(names))
    sources = "".join((texts.SQL / f"{file}.sql").read_text() for file in ("shared", "sqlite", "postgres"))
    differ = set(texts.fragments("sqlite.sql")) & set(texts.fragments("postgres.sql"))
    assert [name for name in names if sources.count("{" + name + "}") < (1 if name in differ else 2)] == []


def test_a_shared_statement_has_nothing_to_say_about_dialects() -> None:
    assert [statement.name for statement in SHARED if "differs:" in statement.heading] == []


@pytest.mark.parametrize("spelling", DRIVERS, ids=DRIVERS.get)
def test_no_statement_speaks_to_a_driver(spelling: str) -> None:
    assert [statement.name for statement in EVERY if spelling in statement.body] == []


def test_both_dialects_of_a_statement_take_the_same_parameters() -> None:
    """Apart from ``now``, which the store adds whether it is named or not."""
    assert [
        (s.name, s.params ^ p.params) for s, p in pairs() if s.params - {"now"} != p.params - {"now"}
    ] == []


def test_states_are_spelled_out() -> None:
    """A state that is bound loses the partial indexes under a generic plan. A reader's filter may be any."""
    bound = re.compile(r"\bstate\s*(=|<>|in)\s*\(?\s*(cast\s*\(\s*)?:")
    assert [statement.name for statement in EVERY if bound.search(statement.normal)] == []
    assert {statement.name for statement in EVERY if {"state", "states"} & statement.params} == {
        "find_jobs",
        "find_later",
    }


def test_sqlite_is_asked_for_nothing_it_learned_after_3_37() -> None:
    assert [name for name, text in load("sqlite").items() if "->" in text] == []


def test_a_list_of_columns_is_repeated_with_commas() -> None:
    types = ", ".join(f"CAST(x.{name} AS {type}) AS {name}" for name, type in STORED_AS_GIVEN.items())
    assert render("SELECT {each option: CAST(x.COLUMN AS TYPE) AS COLUMN}", "sqlite") == f"SELECT {types}"
    with pytest.raises(KeyError):
        render("SELECT {each thing: COLUMN}", "sqlite")


@pytest.mark.parametrize(
    "name", ["insert_jobs", "insert_same_options", "insert_steps", "insert_steps_same_options"]
)
@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_option_of_a_job_is_written_however_it_is_inserted(dialect: Dialect, name: str) -> None:
    options = Options if name == "insert_jobs" else StepOptions
    # Jobs that are due at a time are not inserted alike. A key has a table of its own.
    elsewhere = {"insert_same_options": {"run_at"}, "insert_jobs": {"idempotency_key"}}.get(name, set())
    words = set(re.findall(r"\w+", load(dialect)[name].partition("SELECT")[2]))
    assert {option for option in options.__struct_fields__ if option not in words} == elsewhere


def test_what_is_stored_as_it_is_given_can_be_asked_for_and_read() -> None:
    assert {*StepOptions.__struct_fields__} & {*JobRow.__struct_fields__} >= STORED_AS_GIVEN.keys()
