"""The SQL of perdure's tables, for other migration tools: Alembic, Django, or anything that runs SQL."""

from __future__ import annotations

from perdure.errors import InvalidConfig
from perdure.store.schema.files import migrations
from perdure.store.schema.migrate import refuse_unknown
from perdure.store.schema.script import install
from perdure.store.statements import DEFAULT_SCHEMA, Dialect


def install_sql(
    dialect: Dialect, *, schema: str = DEFAULT_SCHEMA, after: int = 0, to: int | None = None
) -> list[str]:
    """The statements that bring a database from version ``after`` to ``to``, by default the newest.

    Run them in order, in one transaction. They also record these migrations in perdure's own table, so that
    ``perdure check`` passes and ``perdure migrate`` finds nothing to do. Give ``to`` in a migration file of your
    own: without it, the file would run more migrations after an upgrade of perdure.
    """
    if dialect not in ("sqlite", "postgres"):
        raise InvalidConfig('The dialect must be "sqlite" or "postgres".')
    known = migrations(dialect)
    refuse_unknown(to, known)
    refuse_unknown(after or None, known)
    chosen = [one for one in known if after < one.version <= (known[-1].version if to is None else to)]
    return install(chosen, dialect, schema, anew=after == 0)
