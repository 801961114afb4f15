"""``workflows``, ``workflow``, and ``explain`` of a step that waits."""

from __future__ import annotations

import json

import pytest

from perdure import StartedWorkflow, Workflow
from perdure.model.lifecycle import Failed, Succeeded
from tests.cli.shop import NOBODY, Shop


def publish(shop: Shop) -> StartedWorkflow:
    flow = Workflow("publish", tenant="acme")
    fetch = flow.step("fetch", shop.send.job("ann"))
    sizes = [flow.step(f"resize-{n}", shop.send.job("ann", n), after=[fetch]) for n in (200, 800)]
    approve = flow.gate("approve", after=sizes)
    flow.step("publish", shop.send.job("ann"), after=[approve])
    flow.step("tidy up", shop.send.job("ann"), after_done=[approve])
    return shop.app.start_workflow(flow)


def run(shop: Shop, n: int, *, fail: bool = False) -> None:
    for _ in range(n):
        job = shop.claim()
        end = Failed(job.lease, "fatal", message="no\x1b[31m disk") if fail else None
        shop.app.operations.finish([end or Succeeded(job.lease, '"x"', workflow=job.workflow_id)])


def test_workflows_are_listed_filtered_and_paged(shop: Shop) -> None:
    assert shop.run("workflows").stderr == "No workflows.\n"
    shop.serve()
    first, second = publish(shop), publish(shop)
    run(shop, 1)
    title, *rows = [line.split() for line in shop.run("workflows").stdout.splitlines()]
    assert title == ["ID", "STATUS", "NAME", "STEPS", "STARTED", "TOOK", "NOTE"]
    assert [row[:4] for row in rows] == [
        [second.id, "running", "publish", "0/6"],
        [first.id, "running", "publish", "1/6"],
    ]
    assert [one["id"] for one in shop.json("workflows", "--limit", "1")] == [second.id]
    assert [one["id"] for one in shop.json("workflows", "--before", second.id)] == [first.id]
    assert shop.json("workflows", "--status", "failed") == shop.json("workflows", "--name", "x") == []


def test_the_list_says_why_a_workflow_failed(shop: Shop) -> None:
    shop.serve()
    started = publish(shop)
    run(shop, 1)
    run(shop, 2, fail=True)
    gated = Workflow("ask")
    gated.gate("approve")
    rejected, waits = shop.app.start_workflow(gated), publish(shop)
    shop.app.resolve_gate(rejected.id, "approve", "failed", reason="too dear")
    run(shop, 3)
    _, *rows = shop.run("workflows").stdout.splitlines()
    notes = {line.split()[0]: line.split(maxsplit=8)[8:] for line in rows}
    (why,) = notes[started.id]
    assert why.endswith("resize-200: job.fatal: no�[31m disk")
    assert notes[rejected.id][0].endswith("approve: too dear")
    assert not any(":" in note for note in notes[waits.id])
    told = {one["id"]: one["failed_step"] for one in shop.json("workflows")}
    assert told == {
        waits.id: None,
        rejected.id: {"key": "approve", "code": None, "message": None, "reason": "too dear"},
        started.id: {
            "key": "resize-200",
            "code": "job.fatal",
            "message": "no\x1b[31m disk",
            "reason": "fatal",
        },
    }


def test_a_workflow_is_a_tree_with_states_and_what_they_wait_for(shop: Shop) -> None:
    shop.serve()
    started = publish(shop)
    run(shop, 1)
    shop.claim()
    lines = shop.run("workflow", started.id).stdout.splitlines()
    assert lines[0] == f"workflow  {started.id} publish"
    assert "steps     6: 1 succeeded, 2 ready or running, 3 waiting" in lines
    ids, tree = zip(*(line.split("  ", 1) for line in lines[lines.index("") + 1 :]), strict=True)
    assert {*ids} == {step.id for step in started.steps()}
    assert tree[0].startswith("fetch  [succeeded, ")
    assert tree[1].startswith("├─ resize-200  [running, ")
    assert tree[2] == "└─ resize-800  [ready]  ← fetch"
    assert tree[3] == "   <approve>  [waiting] waits for 2 of 2  ← resize-200, resize-800"
    assert tree[5] == "   └─ tidy up  [waiting] waits for 1 of 1  ← approve (done)"
    document = shop.json("workflow", started.id)
    assert (document["status"], document["tenant"]) == ("running", "acme")
    step = document["steps"][3]
    assert step["id"] == started.steps()[3].id
    assert (step["key"], step["gate"], step["waits_for"]) == ("approve", True, ["resize-200", "resize-800"])


@pytest.mark.parametrize(
    ("flag", "told", "state"), [("--approve", "approved", "ready"), ("--reject", "rejected", "canceled")]
)
def test_a_gate_is_decided(shop: Shop, flag: str, told: str, state: str) -> None:
    shop.serve()
    started = publish(shop)
    refused = shop.run("workflow", started.id, "gate", "approve", flag)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "not open yet" in refused.stderr
    run(shop, 3)
    assert (
        shop.run("workflow", started.id, "gate", "approve", flag, "--actor", "ann").stdout
        == f"The gate approve is {told}.\n"
    )
    (decided,) = shop.app.list_acts(action="resolve_gate")
    assert (decided.actor, decided.detail["gate"]) == ("ann", "approve")
    again = shop.run("workflow", started.id, "gate", "approve", flag)
    assert again.stdout == f"The gate approve was already {told}.\n"
    assert {step.key: step.state for step in started.steps()}["publish"] == state


def test_a_gate_gets_an_output_and_tells_in_json(shop: Shop) -> None:
    shop.serve()
    started = publish(shop)
    run(shop, 3)
    decide = ("workflow", started.id, "gate", "approve", "--approve")
    assert "not JSON" in shop.run(*decide, "--output", "{by: ann}").stderr
    told = {"workflow": started.id, "gate": "approve", "outcome": "succeeded"}
    output = ("--output", '{"by": "ann"}')
    assert shop.json(*decide, *output) == {**told, "changed": True}
    assert shop.json(*decide, *output) == {**told, "changed": False}
    assert shop.run(*decide).exit_code == 1, "resolved with another output"
    (gate,) = [step for step in started.steps() if step.gate]
    assert shop.app.get_job(gate.id).result == {"by": "ann"}


def test_a_workflow_is_canceled_and_requeued(shop: Shop) -> None:
    shop.serve()
    started = publish(shop)
    verb = ("workflow", started.id)
    early = shop.run(*verb, "requeue")
    assert (early.exit_code, early.stdout) == (1, "")
    assert "has not ended" in early.stderr
    assert shop.run(*verb, "cancel", "--reason", "withdrawn").stdout == "The workflow is canceled.\n"
    assert started.refresh().reason == "withdrawn"
    again = shop.run(*verb, "cancel", "--json")
    assert (again.exit_code, json.loads(again.stdout)["outcome"]) == (1, "already_ended")
    requeued = {"workflow": started.id, "outcome": "requeued", "changed": True}
    assert shop.json(*verb, "requeue", "--steps", "all", "--reason", "after all") == requeued
    shop.claim()
    assert "asked to stop" in shop.run(*verb, "cancel").stdout


def test_whoever_watches_sees_the_end(shop: Shop) -> None:
    shop.serve()
    flow = Workflow("short")
    flow.step("only", shop.send.job("ann"))
    started = shop.app.start_workflow(flow)
    run(shop, 1, fail=True)
    lines = shop.run("workflow", started.id, "--watch").stdout.splitlines()
    assert "status    failed" in lines
    assert lines[-1].endswith("] no�[31m disk"), "nothing a terminal would obey"


def test_what_is_asked_wrongly_is_refused(shop: Shop) -> None:
    assert shop.run("workflow", NOBODY).exit_code == 1
    both = ("gate", "x", "--approve", "--reject")
    wrong = (
        ("gate",),
        ("gate", "x"),
        ("--approve",),
        ("gate", "--approve"),
        both,
        ("gate", "x", "--reject", "--output", "1"),
        ("cancel", "x"),
        ("cancel", "--steps", "all"),
        ("cancel", "--watch"),
        ("--reason", "x"),
    )
    for args in wrong:
        assert shop.run("workflow", NOBODY, *args).exit_code == 2


def test_explain_names_what_a_step_waits_for(shop: Shop) -> None:
    started = publish(shop)
    steps = {step.key: step.id for step in started.steps()}
    why = shop.app.explain_job(steps["approve"])
    assert why.code == "waiting"
    assert why.sentence == (
        f"It waits for resize-200 (waiting) and resize-800 (waiting) to end, as step approve of workflow {started.id}."
    )
    shop.serve()
    run(shop, 3)
    assert shop.app.explain_job(steps["approve"]).sentence.startswith(
        "It is open: it waits to be resolved, as step approve"
    )
