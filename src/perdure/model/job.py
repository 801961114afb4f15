"""Records of jobs as they are requested, claimed and stored."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

Instant: TypeAlias = int
"""Microseconds since the epoch, UTC."""
Span: TypeAlias = int
"""Microseconds."""

SECOND: Span = 1_000_000

MOST_COUNTED = 2**31 - 1
"""The highest value of a row's counter. Sums are cut to it, so that a counter changed by hand cannot stop a write."""

UNCLAIMABLE = "unclaimable"
"""The value of ``held`` for a job whose row no claim can read. The job's ``reason`` says why."""

LATER = "later"
"""The value of ``held`` for a job that is set aside until shortly before it is due.

Such a job does not count as held.
"""

State: TypeAlias = Literal["waiting", "ready", "running", "open", "succeeded", "failed", "canceled"]
ENDED: frozenset[State] = frozenset(("succeeded", "failed", "canceled"))


class Lease(NamedTuple):
    """The right to record the outcome of one claim."""

    job: str
    token: int


class StepOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The options of a step, validated. None means "not set".

    A new option is a field here and a field of ``Asked`` in request/options.py. If its column stores the value
    unchanged, it is also an entry in ``STORED_AS_GIVEN`` and a field of ``JobRow``. Requests, inserts and reads then
    include the option without further changes.
    """

    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    timeout: Span | None = None
    delay: Span | None = None
    """For a step, the delay begins when the step is released."""
    run_at: Instant | None = None
    expires_in: Span | None = None
    expires_at: Instant | None = None
    tenant: str | None = None
    tags: str | None = None
    meta: str | None = None
    concurrency_key: str | None = None


class Options(StepOptions, frozen=True, kw_only=True):
    """The options of a job: the options of a step, and keys."""

    unique_key: str | None = None
    idempotency_key: str | None = None

    @property
    def keyed(self) -> bool:
        return self.idempotency_key is not None or self.unique_key is not None


STORED_AS_GIVEN = {"tenant": "text", "tags": "json", "meta": "json", "concurrency_key": "text"}
"""The options whose columns store the value unchanged, with the columns' types.

The SQL of the inserts names all other options.
"""


class NewJob(Options, frozen=True, kw_only=True):
    """A request to run a task. An option that is None gets the task's default."""

    id: str
    task: str
    payload: str
    parent_job: str | None = None
    request: str | None = None
    """The canonical request; present exactly when there is an idempotency key."""


class NewWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    """A request to start a workflow."""

    id: str
    name: str
    tenant: str | None = None
    result_step: str | None = None
    meta: str | None = None
    unique_key: str | None = None
    idempotency_key: str | None = None
    request: str | None = None
    """The canonical request; present exactly when there is an idempotency key."""

    @property
    def keyed(self) -> bool:
        return self.idempotency_key is not None or self.unique_key is not None


class NewStep(StepOptions, frozen=True, kw_only=True):
    """A requested job of a workflow, with its initial state."""

    id: str
    workflow_id: str
    step_key: str
    task: str
    payload: str
    parent_job: str | None = None
    state: State = "ready"
    pending: int = 0
    unsatisfied: int = 0
    reason: str | None = None


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A job as its worker receives it. The order of the fields is the order of the claim's columns."""

    id: str
    token: int
    attempt: int
    task: str
    queue: str
    priority: int
    run_at: Instant
    run: int
    max_attempts: int
    timeout: Span | None
    payload: str
    checkpoint: str | None
    tenant: str | None
    meta: str | None
    crashes: int
    interruptions: int
    scheduled_for: Instant | None
    workflow_id: str | None
    step_key: str | None

    @property
    def lease(self) -> Lease:
        # The same as Lease(), in half the time. This code runs several times per job.
        return tuple.__new__(Lease, (self.id, self.token))


class JobRow(msgspec.Struct, frozen=True, gc=False):
    """A job as it is stored. Each field is the column of that name."""

    id: str
    task: str
    queue: str
    tenant: str | None
    state: State
    held: str | None
    priority: int
    run: int
    attempt: int
    max_attempts: int
    timeout: Span | None
    run_at: Instant
    expires_at: Instant | None
    token: int
    worker: str | None
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    payload: str
    meta: str | None
    tags: str | None
    stage: str | None
    progress_done: int | None
    progress_total: int | None
    progress_message: str | None
    checkpoint: str | None
    result: str | None
    reason: str | None
    error_kind: str | None
    error_code: str | None
    error_message: str | None
    error_trace: str | None
    cancel_requested_at: Instant | None
    throttles: int
    snoozes: int
    crashes: int
    interruptions: int
    unique_key: str | None
    concurrency_key: str | None
    workflow_id: str | None
    step_key: str | None
    parent_job: str | None
    replay_of: str | None
    scheduled_for: Instant | None


class TaskDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A task's defaults, as declared in code and stored in the database."""

    name: str
    queue: str
    priority: int
    max_attempts: int
    timeout: Span | None
    backoff: str
    max_crashes: int | None
    redact: str | None = None
    """The names of arguments that are never shown, as a JSON list."""
    concurrency: int | None = None
    """How many jobs of the task may run at once."""
    concurrency_scope: str | None = None
    """For an alias, the task whose limit it shares."""
    keyed: bool = False
    """Whether the limit counts each concurrency key on its own."""
    cancels_running: bool = False
    """Whether a newer job that finds no free slot replaces the running jobs, instead of waiting for them."""
    limits: str | None = None
    """The names of shared limits, as a JSON list."""
