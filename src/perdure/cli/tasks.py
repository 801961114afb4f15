"""``perdure tasks``: list the tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perdure.cli.documents import as_json, iso, print_json
from perdure.cli.output import number, say
from perdure.cli.tables import Column, table
from perdure.cli.target import Target, pass_target, where

if TYPE_CHECKING:
    from perdure.client.tasks import TaskFacts

COUNTS = ("ready", "scheduled", "retrying", "running")
COLUMNS = (
    Column("TASK", least=12, keep_end=True),
    Column("QUEUE", rank=2, least=6, keep_end=True),
    *(
        Column(name.upper(), rank=3 if name in ("scheduled", "retrying") else 0, right=True)
        for name in COUNTS
    ),
    Column("STATUS", rank=1),
    Column("SERVED BY", rank=4, least=8),
    Column("CONFIG", rank=5, least=10),
)


@click.command()
@as_json
@where
@pass_target
def tasks(target: Target, as_json: bool) -> None:
    """List the tasks, their settings and the workers that serve them.

    An unknown task appears only in jobs: no program that defines it was ever started on this database.

    \b
    Examples:
      perdure tasks
      perdure tasks --json | jq -r '.[] | select(.served_by == []) | .name'
    """
    with target.app_with_tables() as app:
        found = app.list_tasks()
    if as_json:
        print_json([_document(task) for task in found])
        return
    table(COLUMNS, [_line(task) for task in found])
    if not found:
        say("No tasks: no program with tasks was ever started on this database.", err=True)


def _line(task: TaskFacts) -> list[str]:
    from msgspec.json import encode

    status = "unknown" if task.defaults is None else "" if task.enabled else "disabled"
    return [
        task.name,
        task.defaults.queue if task.defaults else "",
        *(number(found) if (found := task.counts.get(count)) else "" for count in COUNTS),
        status,
        ", ".join(task.served_by),
        "" if task.config is None else encode(task.config).decode(),
    ]


def _document(task: TaskFacts) -> dict[str, Any]:
    defaults = None
    if task.defaults is not None:
        backoff = task.defaults.backoff
        policy = {"base": backoff.base, "cap": backoff.cap, "codes": dict(backoff.codes)}
        defaults = {**task.defaults._asdict(), "backoff": policy}
    return {**task._asdict(), "saved_at": iso(task.saved_at), "defaults": defaults}
