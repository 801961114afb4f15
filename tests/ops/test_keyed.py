"""Enqueue with keys: keys first, in key order; vanished rows are searched again; refusals before the end."""

from __future__ import annotations

import json

import pytest

from perdure.errors import IdempotencyConflict, InternalError, UnsupportedIsolation
from perdure.ops.enqueue import PATIENCE, Enqueued, enqueue_keyed
from tests.ops.script import A, B, C, Script, new_job

COMMITTED = [("read committed",)]
REQUEST = '{"v":1,"arguments":{}}'


def test_a_free_key_is_taken_before_the_job_is_inserted() -> None:
    script = Script(show_isolation=[COMMITTED], insert_keys=[[(A,)]], insert_jobs=[[(A, "mail", True)]])
    assert script.play(enqueue_keyed([new_job(A, idempotency_key="k")])) == [Enqueued(A, True, "mail")]
    assert script.asked == [["show_isolation", "insert_keys"], ["insert_jobs"]]
    assert script.final
    assert script.woken == {"queue/mail"}


def test_the_insert_is_never_the_final_step() -> None:
    """The operation may still refuse: a round trip that is sent with COMMIT cannot be undone."""
    script = Script(show_isolation=[COMMITTED], insert_jobs=[[(A, "mail", False)]])
    script.play(enqueue_keyed([new_job(A, unique_key="u")]))
    assert [step.final for step in script.steps if step.queries] == [False] * 2
    assert (script.final, script.woken) == (True, set())


def test_a_taken_key_answers_with_its_job() -> None:
    script = Script(
        show_isolation=[COMMITTED],
        insert_keys=[[]],
        find_key=[[(B, REQUEST)]],
        find_job=[[(B, "mail", "running", 2, 3)]],
    )
    assert script.play(enqueue_keyed([new_job(A, idempotency_key="k", tenant="acme")])) == [
        Enqueued(B, False, "mail", "running", 2, 3)
    ]
    assert script.params("find_key") == [{"task": "work", "tenant": "acme", "key": "k"}]
    assert script.params("insert_jobs") == [], "nothing is inserted"
    assert script.woken == set()


def test_a_key_whose_job_is_gone_still_answers() -> None:
    script = Script(show_isolation=[COMMITTED], find_key=[[(B, REQUEST)]])
    assert script.play(enqueue_keyed([new_job(A, idempotency_key="k")])) == [Enqueued(B, False, None, None)]


def test_a_key_of_ones_own_was_written_by_a_lost_commit() -> None:
    script = Script(
        show_isolation=[COMMITTED],
        find_key=[[(A, REQUEST)]],
        find_job=[[(A, "mail", "ready", 1, 0)]],
    )
    (outcome,) = script.play(enqueue_keyed([new_job(A, idempotency_key="k")]))
    assert (outcome.id, outcome.created) == (A, True)


def test_a_conflict_names_the_field_and_nothing_is_inserted() -> None:
    stored = '{"v":1,"arguments":{"to":"secret"},"priority":3}'
    script = Script(show_isolation=[COMMITTED], find_key=[[(B, stored)]])
    job = new_job(A, idempotency_key="k", request='{"v":1,"arguments":{"to":"secret"},"priority":4}')
    with pytest.raises(IdempotencyConflict, match="priority") as conflict:
        script.play(enqueue_keyed([job]))
    assert conflict.value.field == "priority"
    assert script.params("insert_jobs") == []


def test_a_key_that_vanished_after_the_conflict_is_tried_again() -> None:
    script = Script(
        show_isolation=[COMMITTED] * 3, insert_keys=[[], [], [(A,)]], insert_jobs=[[(A, "mail", True)]]
    )
    assert script.play(enqueue_keyed([new_job(A, idempotency_key="k")])) == [Enqueued(A, True, "mail")]
    assert len(script.params("insert_keys")) == 3
    assert len(script.params("find_key")) == 2


def test_a_key_that_keeps_vanishing_is_given_up() -> None:
    script = Script(show_isolation=[COMMITTED] * PATIENCE)
    with pytest.raises(InternalError) as refusal:
        script.play(enqueue_keyed([new_job(A, idempotency_key="k")]))
    assert refusal.value.code == "job.key_unstable"
    assert len(script.params("insert_keys")) == PATIENCE
    assert script.params("insert_jobs") == []


def test_a_twin_that_vanished_after_the_conflict_is_tried_again() -> None:
    script = Script(show_isolation=[COMMITTED], insert_jobs=[[], [(A, "mail", True)]])
    assert script.play(enqueue_keyed([new_job(A, unique_key="u")])) == [Enqueued(A, True, "mail")]
    assert script.params("find_active") == [{"task": "work", "tenant": "", "unique_key": "u"}]


def test_a_twin_that_keeps_vanishing_is_given_up() -> None:
    script = Script(show_isolation=[COMMITTED])
    with pytest.raises(InternalError) as refusal:
        script.play(enqueue_keyed([new_job(A, unique_key="u")]))
    assert refusal.value.code == "job.key_unstable"
    assert len(script.params("insert_jobs")) == PATIENCE


def test_an_active_twin_answers_and_gets_the_idempotency_key() -> None:
    script = Script(
        show_isolation=[COMMITTED],
        insert_keys=[[(A,)]],
        find_active=[[(B, "mail", "ready", 1, 0)]],
    )
    job = new_job(A, unique_key="u", idempotency_key="k")
    assert script.play(enqueue_keyed([job])) == [Enqueued(B, False, "mail", "ready", 1, 0)]
    assert script.params("point_key") == [{"task": "work", "tenant": "", "key": "k", "job": B}]
    assert script.woken == set()


def test_a_job_of_ones_own_is_no_twin() -> None:
    script = Script(show_isolation=[COMMITTED], find_job=[[(A, "mail", "ready", 1, 0)]])
    (outcome,) = script.play(enqueue_keyed([new_job(A, unique_key="u")]))
    assert (outcome.id, outcome.created) == (A, True)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("key", ["idempotency_key", "unique_key"])
def test_a_snapshot_that_does_not_move_is_refused(level: str, key: str) -> None:
    """In it a row that is in the way can be felt and not seen."""
    script = Script(show_isolation=[[(level,)]])
    with pytest.raises(UnsupportedIsolation):
        script.play(enqueue_keyed([new_job(A, **{key: "k"})]))
    assert script.params("insert_jobs") == []


def test_keys_are_taken_in_the_order_of_keys() -> None:
    jobs = [
        new_job(A, idempotency_key="b", unique_key="x"),
        new_job(B, idempotency_key="a", unique_key="z"),
        new_job(C, idempotency_key="a", unique_key="y", tenant="acme"),
    ]
    script = Script(show_isolation=[COMMITTED], insert_keys=[[(A,), (B,), (C,)]])
    with pytest.raises(InternalError):
        script.play(enqueue_keyed(jobs))
    order = [row["id"] for row in json.loads(script.params("insert_keys")[0]["jobs"])]
    assert order == [B, A, C], "tenant before key: '' before acme"
    order = [row["id"] for row in json.loads(script.params("insert_jobs")[0]["jobs"])]
    assert order == [A, B, C]


def test_jobs_without_a_key_go_with_those_that_have_one() -> None:
    script = Script(
        show_isolation=[COMMITTED],
        insert_keys=[[(B,)]],
        insert_jobs=[[(A, "mail", True), (B, "fast", True)]],
    )
    outcome = script.play(enqueue_keyed([new_job(A), new_job(B, idempotency_key="k")]))
    assert [one.id for one in outcome] == [A, B]
    assert [row["id"] for row in json.loads(script.params("insert_keys")[0]["jobs"])] == [B]
    assert script.woken == {"queue/mail", "queue/fast"}


def test_a_key_taken_by_another_request_of_the_batch_has_its_answer() -> None:
    script = Script(
        show_isolation=[COMMITTED],
        insert_keys=[[(A,)]],
        find_key=[[(A, REQUEST)]],
        find_active=[[(C, "mail", "running", 1, 1)]],
    )
    twice = [new_job(id, idempotency_key="k", unique_key="u") for id in (A, B)]
    assert script.play(enqueue_keyed(twice)) == [Enqueued(C, False, "mail", "running", 1, 1)] * 2
