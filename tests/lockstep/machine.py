"""Performs one action after another, and compares everything after each."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.lockstep.acts import Company, Draw
from tests.lockstep.pair import Pair

# How often each act is chosen. One rule for all: Hypothesis leaves out some of a machine's rules in every
# example, and few would be left in which a job is claimed, lost and finished late.
ODDS = {
    Company.move_on: 6,
    Company.enqueue: 5,
    Company.enqueue_keys: 3,
    Company.ask_again: 2,
    Company.enqueue_again: 1,
    Company.work: 3,
    Company.fare_alike: 4,
    Company.claim: 4,
    Company.claim_in_turn: 3,
    Company.claim_and_never_hear: 1,
    Company.finish: 4,
    Company.finish_late: 2,
    Company.finish_again: 2,
    Company.finish_and_claim: 3,
    Company.report: 2,
    Company.heartbeat: 3,
    Company.crash: 1,
    Company.retire: 1,
    Company.change_hands: 3,
    Company.fall_silent: 1,
    Company.rescue: 2,
    Company.expire: 1,
    Company.set_aside: 2,
    Company.cancel: 3,
    Company.requeue: 3,
    Company.run_now: 2,
    Company.delete: 2,
    Company.act_on_many: 2,
    Company.pause_or_resume: 1,
    Company.end_pauses: 1,
    Company.change_settings: 1,
    Company.reset_settings: 1,
    Company.declare_queues: 1,
    Company.declare_limits: 1,
    Company.set_limit: 1,
    Company.reset_limit: 1,
    Company.set_task: 1,
}
ACTS = st.sampled_from([act for act, odds in ODDS.items() for _ in range(odds)])


class Lockstep(RuleBasedStateMachine):
    """Both stores and the model, from an empty ledger until every job has ended."""

    pair: ClassVar[Pair]

    def __init__(self) -> None:
        super().__init__()
        self.company = Company(self.pair)
        self.agreed = False

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        if data.draw(st.booleans()):
            self.company.declare_limits(data.draw)
        self.company.enqueue(data.draw)

    @rule(act=ACTS, data=st.data())
    def act(self, act: Callable[[Company, Draw], None], data: st.DataObject) -> None:
        self.agreed = False
        act(self.company, data.draw)

    @invariant()
    def all_agree(self) -> None:
        self.company.compare()
        self.agreed = True

    def teardown(self) -> None:
        """Every job ends, once nothing is in the way any more; unless the example has failed already."""
        if self.agreed:
            self.company.run_dry()
            self.company.compare()
