"""Strategies for jobs, claims, outcomes and reports, with few enough values that they collide."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import structs

from perdure.model.backoff import Backoff, dump_backoff
from perdure.model.canonical import Request, canonical
from perdure.model.job import SECOND, Lease, NewJob, Options, TaskDefinition
from perdure.model.lifecycle import (
    Canceled,
    Continued,
    Failed,
    Outcome,
    Released,
    Report,
    Snoozed,
    Succeeded,
    Throttled,
)

LEASE = 10 * SECOND
QUEUES = ("blue", "red", "tan")
UNKNOWN = "unknown"


def _task(name: str, queue: str, priority: int, max_attempts: int, backoff: Backoff, max_crashes: int | None):
    return TaskDefinition(
        name=name,
        queue=queue,
        priority=priority,
        max_attempts=max_attempts,
        timeout=60 * SECOND,
        backoff=dump_backoff(backoff),
        max_crashes=max_crashes,
    )


TASKS = (
    _task("mail", "blue", 0, 2, Backoff(base=2, cap=7, codes={"http.503": 4, "job.timeout": 3}), 3),
    _task("copy", "blue", 1, 9, Backoff(base=1, cap=900), 1),
    _task("tidy", "red", 0, 4, Backoff(base=0.5, cap=60), None),
    _task("post", "blue", 0, 2, Backoff(base=2, cap=7), 3),
)
ALIAS, ALIASED = "post", "mail"
NAMES = tuple(task.name for task in TASKS)


NAMED_LIMITS = ("oven", "press")
CONCURRENCY = st.sampled_from([1, 1, 2, 3])
TASK_LIMITS = st.fixed_dictionaries(
    {
        "concurrency": st.none() | CONCURRENCY,
        "keyed": st.booleans(),
        "names": st.sampled_from([(), (), NAMED_LIMITS[:1], NAMED_LIMITS]),
    }
)


class DeclaredLimits(NamedTuple):
    """What a program declares: its tasks, and the limits that they share."""

    tasks: list[TaskDefinition]
    named: dict[str, int]


def _limited(limits: Mapping[str, Mapping[str, Any]]) -> list[TaskDefinition]:
    return [_under(task, **limits[ALIASED if task.name == ALIAS else task.name]) for task in TASKS]


def _under(
    task: TaskDefinition, concurrency: int | None, keyed: bool, names: tuple[str, ...]
) -> TaskDefinition:
    limited = concurrency is not None
    return structs.replace(
        task,
        concurrency=concurrency,
        keyed=keyed and limited,
        concurrency_scope=ALIASED if task.name == ALIAS and limited else None,
        limits=json.dumps(names) if names else None,
    )


ALL_NAMED = st.fixed_dictionaries(dict.fromkeys(NAMED_LIMITS, CONCURRENCY))
DECLARED_LIMITS: SearchStrategy[DeclaredLimits] = st.builds(
    DeclaredLimits,
    st.fixed_dictionaries({name: TASK_LIMITS for name in NAMES if name != ALIAS}).map(_limited),
    ALL_NAMED | ALL_NAMED | st.dictionaries(st.sampled_from(NAMED_LIMITS), CONCURRENCY),
)


def home(task: str) -> str:
    """The queue a task's jobs go to unless they are asked elsewhere."""
    return next((known.queue for known in TASKS if known.name == task), "nowhere")


TICKS = st.sampled_from([SECOND // 10, SECOND, 6 * SECOND, LEASE, 126 * SECOND, 3600 * SECOND, -SECOND // 2])
ROLLS = st.sampled_from([0.0, 0.25, 0.5, 0.999])
DELAYS = st.sampled_from([0, SECOND, 5 * SECOND, 200 * SECOND])
LONG_DELAYS = DELAYS | st.just(10**16)
CHANGES: SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["backoff", "timeout", "concurrency"]), st.integers(0, 2), min_size=1
).map(
    lambda drawn: {
        name: {
            "backoff": (None, Backoff(base=3, cap=40), Backoff(base=3, cap=40, codes={"x": 1})),
            "timeout": (None, 1, 60 * SECOND),
            "concurrency": (None, 1, 2),
        }[name][choice]
        for name, choice in drawn.items()
    }
)
"""Settings of a queue."""
JSON = st.sampled_from(["1", '{"a":[1.50,null]}', '"x"'])


class Asked(NamedTuple):
    """A request before it has an id and a time."""

    task: str
    options: Mapping[str, Any]
    run_in: int | None

    @property
    def keyed(self) -> bool:
        return bool(self.options.get("idempotency_key") or self.options.get("unique_key"))

    def new(self, id: str, now: int) -> NewJob:
        options = dict(self.options)
        if self.run_in is not None:
            options["run_at"] = now + self.run_in
        if options.get("idempotency_key") is None:
            return NewJob(id=id, task=self.task, **options)
        return NewJob(id=id, task=self.task, request=_canonical(options), **options)


def _canonical(options: Mapping[str, Any]) -> str:
    known = {name: options.get(name) for name in Options.__struct_fields__}
    return canonical(Request(options["payload"], Options(**known)))


def _sometimes(strategy: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.none() | st.none() | strategy


TASK = st.sampled_from((*NAMES * 8, UNKNOWN))
PAYLOAD = st.sampled_from(["{}", "{}", '{"to":"ann"}'])
TENANT = _sometimes(st.just("acme"))
KEY = st.sampled_from([None, "", "a", "a", "a", "b", "c"])

PLAIN: SearchStrategy[Asked] = st.builds(
    Asked,
    task=TASK,
    options=st.fixed_dictionaries(
        {"payload": PAYLOAD, "tenant": TENANT},
        optional={
            "queue": _sometimes(st.sampled_from(QUEUES)),
            "priority": _sometimes(st.sampled_from([-1, 0, 5])),
            "max_attempts": _sometimes(st.sampled_from([1, 3])),
            "delay": _sometimes(DELAYS),
            "expires_in": _sometimes(st.sampled_from([0, SECOND, 20 * SECOND])),
            "concurrency_key": KEY,
        },
    ),
    run_in=_sometimes(st.sampled_from([-SECOND, 3 * SECOND])),
)
KEYED: SearchStrategy[Asked] = st.builds(
    Asked,
    task=st.sampled_from(NAMES[:2]),
    options=st.fixed_dictionaries(
        {
            "payload": PAYLOAD,
            "tenant": TENANT,
            "unique_key": st.sampled_from([None, "u"]),
            "idempotency_key": st.sampled_from([None, "k", "k", "l"]),
            "expires_in": _sometimes(st.just(SECOND)),
        }
    ),
    run_in=st.none(),
)
BATCHES = st.lists(PLAIN | KEYED, min_size=1, max_size=4)
SAME_BUT_KEYS: SearchStrategy[list[Asked]] = st.builds(
    lambda task, keys: [Asked(task, {"payload": "{}", "concurrency_key": key}, None) for key in keys],
    st.sampled_from(NAMES),
    st.lists(KEY, min_size=3, max_size=8),
)
"""Full keys may stand in front of others."""


class ClaimArguments(NamedTuple):
    """What a worker would take."""

    n: int
    tasks: list[str]
    queues: list[str] | dict[str, float] | None

    def order(self, roll: float) -> list[str] | None:
        """The queues in the order in which this claim asks them."""
        if isinstance(self.queues, dict) and roll > 0:
            weights = self.queues
            return sorted(weights, key=lambda name: -weights[name])
        return None if self.queues is None else list(self.queues)


CLAIM_ARGUMENTS: SearchStrategy[ClaimArguments] = st.builds(
    ClaimArguments,
    n=st.sampled_from([1, 2, 2, 5, 5, 0]),
    tasks=st.just(list(NAMES)) | st.lists(st.sampled_from((*NAMES, UNKNOWN)), min_size=1, max_size=3),
    queues=st.none()
    | st.permutations(QUEUES)
    | st.lists(st.sampled_from((*QUEUES, UNKNOWN)), max_size=3)
    | st.dictionaries(st.sampled_from(QUEUES), st.sampled_from([0.5, 3.0]), max_size=3),
)

REPORTS: SearchStrategy[Report] = st.builds(
    Report,
    stage=_sometimes(st.sampled_from(["read", "write"])),
    done=_sometimes(st.sampled_from([-1, 0, 3, 9])),
    total=_sometimes(st.sampled_from([3, 5])),
    message=_sometimes(st.just("half way")),
    checkpoint=_sometimes(JSON),
)


class Ending(NamedTuple):
    """An outcome that lacks only its lease."""

    make: Callable[..., Outcome]
    fields: Mapping[str, Any]

    def of(self, lease: Lease) -> Outcome:
        return self.make(lease, **self.fields)


def _ending(make: Callable[..., Outcome], /, **fields: SearchStrategy[Any]) -> SearchStrategy[Ending]:
    values = st.fixed_dictionaries({"report": _sometimes(REPORTS), **fields})
    return st.builds(Ending, st.just(make), values)


def _failure(*kinds: str) -> SearchStrategy[Ending]:
    return _ending(
        Failed,
        kind=st.sampled_from(kinds),
        code=_sometimes(st.sampled_from(["http.503", "http.500"])),
        message=st.just("It broke."),
        delay=_sometimes(LONG_DELAYS),
    )


SUCCESS = _ending(Succeeded, result=_sometimes(JSON), reason=_sometimes(st.just("too large")))
THROTTLE = _ending(Throttled, delay=_sometimes(DELAYS), cool_queue=st.sampled_from([True, True, False]))
CONTINUE = _ending(Continued, delay=DELAYS)
SNOOZE = _ending(Snoozed, delay=LONG_DELAYS)

ENDINGS: SearchStrategy[Ending] = st.one_of(
    SUCCESS,
    _failure("error"),
    _failure("error", "timeout", "interrupted", "fatal"),
    _failure("panic"),
    SNOOZE,
    THROTTLE,
    CONTINUE,
    _ending(Canceled, reason=st.just("no need")),
    _ending(Released, delay=DELAYS),
)
RETURNS: SearchStrategy[Ending] = st.one_of(THROTTLE, _failure("error", "panic"), CONTINUE, SNOOZE)
"""Those after which a job comes back."""
