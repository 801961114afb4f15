"""``perdure workflows`` and ``perdure workflow``: graphs of jobs, and what people decide in them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import click

from perdure.cli.acts import actor
from perdure.cli.documents import as_json, print_json, step_document, workflow_document
from perdure.cli.failures import Misuse
from perdure.cli.tables import Column, facts, printable, table, terminal_width
from perdure.cli.target import Target, pass_target, where
from perdure.model.telling import distance, length, stamp

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.ops.workflow import Graph, WorkflowRow
    from perdure.workflow_handle import WorkflowStep

COLUMNS = (
    Column("ID"),
    Column("STATUS"),
    Column("NAME", least=12),
    Column("STEPS", rank=2, right=True),
    Column("STARTED", rank=1),
    Column("TOOK", rank=3, right=True),
    Column("NOTE", rank=4, least=12),
)
STATUSES = ("running", "open", "succeeded", "failed", "canceled")
LOOK = 0.5
"""Seconds between two looks of one who watches."""


@click.command()
@click.option("--name")
@click.option("--status", type=click.Choice(STATUSES))
@click.option("--tenant")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--before", metavar="ID", help="The next page: only those started before this one.")
@as_json
@where
@pass_target
def workflows(
    target: Target,
    name: str | None,
    status: Any,
    tenant: str | None,
    limit: int,
    before: str | None,
    as_json: bool,
) -> None:
    """List workflows, the newest first.

    \b
    Examples:
      perdure workflows --status open
      perdure workflows --name publish --json | jq -r '.[].id'
    """
    with target.reading() as app:
        found = app.list_workflows(name=name, status=status, tenant=tenant, limit=limit, before=before)
        rows = [one.row for one in found if one.row is not None]
    if as_json:
        print_json([workflow_document(row) for row in rows])
        return
    now = time.time_ns() // 1000
    table(COLUMNS, [_line(row, now) for row in rows])
    if not rows:
        click.echo("No workflows.", err=True)
    elif len(rows) == limit:
        click.echo(f"More with --before {rows[-1].id}", err=True)


@click.command()
@click.argument("id")
@click.argument("act", type=click.Choice(["gate"]), required=False)
@click.argument("key", required=False)
@click.option("--approve", is_flag=True, help="The gate succeeds.")
@click.option("--reject", is_flag=True, help="The gate fails.")
@click.option("--reason", help="Why, for whoever looks at it later.")
@actor
@click.option("--watch", is_flag=True, help="Go on showing it until it is over.")
@as_json
@where
@pass_target
def workflow(
    target: Target,
    id: str,
    act: str | None,
    key: str | None,
    approve: bool,
    reject: bool,
    reason: str | None,
    actor: str | None,
    watch: bool,
    as_json: bool,
) -> None:
    """Show a workflow as a tree of its steps, or decide a gate of it.

    \b
    Examples:
      perdure workflow 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10 --watch
      perdure workflow 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10 gate approve --approve
      perdure workflow 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10 gate approve --reject --reason "too dear"
    """
    if (act is None) != (key is None) or approve + reject != (act is not None):
        raise Misuse("A gate is decided by: perdure workflow ID gate KEY --approve, or --reject.")
    with target.reading() as app:
        if key is not None:
            resolution: Literal["succeeded", "failed"] = "succeeded" if approve else "failed"
            changed = app.resolve_gate(id, key, resolution, reason=reason, by=actor)
            decided = "approved" if approve else "rejected"
            click.echo(f"The gate {key} {'is' if changed else 'was already'} {decided}.")
        elif as_json:
            graph = _graph(app, id)
            print_json({**workflow_document(graph.workflow), "steps": [*map(step_document, _steps(graph))]})
        else:
            _show(app, id, watch=watch)


def _show(app: App, id: str, *, watch: bool) -> None:
    from perdure.model.graph import OVER

    before: list[str] = []
    while True:
        graph = _graph(app, id)
        lines = _tree(graph)
        if lines != before:
            if before and terminal_width() is not None:
                click.clear()
            facts(_summary(graph))
            click.echo()
            for line in lines:
                click.echo(printable(line))
        if not watch or graph.workflow.status in OVER:
            return
        before = lines
        time.sleep(LOOK)


def _graph(app: App, id: str) -> Graph:
    from perdure.errors import WorkflowNotFound
    from perdure.ops.workflow import get_graph
    from perdure.workflow_verbs import workflow_id

    graph = app.store.perform(get_graph, workflow_id(id))
    if graph is None:
        raise WorkflowNotFound
    return graph


def _steps(graph: Graph) -> list[WorkflowStep]:
    from perdure.workflow_handle import steps_of

    return [*steps_of(graph)]


def _tree(graph: Graph) -> list[str]:
    from perdure.drawing import tree

    steps = {step.key: step for step in _steps(graph)}
    return tree([step.shape for step in steps.values()], lambda shape: _label(steps[shape.key]))


def _label(step: WorkflowStep) -> str:
    """What it is up to, for how long, and what it waits for."""
    row = step.row
    said: list[str] = [row.state]
    since = row.run_at if row.state == "open" and row.timeout is None else row.started_at
    if since is not None:
        said.append(length(((row.finished_at or step.now) - since) / 1_000_000))
    if row.state == "ready" and row.run_at > step.now:
        said.append(distance(row.run_at, step.now))
    if row.state == "open" and row.timeout is not None:
        said.append(f"until {stamp(row.run_at)}")
    if row.attempt > 1:
        said.append(f"attempt {row.attempt}")
    note = row.error_message if row.state == "failed" and row.error_message else row.reason
    if step.waits_for:
        note = f"waits for {len(step.waits_for)} of {sum(1 for _ in step.shape.parents)}"
    return f"[{', '.join(said)}]" + (f" {' '.join(note.split())}" if note else "")


def _summary(graph: Graph) -> list[tuple[str, str | None]]:
    row = graph.workflow
    ended = None if row.finished_at is None else f"{stamp(row.finished_at)} ({_took(row, graph.now)})"
    return [
        ("workflow", f"{row.id} {row.name}"),
        ("status", row.status + (f": {row.reason}" if row.reason else "")),
        ("run", str(row.run) if row.run > 1 else None),
        ("tenant", row.tenant),
        ("started", f"{stamp(row.created_at)} ({distance(row.created_at, graph.now)})"),
        ("ended", ended),
        ("steps", _counts(row)),
        ("result", row.result),
    ]


def _line(row: WorkflowRow, now: int) -> list[str]:
    done = row.total - row.waiting - row.active - row.open
    return [
        row.id,
        row.status,
        row.name,
        f"{done}/{row.total}",
        distance(row.created_at, now),
        _took(row, now),
        row.reason or "",
    ]


def _took(row: WorkflowRow, now: int) -> str:
    return length(((row.finished_at or now) - row.created_at) / 1_000_000)


def _counts(row: WorkflowRow) -> str:
    succeeded = row.total - row.waiting - row.active - row.open - row.spoiled
    named = {
        "succeeded": succeeded,
        "failed or canceled": row.spoiled,
        "ready or running": row.active,
        "open": row.open,
        "waiting": row.waiting,
    }
    return f"{row.total}: " + ", ".join(f"{number} {name}" for name, number in named.items() if number)
