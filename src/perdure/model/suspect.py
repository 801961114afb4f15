"""Suspects: jobs that may have crashed their workers, and therefore run alone."""

from __future__ import annotations

SUSPECT_AFTER = 2
"""Crashes after which a job runs alone.

Another job of the same worker may have caused these crashes, so ``max_crashes`` counts only later crashes.
"""

SUSPECT_AFTER_INTERRUPTIONS = 3
"""Interruptions in one run after which a job runs alone.

If a handler sends its worker a signal to stop, this looks like a deploy, which costs a job no attempt. Without this
limit, such a job would stop one worker after the other. Alone in a process, it can end only that process, and this
costs an attempt. A deploy still costs it no attempt.
"""


def is_suspect(crashes: int, interruptions: int) -> bool:
    """Whether a job has ended so many workers or processes in its run that it must run alone."""
    return crashes >= SUSPECT_AFTER or interruptions >= SUSPECT_AFTER_INTERRUPTIONS
