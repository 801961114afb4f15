"""The app's methods for workflows."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from perdure.client.jobs import PAGE, JobId, optional_text
from perdure.client.workflow import Workflow
from perdure.client.workflow_handle import StartedWorkflow
from perdure.errors import InvalidOption, InvalidWorkflow, WorkflowNotFound
from perdure.model.codec import encode_plain
from perdure.model.graph import GATE, GATES, Shape, Status, Which, check
from perdure.ops import append as append_ops
from perdure.ops import workflow as ops
from perdure.ops import workflow_actions
from perdure.ops.append import AppendOutcome
from perdure.ops.find import LAST
from perdure.ops.topics import queue_topics
from perdure.ops.workflow_actions import Canceling, Requeuing
from perdure.plan.plan import Plan, async_method, perform, perform_on, sync_method
from perdure.request.ids import new_id
from perdure.request.job import JobRequest, inside
from perdure.request.middleware import Middleware
from perdure.request.options import INTEGER, KEY_BYTES, filter_text, number, text, whole
from perdure.request.step import (
    RESOLUTIONS,
    Resolution,
    Step,
    checked_steps,
    new_steps,
    new_steps_of,
    step_key,
)

if TYPE_CHECKING:
    from perdure.app import App


T = TypeVar("T")


class WorkflowMethods:
    """Methods of App for workflows."""

    if TYPE_CHECKING:
        from perdure.store.store import Store

        middleware: list[Middleware]

        @property
        def store(self) -> Store: ...

    def _moving(self, act: Plan[T], conn: object | None) -> Plan[T]:
        """Perform an action that may release steps.

        All such actions use this method, because ``app.testing(inline=True)`` replaces it and runs the released steps.
        """
        return (yield from act)

    def _start_workflow(self, flow: Workflow, *, conn: object | None = None) -> Plan[StartedWorkflow]:
        """Write the workflow and all its steps in one transaction, or in the caller's transaction with ``conn``."""
        return (yield from self._moving(self._start(flow, conn), conn))

    def _start(self, flow: Workflow, conn: object | None) -> Plan[StartedWorkflow]:
        if not isinstance(flow, Workflow):
            raise InvalidWorkflow("start_workflow takes a Workflow.")
        app = cast("App", self)
        shapes, new = flow.shapes(), flow.new(new_id())
        with inside(self.middleware, _requests(flow.steps)) as changed:
            steps = {
                step.step_key: step for step in new_steps(flow.steps, changed, new.id, tenant=flow.tenant)
            }
            wake = queue_topics(steps[shape.key].queue or GATES for shape in shapes if not any(shape.parents))
            started = yield from app._insert_of(
                {step.task for step in steps.values()} - {GATE},
                lambda: perform_on(conn, ops.start, new, shapes, steps, wake),
                conn,
            )
        return StartedWorkflow(app, started.workflow, created=started.created)

    def _get_workflow(self, id: JobId) -> Plan[StartedWorkflow]:
        """The workflow with this id; WorkflowNotFound if it does not exist."""
        row = yield from perform(ops.get_workflow, workflow_id(id))
        if row is None:
            raise WorkflowNotFound
        return StartedWorkflow(cast("App", self), row)

    def _list_workflows(
        self,
        *,
        name: str | None = None,
        status: Status | None = None,
        tenant: str | None = None,
        before: JobId | None = None,
        limit: int = 50,
    ) -> Plan[list[StartedWorkflow]]:
        """A page of workflows, newest first; for the next page give the last id as ``before``."""
        if status is not None and status not in get_args(Status):
            raise InvalidOption(f"status must be one of {', '.join(get_args(Status))}.")
        number("limit", limit, 1, PAGE)
        rows = yield from perform(
            ops.list_workflows,
            name=filter_text("name", name),
            status=status,
            tenant=filter_text("tenant", tenant),
            before=LAST if before is None else workflow_id(before),
            n=limit,
        )
        return [StartedWorkflow(cast("App", self), row) for row in rows]

    def _cancel_workflow(
        self, id: JobId, *, reason: str | None = None, by: str | None = None, conn: object | None = None
    ) -> Plan[Canceling]:
        """Cancel every step that has not ended; running steps are asked to stop. An ended workflow does not change."""
        reason, by = optional_text("reason", reason), optional_text("by", by)
        return (
            yield from perform_on(
                conn, workflow_actions.cancel_workflow, workflow_id(id), reason=reason, by=by
            )
        )

    def _requeue_workflow(
        self,
        id: JobId,
        *,
        run: int | None = None,
        steps: Which = "following",
        reason: str | None = None,
        by: str | None = None,
        conn: object | None = None,
    ) -> Plan[Requeuing]:
        """Start a new run of a workflow that failed or was canceled.

        ``run``: do this only if the workflow's run still has this number.

        ``steps``: "failed" requeues the steps that failed or were canceled, except those canceled because of a parent.
        "following" also requeues all steps after them, "all" every step.
        """
        if steps not in get_args(Which):
            raise InvalidOption(f"steps must be one of {', '.join(get_args(Which))}.")
        act = perform_on(
            conn,
            workflow_actions.requeue_workflow,
            workflow_id(id),
            stand_in=new_id(),
            run=whole("run", run, 1, INTEGER),
            steps=steps,
            reason=optional_text("reason", reason),
            by=optional_text("by", by),
        )
        return (yield from self._moving(act, conn))

    def _resolve_gate(
        self,
        id: JobId,
        key: str,
        resolution: Resolution,
        *,
        output: object = None,
        reason: str | None = None,
        by: str | None = None,
        conn: object | None = None,
    ) -> Plan[bool]:
        """Resolve an open gate.

        Resolving it again in the same way returns False. Resolving it in another way raises GateConflict.

        ``output``: the gate's result, which must consist of JSON values. Only a gate that succeeds has a result.
        """
        if resolution not in RESOLUTIONS:
            raise InvalidOption(
                f"A gate can be resolved as {', '.join(RESOLUTIONS)}.",
                code="workflow.gate_invalid_terminal_status",
            )
        if output is not None and resolution != "succeeded":
            raise InvalidOption("Only a gate that succeeded has an output.")
        act = perform_on(
            conn,
            workflow_actions.resolve_gate,
            workflow_id(id),
            step_key(key),
            resolution,
            output=_output(output) if resolution == "succeeded" else None,
            reason=optional_text("reason", reason),
            by=optional_text("by", by),
        )
        return (yield from self._moving(act, conn))

    def _append_steps(
        self,
        id: JobId,
        *,
        window: str,
        mutation_key: str,
        steps: Sequence[Step[Any]],
        conn: object | None = None,
    ) -> Plan[AppendOutcome]:
        """Add steps while the gate ``window`` is open. A retry with the same ``mutation_key`` adds nothing."""
        if isinstance(mutation_key, str) and not mutation_key.strip():
            raise InvalidOption("mutation_key must not be blank.", code="workflow.append_mutation_key_blank")
        key, listed = text("mutation_key", mutation_key, KEY_BYTES), checked_steps("append_steps", steps)
        workflow, app = workflow_id(id), cast("App", self)
        check([Shape(step.key) for step in listed])
        with inside(self.middleware, _requests(listed)) as changed:
            new = [*new_steps(listed, changed, workflow)]
            act = app._insert_of(
                {step.task for step in new} - {GATE},
                lambda: perform_on(
                    conn,
                    append_ops.append_steps,
                    workflow,
                    window=step_key(window),
                    mutation_key=key,
                    appended=new_steps_of(listed, new),
                ),
                conn,
            )
            return (yield from self._moving(act, conn))

    start_workflow, astart_workflow = sync_method(_start_workflow), async_method(_start_workflow)
    get_workflow, aget_workflow = sync_method(_get_workflow), async_method(_get_workflow)
    list_workflows, alist_workflows = sync_method(_list_workflows), async_method(_list_workflows)
    cancel_workflow, acancel_workflow = sync_method(_cancel_workflow), async_method(_cancel_workflow)
    requeue_workflow, arequeue_workflow = sync_method(_requeue_workflow), async_method(_requeue_workflow)
    resolve_gate, aresolve_gate = sync_method(_resolve_gate), async_method(_resolve_gate)
    append_steps, aappend_steps = sync_method(_append_steps), async_method(_append_steps)


def workflow_id(id: JobId) -> str:
    """The id in its canonical form. WorkflowNotFound if the string is not a UUID."""
    if isinstance(id, uuid.UUID):
        return str(id)
    if not isinstance(id, str):
        raise InvalidOption("A workflow's id must be a string or a UUID.")
    try:
        return str(uuid.UUID(id))
    except ValueError:
        raise WorkflowNotFound from None


def _requests(steps: Sequence[Step[Any]]) -> list[JobRequest[Any]]:
    return [step.request for step in steps if step.request is not None]


def _output(output: object) -> str:
    return encode_plain({"output": output})[len('{"output":') : -1]
