"""Named SQL statements, one text per dialect.

``shared.sql`` holds the statements that are the same for both databases. ``sqlite.sql`` and ``postgres.sql`` hold the
statements that must differ. All are written in PostgreSQL's SQL, for a schema named ``perdure``. This module rewrites
these notations:

    perdure.job       a table. SQLite: perdure_job. PostgreSQL: the table in the configured schema.
    :name             a bound parameter. PostgreSQL: %(name)s, as psycopg spells it.
    :now              the time of the database's clock. SQLite: the host's clock. PostgreSQL: the server's, unless a
                      test binds a time.
    instant(x)        converts microseconds since the epoch to a timestamp. SQLite: x itself, an integer.
    span(x)           converts microseconds to an interval. SQLite: x itself, an integer.
    wait(x)           span(x) of a column, limited to 0 to 100 years because somebody may have edited the row by hand.
    too_large()       whether a value of this job's row exceeds 8 MiB. Only on PostgreSQL.
    value ->> 'name'  a part of a JSON value. SQLite: json_extract(), because the operator exists only since 3.38.
    greatest(x, y)    SQLite: max(x, y). Likewise least(x, y) becomes min(x, y).
    count(x)          a call of any function. PostgreSQL: pg_catalog.count(x).
    x IN ids(:name)   whether an id is in a JSON array. PostgreSQL: = ANY (ARRAY(…)). SQLite: IN (SELECT …). Both can
                      use an index on x.
    x IN texts(:name) whether a text is in a JSON array, likewise.
    as_json(:name)    a JSON document that is passed as text. PostgreSQL: cast to text first, otherwise a caller's codec
                      for json would encode it a second time.
    = ANY (ARRAY(…))  whether a value is in the result of a subquery. SQLite: IN (…). PostgreSQL: unchanged; the
                      subquery runs first, and the planner cannot reorder it.
    FOR UPDATE        a row lock, also with OF or SKIP LOCKED. SQLite: left out, because a write transaction locks the
                      whole database.
    INDEXED BY x      the index that SQLite must use. PostgreSQL: left out.

    {each option: x.COLUMN}
                      the text after the colon, once for each column of the list ``EACH["option"]``, separated by
                      commas. In it, COLUMN stands for the column's name and TYPE for its type.
    {name}            the text below ``-- fragment: name`` in shared.sql or the dialect's own file: a rule that several
                      statements share. A fragment may contain other fragments.

Functions are qualified so that a statement never calls a function of another schema, see docs/decisions/0021. This
module takes a lower-case name directly before a parenthesis for a function, so a list of columns needs a space before
its parenthesis. A statement must not use an operator of another schema either. So the operands of every operator must
have exactly the types for which pg_catalog defines that operator.
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
"""Lists of columns, each column with its SQL type. The type is empty if no statement needs it."""

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
for _ in range(4):  # four levels of nested parentheses
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
# A value that takes at most 16 kB when stored has at most 4 MB when decompressed. So only larger values are
# decompressed to measure them.
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
    # Without the cast, PostgreSQL would read the name after ->> as json if somebody had created an operator ->> (json,
    # json).
    text = _FUNCTION.sub("pg_catalog.", _LABEL.sub(r"->> CAST(\1 AS text)", text))
    # The schema is inserted last: its name may contain anything, even a colon or a percent sign.
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
