"""The model: the ledger as a few dicts, without SQL, transactions or concurrency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from perdure.errors import IdempotencyConflict, InternalError, PerdureError
from perdure.model.backoff import DEFAULT_BACKOFF, Backoff
from perdure.model.job import SECOND, Lease, NewJob, TaskDefinition
from perdure.model.lifecycle import Failed, Outcome, Succeeded, Throttled
from perdure.model.queue_settings import Settings
from perdure.model.redact import load_names
from perdure.ops.report import JobReport
from perdure.request.filter import Filter
from tests.lockstep.endings import Job, Past, Policy, longest_pause, settle, tell
from tests.lockstep.limits import Level, Limits, NamedLimit, Slots, choose

QUIET = 120 * SECOND

Key = tuple[str, str, str]


class Made(NamedTuple):
    """What became of a request. No state: its job is gone and only the key is left."""

    id: str
    created: bool
    state: str | None


@dataclass
class Task:
    definition: TaskDefinition
    enabled: bool = True

    @property
    def backoff(self) -> Backoff:
        return msgspec.json.decode(self.definition.backoff, type=Backoff)


@dataclass
class Queue:
    paused: bool = False
    cool_until: int | None = None
    throttles: int = 0
    backoff: Backoff | None = None
    paused_at: int | None = None
    paused_by: str | None = None
    pause_reason: str | None = None
    resume_at: int | None = None
    timeout: int | None = None
    concurrency: int | None = None
    declared: Settings | None = None
    edited: frozenset[str] = frozenset()

    def is_paused(self, now: int) -> bool:
        return self.paused and (self.resume_at is None or self.resume_at > now)

    def end_pause(self) -> None:
        self.paused, self.paused_at, self.paused_by = False, None, None
        self.pause_reason, self.resume_at = None, None

    def declare(self, declared: Settings | None) -> None:
        """What an operator has not set follows the code."""
        self.declared = declared
        for name in {"backoff", "timeout", "concurrency"} - self.edited:
            setattr(self, name, getattr(declared, name) if declared else None)


@dataclass
class Worker:
    lease: int
    expires_at: int
    retired: bool = False


class Model:
    """The machine sets the time and the random number; every method answers as the stores should."""

    def __init__(self, tasks: Iterable[TaskDefinition], *, now: int, roll: float) -> None:
        self.now = now
        self.roll = roll
        self.tasks = {task.name: Task(task) for task in tasks}
        self.jobs: dict[str, Job] = {}
        self.keys: dict[Key, tuple[str, str]] = {}
        self.queues: dict[str, Queue] = {}
        self.named: dict[str, NamedLimit] = {}
        self.workers: dict[str, Worker] = {}
        self.attempts: dict[Lease, Past] = {}
        self.recorded: dict[Lease, tuple[Outcome, int]] = {}
        """What each lease was used for, and the job's run after it; a rescued one was used for nothing."""

    # Enqueue

    def enqueue(self, batch: Sequence[NewJob]) -> list[Made] | type[PerdureError]:
        """All of it, or the error that refuses all of it."""
        keys, owners = dict(self.keys), dict[str, str]()
        for new in (new for new in batch if new.idempotency_key is not None):
            owner, request = keys.setdefault(_key(new), (new.id, new.request or ""))
            if request != new.request:
                return IdempotencyConflict
            if owner != new.id or _key(new) in self.keys:
                owners[new.id] = owner
        fresh = [new for new in batch if new.id not in owners]
        if not all(new.task in self.tasks and self.tasks[new.task].enabled for new in fresh):
            return InternalError
        self.keys = keys
        return self._insert(batch, fresh, owners)

    def _insert(
        self, batch: Sequence[NewJob], fresh: Sequence[NewJob], owners: Mapping[str, str]
    ) -> list[Made]:
        twins = dict(owners)
        # A key is answered with what was found, though a later job of the batch may end that one as expired.
        found = {id: self.jobs[id].state for id in owners.values() if id in self.jobs}
        for new in fresh:
            # One that is there already is not looked at; another that expired under its key ends all the same.
            twin = self._active(new.task, new.tenant, new.unique_key, but=new.id)
            twin = new.id if new.id in self.jobs else twin
            if twin is None:
                self.jobs[new.id] = self._job(new)
            elif new.idempotency_key is not None:
                self.keys[_key(new)] = twin, new.request or ""
            twins[new.id] = twin or new.id
        made = []
        for new in batch:
            id = twins[new.id]
            id = twins.get(id, id)
            state = found.get(id) or (self.jobs[id].state if id in self.jobs else None)
            made.append(Made(id, id == new.id, state))
        return made

    def _job(self, new: NewJob) -> Job:
        task = self.tasks[new.task].definition
        lifetime = None if new.expires_in is None else self.now + new.expires_in
        return Job(
            id=new.id,
            task=new.task,
            queue=new.queue or task.queue,
            tenant=new.tenant,
            payload=new.payload,
            priority=task.priority if new.priority is None else new.priority,
            max_attempts=new.max_attempts or task.max_attempts,
            timeout=new.timeout or task.timeout,
            run_at=self.now + (new.delay or 0) if new.run_at is None else new.run_at,
            expires_at=lifetime if new.expires_at is None else new.expires_at,
            unique_key=new.unique_key,
            concurrency_key=new.concurrency_key,
            created_at=self.now,
        )

    def _active(
        self, task: str, tenant: str | None, unique_key: str | None, *, but: str | None = None
    ) -> str | None:
        if unique_key is None:
            return None
        scope = task, tenant, unique_key
        for job in self.jobs.values():
            if (job.task, job.tenant, job.unique_key) == scope and job.active and job.id != but:
                if not self._has_expired(job):
                    return job.id
                job.end("canceled", self.now, "expired")
        return None

    # What a worker does

    def register(self, worker: str, lease: int) -> None:
        self.workers.setdefault(worker, Worker(lease, self.now + lease))

    def retire(self, worker: str) -> None:
        if worker in self.workers:
            self.workers[worker].retired = True

    def heartbeat(self, worker: str) -> tuple[bool, list[Lease], list[Lease]]:
        live = self._is_live(worker)
        if live:
            self.workers[worker].expires_at = self.now + self.workers[worker].lease
        mine = sorted((job for job in self.jobs.values() if job.worker == worker), key=lambda job: job.id)
        asked = [Lease(job.id, job.token) for job in mine if job.cancel_requested_at is not None]
        return live, [Lease(job.id, job.token) for job in mine], asked

    def claim(
        self,
        worker: str,
        tasks: Sequence[str],
        n: int,
        queues: Sequence[str] | None,
        seen: Sequence[str],
        *,
        unsure: Collection[str] = (),
        searched_before: bool = False,
    ) -> tuple[list[Lease], list[str]]:
        """The leases taken, and the expired jobs that were met on the way: those must be canceled by now.

        ``seen``: the jobs that the stores gave. The model follows them where no order is promised. ``unsure``: jobs
        that became due after limited jobs were searched. ``searched_before``: what was found then may not fit now.
        """
        if worker in self.workers and self.workers[worker].retired:
            return [], []
        due, limits = self.due(tasks, queues), self.limits()
        limited = [job for job in due if limits.limit(job) and not self._has_expired(job)]
        if unsure and not {*unsure} & {*seen}:
            limited = [job for job in limited if job.id not in unsure]
        unlimited = [job for job in due if not limits.limit(job)]
        given = [job for job in limited if job.id in seen]
        # Each kind of job is first every other time.
        limited_first = bool(given) and given[0].id == seen[0]
        level = _level(queues)
        met: list[str] = []
        taken: list[Job] = []
        for part in ("limited", "unlimited") if limited_first else ("unlimited", "limited"):
            left = n - len(taken)
            if part == "unlimited":
                taken += self._first(unlimited, left, met)
            elif searched_before and self._fit(given):
                taken += given
            else:
                taken += choose(limited, left, level, lambda: Slots(limits, self._running()), given)
        for job in taken:
            job.state, job.worker, job.started_at = "running", worker, self.now
            job.token, job.attempt = job.token + 1, job.attempt + 1
        return [Lease(job.id, job.token) for job in taken], met

    def _first(self, due: Sequence[Job], n: int, met: list[str]) -> list[Job]:
        """The first n, except the expired ones that are met on the way."""
        first: list[Job] = []
        for job in due:
            if len(first) == n:
                break
            if self._has_expired(job):
                met.append(job.id)
            else:
                first.append(job)
        return first

    def _fit(self, jobs: Sequence[Job]) -> bool:
        """Whether all of them fit beside those that run."""
        slots = Slots(self.limits(), self._running())
        for job in jobs:
            if not slots.fit(job):
                return False
            slots.take(job)
        return True

    def _running(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state == "running"]

    def limits(self) -> Limits:
        return Limits(
            {name: task.definition for name, task in self.tasks.items()},
            self.named,
            {name: queue.concurrency for name, queue in self.queues.items()},
        )

    def due(self, tasks: Sequence[str], queues: Sequence[str] | None) -> list[Job]:
        """Strictly by queue where queues are named; then by priority, time and id."""
        asked = (job for job in self.jobs.values() if queues is None or job.queue in queues)
        due = [
            job
            for job in asked
            if self._gives(job.queue)
            and job.task in tasks
            and job.state == "ready"
            and job.run_at <= self.now
        ]
        level = _level(queues)
        return sorted(due, key=lambda job: (level(job), job.run_at, job.id))

    def _gives(self, queue: str) -> bool:
        settings = self.queues.get(queue, Queue())
        return not settings.is_paused(self.now) and (
            settings.cool_until is None or settings.cool_until <= self.now
        )

    def finish(self, outcomes: Sequence[Outcome]) -> dict[Lease, bool | None]:
        """Whether each outcome stands: written now, or by a call whose answer was lost. None: unknown."""
        told: dict[Lease, Outcome] = {}
        for outcome in outcomes:
            told.setdefault(outcome.lease, outcome)
        throttled: dict[str, list[int | None]] = {}
        for lease, outcome in told.items():
            job = self.holder(lease)
            if job is None:
                continue
            if outcome.report is not None:
                tell(job, outcome.report, lenient=True)
            self._settle(job, outcome)
            self.recorded[lease] = outcome, job.run
            if isinstance(outcome, Throttled) and outcome.cool_queue:
                throttled.setdefault(job.queue, []).append(outcome.delay)
        for queue, asked in throttled.items():
            self._cool(queue, asked)
        return {lease: self._stands(lease, outcome) for lease, outcome in told.items()}

    def holder(self, lease: Lease) -> Job | None:
        """The job this lease may write to."""
        job = self.jobs.get(lease.job)
        return job if job is not None and job.state == "running" and job.token == lease.token else None

    def _stands(self, lease: Lease, outcome: Outcome) -> bool | None:
        job = self.jobs.get(lease.job)
        if job is None or job.token != lease.token or lease not in self.recorded:
            return False
        recorded, run = self.recorded[lease]
        if isinstance(outcome, Succeeded | Failed) or isinstance(recorded, Succeeded | Failed):
            if (type(outcome), _kind(outcome)) != (type(recorded), _kind(recorded)):
                return False
        elif type(outcome) is not type(recorded):
            # After a cancel the row does not show which of these it was.
            return None
        # A requeue takes the lease away; what it leaves behind may still tell that the outcome was recorded.
        return True if job.run == run else None

    def _settle(self, job: Job, outcome: Outcome) -> None:
        task, queue = self.tasks[job.task], self.queues.get(job.queue, Queue())
        policy = Policy(queue.backoff or task.backoff, task.definition.max_crashes)
        past = settle(job, outcome, policy, now=self.now, roll=self.roll)
        if past is not None:
            self.attempts[Lease(job.id, job.token)] = past

    def _cool(self, name: str, delays: list[int | None]) -> None:
        """One step for all that gave no delay, unless it cools already; of several ends the last one counts."""
        queue = self.queues.setdefault(name, Queue())
        until = queue.cool_until
        if until is None or until <= self.now - QUIET:
            queue.throttles = 0
        ends = [self.now + delay for delay in delays if delay is not None]
        if until is None or until <= self.now:
            if None in delays:
                queue.throttles = min(queue.throttles + 1, 30)
                pause = longest_pause(queue.backoff or DEFAULT_BACKOFF, queue.throttles)
                ends.append(self.now + min(pause, 900_000_000))
        else:
            ends.append(until)
        queue.cool_until = max(ends)

    def report(self, said: Sequence[JobReport]) -> list[str]:
        return [self._report(one) for one in said]

    def _report(self, said: JobReport) -> str:
        job = self.holder(said.lease)
        if job is None:
            return "lease lost"
        if not tell(job, said.report, lenient=False):
            return "invalid progress"
        return "ok" if job.cancel_requested_at is None else "cancel requested"

    # What the sweeper does

    def rescue(self) -> list[str]:
        for worker in self.workers.values():
            worker.retired |= worker.expires_at <= self.now
        lost = sorted(job.id for job in self.jobs.values() if job.worker and not self._is_live(job.worker))
        for id in lost:
            job = self.jobs[id]
            lease = Lease(id, job.token)
            self._settle(job, Failed(lease, "lost", message="Its worker fell silent."))
        return lost

    def _is_live(self, worker: str) -> bool:
        return worker in self.workers and not self.workers[worker].retired

    def expired(self) -> list[Job]:
        """Those that should have been started by now."""
        return [job for job in self.jobs.values() if self._has_expired(job)]

    def expire(self) -> int:
        late = self.expired()
        for job in late:
            job.end("canceled", self.now, "expired")
        return len(late)

    def _has_expired(self, job: Job) -> bool:
        return job.state == "ready" and job.expires_at is not None and job.expires_at <= self.now

    # What an operator does

    def cancel(self, id: str, reason: str | None) -> str:
        job = self.jobs.get(id)
        if job is None or not job.active:
            return "not_found" if job is None else "already_ended"
        job.cancel_requested_at = job.cancel_requested_at or self.now
        if job.state == "running":
            job.reason = job.reason or reason
            return "cancel_requested"
        job.end("canceled", self.now, job.reason or reason)
        return "canceled"

    def requeue(self, id: str, run: int | None, keep_checkpoint: bool) -> str:
        job = self.jobs.get(id)
        refusals = {"running": "still_running", "succeeded": "already_succeeded", "ready": "not_ended"}
        if job is None or job.state in refusals:
            return "not_found" if job is None else refusals[job.state]
        if run not in (None, job.run):
            return "other_run"
        if self._active(job.task, job.tenant, job.unique_key):
            return "unique_key_taken"
        if job.started_at is not None:
            kind = job.error_kind or job.state
            self.attempts[Lease(id, job.token)] = Past(job.run, job.attempt, kind, job.error_code)
        kept = {name: getattr(job, name) for name in _KEPT}
        checkpoint = job.checkpoint if keep_checkpoint else None
        self.jobs[id] = Job(**kept, expires_at=None, run=job.run + 1, run_at=self.now, checkpoint=checkpoint)
        return "requeued"

    def run_now(self, id: str) -> str:
        job = self.jobs.get(id)
        if job is None or job.state != "ready":
            return "not_found" if job is None else "not_ready"
        if job.run_at <= self.now:
            return "already_due"
        job.run_at = self.now
        return "due_now"

    def delete(self, id: str, keep_key: bool) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "not_found"
        if job.state == "running":
            self.cancel(id, "deleted")
            return "cancel_requested"
        del self.jobs[id]
        self.attempts = {lease: past for lease, past in self.attempts.items() if lease.job != id}
        if not keep_key:
            self.keys = {key: owned for key, owned in self.keys.items() if owned[0] != id}
        return "deleted"

    def fitting(self, filter: Filter, takes: Sequence[str]) -> list[str]:
        """What an act on many finds, from the newest on."""
        states = takes if filter.state is None else [filter.state]
        jobs = [job for job in self.jobs.values() if filter.queue in (None, job.queue)]
        fit = [job.id for job in jobs if self._view(job)[1] in states]
        return sorted(fit, reverse=True)

    def declare_tasks(self, tasks: Iterable[TaskDefinition], limits: Mapping[str, int]) -> bool:
        """Return whether they are accepted: each named limit must be declared, or set already."""
        tasks = list(tasks)
        if not {name for task in tasks for name in load_names(task.limits)} <= {*self.named, *limits}:
            return False
        for task in tasks:
            self.tasks[task.name].definition = task
        for name, concurrency in limits.items():
            self.named.setdefault(name, NamedLimit(concurrency)).declare(concurrency)
        return True

    def queue(self, name: str) -> Queue:
        return self.queues.setdefault(name, Queue())

    # What everybody can see

    def cooling(self) -> dict[str, int | None]:
        """Until when each queue cools."""
        return {name: queue.cool_until for name, queue in self.queues.items() if queue.cool_until is not None}

    def active(self) -> int:
        return sum(job.active for job in self.jobs.values())

    def live_workers(self) -> dict[str, int]:
        return {id: worker.expires_at for id, worker in self.workers.items() if not worker.retired}

    def counts(self) -> Counter[tuple[str, str]]:
        return Counter(map(self._view, self.jobs.values()))

    def _view(self, job: Job) -> tuple[str, str]:
        if job.state != "ready" or job.run_at <= self.now:
            return job.queue, job.state
        return job.queue, "retrying" if job.error_kind else "scheduled"


_KEPT = (
    "id",
    "task",
    "queue",
    "tenant",
    "payload",
    "priority",
    "max_attempts",
    "timeout",
    "unique_key",
    "concurrency_key",
    "created_at",
    "token",
)


def _level(queues: Sequence[str] | None) -> Callable[[Job], Level]:
    rank = {name: i for i, name in reversed(list(enumerate(queues or ())))}
    return lambda job: (rank.get(job.queue, 0), -job.priority)


def _kind(outcome: Outcome) -> str | None:
    return outcome.kind if isinstance(outcome, Failed) else None


def _key(new: NewJob) -> Key:
    return new.task, new.tenant or "", new.idempotency_key or ""
