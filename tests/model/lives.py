"""Jobs and the endings of their attempts, for properties of the life cycle."""

from __future__ import annotations

import math
from typing import get_args

import msgspec
from hypothesis import strategies as st

from perdure.model.backoff import MAX_DELAY, Backoff
from perdure.model.job import SECOND, Lease
from perdure.model.lifecycle import (
    Canceled,
    Continued,
    Failed,
    FailureKind,
    Outcome,
    Released,
    Running,
    Snoozed,
    Succeeded,
    Throttled,
)

LEASE = Lease("0198a1b2-0000-7000-8000-000000000000", 7)
KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
YEAR = MAX_DELAY / SECOND

numbers = st.integers(1, 9) | st.sampled_from([10_000, 2**31 - 1])
counts = st.integers(0, 6) | st.just(2**31 - 2)
delays = st.sampled_from([0, 1, 5 * SECOND, MAX_DELAY - 1, MAX_DELAY, MAX_DELAY + 1, 10**20])
rolls = st.sampled_from([0.0, 0.25, 0.5, 0.75, math.nextafter(1, 0)])
policies = st.sampled_from(
    [
        Backoff(),
        Backoff(0, 0),
        Backoff(YEAR, YEAR),
        Backoff(codes={"http.503": 60}),
        Backoff(codes={"http.503": YEAR}),
    ]
)


def jobs(cancel_requested: bool | None = None) -> st.SearchStrategy[Running]:
    """Any job that runs, with or without a cancel that was asked."""
    return st.builds(
        Running,
        id=st.just(LEASE.job),
        token=st.just(LEASE.token),
        queue=st.just("mail"),
        run=numbers,
        attempt=numbers,
        max_attempts=numbers,
        throttles=counts,
        crashes=counts,
        interruptions=counts,
        cancel_requested=st.booleans() if cancel_requested is None else st.just(cancel_requested),
        progress_done=st.none(),
        progress_total=st.none(),
        backoff=policies,
        max_crashes=st.none() | st.integers(1, 5),
    )


def failures(*kinds: FailureKind) -> st.SearchStrategy[Failed]:
    return st.builds(
        Failed,
        st.just(LEASE),
        st.sampled_from(kinds or KINDS),
        code=st.sampled_from([None, "http.503", "http.404"]),
        message=st.sampled_from(["", "no route"]),
        trace=st.sampled_from([None, "File …"]),
        delay=st.none() | delays,
    )


successes = st.builds(Succeeded, st.just(LEASE), result=st.sampled_from([None, "1"]))
endings_at_no_cost: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Snoozed, st.just(LEASE), delays),
    st.builds(Throttled, st.just(LEASE), st.none() | delays, cool_queue=st.booleans()),
    st.builds(Released, st.just(LEASE), delays),
)
unsuccessful: st.SearchStrategy[Outcome] = st.one_of(
    failures(),
    endings_at_no_cost,
    st.builds(Continued, st.just(LEASE), delays),
    st.builds(Canceled, st.just(LEASE), st.just("gave up")),
)
outcomes: st.SearchStrategy[Outcome] = successes | unsuccessful


def job(**fields: object) -> Running:
    """A job in its first attempt of three."""
    plain = Running(
        *LEASE,
        "mail",
        1,
        1,
        3,
        0,
        0,
        0,
        False,
        None,
        None,
        Backoff(base=8, cap=100, codes={"http.503": 60}),
        3,
    )
    return msgspec.structs.replace(plain, **fields)


def verb_of(outcome: Outcome) -> str:
    """What the table of transitions calls an ending."""
    match outcome:
        case Failed(kind="timeout"):
            return "time out"
        case Failed(kind="lost"):
            return "lose"
    return {
        Succeeded: "succeed",
        Failed: "fail",
        Snoozed: "snooze",
        Throttled: "throttle",
        Continued: "continue",
        Canceled: "cancel",
        Released: "give back",
    }[type(outcome)]
