"""Operators' actions: lock, decide, write. A refused action writes nothing and wakes nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.errors import UnknownTask
from perdure.model.backoff import Backoff
from perdure.model.job import TaskDefinition
from perdure.model.queue_settings import Settings
from perdure.ops import job_actions, queues, tasks
from tests.ops.rows import locked
from tests.ops.script import A, B, Script


def event(script: Script) -> dict[str, Any]:
    (params,) = script.params("record_event")
    detail = json.loads(params["detail"]) if params["detail"] else {}
    return {"kind": params["kind"], "run": params["run"], "token": params["token"], **detail}


@pytest.mark.parametrize(
    "act", [job_actions.cancel, job_actions.requeue, job_actions.run_now, job_actions.delete]
)
def test_what_is_not_there_is_not_found(act: Any) -> None:
    script = Script()
    assert script.play(act(A)) == "not_found"
    assert script.asked in ([["lock_job"]], [["lock_workflows_of", "lock_job"]])
    assert script.woken == set()


def test_cancel_of_a_job_that_waits() -> None:
    script = Script(lock_job=[[locked("ready")]], cancel_jobs=[[("canceled", None, 1, 1)]])
    assert script.play(job_actions.cancel(A, reason="withdrawn", by="ann")) == "canceled"
    assert script.asked == [["lock_workflows_of", "lock_job"], ["cancel_jobs"], ["record_event"]]
    assert (script.final, script.woken) == (True, {"ended"})
    assert event(script) == {"kind": "canceled", "run": 1, "token": 1, "reason": "withdrawn", "by": "ann"}


def test_cancel_of_a_running_job_wakes_its_worker() -> None:
    script = Script(lock_job=[[locked("running", token=4)]], cancel_jobs=[[("running", "w", 1, 4)]])
    assert script.play(job_actions.cancel(A)) == "cancel_requested"
    assert script.woken == {"worker/w"}
    assert event(script) == {"kind": "cancel requested", "run": 1, "token": 4}


def test_cancel_of_a_job_that_ended() -> None:
    script = Script(lock_job=[[locked("failed")]])
    assert script.play(job_actions.cancel(A)) == "already_ended"
    assert (script.params("record_event"), script.woken) == ([], set())


@pytest.mark.parametrize(
    ("row", "run", "outcome"),
    [
        (locked("running"), None, "still_running"),
        (locked("ready"), None, "not_ended"),
        (locked("waiting"), None, "not_ended"),
        (locked("open"), None, "not_ended"),
        (locked("succeeded"), None, "already_succeeded"),
        (locked("failed", run=2), 1, "other_run"),
        (locked("running", run=2), 1, "still_running"),
    ],
)
def test_requeue_says_why_not(row: tuple[Any, ...], run: int | None, outcome: str) -> None:
    script = Script(lock_job=[[row]])
    assert script.play(job_actions.requeue(A, run=run)) == outcome
    assert script.asked == [["lock_job"]]


@pytest.mark.parametrize("state", ["failed", "canceled"])
def test_requeue_records_the_last_attempt_and_wakes_the_queue(state: str) -> None:
    script = Script(lock_job=[[locked(state, run=2, token=5)]], requeue_jobs=[[("mail",)]])
    assert script.play(job_actions.requeue(A, run=2, reason="fixed", by="ann")) == "requeued"
    assert script.asked == [["lock_job"], ["record_last_attempts", "record_requeues", "requeue_jobs"]]
    assert (script.final, script.woken) == (True, {"queue/mail"})
    assert script.params("requeue_jobs") == [{"ids": f'["{A}"]', "keep_checkpoint": 0}]
    told = {"ids": f'["{A}"]', "keep_checkpoint": 0, "reason": "fixed", "by": "ann"}
    assert script.params("record_requeues") == [told]


def test_requeue_gives_way_to_an_active_twin() -> None:
    row = locked("failed", unique_key="u", tenant="acme")
    script = Script(lock_job=[[row]], find_active=[[(B, "mail", "ready", 1, 0)]])
    assert script.play(job_actions.requeue(A)) == "unique_key_taken"
    assert script.asked == [["lock_job"], ["expire_active", "find_active"]]
    assert script.params("find_active") == [{"task": "work", "tenant": "acme", "unique_key": "u"}]
    script = Script(lock_job=[[row]], requeue_jobs=[[("mail",)]])
    assert script.play(job_actions.requeue(A)) == "requeued"


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        (locked("ready", due=1), "already_due"),
        (locked("running", due=0), "not_ready"),
        (locked("failed"), "not_ready"),
        (locked("waiting", due=0), "not_ready"),
    ],
)
def test_run_now_says_why_not(row: tuple[Any, ...], outcome: str) -> None:
    script = Script(lock_job=[[row]])
    assert script.play(job_actions.run_now(A)) == outcome
    assert script.asked == [["lock_job"]]


def test_run_now_wakes_the_queue() -> None:
    script = Script(lock_job=[[locked("ready", due=0)]], run_jobs_now=[[("mail",)]])
    assert script.play(job_actions.run_now(A, by="ann")) == "due_now"
    assert script.asked == [["lock_job"], ["run_jobs_now", "record_event"]]
    assert (script.final, script.woken) == (True, {"queue/mail"})


@pytest.mark.parametrize(("keep", "statement"), [(None, "delete_keys"), (0, "keep_keys"), (60, "keep_keys")])
def test_delete_takes_or_keeps_the_key(keep: int | None, statement: str) -> None:
    script = Script(lock_job=[[locked("succeeded")]])
    assert script.play(job_actions.delete(A, keep_key=keep)) == "deleted"
    own = ["delete_attempts", "delete_events", "delete_logs", "delete_jobs", "record_act"]
    assert script.asked == [["lock_job"], [statement, *own]]
    assert (script.final, script.woken) == (True, set())


def test_delete_of_a_running_job_asks_it_to_stop() -> None:
    script = Script(lock_job=[[locked("running")]] * 2, cancel_jobs=[[("running", "w", 1, 1)]])
    assert script.play(job_actions.delete(A)) == "cancel_requested"
    assert script.params("delete_jobs") == []
    assert script.woken == {"worker/w"}
    assert event(script)["reason"] == "deleted"


def test_a_resumed_queue_is_woken() -> None:
    for operation, names, woken in (
        (queues.pause("mail"), ["pause_queue"], set()),
        (queues.resume("mail"), ["lock_pause", "resume_queue"], {"queue/mail"}),
    ):
        script = Script()
        script.play(operation)
        assert (script.asked, script.final, script.woken) == ([[*names, "record_act"]], True, woken)


@pytest.mark.parametrize("backoff", [Backoff(1, 2), None])
def test_workers_learn_of_changed_settings(backoff: Backoff | None) -> None:
    row = ("mail", False, None, 0, *[None] * 9)
    script = Script(lock_settings=[[row]])
    script.play(queues.set_queue("mail", {"backoff": backoff}))
    assert script.asked == [["ensure_queues", "lock_settings"], ["write_settings", "record_act"]]
    assert (script.final, script.woken) == (True, {"queues"})


def test_what_is_declared_already_is_not_written() -> None:
    row = ("mail", False, None, 0, None, *[None] * 4, 5, None, '{"timeout":5}', None)
    for declared, writes in ((Settings(timeout=5), []), (Settings(timeout=6), [["write_settings"]])):
        script = Script(lock_settings=[[row]])
        script.play(queues.sync_queues({"mail": declared}))
        assert script.asked == [["ensure_queues", "lock_settings"], *writes]
        assert script.woken == ({"queues"} if writes else set())


def test_tasks_are_written_in_the_order_of_their_names() -> None:
    task = TaskDefinition(
        name="b", queue="q", priority=0, max_attempts=1, timeout=None, backoff="{}", max_crashes=None
    )
    other = TaskDefinition(
        name="a", queue="q", priority=0, max_attempts=1, timeout=None, backoff="{}", max_crashes=None
    )
    for exact, asked in ((False, ["sync_tasks"]), (True, ["sync_tasks", "disable_other_tasks"])):
        script = Script()
        script.play(tasks.sync([task, other], exact=exact))
        limits = ["lock_limits", "list_limited_tasks"]
        assert (script.asked, script.final) == ([limits, asked], True)
        assert [row["name"] for row in json.loads(script.params("sync_tasks")[0]["tasks"])] == ["a", "b"]


def test_an_unknown_task_cannot_be_set() -> None:
    script = Script()
    with pytest.raises(UnknownTask):
        script.play(tasks.set_task("nobody", enabled=False))
    assert Script(enable_task=[[("work",)]]).play(tasks.set_task("work", enabled=True)) is None
