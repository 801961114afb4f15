"""Draw docs/errors.md from the tree of errors: ``make docs``."""

from __future__ import annotations

from pathlib import Path

from perdure.errors import PerdureError
from tests.test_errors import CLASSES, codes_in_the_package

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"

REPEAT = "repeat the first one exactly: `error.field` names what differs."

ADVICE = {
    "PerdureError": "Catch it to catch them all.",
    "Invalid": "Correct the call: trying again does not help.",
    "InvalidConfig": "Correct the URL or the app; the message says what is wrong.",
    "InvalidTask": "Correct the function or the options of `@app.task`.",
    "InvalidOption": "Correct the option that the message names.",
    "InvalidLease": "Give `lease` a positive number of seconds.",
    "BadArguments": "Correct the argument at `error.path`, or annotate the parameter with its type.",
    "PayloadTooLarge": "Store what is large elsewhere, and pass where it is.",
    "InvalidWorkflow": "Correct the graph; the message names the step.",
    "BlockingCall": "Use what the message names: mostly the async version of the method.",
    "UnsupportedConnection": "Give `conn=` an open connection or session of a [known library](transactions.md).",
    "Conflict": "Look at what is stored, and decide.",
    "IdempotencyConflict": f"Give the new request a key of its own, or {REPEAT}",
    "GateConflict": "Look at how the gate was resolved: that decision is final.",
    "AppendConflict": f"Give the new append a key of its own, or {REPEAT}",
    "UnsupportedIsolation": "Begin your transaction with READ COMMITTED, or leave the keys out.",
    "Refused": "Find out what forbids it; the same call may be allowed later.",
    "UnknownTask": "Check the name; start a worker of the program that has the task, or call its `app.save_tasks()`.",
    "TaskDisabled": "An operator decided so: `app.set_task(name, enabled=True)` allows it again.",
    "TaskNotSaved": "Call `app.save_tasks()` when the program starts, before your own transaction.",
    "GateRefused": "Look at the workflow: the gate is not open yet, or it is another step.",
    "AppendRefused": "Open a gate for as long as steps may come, or let a running step append them.",
    "LeaseLost": "Stop: the job was taken away, and another attempt runs or will run.",
    "WorkerRetired": "Nothing: a worker registers anew by itself.",
    "WorkerDied": "See the log of `perdure.worker`; end the program, or start a worker again.",
    "NotFound": "Check what was asked for.",
    "JobNotFound": "Check the id; the job may have been deleted.",
    "WorkflowNotFound": "Check the id.",
    "ResultMissing": "Ask for an ancestor that succeeded, or wait for it with `after=`.",
    "JobEnded": "Look at `job.state`, `job.error` and `job.reason`.",
    "JobFailed": "See `job.error`; `job.requeue()` starts a new run.",
    "JobCanceled": "See `job.reason`; `job.requeue()` starts a new run.",
    "JobGone": "Nothing is left of it; enqueue it again if it is needed.",
    "WorkflowEnded": "Look at `workflow.status` and `workflow.steps()`.",
    "WorkflowFailed": "See which step failed; `workflow.requeue()` starts a new run.",
    "WorkflowCanceled": "See `workflow.reason`; `workflow.requeue()` starts a new run.",
    "WaitTimeout": "Wait again, or ask `app.explain_job(id)` why it has not ended. The job goes on.",
    "Unavailable": "Try again later. The call has [retried already](enqueue.md#when-the-database-is-away).",
    "StoreAway": "See whether the database runs and can be reached, then try again.",
    "StoreBusy": "Keep transactions short, and give your own as `conn=`; then try again.",
    "RowsLocked": "Find the transaction that is open and end it; then try again.",
    "StoreReadOnly": "Make the file or the server writable, or connect to the primary.",
    "StoreFull": "Make room on the disk.",
    "StoreClosed": "Do not use an app after `close()`; make a new one.",
    "SchemaError": "Run `perdure check`.",
    "SchemaMissing": "Run `perdure migrate`, or correct the URL.",
    "SchemaOutdated": "Run `perdure migrate`.",
    "SchemaNewer": "Upgrade perdure in this program.",
    "SchemaChanged": "Reinstall perdure: its files are not those that made this schema.",
    "SchemaDirty": "Restore the database from a backup.",
    "SchemaForeign": "Restore perdure's history from a backup, or give perdure another schema or file.",
    "UnsupportedDatabase": "The message says what it lacks: SQLite 3.37 on a local disk, or PostgreSQL 14, or newer.",
    "InternalError": "Report it, with its code and its traceback.",
}

FINER = {
    "conn.aborted": "Roll your transaction back first.",
    "conn.autocommit": "Begin a transaction first.",
    "conn.busy": "Let its statement end first.",
    "conn.closed": "Give an open connection, in the thread that it belongs to.",
    "conn.encoding": "Set its `client_encoding` to UTF8.",
    "conn.other_database": "Connect to the database of the app.",
    "conn.pipeline": "Leave the pipeline mode first.",
    "conn.wrong_mode": "Give async connections to the async methods, blocking ones to the others.",
    "job.bad_snapshot": "Upgrade perdure if a later version stored the key; otherwise correct or delete the row.",
    "job.damaged": "Find out who else writes to perdure's tables; delete the job, or correct its row.",
    "job.is_a_step": "Use the workflow method that the message names.",
    "job.key_unstable": "A key appeared and vanished again and again: try again.",
    "job.not_succeeded": "Wait for its end; `requeue_job` is for what failed or was canceled.",
    "job.nested_transaction": "Use the connection of the block that is open.",
    "job.unique_key_taken": "Wait until the job that the message names has ended, or cancel it.",
    "limit.unknown": "Declare the limit with `app.limit`, or set it with `app.set_limit`.",
    "move.abandoned": "Somebody gave the move up: do so with both databases, and begin it again.",
    "move.arrived": "Move again, give the move up with both, or `--keep` the target ([moving](moving.md#movearrived)).",
    "move.differs": "Give the move up, find out who wrote, and move again ([moving](moving.md)).",
    "move.incomplete": "Move again; what has come so far is not all.",
    "move.misfit": "Give the move up, correct or delete the row, and move again.",
    "move.not_empty": "Move into a new file, schema or database.",
    "move.other": "Finish the other move, or give it up; the message names it.",
    "move.same": "Name two databases.",
    "move.workers": "Stop all workers; after a kill wait for the lease to end.",
    "queue.declared_twice": "Declare the queue in one place.",
    "request.ambiguous_id": "Give more characters of the id; the message names some that begin so.",
    "schema.gap": "A migration is missing before one that was applied: restore the database from a backup.",
    "schema.no_such_version": "Name a migration that this version has.",
    "store.bad_value": "The database cannot store a value; correct it.",
    "store.constraint": "In a migration, correct the rows that violate the constraint. Otherwise report it.",
    "store.contended": "Run your transaction again.",
    "store.forbidden": "Grant the role its rights: `perdure grants` prints them ([operating](operating.md#roles)).",
    "store.self_locked": "Give the connection of your transaction as `conn=`, or commit first.",
    "store.left_behind": "Stop all programs that use the SQLite file, then remove its `-wal` and `-shm`.",
    "store.limit": "A limit of the database was exceeded: its log tells which.",
    "store.moved": "Use the database that the jobs were moved to, or wait for the end of the move.",
    "store.refused": "See the log of the database. Often a trigger on perdure's tables refuses the row.",
    "store.too_large": "Correct or delete the row: perdure stores no value of more than 1 MiB.",
    "store.undecodable": "Correct or delete the row: perdure has not written it.",
    "store.unprepared": "Behind a pooler, use `prepare=False`.",
    "task.damaged": "Find out who else writes to perdure's tables; set the config of the task again.",
    "task.duplicate": "Give one of the two tasks another name.",
    "testing.inline": "Commit first, or leave `inline=True` out.",
    "testing.limit": "Jobs come back for ever; raise `limit=` if that is meant.",
    "testing.nested": "Leave the other block of `app.testing()` first.",
    "testing.over": "Use the block only inside its `with`.",
    "testing.stuck": "Jobs are left that can never run; the message says why.",
    "workflow.append_mutation_key_blank": "Give the append a key: a retry is known by it.",
    "workflow.append_terminal_workflow": "The workflow is over, or being canceled: start another one.",
    "workflow.append_window_missing": "Name a gate of this workflow as `window`.",
    "workflow.append_window_not_gate": "Name a gate as `window`: a worker runs that step.",
    "workflow.bad_snapshot": "Upgrade perdure if a later version stored the key; otherwise correct or delete the row.",
    "workflow.gate_conflicting_output_retry": "See the output that the gate was resolved with: that is final.",
    "workflow.gate_invalid_terminal_status": "Resolve it as `succeeded`, `failed` or `canceled`.",
    "workflow.gate_not_found": "Check the key of the gate.",
    "workflow.gate_not_gate": "A worker runs that step: nobody resolves it.",
    "workflow.idempotency_conflict": f"Give the new workflow a key of its own, or {REPEAT}",
    "workflow.key_unstable": "A key appeared and vanished again and again: try again.",
}


TEXT = """\
# Errors

<!-- Drawn by `make docs` from src/perdure/errors.py; a test compares. -->

Everything that perdure raises on purpose is a `PerdureError`. All are in `perdure.errors`; those that most programs
need are also in `perdure`. `error.code` and `error.category` are stable and may be shown to clients. So may the
message, because it never contains payloads, keys, connection strings or SQL. How a *job* fails, with `job.error.code`,
is described in [retries](retries.md#failure-kinds-and-codes).

| error | is a | code | category | meaning | what to do |
|---|---|---|---|---|---|
{errors}

If a class covers several reasons, `error.code` is more specific:

| code | error | what to do |
|---|---|---|
{finer}
"""


def page() -> str:
    return TEXT.format(
        errors="\n".join(_row(error) for error in CLASSES.values()),
        finer="\n".join(
            f"| `{code}` | `{error}` | {FINER[code]} |"
            for code, error in sorted((code, error) for error, code in set(codes_in_the_package()))
        ),
    )


def _row(error: type[PerdureError]) -> str:
    name, parent = error.__name__, error.__bases__[0].__name__
    meaning = (error.__doc__ or "").strip()
    return f"| `{name}` | `{parent}` | `{error.code}` | {error.category} | {meaning} | {ADVICE[name]} |"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
