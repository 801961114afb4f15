"""Reports of running jobs: progress, stage, checkpoint and log lines. They are stored only if the lease holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from perdure.model.codec import storable_text
from perdure.model.job import Lease
from perdure.model.lifecycle import SHORT, TRACE, Report, Running
from perdure.model.progress import merge_progress
from perdure.ops.batch import rows_of
from perdure.ops.op import Op, Query, ask_all, operation
from perdure.ops.running import Record, read_running, report_row, stage_events, write_reports

ReportAnswer: TypeAlias = Literal["ok", "cancel requested", "lease lost", "invalid progress"]


class LogLine(NamedTuple):
    level: str
    message: str


class JobReport(NamedTuple):
    """A report and log lines of a running job."""

    lease: Lease
    report: Report = Report()
    logs: Sequence[LogLine] = ()


@operation("write", priority="urgent", retries=1)
def report(reports: Sequence[JobReport]) -> Op[list[ReportAnswer]]:
    """Store reports.

    A value that a report omits keeps its stored value. Together, the values must be consistent: done must not exceed
    total.
    """
    leases = sorted({one.lease for one in reports})
    (rows,) = yield from ask_all(Query("lock_running", {"leases": rows_of(leases)}))
    jobs = {job.lease: job for job in map(read_running, rows)}
    answers, writes = _write(reports, jobs)
    yield from ask_all(*writes, final=True)
    return answers


def _write(
    reports: Sequence[JobReport], jobs: dict[Lease, Running]
) -> tuple[list[ReportAnswer], list[Query]]:
    answers: list[ReportAnswer] = []
    writes: list[Query] = []
    for lease, report, logs in reports:
        job = jobs.get(lease)
        pair = merge_progress(job, report) if job else None
        if job is None or pair is None:
            answers.append("lease lost" if job is None else "invalid progress")
            continue
        answers.append("cancel requested" if job.cancel_requested else "ok")
        writes += write_reports([report_row(job, report, pair)], stage_events(job, report))
        if logs:
            writes.append(Query("record_logs", {"logs": rows_of([log_row(job, line) for line in logs])}))
        # Later reports of this batch are merged with this report.
        jobs[lease] = msgspec.structs.replace(
            job, progress_done=pair[0], progress_total=pair[1], stage=report.stage or job.stage
        )
    return answers, writes


def log_row(job: Running, line: LogLine) -> Record:
    return {
        "id": job.id,
        "token": job.token,
        "level": storable_text(line.level, SHORT),
        "message": storable_text(line.message, TRACE),
    }
