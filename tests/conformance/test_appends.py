"""Steps that a step appends: with its success or at once, and not twice when it runs again."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Step
from perdure.errors import LeaseLost
from perdure.model.job import Claimed, Lease
from perdure.model.lifecycle import Continued, Snoozed
from perdure.model.new_steps import NewSteps
from perdure.ops.append import append_under
from perdure.request.step import new_steps, new_steps_of
from tests.conformance.flow import Flow, outcome


def step(flow: Flow, key: str, n: int = 1, **after: Any) -> Step[int]:
    return Step(key, flow.work.job(n), **after)


def appended(job: Claimed, *steps: Step[Any]) -> NewSteps:
    requests = [one.request for one in steps if one.request is not None]
    return new_steps_of(steps, new_steps(steps, requests, job.workflow_id or ""))


def append(flow: Flow, job: Claimed, *steps: Step[Any]) -> list[str]:
    return flow.world.store.perform(append_under, job.lease, job.workflow_id or "", appended(job, *steps))


def test_steps_of_a_step_are_written_with_its_success(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"]))
    (job,) = flow.claim()
    more = appended(job, step(flow, "x", after=["a"]), step(flow, "y", after=["x"]), step(flow, "z"))
    assert flow.world.finish(outcome(job, appended=more)).refused == []
    assert flow.states(started) == {
        "a": "succeeded",
        "b": "ready",
        "x": "ready",
        "y": "waiting",
        "z": "ready",
    }
    flow.check(started)
    assert flow.run_all() == [["b", "x", "z"], ["y"]]
    assert flow.status(started) == "succeeded"


def test_steps_that_do_not_fit_fail_the_attempt_which_says_why(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"], c=[]))
    first, second = flow.claim()
    flow.world.finish(
        outcome(first, appended=appended(first, step(flow, "b"))),
        outcome(second, appended=appended(second, step(flow, "x", after=["nobody"]))),
    )
    row = flow.world.row(first.id)
    assert row.error_code == "job.steps_refused"
    assert row.error_message == "Its steps could not be appended. There are two steps named b."
    assert (flow.world.row(second.id).error_message or "").endswith(
        "The step x waits for nobody, which is not a step of this workflow."
    )
    assert flow.states(started) == {"a": "ready", "b": "waiting", "c": "ready"}


def test_a_step_that_runs_again_finds_its_steps_there(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"]))

    def split(n: int = 1) -> NewSteps:
        (job,) = [one for one in flow.claim() if one.step_key == "a"]
        more = appended(job, step(flow, "x", n, after=["a"]), step(flow, "y", after=["x"]))
        flow.world.finish(outcome(job, appended=more))
        return more

    first = split()
    flow.run_all(fail=["x"])
    assert flow.states(started) == {"a": "succeeded", "b": "succeeded", "x": "failed", "y": "canceled"}
    assert started.requeue(steps="all") == "requeued"
    assert flow.states(started) == {"a": "ready", "b": "waiting", "x": "waiting", "y": "waiting"}
    second = split()
    assert flow.states(started) == {"a": "succeeded", "b": "ready", "x": "ready", "y": "waiting"}
    assert first.steps[0].id != second.steps[0].id, "the ids are made anew, and not used"
    assert flow.run_all() == [["b", "x"], ["y"]]
    assert flow.status(started) == "succeeded"
    assert flow.world.count("mutation") == 1


def test_a_step_that_appends_something_else_under_the_same_key_is_refused(flow: Flow) -> None:
    started = flow.start(flow.of(a=[]))
    (job,) = flow.claim()
    flow.world.finish(outcome(job, appended=appended(job, step(flow, "x", after=["a"]))))
    flow.run_all(fail=["x"])
    started.requeue(steps="all")
    (job,) = flow.claim()
    other = appended(job, step(flow, "x", 2, after=["a"]), step(flow, "new", after=["a"]))
    flow.world.finish(outcome(job, appended=other))
    row = flow.world.row(job.id)
    assert (row.state, row.error_code) == ("ready", "job.steps_refused")
    assert "steps.x.arguments" in (row.error_message or "")
    assert flow.states(started) == {"a": "ready", "x": "waiting"}


def test_what_is_new_beside_what_is_there_is_added(flow: Flow) -> None:
    started = flow.start(flow.of(a=[]))
    (job,) = flow.claim()
    append(flow, job, step(flow, "x"), step(flow, "y", after=["x"]))
    flow.world.finish(Snoozed(job.lease, 0))
    (job,) = [one for one in flow.claim() if one.step_key == "a"]
    more = appended(job, step(flow, "z", after=["y", "a"]), step(flow, "x"))
    flow.world.finish(outcome(job, appended=more))
    assert flow.states(started) == {"a": "succeeded", "x": "running", "y": "waiting", "z": "waiting"}
    flow.check(started)


def test_another_steps_key_is_taken(flow: Flow) -> None:
    flow.start(flow.of(a=[], b=[]))
    first, second = flow.claim()
    append(flow, first, step(flow, "x"))
    flow.world.finish(outcome(second, appended=appended(second, step(flow, "x"))))
    assert "two steps named x" in (flow.world.row(second.id).error_message or "")


def test_runs_that_continue_may_add_different_steps(flow: Flow) -> None:
    started = flow.start(flow.of(a=[]))
    for key in ("x", "y"):
        (job,) = [one for one in flow.claim() if one.step_key == "a"]
        flow.world.finish(Continued(job.lease, appended=appended(job, step(flow, key, after=["a"]))))
    flow.run_all()
    assert flow.states(started) == {"a": "succeeded", "x": "succeeded", "y": "succeeded"}


def test_at_once_means_before_the_step_has_ended(flow: Flow) -> None:
    started = flow.start(flow.of(a=[]))
    (job,) = flow.claim()
    ids = append(flow, job, step(flow, "x"), step(flow, "y", after=["a"]))
    assert flow.states(started) == {"a": "running", "x": "ready", "y": "waiting"}
    flow.check(started)
    assert ids == [one.id for one in started.steps()[1:]]
    assert append(flow, job, step(flow, "x"), step(flow, "y", after=["a"])) == ids, "there already"
    flow.world.finish(outcome(job))
    assert flow.run_all() == [["x", "y"]]
    assert flow.status(started) == "succeeded"


def test_a_lost_lease_appends_nothing(flow: Flow) -> None:
    started = flow.start(flow.of(a=[]))
    (job,) = flow.claim()
    stale = Lease(job.id, job.token - 1)
    with pytest.raises(LeaseLost):
        flow.world.store.perform(append_under, stale, started.id, appended(job, step(flow, "x")))
    flow.world.finish(outcome(job))
    with pytest.raises(LeaseLost):
        append(flow, job, step(flow, "x"))
    assert (flow.states(started), flow.world.count("mutation")) == ({"a": "succeeded"}, 0)


def test_what_is_appended_to_a_workflow_that_is_being_canceled_is_canceled(flow: Flow) -> None:
    started = flow.start(flow.of(a=[]))
    (job,) = flow.claim()
    started.cancel()
    append(flow, job, step(flow, "x"))
    assert flow.states(started) == {"a": "running", "x": "canceled"}
    flow.check(started)


def test_two_steps_that_append_the_same_in_one_flush_are_told_apart(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=[]))
    first, second = flow.claim()
    flow.world.finish(
        outcome(first, appended=appended(first, step(flow, "more", after=[first.step_key or ""]))),
        outcome(second, appended=appended(second, step(flow, "more"))),
    )
    flow.check(started)
    rows = [flow.world.row(job.id) for job in (first, second)]
    assert sorted(row.error_code or "" for row in rows) == ["", "job.steps_refused"]
    flow.world.advance(3600)
    flow.run_all()
    assert flow.status(started) == "succeeded"
