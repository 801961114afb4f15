"""Whether a group of slots should claim again, and whether it has drained its queues."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.worker.claimer import Batch


class SlotGroup:
    """Tasks that share slots, and whether there may be jobs of these tasks to claim."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self.tasks = tasks
        self._changed = bool(tasks)
        """Whether jobs may have become due since the last claim was sent."""
        self._may_have_more = False
        """Whether the last claim may have left jobs that are due."""
        self._recorded_by = self._claimed_by = 0
        self.drained = not tasks
        """Whether the last claim found no jobs, and no outcome has been recorded since."""

    @property
    def wants_claim(self) -> bool:
        """Whether there may be jobs to claim."""
        return self._changed or self._may_have_more

    def note_change(self) -> None:
        self._changed = bool(self.tasks)

    def claim_sent(self) -> None:
        """Forget earlier changes. A change noted from now on may be about jobs that this claim does not see."""
        self._changed = False

    def outcomes_sent(self, cycle: int) -> None:
        """Note that a cycle records outcomes, which may make jobs due at once.

        Examples are a snooze of zero seconds, and jobs that the handler enqueued.
        """
        self._recorded_by = cycle
        self.drained = not self.tasks

    def claim_answered(self, cycle: int, asked: int, jobs: Batch) -> None:
        """Note the answer to a claim. Answers may arrive in any order; the answer to the latest cycle counts."""
        if cycle > self._claimed_by:
            self._claimed_by = cycle
            self._may_have_more = jobs.more or len(jobs) == asked
            self.drained = not (jobs or self._may_have_more) and cycle >= self._recorded_by
