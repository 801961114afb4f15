"""Find out which rights a role lacks. The server's error names the table, but not the missing rights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import psycopg

from perdure.errors import PerdureError
from perdure.store.postgres.connect import connect
from perdure.store.postgres.errors import diagnose
from perdure.store.postgres.grants import RIGHTS

_LACKING: Final = """
SELECT relname, pg_catalog.array_agg(name)
  FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
       CROSS JOIN pg_catalog.json_array_elements_text(CAST('["SELECT", "INSERT", "UPDATE", "DELETE"]' AS json)) AS name
 WHERE nspname = CAST(%s AS text) AND relkind = CAST('r' AS "char")
   AND NOT pg_catalog.has_table_privilege(pg_class.oid, name)
 GROUP BY relname
"""


def name_missing_right(error: psycopg.Error, url: str, schema: str) -> PerdureError:
    """Translate the error "permission denied". Our error names the table and the missing rights, if known."""
    forbidden = diagnose(error).error
    try:
        with connect(url) as connection:
            lacking = connection.execute(_LACKING, [schema]).fetchall()
    except (psycopg.Error, PerdureError):
        return forbidden
    # The message may be in any language, but the table's name is its last word.
    words = re.findall(r"\w+", error.diag.message_primary or "")
    for table, rights in lacking:
        if words[-1:] == [table]:
            return type(forbidden)(
                f"The database role lacks {_needed(table, rights)} on the table {table} of the schema {schema}: "
                "run perdure grants to list the rights that a role needs.",
                code=forbidden.code,
            )
    return forbidden


def _needed(table: str, lacking: Sequence[str]) -> str:
    """The missing rights that a worker needs, or all missing rights if a worker needs none of these."""
    usual = RIGHTS["worker"].get(table, "").split(", ")
    return ", ".join([right for right in lacking if right in usual] or lacking)
