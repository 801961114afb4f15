"""Enqueue without keys: one round trip, the final one."""

from __future__ import annotations

import json

from perdure.model.job import Options
from perdure.ops.enqueue import Enqueued, enqueue, enqueue_alike
from tests.ops.script import A, B, Script, new_job


def test_jobs_without_keys_take_one_final_step() -> None:
    script = Script(insert_jobs=[[(B, "mail", True), (A, "mail", True)]])
    outcome = script.play(enqueue([new_job(A), new_job(B)], frozenset(["queue/mail"])))
    assert outcome == [Enqueued(A, True, "mail"), Enqueued(B, True, "mail")], "in the order of the requests"
    assert script.asked == [["insert_jobs"]]
    assert script.final
    assert script.woken == {"queue/mail"}


def test_nothing_known_means_nobody_is_woken() -> None:
    script = Script(insert_jobs=[[(A, "mail", True)]])
    script.play(enqueue([new_job(A)]))
    assert (script.asked, script.final, script.woken) == ([["insert_jobs"]], True, set())


def test_where_only_the_rows_can_tell_a_second_step_wakes() -> None:
    script = Script(insert_jobs=[[(A, "mail", True), (B, "later", False)]])
    outcome = script.play(enqueue([new_job(A), new_job(B)], None))
    assert [one.queue for one in outcome] == ["mail", "later"]
    assert script.asked == [["insert_jobs"]]
    assert [step.final for step in script.steps] == [False, True]
    assert script.woken == {"queue/mail"}, "what is not due wakes nobody"


def test_a_job_that_was_written_by_a_lost_commit_counts_as_created() -> None:
    script = Script(insert_jobs=[[]])
    assert script.play(enqueue([new_job(A)])) == [Enqueued(A, True, None)]


def test_many_jobs_are_several_statements_of_one_step() -> None:
    jobs = [new_job(f"{A[:-4]}{n:04}") for n in range(2500)]
    script = Script()
    script.play(enqueue(jobs))
    assert script.asked == [["insert_jobs"] * 3]
    batches = [json.loads(params["jobs"]) for params in script.params("insert_jobs")]
    assert [len(batch) for batch in batches] == [1000, 1000, 500]
    assert [row["id"] for batch in batches for row in batch] == [job.id for job in jobs]


def test_what_was_not_asked_is_not_sent() -> None:
    script = Script()
    script.play(enqueue([new_job(A), new_job(B, priority=0, tenant="acme", delay=5)]))
    (params,) = script.params("insert_jobs")
    assert json.loads(params["jobs"]) == [
        {"id": A, "task": "work", "payload": "{}"},
        {"id": B, "task": "work", "payload": "{}", "priority": 0, "tenant": "acme", "delay": 5},
    ]


def test_jobs_alike_share_what_is_the_same_for_all() -> None:
    script = Script(find_queue=[[("mail",)]])
    jobs = {f"{A[:-4]}{n:04}": f'{{"n":{n}}}' for n in range(1500)}
    options = Options(priority=3, tenant="acme")
    assert script.play(enqueue_alike("work", options, jobs, frozenset(["queue/mail"]))) == "mail"
    assert script.asked == [["insert_same_options", "insert_same_options", "find_queue"]]
    assert (script.final, script.woken) == (True, {"queue/mail"})
    first, second = script.params("insert_same_options")
    assert (first["task"], first["priority"], first["tenant"], first["queue"]) == ("work", 3, "acme", None)
    assert json.loads(first["jobs"]) | json.loads(second["jobs"]) == jobs
    ids = list(jobs)
    assert (first["first"], second["first"]) == (ids[0], ids[1000]), "each chunk tells a lost commit"


def test_a_queue_that_was_asked_for_is_the_queue_of_jobs_alike() -> None:
    script = Script(find_queue=[[("mail",)]])
    assert script.play(enqueue_alike("work", Options(queue="fast"), {A: "{}"}, frozenset())) == "fast"
