"""Progress that a running job reports: the numbers stored before and the new ones must be true together."""

from __future__ import annotations

from perdure.model.lifecycle import Report, Running

MOST_PROGRESS = 2**63 - 1
"""The largest number a database keeps."""


def merge_progress(job: Running, report: Report) -> tuple[int | None, int | None] | None:
    """Done and total after the report, or None where they cannot both be true."""
    done = job.progress_done if report.done is None else report.done
    total = job.progress_total if report.total is None else report.total
    fits = all(number is None or _counts(number) for number in (done, total))
    if not fits or (done is not None and total is not None and done > total):
        return None
    return done, total


def _counts(number: object) -> bool:
    return isinstance(number, int) and 0 <= number <= MOST_PROGRESS
