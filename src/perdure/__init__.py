"""Durable jobs and workflows for Python: one SQLite file on a laptop, PostgreSQL across a fleet.

Names are imported when they are first used, so that using one part does not load other parts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.app import App as App
    from perdure.client.job import Job as Job
    from perdure.client.task import Task as Task
    from perdure.client.workflow import Workflow as Workflow
    from perdure.client.workflow import chain as chain
    from perdure.client.workflow import group as group
    from perdure.client.workflow_handle import StartedWorkflow as StartedWorkflow
    from perdure.client.workflow_handle import WorkflowStep as WorkflowStep
    from perdure.errors import BadArguments as BadArguments
    from perdure.errors import IdempotencyConflict as IdempotencyConflict
    from perdure.errors import JobCanceled as JobCanceled
    from perdure.errors import JobFailed as JobFailed
    from perdure.errors import JobGone as JobGone
    from perdure.errors import PerdureError as PerdureError
    from perdure.errors import WaitTimeout as WaitTimeout
    from perdure.errors import WorkerDied as WorkerDied
    from perdure.errors import WorkflowCanceled as WorkflowCanceled
    from perdure.errors import WorkflowFailed as WorkflowFailed
    from perdure.model.backoff import Backoff as Backoff
    from perdure.request.context import CONTEXT as CONTEXT
    from perdure.request.context import Context as Context
    from perdure.request.events import JobEvent as JobEvent
    from perdure.request.middleware import Middleware as Middleware
    from perdure.request.signals import Cancel as Cancel
    from perdure.request.signals import Continue as Continue
    from perdure.request.signals import Fatal as Fatal
    from perdure.request.signals import Retry as Retry
    from perdure.request.signals import Snooze as Snooze
    from perdure.request.signals import Throttle as Throttle
    from perdure.request.step import Gate as Gate
    from perdure.request.step import Step as Step

__version__ = "0.2.0.dev0"

_HOMES = {
    "App": "app",
    "CONTEXT": "request.context",
    "Context": "request.context",
    "BadArguments": "errors",
    "IdempotencyConflict": "errors",
    "JobCanceled": "errors",
    "JobFailed": "errors",
    "JobGone": "errors",
    "PerdureError": "errors",
    "WaitTimeout": "errors",
    "WorkerDied": "errors",
    "WorkflowCanceled": "errors",
    "WorkflowFailed": "errors",
    "JobEvent": "request.events",
    "Job": "client.job",
    "Middleware": "request.middleware",
    "Backoff": "model.backoff",
    "Cancel": "request.signals",
    "Continue": "request.signals",
    "Fatal": "request.signals",
    "Retry": "request.signals",
    "Snooze": "request.signals",
    "Throttle": "request.signals",
    "Gate": "request.step",
    "Step": "request.step",
    "Task": "client.task",
    "Workflow": "client.workflow",
    "chain": "client.workflow",
    "group": "client.workflow",
    "StartedWorkflow": "client.workflow_handle",
    "WorkflowStep": "client.workflow_handle",
}

__all__ = [
    "App",
    "Task",
    "Job",
    "JobEvent",
    "Middleware",
    "Workflow",
    "Step",
    "Gate",
    "StartedWorkflow",
    "WorkflowStep",
    "chain",
    "group",
    "Context",
    "CONTEXT",
    "Backoff",
    "Retry",
    "Snooze",
    "Throttle",
    "Fatal",
    "Cancel",
    "Continue",
    "PerdureError",
    "BadArguments",
    "IdempotencyConflict",
    "JobFailed",
    "JobCanceled",
    "JobGone",
    "WaitTimeout",
    "WorkerDied",
    "WorkflowFailed",
    "WorkflowCanceled",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
