"""Reads: one final round trip each."""

from __future__ import annotations

from typing import Any

from perdure.model.job import JobRow
from perdure.ops import browse
from perdure.ops.find import LAST, longer
from perdure.request.filter import EVERY, Filter
from tests.ops.script import A, B, C, Script

FIELDS = len(JobRow.__struct_fields__)


def job(id: str) -> tuple[Any, ...]:
    return (id, *[None] * (FIELDS - 1))


def test_one_job() -> None:
    script = Script(get_job=[[job(A)]])
    found = script.play(browse.get_job(A))
    assert found is not None
    assert found.id == A
    assert (script.asked, script.final) == ([["get_job"]], True)
    assert Script().play(browse.get_job(A)) is None


def test_many_jobs_are_one_round_trip_in_the_order_asked() -> None:
    script = Script(get_job=[[job(B)], [], [job(A)]])
    found = script.play(browse.get_jobs([B, "gone", A]))
    assert [one and one.id for one in found] == [B, None, A]
    assert (script.asked, script.final) == ([["get_job"] * 3], True)


def test_a_page_begins_after_every_id_unless_told() -> None:
    found = [(B, "ready", None), (A, "ready", None)]
    script = Script(find_jobs=[found], read_jobs=[[job(B), job(A)]])
    assert [one.id for one in script.play(browse.list_jobs(Filter(queue="mail"), n=2))] == [B, A]
    (params,) = script.params("find_jobs")
    assert (params["queue"], params["before"], params["n"]) == ("mail", LAST, 2)
    assert script.params("read_jobs") == [{"ids": f'["{B}","{A}"]'}]


def test_a_page_is_looked_for_in_stretches_that_grow() -> None:
    script = Script(
        find_jobs=[[(C, None, None)], [(B, "ready", None), (B, None, None)], [(A, "ready", None)]]
    )
    script.play(browse.list_jobs(n=2))
    asked = [(look["before"], look["length"], look["n"]) for look in script.params("find_jobs")]
    assert asked == [(LAST, 2, 2), (C, 8, 2), (B, 32, 1)]
    assert script.params("read_jobs") == [{"ids": f'["{B}","{A}"]'}]


def test_where_arguments_are_read_a_stretch_stays_short() -> None:
    assert (longer(50, EVERY), longer(9000, EVERY), longer(50_000, EVERY)) == (200, 20_000, 50_000)
    assert (longer(50, Filter(text="x")), longer(900, Filter(text="x"))) == (200, 1000)


def test_counts_are_by_queue_and_visible_state() -> None:
    script = Script(count_jobs=[[("a", "ready", 1), ("a", "retrying", 2), ("b", "held", 3)]])
    assert script.play(browse.count_jobs()) == {"a": {"ready": 1, "retrying": 2}, "b": {"held": 3}}


def test_the_oldest_are_by_queue() -> None:
    script = Script(oldest_ready=[[("a", 5), ("b", 7)]])
    assert script.play(browse.oldest_ready()) == {"a": 5, "b": 7}


def test_all_about_a_job_is_one_round_trip() -> None:
    script = Script(get_job=[[job(A)]], list_logs=[[(1, "info", "hi", 5)]])
    traces = script.play(browse.trace_job(A))
    assert traces is not None
    assert (traces.job.id, traces.attempts, traces.events) == (A, [], [])
    assert traces.logs == [(1, "info", "hi", 5)]
    assert (script.asked, script.final) == ([["get_job", "list_attempts", "list_events", "list_logs"]], True)
    assert Script().play(browse.trace_job(A)) is None
