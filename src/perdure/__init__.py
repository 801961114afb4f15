"""Durable jobs and workflows for Python: one SQLite file on a laptop, PostgreSQL across a fleet.

The names are resolved when they are first used, so that importing one part does not load the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.app import App as App
    from perdure.context import CONTEXT as CONTEXT
    from perdure.context import Context as Context
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
    from perdure.events import JobEvent as JobEvent
    from perdure.handle import Job as Job
    from perdure.middleware import Middleware as Middleware
    from perdure.model.backoff import Backoff as Backoff
    from perdure.signals import Cancel as Cancel
    from perdure.signals import Continue as Continue
    from perdure.signals import Fatal as Fatal
    from perdure.signals import Retry as Retry
    from perdure.signals import Snooze as Snooze
    from perdure.signals import Throttle as Throttle
    from perdure.step import Gate as Gate
    from perdure.step import Step as Step
    from perdure.task import Task as Task
    from perdure.workflow import Workflow as Workflow
    from perdure.workflow import chain as chain
    from perdure.workflow import group as group
    from perdure.workflow_handle import StartedWorkflow as StartedWorkflow
    from perdure.workflow_handle import WorkflowStep as WorkflowStep

__version__ = "0.2.0.dev0"

_HOMES = {
    "App": "app",
    "CONTEXT": "context",
    "Context": "context",
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
    "JobEvent": "events",
    "Job": "handle",
    "Middleware": "middleware",
    "Backoff": "model.backoff",
    "Cancel": "signals",
    "Continue": "signals",
    "Fatal": "signals",
    "Retry": "signals",
    "Snooze": "signals",
    "Throttle": "signals",
    "Gate": "step",
    "Step": "step",
    "Task": "task",
    "Workflow": "workflow",
    "chain": "workflow",
    "group": "workflow",
    "StartedWorkflow": "workflow_handle",
    "WorkflowStep": "workflow_handle",
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
