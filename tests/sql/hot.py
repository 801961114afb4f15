"""The statements of the hot path, each with parameters that fit the backlog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from perdure.model.job import Lease
from perdure.model.lifecycle import Change
from perdure.ops import enqueue
from perdure.ops.batch import rows_of
from perdure.ops.find import find
from perdure.ops.op import Param
from perdure.request.filter import EVERY
from tests.sql.backlog import DAY, EXPIRED, GROUPS, NOW, READY, RUNNING, WORKERS, job_id
from tests.sql.recorder import new_job

Params = dict[str, Param]


class Hot(NamedTuple):
    """A statement and how many rows it is about."""

    statement: str
    params: Params
    n: int


def hot(n: int = 100) -> Mapping[str, Hot]:
    return {
        **_claims(n),
        **_limited_claims(n),
        **_endings(n),
        **_enqueues(n),
        **_sweeps(),
        **_acts(),
        **_looks(n),
    }


def _claims(n: int) -> Mapping[str, Hot]:
    def claim(n: int, queues: str | None) -> Hot:
        params: Params = {
            "worker": "worker-0",
            "limits": 0,
            "tasks": '["other", "work"]',
            "queues": queues,
            "n": n,
        }
        return Hot("claim_jobs", params, n + GROUPS)

    def front(
        n: int, queue: str, ahead: str | None = "[]", behind: str = "[]", since: int | None = None
    ) -> Hot:
        group: Params = {"queue": queue, "priority": 0, "since": since, "ahead": ahead, "behind": behind}
        params: Params = {"worker": "worker-0", "limits": 0, "tasks": '["other", "work"]', "n": n}
        return Hot("claim_window", {**params, **group}, n + GROUPS)

    return {
        "claim in front of all queues": front(n, "clean", None),
        "claim in front where all is known": front(n, "clean"),
        "claim in front of named queues": front(n, "clean", '["empty"]', '["deep", "paused"]'),
        "claim in front from a time on": front(n, "clean", since=NOW - DAY),
        "claim in front of the unknown": front(n, "default"),
        "claim in front of the deep": front(n, "deep"),
        "claim one in front": front(1, "clean"),
        # It may lock n of each group before it knows which are first.
        "claim_skipping_locked": Hot("claim_skipping_locked", claim(n, None).params, n * GROUPS),
        "claim from all queues": claim(n, None),
        "claim where all is known": claim(n, '["clean"]'),
        "claim behind the unknown": claim(n, '["default"]'),
        "claim from the deep": claim(n, '["deep"]'),
        "claim where nothing is due": claim(n, '["paused", "empty"]'),
        # Few rows of its own: a single page too many would show.
        "claim one from all queues": claim(1, None),
        "claim one behind the unknown": claim(1, '["default"]'),
    }


def _limited_claims(n: int) -> Mapping[str, Hot]:
    limited: Params = {"limited_tasks": '["other", "work"]', "limited_queues": '["deep"]'}
    worker: Params = {"worker": "worker-0", "limits": 0}
    asked: Params = {"tasks": '["other", "work"]', "queues": None, "n": n}
    group: Params = {"queue": "clean", "priority": 0, "task": "work"}
    keys: Params = {"full": "[]", "after": "", "each": 3, "n": n}
    chosen = rows_of([job_id(1, i) for i in range(1, n + 1)])
    return {
        # Every running job counts.
        "count_limited": Hot("count_limited", {**limited, "ended": "[]"}, RUNNING),
        "find_limited": Hot("find_limited", {**limited, **worker, **asked}, n * GROUPS),
        "find_keyless": Hot("find_keyless", {**group, "n": n}, n),
        "find_by_key": Hot("find_by_key", {**group, **keys}, n),
        "claim_limited": Hot("claim_limited", {**worker, "ids": chosen, "n": n}, n + RUNNING),
    }


def _endings(n: int) -> Mapping[str, Hot]:
    mine = [job_id(3, i) for i in range(WORKERS, RUNNING + 1, WORKERS)][:n]
    leases = rows_of([Lease(id, 1) for id in mine])
    changes = rows_of([_failed(id) for id in mine])
    return {
        "finish_succeeded": Hot(
            "finish_succeeded", {"outcomes": rows_of({id: (1, "0", None) for id in mine})}, n
        ),
        "finish_same_result": Hot(
            "finish_same_result",
            {"leases": rows_of(dict.fromkeys(mine, 1)), "result": "0", "reason": None},
            n,
        ),
        "lock_running": Hot("lock_running", {"leases": leases}, n),
        "find_outcomes": Hot("find_outcomes", {"leases": leases}, n),
        "record_attempts": Hot("record_attempts", {"changes": changes}, n),
        "apply_changes": Hot("apply_changes", {"changes": changes}, n),
        "save_reports": Hot("save_reports", {"reports": changes}, n),
    }


def _enqueues(n: int) -> Mapping[str, Hot]:
    new = [new_job(id=job_id(9, i), idempotency_key=str(i)) for i in range(n)]
    alike: Params = {**dict.fromkeys(SHARED), "task": "work", "first": new[0].id}
    return {
        "insert_jobs": Hot("insert_jobs", {"jobs": rows_of(new)}, n),
        "insert_same_options": Hot(
            "insert_same_options", {**alike, "jobs": rows_of({job.id: job.payload for job in new})}, n
        ),
        "insert_keys": Hot("insert_keys", {"jobs": rows_of(new)}, n),
        "find_active": Hot("find_active", {"task": "work", "tenant": "", "unique_key": "only-1"}, 1),
        "find_key": Hot("find_key", {"task": "work", "tenant": "", "key": "k"}, 1),
    }


def _sweeps() -> Mapping[str, Hot]:
    return {
        # More than there are: it may not stop before the last.
        "find_orphans": Hot("find_orphans", {"after": job_id(0, 0), "n": RUNNING}, RUNNING),
        "expire_jobs": Hot("expire_jobs", {"n": 2 * EXPIRED}, EXPIRED),
        "list_running": Hot("list_running", {"worker": "worker-0"}, RUNNING // WORKERS),
        "find_due_soon": Hot(
            "find_due_soon", {"ahead": DAY, "n": 100, "due": 0, "after": job_id(0, 0)}, GROUPS
        ),
        "beat_worker": Hot("beat_worker", {"worker": "worker-0"}, 1),
    }


def _acts() -> Mapping[str, Hot]:
    """What operators do to many, done to one: nothing else may be looked at."""
    one: Params = {"ids": rows_of([job_id(1, READY // 2)])}
    more: Mapping[str, Params] = {
        "cancel_jobs": {"reason": None},
        "requeue_jobs": {"keep_checkpoint": 0},
        "record_requeues": {"keep_checkpoint": 0, "reason": None, "by": None},
        "keep_keys": {"keep": DAY},
    }
    names = (
        *(
            "lock_jobs",
            "run_jobs_now",
            "expire_key_holders",
            "find_taken_keys",
            "record_last_attempts",
            "delete_jobs",
        ),
        *("delete_attempts", "delete_events", "delete_logs", "delete_keys"),
        *more,
    )
    return {name: Hot(name, {**one, **more.get(name, {})}, 1) for name in names}


def _looks(n: int) -> Mapping[str, Hot]:
    one = job_id(1, READY // 2)
    before = job_id(2**32 - 1, 0)
    page = next(find(EVERY, before=before, length=n, n=n)).queries[0]
    ids = rows_of([job_id(1, i) for i in range(1, n + 1)])
    return {
        "lock_job": Hot("lock_job", {"id": one}, 1),
        "find_job": Hot("find_job", {"id": one}, 1),
        "get_job": Hot("get_job", {"id": one}, 1),
        "first page": Hot("find_jobs", dict(page.params), n),
        "read_jobs": Hot("read_jobs", {"ids": ids}, n),
    }


SHARED = enqueue._SHARED


def _failed(id: str) -> Change:
    """An attempt that is tried again tomorrow."""
    return Change(
        id=id, token=1, state="ready", run=1, attempt=1, delay=DAY, error_kind="error", attempt_kind="error"
    )
