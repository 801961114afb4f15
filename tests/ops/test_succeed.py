"""Successes of steps in one round trip."""

from __future__ import annotations

import pytest

from perdure.model.job import Lease
from perdure.model.lifecycle import Failed, Outcome, Succeeded
from perdure.ops.claim import ClaimRequest
from perdure.ops.finish import Finished, cycle, finish
from perdure.ops.op import Row
from tests.ops.rows import running
from tests.ops.script import A, B, C, Script
from tests.ops.test_claim import row as claimed

ONE, TWO = Lease(A, 1), Lease(B, 1)
FLOW, OTHER = "flow", "other"


def half() -> float:
    return 0.5


def locked(id: str, *, spoiled: int = 0) -> Row:
    return (id, "running", 1, 1, 0, spoiled, False, None)


def step(lease: Lease, workflow: str | None = FLOW) -> Succeeded:
    return Succeeded(lease, "1", workflow=workflow)


def test_steps_end_release_and_are_followed_by_a_claim_in_one_round_trip() -> None:
    script = Script(
        lock_workflows=[[locked(FLOW)]],
        succeed_steps=[[(A, 1, None), (B, 1, None), (C, None, "mail"), ("x", None, "slow")]],
        claim_jobs=[[claimed(C, queue="mail")]],
    )
    finished, claims = script.play(
        cycle(
            [step(ONE), step(TWO, None)],
            jitter=half,
            claim=ClaimRequest("w", ["work"], 5),
            failing=set(),
        )
    )
    assert finished == Finished([ONE, TWO], [])
    assert [job.id for job in claims.jobs] == [C]
    assert script.asked == [["lock_workflows", "succeed_steps", "claim_jobs"]]
    assert script.final
    assert script.woken == {"queue/slow"}, "whoever is taken in the same turn needs nobody else"


def test_steps_of_a_workflow_in_which_something_failed_are_to_be_told_again() -> None:
    script = Script(lock_workflows=[[locked(FLOW), locked(OTHER, spoiled=1)]], succeed_steps=[[(A, 1, None)]])
    late = Lease(C, 1)
    outcomes = [step(ONE), step(TWO, OTHER), step(late)]
    finished = script.play(finish(outcomes, jitter=half, failing=set()))
    assert finished == Finished([ONE], [late], (), frozenset([OTHER]))


@pytest.mark.parametrize(
    ("outcomes", "failing"),
    [
        ([step(ONE)], None),
        ([step(ONE), step(TWO, OTHER)], {OTHER}),
        ([step(ONE), Failed(TWO, "error")], set()),
    ],
)
def test_all_others_go_the_long_way(outcomes: list[Outcome], failing: set[str] | None) -> None:
    script = Script(lock_running=[[running(A), running(B)]])
    script.play(finish(outcomes, jitter=half, failing=failing))
    assert "succeed_steps" not in [name for names in script.asked for name in names]
    assert not script.steps[0].final


def test_jobs_of_no_workflow_need_no_lock() -> None:
    script = Script(finish_same_result=[[(1,)]])
    script.play(finish([step(ONE, None)], jitter=half, failing=set()))
    assert script.asked == [["finish_same_result"]]
