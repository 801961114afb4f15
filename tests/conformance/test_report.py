"""Reports of a running job: omitted values stay, and progress must be consistent after the merge."""

from __future__ import annotations

from perdure.model.job import SECOND
from perdure.model.lifecycle import Failed, Report, Succeeded
from perdure.ops.report import JobReport, LogLine, ReportAnswer
from tests.conformance.world import NOON, World

BEYOND = 2**63
"""One more than either database can store."""


def say(world: World, *reports: Report) -> list[ReportAnswer]:
    """Several reports of the one running job, in one call."""
    (lease,) = world.operations.heartbeat(world.worker).running
    return world.operations.report([JobReport(lease, report) for report in reports])


def pair(world: World) -> tuple[int | None, int | None]:
    (lease,) = world.operations.heartbeat(world.worker).running
    row = world.row(lease.job)
    return row.progress_done, row.progress_total


def test_what_is_omitted_keeps_what_is_stored(world: World) -> None:
    job = world.task().enqueue()
    world.claim_one()
    for report in (
        Report(stage="fetch"),
        Report(total=10),
        Report(done=3),
        Report(message="half"),
        Report(checkpoint='{"b":1,"a":2}'),
        Report(done=4),
    ):
        assert say(world, report) == ["ok"]
    row = world.row(job)
    assert (row.stage, row.progress_done, row.progress_total) == ("fetch", 4, 10)
    assert (row.progress_message, row.checkpoint) == ("half", '{"b":1,"a":2}')


def test_the_pair_is_checked_after_it_was_merged(world: World) -> None:
    world.task().enqueue()
    world.claim_one()
    assert say(world, Report(done=5)) == ["ok"]
    assert say(world, Report(total=4)) == ["invalid progress"]
    assert say(world, Report(total=5)) == ["ok"]
    assert say(world, Report(done=6)) == ["invalid progress"]
    assert say(world, Report(done=6, total=6)) == ["ok"]
    assert say(world, Report(done=-1)) == ["invalid progress"]
    assert say(world, Report(done=0, total=0)) == ["ok"]
    assert pair(world) == (0, 0)


def test_a_number_too_large_to_store_is_no_progress(world: World) -> None:
    world.task().enqueue()
    world.claim_one()
    assert say(world, Report(done=BEYOND)) == ["invalid progress"]
    assert say(world, Report(total=BEYOND)) == ["invalid progress"]
    assert say(world, Report(done=BEYOND - 1, total=BEYOND - 1)) == ["ok"]
    assert pair(world) == (BEYOND - 1, BEYOND - 1)


def test_an_invalid_pair_writes_nothing_of_its_report(world: World) -> None:
    job = world.task().enqueue()
    lease = world.claim_one().lease
    bad = Report(stage="s", done=2, total=1, message="m", checkpoint="1")
    assert world.operations.report([JobReport(lease, bad, [LogLine("info", "hi")])]) == ["invalid progress"]
    row = world.row(job)
    assert (row.stage, row.progress_done, row.progress_message, row.checkpoint) == (None, None, None, None)
    assert (world.events(job), world.logs(job)) == ([], [])


def test_reports_of_one_call_are_merged_in_their_order(world: World) -> None:
    job = world.task().enqueue()
    world.claim_one()
    heard = say(
        world,
        Report(done=1, total=3, stage="a"),
        Report(done=4),
        Report(total=5, stage="a"),
        Report(done=4, stage="b"),
    )
    assert heard == ["ok", "invalid progress", "ok", "ok"]
    assert (pair(world), world.row(job).stage) == ((4, 5), "b")
    assert [event.detail for event in world.events(job)] == ['{"stage":"a"}', '{"stage":"b"}']


def test_a_call_may_speak_for_many_jobs(world: World) -> None:
    work = world.task()
    jobs = [work.enqueue() for _ in range(3)]
    leases = [job.lease for job in world.claim(3)]
    world.app.cancel_job(jobs[1].id)
    world.finish(Succeeded(leases[2]))
    said = [JobReport(lease, Report(done=n)) for n, lease in enumerate(leases)]
    assert world.operations.report(said) == ["ok", "cancel requested", "lease lost"]
    assert [world.row(job).progress_done for job in jobs] == [0, 1, None]


def test_a_change_of_stage_is_an_event(world: World) -> None:
    job = world.task().enqueue()
    world.claim_one()
    for stage in ("fetch", "fetch", "store"):
        world.advance(1)
        say(world, Report(stage=stage))
    assert [(event.kind, event.detail, event.at) for event in world.events(job)] == [
        ("stage", '{"stage":"fetch"}', NOON + SECOND),
        ("stage", '{"stage":"store"}', NOON + 3 * SECOND),
    ]


def test_log_lines_keep_their_order_and_their_token(world: World) -> None:
    job = world.task(backoff=0).enqueue()
    for lines in (("a", "b"), ("c",)):
        lease = world.claim_one().lease
        world.operations.report([JobReport(lease, logs=[LogLine("info", line) for line in lines])])
        world.finish(Failed(lease, "error"))
    assert [(line.token, line.level, line.message) for line in world.logs(job)] == [
        (1, "info", "a"),
        (1, "info", "b"),
        (2, "info", "c"),
    ]


def test_the_next_attempt_finds_the_checkpoint(world: World) -> None:
    world.task(backoff=0).enqueue()
    lease = world.claim_one().lease
    assert say(world, Report(checkpoint="null")) == ["ok"]
    world.finish(Failed(lease, "error", report=Report(checkpoint='{"page":7}')))
    assert world.claim_one().checkpoint == '{"page":7}'


def test_an_ending_may_report_as_well(world: World) -> None:
    job = world.task().enqueue()
    claimed = world.claim_one()
    world.finish(Succeeded(claimed.lease, "1", None, Report(stage="done", done=9, total=9, message="all")))
    row = world.row(job)
    assert (row.state, row.stage, row.progress_done, row.progress_total) == ("succeeded", "done", 9, 9)
    assert row.progress_message == "all"
    assert [event.kind for event in world.events(job)] == ["stage"]


def test_a_bad_pair_in_an_ending_is_dropped_with_an_event(world: World) -> None:
    work = world.task(backoff=0)
    for report in (Report(done=9), Report(done=BEYOND, total=BEYOND), Report(total=-1)):
        job = work.enqueue()
        lease = world.claim_one().lease
        world.operations.report([JobReport(lease, Report(done=1, total=2))])
        said = Report(done=report.done, total=report.total, stage="end", checkpoint="7")
        assert world.finish(Failed(lease, "fatal", report=said)).accepted == [lease]
        row = world.row(job)
        assert (row.state, row.progress_done, row.progress_total) == ("failed", 1, 2)
        assert (row.stage, row.checkpoint) == ("end", "7"), "the rest is kept"
        assert [event.kind for event in world.events(job)] == ["progress dropped", "stage"]
