"""Where the next claim looks, after what the last ones told."""

from __future__ import annotations

from perdure.model.job import SECOND, Claimed
from perdure.ops.claim import ClaimRequest, Claims, ClaimWindow
from perdure.worker.claim_window import FULL_STREAK, SLACK, ClaimWindowTracker

NOTHING = (None, None, None)


def test_a_turn_that_was_sent_before_does_not_lead_past_what_came_late() -> None:
    """Two turns are under way. One looks everywhere and finds the first of many that were committed late."""
    tracker = ClaimWindowTracker(enabled=True)
    learn(tracker, None, at=1000)
    beside = tracker.window(None, polls=True)
    assert beside == ClaimWindow("default", 0, 1000 * SECOND - SLACK)
    learn(tracker, None, at=900)
    learn(tracker, beside, at=1001)
    assert tracker.window(None, polls=True) == ClaimWindow("default", 0, 900 * SECOND - SLACK)


def test_the_front_goes_on_with_whichever_turn_is_answered() -> None:
    tracker = ClaimWindowTracker(enabled=True)
    learn(tracker, None, at=1000)
    both = tracker.window(None, polls=True)
    for at in (1001, 1002):
        learn(tracker, both, at=at)
        assert tracker.window(None, polls=True) == ClaimWindow("default", 0, at * SECOND - SLACK)


def learn(tracker: ClaimWindowTracker, window: ClaimWindow | None, *, at: int) -> None:
    """A full claim whose jobs were enqueued so many seconds after the epoch."""
    job = Claimed("id", 1, 1, "work", "default", 0, at * SECOND, 1, 1, None, "{}", *NOTHING, 0, 0, *NOTHING)
    request = ClaimRequest("ann", ["work"], FULL_STREAK, window=window)
    assert not tracker.learn(request, Claims([job] * FULL_STREAK), took=0.001, polls=True)
