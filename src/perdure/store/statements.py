"""Named SQL statements, one text per dialect.

``shared.sql`` holds what both databases run as it stands; ``sqlite.sql`` and ``postgres.sql`` hold what must differ.
The texts are SQL that PostgreSQL would run against the schema ``perdure``; these spellings are rewritten here:

    perdure.job       the table                 perdure_job on SQLite, the configured schema on PostgreSQL
    :name             a bound parameter         %(name)s for psycopg
    :now              the database's clock      the host's clock on SQLite; on PostgreSQL the server's, unless a test
                                                binds its own
    instant(x)        microseconds since the epoch as a time
    span(x)           microseconds as an interval         both stay plain integers on SQLite
    wait(x)           microseconds of a row as a span between 0 and 100 years, whatever was written there by hand
    too_large()       whether a value of this job's row exceeds 8 MiB, on PostgreSQL only
    value ->> 'name'  a part of a JSON value    json_extract() on SQLite, which has the operator only since 3.38
    count(x)          a function                pg_catalog.count(x) on PostgreSQL
    {each option: x.COLUMN}
                      the same for each column of a list, with commas between; ``EACH`` has the lists. COLUMN is its
                      name, TYPE its type

Functions are qualified so that nobody else's are called, see docs/decisions/0021. A name in lower case directly before
a parenthesis is a function; a list of columns has a space before it. And every operator must be given operands of
exactly the types that pg_catalog has it for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Literal, TypeAlias

from perdure.model.job import STORED_AS_GIVEN, JobRow
from perdure.ops.queues import SETTINGS, Queue

Dialect: TypeAlias = Literal["sqlite", "postgres"]

DEFAULT_SCHEMA = "perdure"

EACH: Mapping[str, Mapping[str, str]] = {
    "option": STORED_AS_GIVEN,
    "job field": dict.fromkeys(JobRow.__struct_fields__, ""),
    "queue field": dict.fromkeys(Queue._fields, ""),
    "queue setting": dict.fromkeys(SETTINGS, ""),
}
"""Lists of columns, each with its type where a statement may ask for that."""

_EACH = re.compile(r"\{each ([a-z ]+): ([^{}]+)\}")
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_TABLE = re.compile(r"\bperdure\.(?=[a-z_])")
_TIME = re.compile(r"\b(instant|span)\(([^()]+)\)")
_PART = re.compile(r"\b((?:\w+\.)?\w+) ->> (?:'(\w+)'|(\d+))")
_LABEL = re.compile(r"->> ('\w+')")
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
_CLAIMED_VALUES = ("payload", "checkpoint", "meta", "tenant", "step_key")
_STORED = ", ".join(f"pg_column_size({column})" for column in _CLAIMED_VALUES)
_UNPACKED = ", ".join(f"octet_length(CAST({column} AS text))" for column in _CLAIMED_VALUES)
# What is stored in 16 kB is at most 4 MB, so that only a longer value is unpacked to be measured.
_TOO_LARGE = (
    f"CASE WHEN greatest({_STORED}) <= 16384 THEN false WHEN greatest({_STORED}) > 8388608 THEN true "
    f"ELSE greatest({_UNPACKED}) > 8388608 END"
)
_POSTGRES_NOW = "coalesce(instant(:now), statement_timestamp())"


@lru_cache
def load(dialect: Dialect, schema: str = DEFAULT_SCHEMA) -> Mapping[str, str]:
    """Every statement of a dialect by its name, as its driver takes it."""
    texts = dict(_read("shared.sql")) | dict(_read(f"{dialect}.sql"))
    return {name: render(text, dialect, schema) for name, text in texts.items()}


def render(text: str, dialect: Dialect, schema: str = DEFAULT_SCHEMA) -> str:
    """One text in a dialect's own spelling, with parameters."""
    text = repeat(_COMMENT.sub("", text)).strip().removesuffix(";")
    if dialect == "sqlite":
        text = re.sub(r"\bwait\(([^()]+)\)", _SQLITE_WAIT, name_tables(text, dialect, schema))
        return _TIME.sub(r"\2", _PART.sub(_extract, text))
    text = re.sub(r":now\b", _POSTGRES_NOW, text).replace("%", "%%").replace("too_large()", _TOO_LARGE)
    for function, spelling in _POSTGRES_TIME.items():
        text = re.sub(rf"\b{function}\(([^()]+)\)", spelling.replace(r"\2", r"\1"), text)
    # Without its type the label would be taken for json where somebody has made an operator ->> (json, json).
    text = _FUNCTION.sub("pg_catalog.", _LABEL.sub(r"->> CAST(\1 AS text)", text))
    # The schema last: its name may contain anything, also a colon or a percent sign.
    return name_tables(_PARAM.sub(r"%(\1)s", text), dialect, schema.replace("%", "%%"))


def repeat(text: str) -> str:
    """What is to be said of each column of a list, said of each."""
    return _EACH.sub(
        lambda each: ", ".join(
            each[2].replace("COLUMN", column).replace("TYPE", type) for column, type in EACH[each[1]].items()
        ),
        text,
    )


def name_tables(text: str, dialect: Dialect, schema: str = DEFAULT_SCHEMA) -> str:
    """Put the tables where they live."""
    if dialect == "sqlite":
        return _TABLE.sub("perdure_", text)
    quoted = '"' + schema.replace('"', '""') + '".'
    return _TABLE.sub(lambda _: quoted, text)


def _extract(part: re.Match[str]) -> str:
    path = f"$.{part[2]}" if part[2] else f"$[{part[3]}]"
    return f"json_extract({part[1]}, '{path}')"


def _read(file: str) -> Iterator[tuple[str, str]]:
    parts = _NAME.split(files("perdure.store").joinpath("sql", file).read_text("utf-8"))
    yield from zip(parts[1::2], parts[2::2], strict=True)
