"""For Alembic: hide perdure's tables from ``alembic revision --autogenerate``, so that it does not drop them.

    # env.py
    from perdure.contrib.alembic import include_name
    context.configure(connection=connection, target_metadata=metadata, include_name=include_name)

Create the tables with ``perdure migrate``, or with ``perdure.schema.install_sql`` in one of your revisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from perdure.store.schema.files import migrations, tables
from perdure.store.statements import DEFAULT_SCHEMA

__all__ = ["include_name", "Beside"]


class Beside:
    """An ``include_name`` that hides perdure's tables, even if their PostgreSQL schema has other tables too.

    For the first schema of the search path, Alembic passes None instead of a name, so use ``Beside(None)`` if perdure's
    tables are there. Usually that schema is ``public``; for a role called perdure it is ``perdure``.
    """

    def __init__(self, schema: str | None = DEFAULT_SCHEMA) -> None:
        self._schema = schema

    def __call__(self, name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
        """Whether Alembic may compare this object."""
        schema = name if type_ == "schema" else parent_names.get("schema_name")
        if schema == DEFAULT_SCHEMA == self._schema:
            return False
        table = name if type_ == "table" else parent_names.get("table_name")
        if table is None:
            return True
        on_sqlite = schema is None and table.startswith("perdure_")
        return not (on_sqlite or (schema == self._schema and table in _tables()))


@lru_cache
def _tables() -> frozenset[str]:
    return frozenset(["migration", *tables(migrations("postgres"))])


include_name = Beside()
