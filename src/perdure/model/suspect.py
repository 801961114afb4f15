"""Suspects: jobs that may have brought down their workers, and therefore run alone."""

from __future__ import annotations

SUSPECT_AFTER = 2
"""Crashes after which a job runs alone: one may be a neighbour's fault, and only those from here on count."""

SUSPECT_AFTER_INTERRUPTIONS = 3
"""Interruptions in one run after which a job runs alone.

A handler that stops its worker by a signal looks like a deploy. Alone it can only end itself or its own process, and
either costs an attempt; a worker that stops costs none. So deploys never fail a job.
"""


def is_suspect(crashes: int, interruptions: int) -> bool:
    """Whether a job has brought down so many workers or processes in its run that it runs alone."""
    return crashes >= SUSPECT_AFTER or interruptions >= SUSPECT_AFTER_INTERRUPTIONS
