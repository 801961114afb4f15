"""Suspects: jobs that may have crashed their workers, and therefore run alone."""

from __future__ import annotations

SUSPECT_AFTER = 2
"""Crashes after which a job runs alone. They may be another job's fault, so ``max_crashes`` counts only later ones."""

SUSPECT_AFTER_INTERRUPTIONS = 3
"""Interruptions in one run after which a job runs alone.

A handler that stops its worker by a signal looks like a deploy. Alone it can only end itself or its own process,
which costs an attempt. A worker that stops costs none, so deploys never fail a job.
"""


def is_suspect(crashes: int, interruptions: int) -> bool:
    """Whether a job has ended so many workers or processes in its run that it must run alone."""
    return crashes >= SUSPECT_AFTER or interruptions >= SUSPECT_AFTER_INTERRUPTIONS
