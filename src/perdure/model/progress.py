"""The progress of a running job. Reported numbers must be consistent with stored numbers."""

from __future__ import annotations

from perdure.model.lifecycle import Report, Running

MOST_PROGRESS = 2**63 - 1
"""The largest number that a database can store."""


def merge_progress(job: Running, report: Report) -> tuple[int | None, int | None] | None:
    """The numbers done and total after the report; None if they are impossible or contradict each other."""
    done = job.progress_done if report.done is None else report.done
    total = job.progress_total if report.total is None else report.total
    fits = all(number is None or _counts(number) for number in (done, total))
    if not fits or (done is not None and total is not None and done > total):
        return None
    return done, total


def _counts(number: object) -> bool:
    return isinstance(number, int) and 0 <= number <= MOST_PROGRESS
