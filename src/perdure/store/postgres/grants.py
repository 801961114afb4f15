"""The rights on our tables that a PostgreSQL role needs, by its purpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from perdure.store.statements import DEFAULT_SCHEMA

Purpose: TypeAlias = Literal["producer", "worker", "reader", "operator"]

_READ: Final = "SELECT"
_ADD: Final = "SELECT, INSERT"
_WRITE: Final = "SELECT, INSERT, UPDATE"

_TABLES: Final = (
    *("act", "attempt", "dependency", "event", "job", "key", "leader", "limit_lock"),
    *("log", "migration", "move", "mutation", "named_limit", "queue", "task", "worker", "workflow"),
)

RIGHTS: Mapping[Purpose, Mapping[str, str]] = {
    "producer": {
        **dict.fromkeys(("attempt", "log", "migration", "move", "queue", "worker"), _READ),
        **dict.fromkeys(("act", "dependency", "event", "mutation"), _ADD),
        # An enqueue cancels an expired job with the same unique key. An append changes the counts of its workflow.
        # The limits of tasks are written with the tasks.
        **dict.fromkeys(("job", "key", "limit_lock", "named_limit", "task", "workflow"), _WRITE),
    },
    "worker": {
        **dict.fromkeys(("migration", "move"), _READ),
        **dict.fromkeys(("act", "dependency", "event", "log", "mutation"), _ADD),
        **dict.fromkeys(("job", "key", "leader", "limit_lock", "named_limit"), _WRITE),
        **dict.fromkeys(("queue", "task", "worker", "workflow"), _WRITE),
        # Old attempts of a job that is postponed again and again are deleted.
        "attempt": "SELECT, INSERT, DELETE",
    },
    "reader": dict.fromkeys(_TABLES, _READ),
    "operator": dict.fromkeys(_TABLES, "SELECT, INSERT, UPDATE, DELETE"),
}
"""Rights by table. Identity columns need no right on their sequences; LISTEN and NOTIFY need no rights."""


def grants(purpose: Purpose, role: str, schema: str = DEFAULT_SCHEMA) -> list[str]:
    """The GRANT statements for a role. The schema's owner or a superuser runs them. Running them again is harmless."""
    to, place = f"TO {_quoted(role)};", _quoted(schema)
    tables: dict[str, list[str]] = {}
    for table, rights in sorted(RIGHTS[purpose].items()):
        tables.setdefault(rights, []).append(f"{place}.{_quoted(table)}")
    return [f"GRANT USAGE ON SCHEMA {place} {to}"] + [
        f"GRANT {rights} ON {', '.join(names)} {to}" for rights, names in sorted(tables.items())
    ]


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))
