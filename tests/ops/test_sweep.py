"""Rescue, expire, and a worker's identity."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.errors import InvalidLease, WorkerRetired
from perdure.ops import claim, enqueue, finish, report, sweep, worker
from perdure.ops.op import Operation
from tests.ops.rows import running
from tests.ops.script import A, B, C, Script


def half() -> float:
    return 0.5


def changes(script: Script) -> list[dict[str, Any]]:
    return [row for params in script.params("apply_changes") for row in json.loads(params["changes"])]


def test_a_rescue_loses_each_orphan_and_wakes_its_queue() -> None:
    orphans = [running(A), running(B, queue="fast", cancel_requested=True), running(C, crashes=1)]
    script = Script(find_orphans=[orphans])
    rescued = script.play(sweep.rescue(jitter=half, n=5))
    assert ([change.id for change in rescued.changes], rescued.last) == ([A, B, C], None)
    assert script.asked == [["lock_orphan_workflows", "find_orphans"], ["record_attempts", "apply_changes"]]
    assert [step.final for step in script.steps] == [False, True]
    assert [(row["state"], row["error_kind"], row["delay"]) for row in changes(script)] == [
        ("ready", "lost", 0),
        ("canceled", "lost", 0),
        ("ready", "lost", 2_500_000),
    ]
    assert script.woken == {"queue/mail"}, "only who may run at once"


def test_a_full_page_says_where_the_next_begins() -> None:
    script = Script(find_orphans=[[running(A), running(B)]])
    assert script.play(sweep.rescue(jitter=half, after=sweep.FIRST, n=2)).last == B
    assert script.params("find_orphans") == [{"after": sweep.FIRST, "n": 2}]
    assert Script(find_orphans=[[running(A)]]).play(sweep.rescue(jitter=half, n=2)).last is None


def test_no_orphans_are_nothing_to_write() -> None:
    script = Script()
    assert script.play(sweep.rescue(jitter=half)) == ([], None)
    assert (script.asked, script.woken) == ([["lock_orphan_workflows", "find_orphans"]], set())


def test_one_orphan_is_rescued_alone() -> None:
    script = Script(find_orphans=[[running(B)]])
    assert [change.id for change in script.play(sweep.rescue_chosen([B], jitter=half, n=500))] == [B]
    assert script.params("find_orphans") == [{"after": A, "n": 1}]
    assert [row["id"] for row in changes(script)] == [B]


def test_another_orphan_in_its_place_is_left_alone() -> None:
    script = Script(find_orphans=[[running(C)]])
    assert script.play(sweep.rescue_chosen([B], jitter=half, n=500)) == []
    assert script.asked == [["lock_orphan_workflows", "find_orphans"]]


def test_lists_and_counts_are_one_final_step() -> None:
    for operation, name, rows, value in (
        (sweep.retire_silent(), "retire_silent_workers", [("w",)], ["w"]),
        (sweep.expire(n=2), "expire_jobs", [(A,), (B,)], [A, B]),
        (sweep.list_orphans(n=2), "find_orphans", [running(A)], [A]),
    ):
        script = Script(**{name: [rows]})
        assert script.play(operation) == value
        assert (script.asked, script.final) == ([[name]], True)


@pytest.mark.parametrize("lease", [0, -1])
def test_a_lease_of_nothing_is_refused_before_anything_is_asked(lease: int) -> None:
    script = Script()
    with pytest.raises(InvalidLease):
        script.play(worker.register("w", name="w", lease=lease))
    assert script.steps == []


def test_a_retired_worker_is_not_registered_again() -> None:
    Script(register_worker=[[("w",)]]).play(worker.register("w", name="one", lease=1))
    with pytest.raises(WorkerRetired):
        Script(register_worker=[[]]).play(worker.register("w", name="one", lease=1))


def test_a_retirement_is_one_final_step() -> None:
    script = Script()
    script.play(worker.retire("w"))
    assert (script.asked, script.final) == ([["retire_worker"]], True)


def test_a_heartbeat_renews_and_reads_back_in_one_step() -> None:
    script = Script(
        beat_worker=[[("w",)]], list_running=[[(A, 1, 0), (B, 4, 1)]], list_configs=[[("work", "{}")]]
    )
    assert script.play(worker.heartbeat("w")) == (True, [(A, 1), (B, 4)], [(B, 4)], {"work": "{}"})
    assert (script.asked, script.final) == ([["beat_worker", "list_running", "list_configs"]], True)
    assert Script().play(worker.heartbeat("w")).live is False


def test_what_is_urgent_goes_ahead_of_what_is_not() -> None:
    beats: list[Operation[..., Any]] = [worker.register, worker.heartbeat, worker.retire]
    assert {operation.priority for operation in beats} == {"heartbeat"}
    urgent: list[Operation[..., Any]] = [finish.finish, finish.cycle, report.report]
    assert {operation.priority for operation in urgent} == {"urgent"}
    assert [operation.pipelined for operation in urgent] == [False, True, False]
    others: list[Operation[..., Any]] = [claim.claim, enqueue.enqueue, enqueue.enqueue_keyed, sweep.rescue]
    assert {(operation.access, operation.priority) for operation in others} == {("write", "normal")}
