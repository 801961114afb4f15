"""Finish: one round trip if all succeeded, two if something must be decided, three if a queue cools down."""

from __future__ import annotations

import json
from typing import Any

from perdure.model.job import SECOND, Lease
from perdure.model.lifecycle import (
    PUT_OFF,
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
from perdure.ops.batch import CHUNK
from perdure.ops.claim import ClaimRequest, Claims
from perdure.ops.finish import Finished, cycle, find_recorded, finish
from perdure.ops.op import Row
from perdure.store.statements import load
from tests.ops.rows import running
from tests.ops.script import A, B, C, Script
from tests.ops.test_claim import row as claimed

ONE, TWO, THREE = Lease(A, 1), Lease(B, 1), Lease(C, 1)


def half() -> float:
    return 0.5


def play(script: Script, *outcomes: Outcome) -> Finished:
    return script.play(finish(outcomes, jitter=half))


def changes(script: Script) -> list[dict[str, Any]]:
    (params,) = script.params("apply_changes")
    rows: list[dict[str, Any]] = json.loads(params["changes"])
    return rows


def test_plain_successes_are_one_final_step() -> None:
    script = Script(finish_succeeded=[[(A, 1), (B, 1)]])
    assert play(script, Succeeded(TWO, "2"), Succeeded(ONE, "1", "large"))[:2] == ([TWO, ONE], [])
    assert (script.asked, script.final, script.woken) == ([["finish_succeeded"]], True, set())
    (params,) = script.params("finish_succeeded")
    assert json.loads(params["outcomes"]) == {A: [1, "1", "large"], B: [1, "2", None]}


def test_successes_that_are_alike_are_told_by_their_leases() -> None:
    script = Script(finish_same_result=[[(2,)]])
    assert play(script, Succeeded(TWO, "1", "why"), Succeeded(ONE, "1", "why"))[:2] == ([TWO, ONE], [])
    assert (script.asked, script.final, script.woken) == ([["finish_same_result"]], True, set())
    (params,) = script.params("finish_same_result")
    assert json.loads(params.pop("leases")) == {A: 1, B: 1}
    assert params == {"result": "1", "reason": "why"}


def test_more_than_a_statement_takes_are_told_one_by_one() -> None:
    outcomes = [Succeeded(Lease(f"{A[:-4]}{n:04}", 1)) for n in range(CHUNK + 1)]
    script = Script(finish_succeeded=[[], []])
    play(script, *outcomes)
    assert script.asked == [["finish_succeeded"] * 2]


def test_large_results_are_several_statements_of_one_step() -> None:
    leases = [Lease(f"{A[:-4]}{n:04}", 1) for n in range(40)]
    script = Script(finish_succeeded=[[tuple(lease)] for lease in leases[:3]], claim_jobs=[[claimed(B)]])
    outcomes = [Succeeded(lease, "x" * (1 << 20)) for lease in leases]
    finished, claims = script.play(cycle(outcomes, jitter=half, claim=ClaimRequest("w", ["work"], 1)))
    assert script.asked == [["finish_succeeded"] * 3 + ["claim_jobs"]]
    told = [json.loads(params["outcomes"]) for params in script.params("finish_succeeded")]
    assert [len(rows) for rows in told] == [16, 16, 8]
    assert (finished.accepted, len(finished.refused)) == (leases[:3], 37)
    assert [job.id for job in claims.jobs] == [B]


def test_a_success_whose_lease_is_gone_is_refused() -> None:
    script = Script(finish_same_result=[[(1,)]])
    assert play(script, Succeeded(ONE), Succeeded(TWO))[:2] == ([], [ONE, TWO]), "it may be either"
    script = Script(finish_succeeded=[[(B, 1)]])
    assert play(script, Succeeded(ONE), Succeeded(TWO, "2"))[:2] == ([TWO], [ONE])


def test_a_stale_lease_is_told_from_the_live_one() -> None:
    script = Script(finish_succeeded=[[(A, 2)]])
    assert play(script, Succeeded(Lease(A, 2)), Succeeded(ONE))[:2] == ([Lease(A, 2)], [ONE])
    (params,) = script.params("finish_succeeded")
    assert json.loads(params["outcomes"]) == {A: [2, None, None]}, "only the later can be live"


def test_what_must_be_decided_is_locked_first() -> None:
    script = Script(lock_running=[[running(A), running(B), running(C)]], finish_same_result=[[(1,)]])
    finished = play(script, Succeeded(THREE), Failed(TWO, "error", message="no"), Canceled(ONE, "enough"))
    assert finished[:2] == ([ONE, TWO, THREE], [])
    assert script.asked == [
        ["lock_workflows_of", "lock_running"],
        ["finish_same_result", "record_attempts", "apply_changes"],
    ]
    assert [step.final for step in script.steps] == [False, True]
    (params,) = script.params("lock_running")
    assert json.loads(params["leases"]) == [[A, 1], [B, 1], [C, 1]], "in the order of ids"
    assert [(change["id"], change["state"]) for change in changes(script)] == [(A, "canceled"), (B, "ready")]


def test_beside_another_a_step_that_does_not_say_so_is_refused() -> None:
    script = Script(
        lock_workflows_of=[[("w", "running", 0, 1, 0, 0, False, None)]],
        lock_running=[[running(A, workflow="w"), running(B)]],
        finish_same_result=[[(0,)]],
    )
    assert play(script, Succeeded(ONE), Failed(TWO, "error"))[:2] == ([TWO], [ONE])
    assert "release" not in "".join(name for names in script.asked for name in names)


def test_what_was_not_locked_is_refused() -> None:
    script = Script(lock_running=[[]])
    assert play(script, Failed(ONE, "error"), Snoozed(TWO, 5))[:2] == ([], [ONE, TWO])
    assert script.asked == [["lock_workflows_of", "lock_running"]], "and nothing is written"


def test_attempts_are_recorded_only_where_one_ended_but_not_its_job() -> None:
    for outcome, recorded in (
        (Failed(ONE, "error"), True),
        (Failed(ONE, "interrupted"), True),
        (Continued(ONE), True),
        (Failed(ONE, "fatal"), False),
        (Snoozed(ONE, 5), True),
        (Throttled(ONE, cool_queue=False), True),
        (Released(ONE), False),
        (Canceled(ONE, "enough"), False),
        (Succeeded(ONE, "1", None, Report()), False),
    ):
        script = Script(lock_running=[[running(A)]])
        play(script, outcome)
        assert bool(script.params("record_attempts")) is recorded, outcome


def test_queues_of_jobs_that_may_run_at_once_are_woken() -> None:
    for outcome, woken in (
        (Released(ONE), {"queue/mail"}),
        (Continued(ONE), {"queue/mail"}),
        (Snoozed(ONE, 0), {"queue/mail"}),
        (Failed(ONE, "interrupted"), {"queue/mail"}),
        (Failed(ONE, "lost"), {"queue/mail"}),
        (Snoozed(ONE, 1), set()),
        (Failed(ONE, "error"), set()),
        (Failed(ONE, "fatal"), set()),
        (Canceled(ONE, "enough"), set()),
    ):
        script = Script(lock_running=[[running(A)]])
        play(script, outcome)
        assert script.woken == woken, outcome
    script = Script(lock_running=[[running(A, cancel_requested=True)]])
    play(script, Released(ONE))
    assert script.woken == set(), "under a cancel it does not run again"


def test_a_dice_is_thrown_for_each_job() -> None:
    rolls = iter([0.25, 0.75])
    script = Script(lock_running=[[running(A), running(B)]])
    script.play(finish([Failed(ONE, "error"), Failed(TWO, "error")], jitter=lambda: next(rolls)))
    assert [change["delay"] for change in changes(script)] == [1_250_000, 3_750_000]


def test_a_report_goes_before_the_change_that_ends_the_lease() -> None:
    script = Script(lock_running=[[running(A)]])
    play(script, Succeeded(ONE, "1", None, Report(done=1, total=2, stage="end")))
    assert script.asked[1] == ["save_reports", "record_events", "apply_changes"]


def test_a_bad_pair_is_dropped_and_an_event_tells() -> None:
    script = Script(lock_running=[[running(A, progress_done=1, progress_total=2)]])
    play(script, Succeeded(ONE, "1", None, Report(done=3, message="m")))
    (reports,), (events,) = script.params("save_reports"), script.params("record_events")
    (report,) = json.loads(reports["reports"])
    assert (report["done"], report["total"], report["message"]) == (1, 2, "m")
    assert [event["kind"] for event in json.loads(events["events"])] == ["progress dropped"]


NOW = 1_000_000 * SECOND


def queue(name: str, throttles: int = 0, *, left: int | None = None, backoff: Any = None) -> Row:
    """A row of ``lock_queues``."""
    return (name, throttles, None if left is None else NOW + left, NOW, backoff)


def test_a_throttle_cools_its_queue_in_a_step_between() -> None:
    script = Script(
        lock_running=[[running(A), running(B), running(C, queue="fast")]],
        lock_queues=[[queue("fast", 3, left=-SECOND), queue("mail")]],
    )
    play(script, Throttled(ONE, 7 * SECOND), Throttled(TWO, 0), Throttled(THREE))
    assert script.asked == [
        ["lock_workflows_of", "lock_running"],
        ["ensure_queues", "lock_queues"],
        ["record_attempts", "apply_changes", "cool_queue", "cool_queue"],
    ]
    assert [step.final for step in script.steps] == [False, False, True]
    assert script.params("lock_queues") == [{"names": '["fast","mail"]'}]
    assert script.params("cool_queue") == [
        {"name": "fast", "throttles": 4, "cool": 40 * SECOND},
        {"name": "mail", "throttles": 0, "cool": 7 * SECOND},
    ]


def test_a_queue_that_cools_for_longer_is_left_alone() -> None:
    script = Script(lock_running=[[running(A)]], lock_queues=[[queue("mail", 2, left=100 * SECOND)]])
    play(script, Throttled(ONE, 99 * SECOND))
    assert script.params("cool_queue") == []


def test_a_throttle_may_spare_the_queue() -> None:
    script = Script(lock_running=[[running(A)]])
    play(script, Throttled(ONE, 5, cool_queue=False))
    assert script.asked == [["lock_workflows_of", "lock_running"], ["record_attempts", "apply_changes"]]


def test_a_cycle_claims_in_the_last_step() -> None:
    request = ClaimRequest("w", ["work"], 2, ["b", "a"])
    script = Script(finish_same_result=[[(1,)]], claim_jobs=[[claimed(C, queue="a"), claimed(B, queue="b")]])
    finished, claims = script.play(cycle([Succeeded(ONE)], jitter=half, claim=request))
    assert finished[:2] == ([ONE], [])
    assert [job.id for job in claims.jobs] == [B, C]
    assert script.asked == [["finish_same_result", "claim_jobs"]]
    assert script.final
    script = Script(lock_running=[[running(A)]], claim_jobs=[[claimed(B)]])
    script.play(cycle([Released(ONE)], jitter=half, claim=request))
    assert script.asked == [["lock_workflows_of", "lock_running"], ["apply_changes", "claim_jobs"]]


def test_a_cycle_without_appetite_only_finishes() -> None:
    for request in (ClaimRequest("w", ["work"], 0), ClaimRequest("w", [], 5)):
        script = Script(finish_same_result=[[(1,)]])
        finished, claims = script.play(cycle([Succeeded(ONE)], jitter=half, claim=request))
        assert (finished.accepted, claims.jobs) == ([ONE], [])
        assert script.asked == [["finish_same_result"]]
        script = Script()
        assert script.play(cycle([], jitter=half, claim=request)) == (Finished([], []), Claims([]))
        assert script.steps == []


def test_a_cycle_without_outcomes_only_claims() -> None:
    script = Script(claim_jobs=[[claimed(A)]])
    _, claims = script.play(cycle([], jitter=half, claim=ClaimRequest("w", ["work"], 1)))
    assert [job.id for job in claims.jobs] == [A]
    assert script.asked == [["claim_jobs"]]


def test_a_refused_outcome_that_is_recorded_already_is_recognised() -> None:
    for outcome, state, kind, same in (
        (Succeeded(ONE), "succeeded", None, True),
        (Succeeded(ONE), "ready", None, False),
        (Succeeded(ONE), "failed", "lost", False),
        (Failed(ONE, "error"), "ready", "error", True),
        (Failed(ONE, "error"), "failed", "error", True),
        (Failed(ONE, "error"), "ready", "lost", False),
        (Failed(ONE, "error"), "canceled", "lost", False),
        (Snoozed(ONE, 5), "ready", "snoozed", True),
        (Snoozed(ONE, 5), "canceled", "snoozed", True),
        (Snoozed(ONE, 5), "canceled", None, True),
        (Snoozed(ONE, 5), "ready", "throttled", False),
        (Snoozed(ONE, 5), "ready", None, False),
        (Snoozed(ONE, 5), "succeeded", None, False),
        (Throttled(ONE), "ready", "throttled", True),
        (Released(ONE), "ready", None, True),
        (Released(ONE), "ready", "snoozed", False),
        (Continued(ONE), "ready", "continued", True),
    ):
        script = Script(find_outcomes=[[(A, 1, state, kind)]])
        assert script.play(find_recorded([outcome])) == ([ONE] if same else []), (outcome, state, kind)
    assert Script().play(find_recorded([Succeeded(ONE)])) == []


def test_every_kind_of_attempt_that_was_put_off_is_forgotten() -> None:
    statement = load("sqlite")["forget_put_off"]
    assert all(f"'{kind}'" in statement for kind in PUT_OFF)
