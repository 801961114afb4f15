"""Gates and appends: what people and other systems do to a workflow; on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Gate, Step, Workflow
from perdure.errors import (
    AppendConflict,
    AppendRefused,
    GateConflict,
    GateRefused,
    InvalidOption,
    InvalidWorkflow,
    WorkflowNotFound,
)
from perdure.request.ids import new_id
from tests.conformance.flow import Flow


def test_a_gate_opens_when_its_parents_are_done_and_no_worker_runs_it(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], gate=["a"], b=["gate"], c=["~gate"]))
    assert flow.run() == ["a"]
    assert flow.states(started) == {"a": "succeeded", "gate": "open", "b": "waiting", "c": "waiting"}
    assert flow.status(started) == "open"
    assert flow.claim() == []
    assert flow.app.resolve_gate(started.id, "gate", "succeeded", output={"by": "ann"}) is True
    assert flow.run_all() == [["b", "c"]]
    assert flow.status(started) == "succeeded"
    assert flow.app.get_job(started.steps()[1].id).result == {"by": "ann"}


def test_a_rejected_gate_dooms_what_needs_it(flow: Flow) -> None:
    started = flow.start(flow.of(gate=[], b=["gate"], c=["~gate"]))
    assert started.status == "open"
    flow.app.resolve_gate(started.id, "gate", "failed", reason="too dear")
    assert flow.reasons(started) == {"gate": "too dear", "b": "after gate, which failed"}
    assert flow.run_all() == [["c"]]
    assert flow.status(started) == "failed"


@pytest.mark.parametrize("end", ["succeeded", "failed", "canceled"])
def test_a_gate_tells_who_resolved_it_in_each_of_its_runs(flow: Flow, end: Any) -> None:
    started = flow.start(flow.of(gate=[], bad=[]))
    gate = next(step.id for step in started.steps() if step.key == "gate")
    flow.app.resolve_gate(started.id, "gate", end, reason="so be it", by="ann")
    flow.run_all(fail=["bad"])
    flow.app.requeue_workflow(started.id, steps="all", by="bob")
    flow.app.resolve_gate(started.id, "gate", "succeeded")
    told = [(entry.what, entry.run, entry.detail) for entry in flow.app.job_history(gate)]
    assert (end, 1, {"reason": "so be it", "by": "ann"}) in told
    assert told[-1] == ("succeeded", 2, {})
    assert [what for what, _, _ in told].count("succeeded") == (2 if end == "succeeded" else 1)


@pytest.mark.parametrize(
    ("resolution", "options", "code"),
    [
        ("failed", {}, "workflow.gate_conflicting_completion_retry"),
        ("succeeded", {"output": 1, "reason": "x"}, "workflow.gate_conflicting_completion_retry"),
        ("succeeded", {"output": 2}, "workflow.gate_conflicting_output_retry"),
        ("succeeded", {}, "workflow.gate_conflicting_output_retry"),
    ],
)
def test_a_gate_is_resolved_once(flow: Flow, resolution: Any, options: dict[str, Any], code: str) -> None:
    started = flow.start(flow.of(gate=[]))
    assert flow.app.resolve_gate(started.id, "gate", "succeeded", output=1)
    # The same again, with the number spelled otherwise.
    assert not flow.app.resolve_gate(started.id, "gate", "succeeded", output=1.0)
    with pytest.raises(GateConflict) as caught:
        flow.app.resolve_gate(started.id, "gate", resolution, **options)
    assert caught.value.code == code


def test_only_an_open_gate_can_be_resolved(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], gate=["a"]))
    for key, code in (
        ("nowhere", "workflow.gate_not_found"),
        ("a", "workflow.gate_not_gate"),
        ("gate", "workflow.gate_not_open"),
    ):
        with pytest.raises(GateRefused) as caught:
            flow.app.resolve_gate(started.id, key, "succeeded")
        assert caught.value.code == code
    with pytest.raises(WorkflowNotFound):
        flow.app.resolve_gate(new_id(), "gate", "succeeded")
    with pytest.raises(InvalidOption) as refused:
        flow.app.resolve_gate(started.id, "gate", "done")  # type: ignore[arg-type]
    assert refused.value.code == "workflow.gate_invalid_terminal_status"
    with pytest.raises(InvalidOption, match="output"):
        flow.app.resolve_gate(started.id, "gate", "failed", output=1)


@pytest.mark.parametrize("end", ["succeeded", "failed", "canceled"])
def test_the_time_of_a_gate_begins_when_it_opens(flow: Flow, end: Any) -> None:
    built = Workflow("wait")
    built.step("a", flow.work.job(1))
    gate = built.gate("gate", after=["a"], timeout=60, on_timeout=end)
    built.step("b", flow.work.job(1), after=[gate])
    started = flow.start(built)
    flow.world.advance(600)
    flow.world.operations.expire()
    assert flow.run() == ["a"]
    flow.world.advance(59)
    flow.world.operations.expire()
    assert flow.status(started) == "open"
    flow.world.advance(1)
    flow.world.operations.expire()
    assert flow.states(started)["gate"] == end
    assert flow.reasons(started)["gate"] == "timeout"
    assert flow.states(started)["b"] == ("ready" if end == "succeeded" else "canceled")
    flow.check(started)


def late(flow: Flow, key: str = "late", n: int = 1, **options: Any) -> Step[int]:
    return Step(key, flow.work.job(n), **options)


def append(flow: Flow, id: str, *steps: Step[Any], key: str = "m", window: str = "gate") -> str:
    return flow.app.append_steps(id, window=window, mutation_key=key, steps=steps)


def test_steps_are_appended_while_the_gate_is_open(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], bad=[], gate=["~bad"]))
    flow.run_all(fail=["bad"])
    outcome = append(
        flow,
        started.id,
        late(flow, "now"),
        late(flow, "after a", after=["a"]),
        late(flow, "doomed", after=["bad"]),
        late(flow, "doomed too", after=["doomed"]),
        late(flow, "anyway", after_done=["doomed", "bad"]),
        late(flow, "later", after=["gate", "now"]),
    )
    assert outcome == "applied"
    states = flow.states(started)
    assert [states[key] for key in ("now", "after a", "doomed", "doomed too", "anyway", "later")] == [
        "ready",
        "ready",
        "canceled",
        "canceled",
        "ready",
        "waiting",
    ]
    assert flow.reasons(started)["doomed"] == "after bad, which failed"
    assert flow.status(started) == "running"
    assert flow.run_all() == [["after a", "anyway", "now"]]
    assert flow.status(started) == "open"
    flow.app.resolve_gate(started.id, "gate", "succeeded")
    assert flow.run_all() == [["later"]]
    assert flow.status(started) == "failed"


def test_a_retry_is_applied_once_also_after_the_window_closed(flow: Flow) -> None:
    started = flow.start(flow.of(options={"tenant": "acme"}, gate=[]))
    one, two = late(flow, "one", after=["gate"]), late(flow, "two", after=["one", "gate"])
    assert append(flow, started.id, one, two) == "applied"
    flow.app.resolve_gate(started.id, "gate", "succeeded")
    flow.run_all()
    assert flow.status(started) == "succeeded"
    reordered = late(flow, "two", after=["gate", "one"])
    explicit = Step("one", flow.work.using(tenant="acme").job(1), after=["gate"])
    assert append(flow, started.id, reordered, explicit) == "already_applied"
    for steps, field in (
        ((one,), "steps.two"),
        ((late(flow, "one", 2, after=["gate"]), two), "steps.one.arguments.n"),
        ((Step("one", flow.work.using(tenant="b").job(1), after=["gate"]), two), "steps.one.tenant"),
    ):
        with pytest.raises(AppendConflict) as caught:
            append(flow, started.id, *steps)
        assert (caught.value.field, caught.value.code) == (field, "workflow.append_conflicting_retry")
    assert len(flow.states(started)) == 3


def test_an_append_is_refused_in_this_order(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], gate=["a"], gate2=["gate"]))
    step = late(flow)
    with pytest.raises(InvalidOption) as blank:
        append(flow, started.id, step, key=" ")
    assert blank.value.code == "workflow.append_mutation_key_blank"
    with pytest.raises(WorkflowNotFound):
        append(flow, new_id(), step)
    for window, code in (
        ("nowhere", "workflow.append_window_missing"),
        ("a", "workflow.append_window_not_gate"),
        ("gate", "workflow.append_window_not_open"),
    ):
        with pytest.raises(AppendRefused) as caught:
            append(flow, started.id, step, window=window)
        assert caught.value.code == code
    flow.app.cancel_workflow(started.id)
    with pytest.raises(AppendRefused) as over:
        append(flow, started.id, step)
    assert over.value.code == "workflow.append_terminal_workflow"
    assert flow.world.count("mutation") == 0


def test_an_append_that_does_not_fit_changes_nothing(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], gate=[]))
    for steps, said in (
        ([late(flow, "a")], "two steps named a"),
        ([late(flow, after=["b"])], "late waits for b"),
        ([late(flow), late(flow)], "two steps named late"),
        ([late(flow, "x", after=["y"]), late(flow, "y", after=["x"])], "wait for one another"),
        ([], "at least one step"),
    ):
        with pytest.raises(InvalidWorkflow, match=said):
            append(flow, started.id, *steps)
    assert (len(flow.states(started)), flow.world.count("mutation")) == (2, 0)


def test_an_appended_step_inherits_the_tenant(flow: Flow) -> None:
    started = flow.start(flow.of(options={"tenant": "acme"}, gate=[]))
    append(flow, started.id, late(flow))
    assert flow.app.get_job(started.steps()[1].id).row.tenant == "acme"  # type: ignore[union-attr]


def test_an_appended_step_may_use_results_of_any_ancestor(flow: Flow) -> None:
    built = flow.of(a=[], b=["a"], c=[], gate=["b"])
    started = flow.start(built)
    flow.run_all()
    first = built.steps[0]
    uses = Step("uses", flow.work.job(first.result), after=["gate"])
    assert append(flow, started.id, uses) == "applied"
    stranger = Step("stranger", flow.work.job(first.result), after=["c"])
    with pytest.raises(InvalidWorkflow, match="stranger uses the result of a"):
        append(flow, started.id, stranger, key="n")


def test_gates_can_be_appended_too(flow: Flow) -> None:
    started = flow.start(flow.of(gate=[]))
    second = Gate("second", after=["gate"], timeout=60, on_timeout="canceled")
    assert append(flow, started.id, second, late(flow, after=[second]), Gate("third")) == "applied"
    assert append(flow, started.id, Gate("third"), second, late(flow, after=[second])) == "already_applied"
    other = Gate("second", after=["gate"], timeout=61, on_timeout="canceled")
    with pytest.raises(AppendConflict, match=r"steps\.second\.timeout"):
        append(flow, started.id, other, late(flow, after=[second]), Gate("third"))
    assert flow.states(started) == {"gate": "open", "second": "waiting", "late": "waiting", "third": "open"}
    for key in ("gate", "second", "third"):
        flow.app.resolve_gate(started.id, key, "succeeded")
    assert flow.run_all() == [["late"]]
    assert flow.status(started) == "succeeded"


def test_gates_are_in_no_queue_that_people_see(flow: Flow) -> None:
    started = flow.start(flow.of(gate=[], gate_b=["gate"]))
    assert (flow.app.count_jobs(), flow.app.stats().queues) == ({}, {})
    flow.work.using(queue="gates").enqueue()
    assert flow.app.count_jobs() == {"gates": {"ready": 1}}, "a queue of this name may belong to somebody"
    flow.run()
    flow.app.resolve_gate(started.id, "gate", "succeeded")
    recent = flow.app.stats().recent
    assert recent is not None
    assert ([*recent.queues], [*recent.tasks], recent.queues["gates"].succeeded) == (["gates"], ["work"], 1)
