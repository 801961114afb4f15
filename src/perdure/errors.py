"""Every error that perdure raises, as one tree of classes.

    PerdureError
    ├── Invalid            the call is wrong; nothing was changed
    │   ├── InvalidConfig, InvalidTask, InvalidOption, InvalidLease
    │   ├── BadArguments, PayloadTooLarge
    │   ├── InvalidWorkflow              a graph that cannot be run; the step is named
    │   ├── BlockingCall                 a blocking method inside an event loop
    │   └── UnsupportedConnection        a ``conn=`` that perdure cannot use
    ├── Conflict           the call contradicts stored data
    │   ├── IdempotencyConflict, GateConflict, AppendConflict
    │   └── UnsupportedIsolation
    ├── Refused            the call is correct, but not allowed now
    │   ├── UnknownTask, TaskDisabled, TaskNotSaved
    │   ├── GateRefused, AppendRefused
    │   └── LeaseLost, WorkerRetired
    ├── NotFound           JobNotFound, WorkflowNotFound, ResultMissing
    ├── JobEnded           what ``job.get()`` raises: JobFailed, JobCanceled, JobGone
    ├── WorkflowEnded      what ``workflow.get()`` raises: WorkflowFailed, WorkflowCanceled
    ├── WaitTimeout
    ├── Unavailable        the database cannot serve now; the same call may succeed later
    │   ├── StoreAway, StoreClosed
    │   ├── StoreBusy      RowsLocked
    │   └── StoreReadOnly, StoreFull
    ├── SchemaError        SchemaMissing, SchemaOutdated, SchemaNewer, SchemaChanged, SchemaDirty, SchemaForeign
    ├── UnsupportedDatabase
    ├── WorkerDied         what a block of ``app.worker()`` raises at its end
    └── InternalError      a bug in perdure, or a damaged row

``code`` is stable, so that clients can rely on it; ``category`` groups codes. A message never contains payloads, keys,
connection strings or SQL (promise 12), so it may be shown.
"""

from __future__ import annotations

from typing import ClassVar, Self


class PerdureError(Exception):
    """The base class of all errors that perdure raises on purpose."""

    code: str = "perdure.error"
    category: ClassVar[str] = "internal"
    costs_attempt = True  # False if ctx.save raised the error because perdure's own database was away

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())
        self.code = code or self.code

    def noting(self, error: BaseException) -> Self:
        """Copy the notes of the original error, and return self."""
        for note in getattr(error, "__notes__", ()):
            self.add_note(note)
        return self


class Invalid(PerdureError):
    """The request cannot be carried out as it was made."""

    code = "request.invalid"
    category = "invalid"


class InvalidConfig(Invalid):
    """A setting of the app is wrong."""

    code = "config.invalid"


class InvalidTask(Invalid):
    """The function cannot be registered as a task."""

    code = "task.invalid"


class InvalidOption(Invalid):
    """An option of the job or of the call is wrong."""

    code = "job.invalid_option"


class InvalidLease(Invalid):
    """A lease must be longer than zero seconds."""

    code = "worker.invalid_lease"


class BadArguments(Invalid):
    """The arguments do not fit the task's signature."""

    code = "job.bad_arguments"

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(message)
        self.path = path


class PayloadTooLarge(Invalid):
    """The encoded arguments are larger than a job may carry."""

    code = "job.payload_too_large"


class InvalidWorkflow(Invalid):
    """The graph of steps cannot be run as it is."""

    code = "workflow.invalid"


class BlockingCall(Invalid):
    """A blocking method was called in a thread that runs an event loop."""

    code = "call.blocking"


class UnsupportedConnection(Invalid):
    """The given connection cannot carry this call."""

    code = "conn.unsupported"


class Conflict(PerdureError):
    """The request contradicts what is stored."""

    code = "request.conflict"
    category = "conflict"


class IdempotencyConflict(Conflict):
    """The idempotency key belongs to a different request."""

    code = "job.idempotency_conflict"

    def __init__(self, field: str, *, code: str | None = None) -> None:
        super().__init__(f"The idempotency key was used for a different request: {field} differs.", code=code)
        self.field = field


class GateConflict(Conflict):
    """The gate was resolved differently."""

    code = "workflow.gate_conflicting_completion_retry"


class AppendConflict(Conflict):
    """The mutation key was used for a different append."""

    code = "workflow.append_conflicting_retry"
    field: str | None = None


class UnsupportedIsolation(Conflict):
    """A keyed or unique enqueue needs READ COMMITTED."""

    code = "job.unsupported_isolation"


class Refused(PerdureError):
    """The request is not allowed now."""

    code = "request.refused"
    category = "refused"


class UnknownTask(Refused):
    """No task of this name is known to the database."""

    code = "task.unknown"


class TaskDisabled(Refused):
    """The task was disabled by an operator."""

    code = "task.disabled"


class TaskNotSaved(Refused):
    """The task is not in the database yet and cannot be written now: call app.save_tasks() beforehand."""

    code = "task.not_saved"


class GateRefused(Refused):
    """The gate cannot be resolved now."""

    code = "workflow.gate_not_open"


class AppendRefused(Refused):
    """The workflow takes no steps now."""

    code = "workflow.append_window_not_open"


class LeaseLost(Refused):
    """The lease on this job was taken away; nothing was written."""

    code = "job.lease_lost"


class WorkerRetired(Refused):
    """This worker's identity was retired; it must register anew."""

    code = "worker.retired"


class NotFound(PerdureError):
    """There is no such thing."""

    code = "request.not_found"
    category = "not_found"


class JobNotFound(NotFound):
    """There is no job with this id."""

    code = "job.not_found"


class WorkflowNotFound(NotFound):
    """There is no workflow with this id."""

    code = "workflow.not_found"


class ResultMissing(NotFound, KeyError):
    """The step has no result."""

    code = "workflow.result_missing"
    __str__ = Exception.__str__  # KeyError would put the message in quotes


class JobEnded(PerdureError):
    """The job ended without a result."""

    code = "job.ended"
    category = "ended"
    job_id: str | None = None
    task: str | None = None
    attempt: int | None = None
    """The number of the last attempt."""


class JobFailed(JobEnded):
    """The job failed."""

    code = "job.failed"
    error_kind: str | None = None
    error_code: str | None = None
    # These two are not part of str(error): a handler's message may quote its arguments.
    error_message: str | None = None
    error_trace: str | None = None


class JobCanceled(JobEnded):
    """The job was canceled."""

    code = "job.canceled"


class JobGone(JobEnded):
    """The job's row no longer exists."""

    code = "job.gone"


class WorkflowEnded(PerdureError):
    """The workflow ended without a result."""

    code = "workflow.ended"
    category = "ended"
    workflow_id: str | None = None


class WorkflowFailed(WorkflowEnded):
    """Some step of the workflow failed or was canceled."""

    code = "workflow.failed"


class WorkflowCanceled(WorkflowEnded):
    """The workflow was canceled."""

    code = "workflow.canceled"


class WaitTimeout(PerdureError, TimeoutError):
    """The job or workflow did not end within the timeout."""

    code = "job.wait_timeout"
    category = "timeout"


class Unavailable(PerdureError):
    """The database cannot serve now; the same call may succeed later."""

    code = "store.unavailable"
    category = "unavailable"
    answered = False  # True if the database was reached and refused a statement, perhaps because of one row


class StoreAway(Unavailable):
    """The database cannot be reached."""

    code = "store.away"
    told = False  # True if the store has logged this outage


class StoreBusy(Unavailable):
    """The database was locked for too long. If your own transaction holds the lock, give its connection as conn."""

    code = "store.busy"


class RowsLocked(StoreBusy):
    """Another transaction kept rows locked for too long."""

    code = "store.rows_locked"


class StoreReadOnly(Unavailable):
    """The database cannot be written to."""

    code = "store.read_only"
    answered = True


class StoreFull(Unavailable):
    """The database's disk is full."""

    code = "store.full"
    answered = True


class StoreClosed(Unavailable):
    """The app was closed."""

    code = "store.closed"


class SchemaError(PerdureError):
    """The database's schema does not fit this version of perdure."""

    code = "schema.unfit"
    category = "schema"


class SchemaMissing(SchemaError):
    """perdure's tables do not exist in this database."""

    code = "schema.missing"


class SchemaOutdated(SchemaError):
    """perdure's tables are older than this version; call app.migrate() or run perdure migrate."""

    code = "schema.outdated"


class SchemaNewer(SchemaError):
    """A newer version of perdure migrated this database."""

    code = "schema.newer"


class SchemaChanged(SchemaError):
    """A migration differs from the one that was applied."""

    code = "schema.changed"


class SchemaDirty(SchemaError):
    """A migration was begun and never finished."""

    code = "schema.dirty"


class SchemaForeign(SchemaError):
    """The database has tables with perdure's names that perdure's migrations did not create."""

    code = "schema.foreign"


class UnsupportedDatabase(PerdureError):
    """perdure cannot work on this database."""

    code = "store.unsupported"
    category = "unsupported"


class WorkerDied(PerdureError):
    """The worker of this block died: one of its loops failed, or its handlers took every thread."""

    code = "worker.died"


class InternalError(PerdureError):
    """A bug in perdure, or a damaged row."""

    code = "perdure.internal"
