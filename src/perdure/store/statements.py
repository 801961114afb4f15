"""Named SQL statements, one text per dialect.

``shared.sql`` holds statements that both databases run; ``sqlite.sql`` and ``postgres.sql`` hold what must differ.
The texts are SQL for PostgreSQL and the schema ``perdure``. This module rewrites these notations:

    perdure.job       the table                 perdure_job on SQLite, the configured schema on PostgreSQL
    :name             a bound parameter         %(name)s for psycopg
    :now              the database's clock      the host's clock on SQLite; on PostgreSQL the server's, unless a test
                                                binds a time
    instant(x)        microseconds since the epoch as a time
    span(x)           microseconds as an interval         both stay plain integers on SQLite
    wait(x)           microseconds of a row as a span, limited to 0 to 100 years: the row may have been edited by hand
    too_large()       whether a value of this job's row exceeds 8 MiB, on PostgreSQL only
    value ->> 'name'  a part of a JSON value    json_extract() on SQLite, which has the operator only since 3.38
    greatest(x, y)    max(x, y) on SQLite, and least(x, y) is min(x, y)
    count(x)          a function                pg_catalog.count(x) on PostgreSQL
    {each option: x.COLUMN}
                      the same for each column of a list, with commas between; ``EACH`` has the lists. COLUMN is its
                      name, TYPE its type

    x IN ids(:name)   whether an id is in a JSON array     = ANY (ARRAY(…)) on PostgreSQL, and an IN of a subquery on
    x IN texts(:name) the same for texts                   SQLite: both use the index of x
    as_json(:name)    a document, passed as text           cast through text on PostgreSQL: a caller's codec for json
                                                           would encode it a second time
    = ANY (ARRAY(…))  unchanged on PostgreSQL, where the subquery runs first and the planner cannot reorder it; IN (…)
                      on SQLite
    FOR UPDATE        a row lock, also OF and SKIP LOCKED  left out on SQLite: the writer's transaction is the lock
    INDEXED BY x      the index that SQLite must use       left out on PostgreSQL

    {name}            the text of ``-- fragment: name``, in shared.sql or the dialect's own file: a rule that several
                      statements share. Fragments may contain others.

Functions are qualified so that no other schema's function is called, see docs/decisions/0021. A name in lower case
directly before a parenthesis is a function; a list of columns has a space before it. The operands of every operator
must have exactly the types of the operator in pg_catalog.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Literal, TypeAlias

from perdure.model.job import STORED_AS_GIVEN, JobRow
from perdure.ops.queues import Queue

Dialect: TypeAlias = Literal["sqlite", "postgres"]

DEFAULT_SCHEMA = "perdure"

EACH: Mapping[str, Mapping[str, str]] = {
    "option": STORED_AS_GIVEN,
    "job field": dict.fromkeys(JobRow.__struct_fields__, ""),
    "queue field": dict.fromkeys(Queue._fields, ""),
}
"""Lists of columns, with types where a statement may need them."""

_EACH = re.compile(r"\{each ([a-z ]+): ([^{}]+)\}")
_HEADING = re.compile(r"^-- (name|fragment): (\w+)$", re.MULTILINE)
_FRAGMENT = re.compile(r"\{(\w+)\}")
_TABLE = re.compile(r"\bperdure\.(?=[a-z_])")
_TIME = re.compile(r"\b(instant|span)\(([^()]+)\)")
_PART = re.compile(r"\b((?:\w+\.)?\w+) ->> (?:'(\w+)'|(\d+))")
_LABEL = re.compile(r"->> ('\w+')")
_AMONG = re.compile(r"(\bNOT )?\bIN (ids|texts)\(:(\w+)\)")
_JSON = re.compile(r"\bas_json\((:\w+)\)")
_NESTED = r"[^()]*"
for _ in range(4):  # levels of parentheses
    _NESTED = rf"(?:[^()]|\({_NESTED}\))*"
_ANY = re.compile(rf"= ANY \(ARRAY\(({_NESTED})\)\)")
_LOCK = re.compile(r"\s+FOR UPDATE(?: OF \w+)?(?: SKIP LOCKED)?")
_INDEX = re.compile(r" INDEXED BY [\w.]+")
_FUNCTION = re.compile(r"\b(?<!\.)(?=[a-z][a-z0-9_]*\()(?!(?:coalesce|extract|greatest|least|nullif)\()")
_PARAM = re.compile(r"(?<![:\w]):([a-z_]+)")
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)

_LONGEST_WAIT = 3_155_760_000_000_000
_SQLITE_WAIT = rf"min(max(coalesce(\1, 0), 0), {_LONGEST_WAIT})"
_POSTGRES_TIME = {
    "instant": r"(timestamptz 'epoch' + CAST(CAST(\2 AS bigint) AS double precision) * interval '1 microsecond')",
    "span": r"(CAST(CAST(\2 AS bigint) AS double precision) * interval '1 microsecond')",
    "wait": rf"(CAST(least(greatest(coalesce(\2, 0), 0), {_LONGEST_WAIT}) AS double precision) "
    "* interval '1 microsecond')",
}
_POSTGRES_ARRAY = {
    "ids": "ARRAY(SELECT CAST(value AS uuid) FROM json_array_elements_text(CAST(:{} AS json)) AS value)",
    "texts": "ARRAY(SELECT json_array_elements_text(CAST(:{} AS json)))",
}
_CLAIMED_VALUES = ("payload", "checkpoint", "meta", "tenant", "step_key")
_STORED = ", ".join(f"pg_column_size({column})" for column in _CLAIMED_VALUES)
_UNPACKED = ", ".join(f"octet_length(CAST({column} AS text))" for column in _CLAIMED_VALUES)
# A value of at most 16 kB when stored is at most 4 MB, so only longer values are decompressed to measure them.
_TOO_LARGE = (
    f"CASE WHEN greatest({_STORED}) <= 16384 THEN false WHEN greatest({_STORED}) > 8388608 THEN true "
    f"ELSE greatest({_UNPACKED}) > 8388608 END"
)
_POSTGRES_NOW = "coalesce(instant(:now), statement_timestamp())"


@lru_cache
def load(dialect: Dialect, schema: str = DEFAULT_SCHEMA) -> Mapping[str, str]:
    """Every statement of a dialect by name, in the form for its driver."""
    parts = [*_read("shared.sql"), *_read(f"{dialect}.sql")]
    fragments = {name: text for kind, name, text in parts if kind == "fragment"}
    return {
        name: render(_fill(text, fragments), dialect, schema) for kind, name, text in parts if kind == "name"
    }


def render(text: str, dialect: Dialect, schema: str = DEFAULT_SCHEMA) -> str:
    """Rewrite one text for a dialect, with the parameters of its driver."""
    text = repeat(_COMMENT.sub("", text)).strip().removesuffix(";")
    if dialect == "sqlite":
        text = _JSON.sub(r"\1", _AMONG.sub(r"\1IN (SELECT value FROM json_each(:\3))", text))
        text = _LOCK.sub("", _ANY.sub(r"IN (\1)", text))
        text = text.replace("greatest(", "max(").replace("least(", "min(")
        text = re.sub(r"\bwait\(([^()]+)\)", _SQLITE_WAIT, name_tables(text, dialect, schema))
        return _TIME.sub(r"\2", _PART.sub(_extract, text))
    text = _JSON.sub(r"CAST(CAST(\1 AS text) AS json)", _AMONG.sub(_any_of, _INDEX.sub("", text)))
    text = re.sub(r":now\b", _POSTGRES_NOW, text).replace("%", "%%").replace("too_large()", _TOO_LARGE)
    for function, spelling in _POSTGRES_TIME.items():
        text = re.sub(rf"\b{function}\(([^()]+)\)", spelling.replace(r"\2", r"\1"), text)
    # Without a type the label would be taken for json if somebody has created an operator ->> (json, json).
    text = _FUNCTION.sub("pg_catalog.", _LABEL.sub(r"->> CAST(\1 AS text)", text))
    # The schema comes last: its name may contain anything, even a colon or a percent sign.
    return name_tables(_PARAM.sub(r"%(\1)s", text), dialect, schema.replace("%", "%%"))


def repeat(text: str) -> str:
    """Expand ``{each …}``: repeat its text for each column of a list."""
    return _EACH.sub(
        lambda each: ", ".join(
            each[2].replace("COLUMN", column).replace("TYPE", type) for column, type in EACH[each[1]].items()
        ),
        text,
    )


def name_tables(text: str, dialect: Dialect, schema: str = DEFAULT_SCHEMA) -> str:
    """Replace ``perdure.`` by the schema, or by the prefix of tables on SQLite."""
    if dialect == "sqlite":
        return _TABLE.sub("perdure_", text)
    quoted = '"' + schema.replace('"', '""') + '".'
    return _TABLE.sub(lambda _: quoted, text)


def _any_of(among: re.Match[str]) -> str:
    return f"{'<> ALL' if among[1] else '= ANY'} ({_POSTGRES_ARRAY[among[2]].format(among[3])})"


def _extract(part: re.Match[str]) -> str:
    path = f"$.{part[2]}" if part[2] else f"$[{part[3]}]"
    return f"json_extract({part[1]}, '{path}')"


def _read(file: str) -> Iterator[tuple[str, str, str]]:
    """The statements and fragments of a file: kind, name, text."""
    parts = _HEADING.split(files("perdure.store").joinpath("sql", file).read_text("utf-8"))
    for kind, name, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        yield kind, name, _COMMENT.sub("", text).strip()


def _fill(text: str, fragments: Mapping[str, str]) -> str:
    return _FRAGMENT.sub(lambda found: _fill(fragments[found[1]], fragments), text)
