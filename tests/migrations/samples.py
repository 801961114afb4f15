"""Migrations that no release has: one for a transaction, one that is online, on either database."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.store.schema.files import Migration, migrations
from perdure.store.statements import Dialect

PLAIN: dict[Dialect, str] = {
    dialect: """\
-- Nothing here can be done twice.
CREATE TABLE perdure.more (id integer PRIMARY KEY, note text, size integer NOT NULL);
INSERT INTO perdure.more VALUES (1, 'a;b', 0);
ALTER TABLE perdure.more ADD COLUMN owner text;
"""
    for dialect in ("sqlite", "postgres")
}

ONLINE: dict[Dialect, str] = {
    "sqlite": """\
-- online: nothing here can be done twice.
ALTER TABLE perdure.more ADD COLUMN tenant text;
UPDATE perdure.more SET size = size + 1;
CREATE INDEX perdure.job_tenant ON perdure.job (tenant, id) WHERE tenant IS NOT NULL;
CREATE TRIGGER perdure.more_is_counted AFTER INSERT ON perdure.more BEGIN
    UPDATE perdure.more SET size = size + 1;
END;
CREATE UNIQUE INDEX perdure.more_note ON perdure.more (note);
""",
    "postgres": """\
-- online: nothing here can be done twice, but for what is said CONCURRENTLY.
ALTER TABLE perdure.job ADD CONSTRAINT queue_is_short CHECK (length(queue) <= 500) NOT VALID;
ALTER TABLE perdure.job VALIDATE CONSTRAINT queue_is_short;
UPDATE perdure.more SET size = size + 1;

-- For those who ask for a tenant's jobs; others write meanwhile.
CREATE INDEX CONCURRENTLY job_tenant ON perdure.job (tenant, id) WHERE tenant IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS perdure.more_old;
CREATE UNIQUE INDEX CONCURRENTLY more_note ON perdure.more (note);
""",
}


def plain(dialect: Dialect) -> Migration:
    return Migration(len(migrations(dialect)) + 1, "more things", PLAIN[dialect])


def online(dialect: Dialect) -> Migration:
    return Migration(len(migrations(dialect)) + 2, "while others write", ONLINE[dialect])


def samples(dialect: Dialect) -> Sequence[Migration]:
    """The migrations of this version, and these two."""
    return [*migrations(dialect), plain(dialect), online(dialect)]
