"""Which running jobs have the slots of a limit, and how many jobs wait for a slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from perdure.model.limits import LimitId, Limits

KindAndName: TypeAlias = tuple[str, str]

MOST_WAITING = 1000
"""Due jobs of a task are counted up to this number, in each queue and priority."""
NO_LIMIT = 2**31
"""Stands for the concurrency of a limit that was lifted, so that its jobs are counted too."""
NO_QUEUE = ""
"""A name that no queue has, to ask for the limits of a task without those of a queue."""
ANY_KEY = "any"
"""Stands for the concurrency key of any job that has a key."""
KINDS = ("queue", "task", "key", "named")
"""The kinds of limits, in the order in which they are listed."""


class RunningJob(NamedTuple):
    id: str
    queue: str
    task: str
    key: str | None


class DueJobs(NamedTuple):
    """How many jobs of a task are due in one queue and priority. ``keyed``: how many of them have a concurrency key.

    ``more``: whether there may be more than were counted.
    """

    queue: str
    task: str
    due: int
    keyed: int

    @property
    def more(self) -> bool:
        return self.due >= MOST_WAITING


class Holding(NamedTuple):
    """The running jobs that have the slots of a limit, in the order of their starts."""

    limit: LimitId
    concurrency: int
    jobs: Sequence[str]

    @property
    def is_full(self) -> bool:
        return len(self.jobs) >= self.concurrency

    @property
    def is_exceeded(self) -> bool:
        return len(self.jobs) > self.concurrency


class LimitUse(NamedTuple):
    """The use of one limit. If a limit counts each concurrency key on its own, this is the use of all keys together.

    ``keys``: the keys with running jobs; ``full_keys``: the keys among them without a free slot. ``exceeded``: the
    limit itself, or each of its keys, if it has more running jobs than allowed. ``tasks``: the tasks whose jobs the
    limit counts; empty for the limit of a queue, which counts all jobs of the queue.
    """

    kind: str
    name: str
    concurrency: int | None
    running: int
    waiting: int
    more_waiting: bool
    keys: int
    full_keys: int
    exceeded: list[Holding]
    tasks: list[str]


def holdings(limits: Limits, running: Iterable[RunningJob]) -> dict[LimitId, Holding]:
    """The limits that apply to running jobs, each with the jobs that it applies to."""
    found: dict[LimitId, tuple[int, list[str]]] = {}
    for job in running:
        for limit, concurrency in limits.of(job.queue, job.task, job.key):
            found.setdefault(limit, (concurrency, []))[1].append(job.id)
    return {limit: Holding(limit, *held) for limit, held in found.items()}


def full_limits(
    limits: Limits, queue: str, task: str, key: str | None, running: Iterable[RunningJob]
) -> Iterator[Holding]:
    """The limits that apply to a job and have no free slot for it."""
    held = holdings(limits, running)
    for limit, _ in limits.of(queue, task, key):
        if limit in held and held[limit].is_full:
            yield held[limit]


def limit_uses(limits: Limits, running: Iterable[RunningJob], due: Iterable[DueJobs]) -> list[LimitUse]:
    """The use of every limit, including limits without running jobs."""
    counted = limits._replace(named={name: most or NO_LIMIT for name, most in limits.named.items()})
    listed = _listed(counted)
    held: dict[KindAndName, list[Holding]] = {row: [] for row in listed}
    for limit, holding in holdings(counted, running).items():
        held[_row(limit)].append(holding)
    waiting = _waiting(counted, due)
    uses = [
        LimitUse(
            *row,
            None if concurrency == NO_LIMIT else concurrency,
            sum(len(one.jobs) for one in held[row]),
            *waiting.get(row, (0, False)),
            keys=len(held[row]) if row[0] == "key" else 0,
            full_keys=sum(one.is_full for one in held[row]) if row[0] == "key" else 0,
            exceeded=[one for one in held[row] if one.is_exceeded],
            tasks=sorted(tasks),
        )
        for row, (concurrency, tasks) in listed.items()
    ]
    return sorted(uses, key=lambda use: (KINDS.index(use.kind), use.name))


def limit_name(limit: LimitId) -> str:
    """The limit's name in messages, such as ``the limit of the queue mail``."""
    kind, name, *key = limit
    if kind == "named":
        return f"the limit {name}"
    if kind == "key":
        return f"the limit of the task {name} for the key {key[0]}"
    return f"the limit of the {kind} {name}"


def _row(limit: LimitId) -> KindAndName:
    """The kind and name under which a limit is listed. All keys of a task are listed as one limit."""
    return limit[0], limit[1]


def _listed(limits: Limits) -> dict[KindAndName, tuple[int | None, list[str]]]:
    """Every limit: its concurrency, and the tasks whose jobs it counts."""
    listed: dict[KindAndName, tuple[int | None, list[str]]]
    listed = {("queue", name): (most, []) for name, most in limits.queues.items()}
    listed |= {("named", name): (most, []) for name, most in limits.named.items()}
    for task in limits.tasks:
        for limit, concurrency in limits.of(NO_QUEUE, task, ANY_KEY):
            listed.setdefault(_row(limit), (concurrency, []))[1].append(task)
    return listed


def _waiting(limits: Limits, due: Iterable[DueJobs]) -> Mapping[KindAndName, tuple[int, bool]]:
    """How many due jobs are under each limit, counted up to ``MOST_WAITING``, and whether there may be more."""
    waiting: dict[KindAndName, tuple[int, bool]] = {}
    for jobs in due:
        for limit, _ in limits.of(jobs.queue, jobs.task, ANY_KEY):
            count, more = waiting.get(_row(limit), (0, False))
            count += jobs.keyed if limit[0] == "key" else jobs.due
            waiting[_row(limit)] = min(count, MOST_WAITING), more or jobs.more or count > MOST_WAITING
    return waiting
