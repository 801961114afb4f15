"""Suspects: jobs that may have crashed their workers, and therefore run alone."""

from __future__ import annotations

SUSPECT_AFTER = 2
"""Crashes after which a job runs alone.

Another job may have caused them, so ``max_crashes`` counts only later crashes.
"""

SUSPECT_AFTER_INTERRUPTIONS = 3
"""Interruptions in one run after which a job runs alone.

A handler that stops its worker by a signal looks like a deploy. In a process of its own, such a handler can end only
that process, which costs an attempt. The stop of a worker costs no attempt, so deploys never make a job fail.
"""


def is_suspect(crashes: int, interruptions: int) -> bool:
    """Whether a job has ended so many workers or processes in its run that it must run alone."""
    return crashes >= SUSPECT_AFTER or interruptions >= SUSPECT_AFTER_INTERRUPTIONS
