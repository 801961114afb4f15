"""A database of each kind, created quickly, without settings from the environment."""

from __future__ import annotations

from tests.cli.conftest import no_environment
from tests.conformance.conftest import migrated_postgres, migrated_sqlite, postgres_url, sqlite_url

__all__ = ["migrated_postgres", "migrated_sqlite", "no_environment", "postgres_url", "sqlite_url"]
