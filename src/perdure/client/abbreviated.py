"""Abbreviated ids: find a job or a workflow by the first characters of its id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from perdure.errors import InvalidOption, JobNotFound, Refused, WorkflowNotFound
from perdure.ops.browse import JobName, WorkflowName, find_between
from perdure.plan.plan import Plan, perform
from perdure.request.ids import id_range

LEAST = 4
"""The fewest characters of an id to accept. Ids begin with the time; all ids of seven weeks share the first four."""
MOST_NAMED = 5
"""The most candidates that an error lists."""


def whole_job_id(typed: str) -> Plan[str]:
    """The id of the only job whose id begins with ``typed``. If there is not exactly one, the error says why."""
    jobs, workflows = yield from _find(typed)
    if len(jobs) > 1:
        _refuse(typed, "jobs", [f"{job.id} ({job.task}, {job.state})" for job in jobs])
    if not jobs and workflows:
        raise JobNotFound(f"This is a workflow, not a job: perdure workflow {workflows[0].id} shows it.")
    if not jobs:
        raise JobNotFound
    return jobs[0].id


def whole_workflow_id(typed: str) -> Plan[str]:
    """The id of the only workflow whose id begins with ``typed``. If there is not exactly one, the error says why."""
    jobs, workflows = yield from _find(typed)
    if len(workflows) > 1:
        _refuse(typed, "workflows", [f"{one.id} ({one.name}, {one.status})" for one in workflows])
    if not workflows and jobs:
        job = jobs[0]
        shown = f"This is a job, not a workflow: perdure job {job.id} shows it"
        step = f", and perdure workflow {job.workflow} shows its workflow" if job.workflow else ""
        raise WorkflowNotFound(f"{shown}{step}.")
    if not workflows:
        raise WorkflowNotFound
    return workflows[0].id


def _find(typed: str) -> Plan[tuple[list[JobName], list[WorkflowName]]]:
    ends = id_range(typed)
    if ends is None:
        return [], []
    if len(typed) < LEAST:
        raise InvalidOption(f"Give at least {LEAST} characters of an id.")
    return (yield from perform(find_between, *ends, n=MOST_NAMED + 1))


def _refuse(typed: str, what: str, found: Sequence[str]) -> NoReturn:
    number = f"more than {MOST_NAMED}" if len(found) > MOST_NAMED else str(len(found))
    named = ", ".join(found[:MOST_NAMED])
    raise Refused(
        f"The ids of {number} {what} begin with {typed}: {named}. Give more characters of the one you mean.",
        code="request.ambiguous_id",
    )
