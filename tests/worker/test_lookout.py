"""Where the next claim looks, after what the last ones told."""

from __future__ import annotations

from perdure.model.job import SECOND, Claimed
from perdure.ops.claim import Appetite, Claims, Front
from perdure.worker.front import PLENTY, SLACK, Lookout

NOTHING = (None, None, None)


def test_a_turn_that_was_sent_before_does_not_lead_past_what_came_late() -> None:
    """Two turns are under way. One looks everywhere and finds the first of many that were committed late."""
    lookout = Lookout(worth=True)
    learn(lookout, None, at=1000)
    beside = lookout.front(None, polls=True)
    assert beside == Front("default", 0, 1000 * SECOND - SLACK)
    learn(lookout, None, at=900)
    learn(lookout, beside, at=1001)
    assert lookout.front(None, polls=True) == Front("default", 0, 900 * SECOND - SLACK)


def test_the_front_goes_on_with_whichever_turn_is_answered() -> None:
    lookout = Lookout(worth=True)
    learn(lookout, None, at=1000)
    both = lookout.front(None, polls=True)
    for at in (1001, 1002):
        learn(lookout, both, at=at)
        assert lookout.front(None, polls=True) == Front("default", 0, at * SECOND - SLACK)


def learn(lookout: Lookout, front: Front | None, *, at: int) -> None:
    """A full claim whose jobs were enqueued so many seconds after the epoch."""
    job = Claimed("id", 1, "work", "default", 0, at * SECOND, 1, 1, 1, None, "{}", *NOTHING, 0, *NOTHING)
    appetite = Appetite("ann", ["work"], PLENTY, front=front)
    assert not lookout.learn(appetite, Claims([job] * PLENTY), took=0.001, polls=True)
