"""Claim: one final round trip; rows may arrive in any order."""

from __future__ import annotations

import json
import random
from typing import Any

from perdure.model.job import Claimed
from perdure.ops.claim import ClaimRequest, Claims, ClaimWindow, _claim_query, claim, claim_skipping_locked
from tests.ops.script import A, B, C, Script


def row(
    id: str, *, queue: str = "default", priority: int = 0, run_at: int = 5, state: str = "running"
) -> Any:
    """A row of ``claim_jobs``: a claimed job and its state."""
    return (
        id,
        1,
        1,
        "work",
        queue,
        priority,
        run_at,
        1,
        8,
        None,
        "{}",
        *[None] * 3,
        0,
        0,
        *[None] * 3,
        state,
    )


def test_a_claim_is_one_final_step() -> None:
    script = Script(claim_jobs=[[row(A)]])
    claims = script.play(claim(ClaimRequest("w", ["b", "a"], 3, ["q"])))
    assert claims == Claims([Claimed(*row(A)[:-1])], [])
    assert claims.jobs[0].lease == (A, 1)
    assert (script.asked, script.final, script.woken) == ([["claim_jobs"]], True, set())
    assert script.params("claim_jobs") == [
        {"worker": "w", "tasks": '["b","a"]', "queues": '["q"]', "n": 3, "limits": 0}
    ]


def test_every_queue_is_asked_by_naming_none() -> None:
    script = Script()
    assert script.play(claim(ClaimRequest("w", ["a"], 1))).jobs == []
    assert script.params("claim_jobs")[0]["queues"] is None


def test_a_task_named_twice_is_asked_once() -> None:
    script = Script()
    script.play(claim(ClaimRequest("w", ["b", "a", "b"], 1)))
    assert json.loads(script.params("claim_jobs")[0]["tasks"]) == ["b", "a"]


def test_nothing_asked_for_is_no_step() -> None:
    script = Script()
    for tasks, n in ((["a"], 0), (["a"], -1), ([], 5)):
        assert script.play(claim(ClaimRequest("w", tasks, n))) == Claims([])
    assert script.steps == []


def test_shuffled_rows_come_out_in_order() -> None:
    ordered = [
        row(C, priority=9, run_at=7),
        row(A, priority=1, run_at=5),
        row(B, priority=1, run_at=5),
        row(A[:-1] + "0", priority=1, run_at=6),
        row(A[:-1] + "1", priority=-1, run_at=1),
    ]
    for seed in range(10):
        shuffled = random.Random(seed).sample(ordered, len(ordered))
        jobs = Script(claim_jobs=[shuffled]).play(claim(ClaimRequest("w", ["work"], 9))).jobs
        assert [job.id for job in jobs] == [one[0] for one in ordered]


def test_whatever_is_free_is_put_in_order_where_a_front_was_known() -> None:
    rows = [row(A, priority=0), row(B, priority=3), row(C, priority=1)]
    request = ClaimRequest("w", ["work"], 9, window=ClaimWindow("default", 0))
    jobs = Script(claim_skipping_locked=[rows]).play(claim_skipping_locked(request)).jobs
    assert [job.id for job in jobs] == [B, C, A]


def test_named_queues_stand_before_priority() -> None:
    rows = [row(A, queue="b", priority=9), row(B, queue="a"), row(C, queue="b", priority=1)]
    jobs = Script(claim_jobs=[rows]).play(claim(ClaimRequest("w", ["work"], 9, ["a", "b"]))).jobs
    assert [job.id for job in jobs] == [B, A, C]
    merged = Script(claim_jobs=[rows]).play(claim(ClaimRequest("w", ["work"], 9))).jobs
    assert [job.id for job in merged] == [A, C, B]


def test_expired_ones_are_named_and_not_handed_out() -> None:
    rows = [row(A, state="canceled"), row(B), row(C, state="canceled")]
    claims = Script(claim_jobs=[rows]).play(claim(ClaimRequest("w", ["work"], 9)))
    assert ([job.id for job in claims.jobs], claims.expired, claims.more) == ([B], [A, C], True)


def test_a_front_says_itself_whether_there_may_be_more() -> None:
    for told, more in (([], False), ([(*[None] * 19, "more")], True)):
        script = Script(claim_window=[[row(A), *told]])
        claims = script.play(claim(ClaimRequest("w", ["work"], 2, window=ClaimWindow("default", 0))))
        assert ([job.id for job in claims.jobs], claims.more, claims.locked) == ([A], more, False)
        assert script.asked == [["claim_window"]]


def test_a_front_knows_which_named_queues_come_before_and_behind() -> None:
    asked = _claim_query(ClaimRequest("w", ["work"], 2, ["a", "b", "c"], ClaimWindow("b", 1, 7)))
    assert (asked.params["ahead"], asked.params["behind"]) == ('["a"]', '["c"]')
    assert (asked.params["queue"], asked.params["priority"], asked.params["since"]) == ("b", 1, 7)
    everywhere = _claim_query(ClaimRequest("w", ["work"], 2, None, ClaimWindow("b", 1)))
    assert (everywhere.params["ahead"], everywhere.params["behind"]) == (None, None)


def test_rows_that_others_hold_are_no_jobs() -> None:
    locked = [(*[None] * 19, "locked")]
    claims = Script(claim_jobs=[locked]).play(claim(ClaimRequest("w", ["work"], 2)))
    assert claims == Claims([], [], locked=True, more=True)
