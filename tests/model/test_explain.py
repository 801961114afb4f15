"""The rules that choose the reason why a job does not run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure.model.advice import ADVICE, advise
from perdure.model.coverage import Server
from perdure.model.explain import MOST_AHEAD, Case, Parent, explain
from perdure.model.job import SECOND, JobRow
from perdure.model.limit_use import Holding
from perdure.model.pause import Pause
from perdure.model.silence import Silence

NOW = 1_800_000_000 * SECOND
HOUR = 3600 * SECOND
AT, LATER = "2027-01-15 08:00:00 UTC (0 s ago)", "2027-01-15 10:00:00 UTC (in 2 h)"
ANYBODY, OTHER = Server(frozenset(["send"]), None), Server(frozenset(["other"]), None)

READY: dict[str, Any] = {
    **dict.fromkeys(JobRow.__struct_fields__),
    **{"id": "j1", "task": "send", "queue": "mail", "state": "ready", "payload": "{}"},
    **{"priority": 0, "run": 1, "attempt": 0, "max_attempts": 8, "token": 0},
    **{"run_at": NOW, "created_at": NOW, "throttles": 0, "snoozes": 0, "crashes": 0, "interruptions": 0},
}


def case(around: dict[str, Any] | None = None, **job: Any) -> Case:
    return Case(**{"now": NOW, "job": JobRow(**{**READY, **job}), "servers": [ANYBODY], **(around or {})})


FAILED: dict[str, Any] = {
    "error_kind": "error",
    "error_code": "smtp.down",
    "error_message": "no route.\nat all",
}
RUNNING: dict[str, Any] = {"state": "running", "worker": "w1", "started_at": NOW}

STEP: dict[str, Any] = {"workflow_id": "f1", "step_key": "push"}
PARENTS = [Parent("p1", "a", "running"), Parent("p2", "b", "open"), Parent("p3", "c", "ready")]
PARENTS += [Parent("p4", "d", "waiting")]
FIELDS = {
    **{"id": "j1", "queue": "mail", "task": "send", "workflow": "f1", "step": "push"},
    **{"holder": "j2", "parent": "p1", "limit": "printer"},
}
PRINTER = Holding(("named", "printer"), 1, ["j2"])

CASES: list[tuple[Case, str, str]] = [
    (case(state="succeeded", finished_at=NOW), "ended", f"It succeeded at {AT}."),
    (
        case(state="failed", finished_at=NOW, **FAILED),
        "ended",
        f"It failed at {AT}: smtp.down (no route).",
    ),
    (
        case(state="canceled", finished_at=NOW, reason="expired"),
        "ended",
        f"It was canceled at {AT}: expired.",
    ),
    (case({"runner": "ann"}, **RUNNING), "running", f"It runs on ann since {AT}."),
    (
        case({"runner": "ann"}, **RUNNING, cancel_requested_at=NOW),
        "cancel_requested",
        f"It runs on ann and was asked to stop at {AT}.",
    ),
    (
        case(**RUNNING),
        "lost",
        f"It runs since {AT}, but its worker w1 is silent; the next sweep rescues it.",
    ),
    (
        case({"silent": Silence("ann", NOW, NOW)}, **RUNNING),
        "lost",
        f"It runs since {AT}, but its worker ann has been silent since {AT}; the next sweep takes it over.",
    ),
    (case(state="waiting"), "waiting", "It waits for its parents to end."),
    (
        case({"parents": PARENTS[:1]}, **STEP, state="waiting"),
        "waiting",
        "It waits for a (running) to end, as step push of workflow f1.",
    ),
    (
        case({"parents": PARENTS[:3]}, state="waiting"),
        "waiting",
        "It waits for a (running), b (open) and c (ready) to end.",
    ),
    (
        case({"parents": PARENTS}, state="waiting"),
        "waiting",
        "It waits for a (running), b (open) and 2 others to end.",
    ),
    (
        case(**STEP, state="open"),
        "open",
        "It is open: it waits to be resolved, as step push of workflow f1.",
    ),
    (
        case(**STEP, state="open", timeout=1, run_at=NOW + 2 * HOUR),
        "open",
        f"It is open: it waits to be resolved until {LATER}, as step push of workflow f1.",
    ),
    (
        case(**STEP, state="open", timeout=1),
        "gate_overdue",
        f"Its timeout passed at {AT}, as step push of workflow f1; a sweep resolves it soon.",
    ),
    (
        case(**STEP, state="succeeded", finished_at=NOW),
        "ended",
        f"It succeeded at {AT}.",
    ),
    (
        case({"paused": True}, expires_at=NOW),
        "expired",
        f"It expired at {AT} and is about to be canceled.",
    ),
    (case(held="limit:mail"), "held", "It is held by limit:mail."),
    (case(held="unclaimable", reason="too large"), "unclaimable", "No worker can claim it: too large."),
    (case(run_at=NOW + 2 * HOUR), "scheduled", f"It is scheduled for {LATER}."),
    (
        case(run_at=NOW + 2 * HOUR, attempt=2, **FAILED),
        "retrying",
        f"It waits for its retry at {LATER}; attempt 2 of 8 ended with smtp.down (no route).",
    ),
    (case(**STEP, run_at=NOW + 2 * HOUR), "scheduled", f"It is scheduled for {LATER}."),
    (case(run_at=NOW + 2 * HOUR, snoozes=1), "put_off", f"Its handler postponed it until {LATER}."),
    (case({"paused": True}), "queue_paused", "Its queue mail is paused."),
    (
        case({"paused": True, "pause": Pause(NOW, "ann", "the gateway is down.\nSee mail")}),
        "queue_paused",
        "Its queue mail is paused by ann since 2027-01-15 08:00:00 UTC: the gateway is down.",
    ),
    (
        case({"cool_until": NOW + 2 * HOUR}),
        "queue_cooling",
        f"Its queue mail cools down until {LATER}.",
    ),
    (case({"servers": []}), "no_worker", "No worker is live."),
    (
        case({"servers": [Server(frozenset(["send"]), frozenset(["slow"]))]}),
        "queue_unserved",
        "No live worker serves its queue mail.",
    ),
    (
        case({"servers": [Server(frozenset(["other"]), None)]}),
        "task_unserved",
        "No live worker knows its task send.",
    ),
    (
        case(
            {
                "servers": [
                    Server(frozenset(["send"]), frozenset(["slow"])),
                    Server(frozenset(["other"]), frozenset(["mail"])),
                ]
            }
        ),
        "unserved",
        "No live worker that serves mail knows the task send.",
    ),
    (
        case({"servers": [Server(frozenset(["other"]), None)], "enabled": None}),
        "task_unknown",
        "Neither the database nor a live worker knows its task send.",
    ),
    (
        case({"full": [PRINTER]}),
        "limit_full",
        "It waits for a slot of the limit printer (1): job j2 has it.",
    ),
    (
        case({"full": [Holding(("task", "send"), 1000, ["j2", "j3", *(f"k{n}" for n in range(998))])]}),
        "limit_full",
        "It waits for a slot of the limit of the task send (1,000): jobs j2, j3, k0 and 997 more have them.",
    ),
    (
        case({"full": [Holding(("queue", "mail"), 1, ["j2"])]}),
        "limit_full",
        "It waits for a slot of the limit of the queue mail (1): job j2 has it.",
    ),
    (
        case({"full": [Holding(("key", "send", "ann\nand more"), 3, ["j2", "j3", "j4"])]}),
        "limit_full",
        "It waits for a slot of the limit of the task send for the key ann (3): jobs j2, j3 and j4 have them.",
    ),
    (
        case({"servers": [ANYBODY._replace(slots=2, running=2), OTHER]}),
        "workers_busy",
        "The worker that takes it runs 2 jobs, and none of the 2 slots is free.",
    ),
    (
        case({"servers": [ANYBODY._replace(running=1), ANYBODY._replace(slots=2, running=3)]}),
        "workers_busy",
        "The 2 workers that take it run 4 jobs, and none of the 3 slots is free.",
    ),
    (case({"ahead": 1}), "behind", "One job of its queue comes before it."),
    (case({"ahead": 999}), "behind", "999 jobs of its queue come before it."),
    (case({"ahead": MOST_AHEAD}), "behind", "1,000 or more jobs of its queue come before it."),
    (case(), "ready", "It is first in its queue; the next free worker claims it."),
]

REMARKED: list[tuple[Case, str, str]] = [
    (case(crashes=2), "ready", "alone"),
    (case(interruptions=3), "ready", "alone"),
    (case({"runner": "ann"}, **RUNNING, crashes=3), "running", "alone"),
    (case({"enabled": False}), "ready", "task_disabled"),
    (case({"holder": "j2"}, state="canceled", finished_at=NOW), "ended", "unique_key_taken"),
    (case({"servers": []}, **RUNNING), "lost", "no_worker"),
    (case({"runner": "ann", "silent": Silence("ann", NOW, NOW)}, **RUNNING), "running", "worker_silent"),
    (case({"taken_over": Silence("ann", NOW, NOW)}), "ready", "taken_over"),
    (case({"servers": []}, expires_at=NOW), "expired", "no_worker"),
    (case({"servers": []}, **STEP, state="open", timeout=1), "gate_overdue", "no_worker"),
]


@pytest.mark.parametrize(("given", "code", "sentence"), CASES, ids=[code for _, code, _ in CASES])
def test_the_sentence(given: Case, code: str, sentence: str) -> None:
    told = explain(given)
    assert (told.code, told.sentence, told.also) == (code, sentence, [])
    assert told.advice.endswith(".")
    assert type(told.advice) is str, "or not every encoder would take it"
    assert "None" not in told.advice


def test_all_advice_is_given() -> None:
    told = {explain(given).advice for given, _, _ in (*CASES, *REMARKED)}
    also = {reason.advice for given, _, _ in REMARKED for reason in explain(given).also}
    known = {advise(advice, **FIELDS) for advice in ADVICE.values()}
    assert known == told | also


@pytest.mark.parametrize(("given", "code", "also"), REMARKED, ids=[also for _, _, also in REMARKED])
def test_what_else_is_to_be_known(given: Case, code: str, also: str) -> None:
    told = explain(given)
    assert (told.code, [reason.code for reason in told.also]) == (code, [also])


def test_what_keeps_it_next_is_told_too() -> None:
    given = case(
        {"paused": True, "cool_until": NOW + 1, "servers": [], "ahead": 3}, held="x", run_at=NOW + HOUR
    )
    told = explain(given)
    assert told.code == "held"
    assert [reason.code for reason in told.also] == [
        "scheduled",
        "queue_paused",
        "queue_cooling",
        "no_worker",
    ]
    due = given._replace(job=msgspec.structs.replace(given.job, run_at=NOW, held=None), cool_until=NOW)
    assert [reason.code for reason in explain(due).also] == ["no_worker", "behind"]
    busy = case({"full": [PRINTER, PRINTER], "servers": [ANYBODY._replace(running=1)], "ahead": 1})
    assert [explain(busy).code, *(reason.code for reason in explain(busy).also)] == [
        "limit_full",
        "limit_full",
        "workers_busy",
        "behind",
    ]


def test_a_long_error_is_cut_to_a_line() -> None:
    told = explain(case(state="failed", finished_at=NOW, error_kind="error", error_message="x" * 5000))
    assert len(told.sentence) < 300
    assert told.sentence.endswith("…).")
