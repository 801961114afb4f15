"""Report: lock, then write; a later report of the same call is merged with the ones before."""

from __future__ import annotations

import json
from typing import Any

from perdure.model.job import Lease
from perdure.model.lifecycle import Report
from perdure.ops.report import JobReport, LogLine, report
from tests.ops.rows import running
from tests.ops.script import A, B, C, Script

ONE, TWO, THREE = Lease(A, 1), Lease(B, 1), Lease(C, 1)


def saved(script: Script) -> list[dict[str, Any]]:
    return [row for params in script.params("save_reports") for row in json.loads(params["reports"])]


def test_reports_lock_and_then_write_in_a_final_step() -> None:
    script = Script(lock_running=[[running(A), running(B, cancel_requested=1)]])
    said = [
        JobReport(TWO, Report(done=1)),
        JobReport(ONE, Report(stage="s")),
        JobReport(THREE, Report(done=1)),
    ]
    assert script.play(report(said)) == ["cancel requested", "ok", "lease lost"]
    assert script.asked == [["lock_running"], ["save_reports", "save_reports", "record_events"]]
    assert [step.final for step in script.steps] == [False, True]
    (params,) = script.params("lock_running")
    assert json.loads(params["leases"]) == [[A, 1], [B, 1], [C, 1]], "each once, in the order of ids"
    assert [row["id"] for row in saved(script)] == [B, A]


def test_a_report_is_merged_with_what_is_stored_and_with_the_one_before() -> None:
    script = Script(lock_running=[[running(A, progress_done=2, progress_total=4, stage="a")]])
    said = [
        JobReport(ONE, Report(done=5)),
        JobReport(ONE, Report(total=6, stage="a")),
        JobReport(ONE, Report(done=5, stage="b")),
    ]
    assert script.play(report(said)) == ["invalid progress", "ok", "ok"]
    assert [(row["done"], row["total"]) for row in saved(script)] == [(2, 6), (5, 6)]
    events = [row for params in script.params("record_events") for row in json.loads(params["events"])]
    assert [(event["kind"], event["detail"]) for event in events] == [("stage", '{"stage":"b"}')]


def test_log_lines_are_written_under_their_token() -> None:
    script = Script(lock_running=[[running(A, token=3)]])
    lease = Lease(A, 3)
    script.play(report([JobReport(lease, logs=[LogLine("info", "one"), LogLine("error", "two")])]))
    (params,) = script.params("record_logs")
    assert json.loads(params["logs"]) == [
        {"id": A, "token": 3, "level": "info", "message": "one"},
        {"id": A, "token": 3, "level": "error", "message": "two"},
    ]


def test_without_a_lease_nothing_is_written() -> None:
    script = Script(lock_running=[[]])
    assert script.play(report([JobReport(ONE, Report(done=1), [LogLine("info", "hi")])])) == ["lease lost"]
    assert script.asked == [["lock_running"]]
