"""``perdure workflows`` lists workflows; ``perdure workflow`` shows one or acts on it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import click

from perdure.cli.acts import actor
from perdure.cli.documents import as_json, print_json, step_document, workflow_document
from perdure.cli.failures import Failure, Misuse
from perdure.cli.output import number, say
from perdure.cli.tables import Column, facts, table, terminal_width
from perdure.cli.target import Target, pass_target, where
from perdure.model.time_text import distance, length, stamp
from perdure.model.visible_state import visible_state

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.client.views import FailedStep, WorkflowRow, WorkflowView
    from perdure.client.workflow_handle import Placed
    from perdure.model.graph import Shape
    from perdure.request.step import Resolution

COLUMNS = (
    Column("ID"),
    Column("STATUS"),
    Column("NAME", least=12, keep_end=True),
    Column("STEPS", rank=3, right=True),
    Column("STARTED", rank=2),
    Column("TOOK", rank=4, right=True),
    Column("NOTE", rank=1, least=12),
)
STATUSES = ("running", "open", "succeeded", "failed", "canceled")
WHICH = ("following", "failed", "all")
OUTCOMES = {
    "canceled": "The workflow is canceled.",
    "cancel_requested": "The workflow is being canceled: its running steps were asked to stop.",
    "already_ended": "The workflow has already ended; nothing was changed.",
    "requeued": "The workflow runs again.",
    "not_ended": "The workflow has not ended: only a failed or canceled workflow can be requeued.",
    "already_succeeded": "The workflow succeeded: there is nothing to requeue.",
    "other_run": "The workflow has begun another run in the meantime.",
    "nothing_to_requeue": "None of these steps can run again: try --steps following.",
    "unique_key_taken": "Another workflow with the same unique key is running.",
}
LOOK = 0.5
"""Seconds between two reads with --watch."""


@click.command()
@click.option("--name")
@click.option("--status", type=click.Choice(STATUSES))
@click.option("--tenant")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--before", metavar="ID", help="The next page: the last id of this one.")
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

    The note of a failed workflow names the first step that failed, and its error.

    \b
    Examples:
      perdure workflows --status open
      perdure workflows --name publish --json | jq -r '.[].id'
    """
    with target.app_with_tables() as app:
        rows = app.views.workflows(name=name, status=status, tenant=tenant, limit=limit, before=before)
        failed = app.views.failed_steps(rows)
    if as_json:
        print_json([_listed(row, failed.get(row.id)) for row in rows])
        return
    now = time.time_ns() // 1000
    table(COLUMNS, [_line(row, failed.get(row.id), now) for row in rows])
    if not rows:
        say("No workflows.", err=True)
    elif len(rows) == limit:
        say(f"More with --before {rows[-1].id}", err=True)


@click.command()
@click.argument("id")
@click.argument("act", type=click.Choice(["gate", "cancel", "requeue"]), required=False)
@click.argument("key", required=False)
@click.option("--approve", is_flag=True, help="The gate succeeds.")
@click.option("--reject", is_flag=True, help="The gate fails.")
@click.option("--output", metavar="JSON", help="The result of an approved gate, for the steps after it.")
@click.option(
    "--steps",
    type=click.Choice(WHICH),
    help="The steps to requeue: failed ones and those following them (the default), only failed ones, or all.",
)
@click.option("--reason", help="Why; the history shows it.")
@actor
@click.option("--watch", is_flag=True, help="Show each change until the workflow ends.")
@as_json
@where
@pass_target
def workflow(target: Target, /, id: str, act: str | None, key: str | None, **asked: Any) -> None:
    """Show a workflow as a tree, resolve a gate, cancel or requeue it.

    The first characters of the workflow's id are enough if no other workflow's id begins with them.

    \b
    Examples:
      perdure workflow 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10 --watch
      perdure workflow 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10 gate approve --approve --output '{"by": "ann"}'
      perdure workflow 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10 gate approve --reject --reason "too expensive"
      perdure workflow 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10 cancel --reason "withdrawn"
      perdure workflow 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10 requeue --steps failed
    """
    _check(act, key, asked)
    with target.app_with_tables() as app:
        id = app.views.whole_workflow_id(id)
        if act is None:
            _look(app, id, watch=asked["watch"], as_json=asked["as_json"])
            return
        done, sentence = _act(app, id, act, key, asked)
    # Resolving a gate again in the same way changes nothing, but is not refused.
    refused = act != "gate" and not done["changed"]
    if asked["as_json"]:
        print_json({"workflow": id, **done})
    else:
        say(sentence, err=refused)
    if refused:
        raise SystemExit(Failure.exit_code)


def _check(act: str | None, key: str | None, asked: dict[str, Any]) -> None:
    """Refuse options that do not belong to the action."""
    decided = asked["approve"] + asked["reject"]
    if (act == "gate") != (key is not None) or decided != (act == "gate"):
        raise Misuse("To resolve a gate: perdure workflow ID gate KEY --approve, or --reject.")
    if asked["output"] is not None and not asked["approve"]:
        raise Misuse("--output needs --approve: only an approved gate has an output.")
    if asked["steps"] is not None and act != "requeue":
        raise Misuse("--steps needs requeue: perdure workflow ID requeue --steps failed.")
    if asked["reason"] is not None and act is None:
        raise Misuse("--reason needs an action: gate, cancel or requeue.")
    if asked["watch"] and act is not None:
        raise Misuse("--watch only shows a workflow: give no action with it.")


def _act(app: App, id: str, act: str, key: str | None, asked: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Perform the action; return its outcome as a document and as a sentence."""
    reason, by = asked["reason"], asked["actor"]
    if act == "cancel":
        canceling = app.cancel_workflow(id, reason=reason, by=by)
        return _outcome(canceling, canceling != "already_ended")
    if act == "requeue":
        requeuing = app.requeue_workflow(id, steps=asked["steps"] or "following", reason=reason, by=by)
        return _outcome(requeuing, requeuing == "requeued")
    resolution, decided = ("succeeded", "approved") if asked["approve"] else ("failed", "rejected")
    changed = app.resolve_gate(
        id, key or "", cast("Resolution", resolution), output=_output(asked["output"]), reason=reason, by=by
    )
    told = f"The gate {key} {'is' if changed else 'was already'} {decided}."
    return {"gate": key, "outcome": resolution, "changed": changed}, told


def _outcome(outcome: str, changed: bool) -> tuple[dict[str, Any], str]:
    return {"outcome": outcome, "changed": changed}, OUTCOMES[outcome]


def _output(text: str | None) -> Any:
    import json

    try:
        return None if text is None else json.loads(text)
    except ValueError:
        raise Misuse("--output is not JSON: a string needs quotes, as in '\"yes\"'.") from None


def _look(app: App, id: str, *, watch: bool, as_json: bool) -> None:
    if not as_json:
        _show(app, id, watch=watch)
        return
    view = app.views.workflow(id)
    print_json({**workflow_document(view.workflow), "steps": [*map(step_document, view.steps)]})


def _show(app: App, id: str, *, watch: bool) -> None:
    from perdure.model.graph import OVER

    before: list[str] = []
    while True:
        view = app.views.workflow(id)
        lines = _tree(view)
        if lines != before:
            if before and terminal_width() is not None:
                click.clear()
            facts(_summary(view))
            say()
            for line in lines:
                say(line)
        if not watch or view.workflow.status in OVER:
            return
        before = lines
        time.sleep(LOOK)


def _tree(view: WorkflowView) -> list[str]:
    """The tree's lines. Each line begins with the id of the step's job."""
    from perdure.client.drawing import tree

    steps = {step.row.key: step for step in view.steps}
    ids: list[str] = []

    def label(shape: Shape) -> str:
        ids.append(steps[shape.key].row.id)
        return _label(steps[shape.key], view.now)

    lines = tree([step.shape for step in steps.values()], label)
    return [f"{id}  {line}" for id, line in zip(ids, lines, strict=True)]


def _label(step: Placed, now: int) -> str:
    """The step's state, how long the step has run or been open, and how many parents it waits for."""
    row = step.row
    said: list[str] = [
        visible_state(row.state, held=row.held, due=row.run_at <= now, error_kind=row.error_kind)
    ]
    since = row.run_at if row.state == "open" and row.timeout is None else row.started_at
    if since is not None:
        said.append(length(((row.finished_at or now) - since) / 1_000_000))
    if row.state == "ready" and row.run_at > now:
        said.append(distance(row.run_at, now))
    if row.state == "open" and row.timeout is not None:
        said.append(f"until {stamp(row.run_at)}")
    if row.attempt > 1:
        said.append(f"attempt {row.attempt}")
    note = row.error_message if row.state == "failed" and row.error_message else row.reason
    if step.waits_for:
        note = f"waits for {len(step.waits_for)} of {sum(1 for _ in step.shape.parents)}"
    return f"[{', '.join(said)}]" + (f" {' '.join(note.split())}" if note else "")


def _summary(view: WorkflowView) -> list[tuple[str, str | None]]:
    row = view.workflow
    ended = None if row.finished_at is None else f"{stamp(row.finished_at)} ({_took(row, view.now)})"
    return [
        ("workflow", f"{row.id} {row.name}"),
        ("status", row.status + (f": {row.reason}" if row.reason else "")),
        ("run", str(row.run) if row.run > 1 else None),
        ("tenant", row.tenant),
        ("started", f"{stamp(row.created_at)} ({distance(row.created_at, view.now)})"),
        ("ended", ended),
        ("steps", _counts(row)),
        ("result", row.result),
    ]


def _listed(row: WorkflowRow, failed: FailedStep | None) -> dict[str, Any]:
    return {**workflow_document(row), "failed_step": None if failed is None else failed._asdict()}


def _line(row: WorkflowRow, failed: FailedStep | None, now: int) -> list[str]:
    done = row.total - row.waiting - row.active - row.open
    return [
        row.id,
        row.status,
        row.name,
        f"{done}/{row.total}",
        distance(row.created_at, now),
        _took(row, now),
        row.reason or _why(failed),
    ]


def _why(failed: FailedStep | None) -> str:
    """The first failed step and its error. A failed gate has a reason instead of an error."""
    if failed is None:
        return ""
    error = ": ".join(filter(None, (failed.code, failed.message))) or failed.reason
    return f"{failed.key}: {error}" if error else failed.key


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
    return f"{number(row.total)}: " + ", ".join(f"{number(n)} {name}" for name, n in named.items() if n)
