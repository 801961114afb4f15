"""Texts and results of handlers are made storable, and never block an outcome."""

from __future__ import annotations

import pytest

from perdure.model.lifecycle import LONG, SHORT, TRACE, Canceled, Failed, Outcome, Report, Succeeded
from perdure.ops.report import JobReport, LogLine
from tests.conformance.world import World

UGLY = "nul \0, half a character \ud800, " + "and far too much of it. " * 1000


def test_an_ugly_failure_is_kept_and_stops_no_other_outcome(world: World) -> None:
    task = world.task()
    jobs = world.app.enqueue_many([task.job() for _ in range(3)])
    first, second, third = world.claim(3)
    ugly = Failed(first.lease, "fatal", UGLY, UGLY, UGLY, report=Report(stage=UGLY, message=UGLY))
    finished = world.finish(ugly, Succeeded(second.lease, "1"), Canceled(third.lease, UGLY))
    assert finished.refused == []
    failed, succeeded, canceled = map(world.row, jobs)
    assert (failed.state, succeeded.state, canceled.state) == ("failed", "succeeded", "canceled")
    kept = (
        failed.error_code,
        failed.error_message,
        failed.error_trace,
        failed.stage,
        failed.progress_message,
    )
    assert [len(text or "") for text in kept] == [SHORT, LONG, TRACE, SHORT, LONG]
    assert (canceled.reason or "").startswith("nul \ufffd, half a character \ufffd, and")


def test_an_ugly_report_is_kept(world: World) -> None:
    world.task().enqueue()
    job = world.claim_one()
    said = JobReport(job.lease, Report(stage=UGLY, message=UGLY), [LogLine(UGLY, UGLY)])
    assert world.operations.report([said]) == ["ok"]
    (line,) = world.logs(job)
    assert (len(line.level), len(line.message)) == (SHORT, TRACE)


@pytest.mark.parametrize("kind", ["retried", "failed"])
def test_an_ugly_attempt_is_kept_in_the_ledger(world: World, kind: str) -> None:
    task = world.task(max_attempts=2 if kind == "retried" else 1)
    job = task.enqueue()
    outcome: Outcome = Failed(world.claim_one().lease, "error", UGLY, UGLY, UGLY)
    assert world.finish(outcome).refused == []
    assert world.row(job).state == ("ready" if kind == "retried" else "failed")
