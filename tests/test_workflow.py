"""The builder: what it refuses, what it draws, and which types it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure import App, Step, Workflow, chain, group
from perdure.client.task import SyncTask
from perdure.errors import InvalidOption, InvalidWorkflow

app = App("sqlite:///unused.db")


def work(n: int = 0, words: list[str] | None = None) -> str:
    return str(n)


task: SyncTask[Any, str] = app.task(name="jobs.work")(work)


def built(build: Callable[[Workflow], object], **options: Any) -> Workflow:
    flow = Workflow("flow", **options)
    build(flow)
    return flow


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda flow: None, "flow has no steps"),
        (lambda flow: (flow.step("a", task.job()), flow.step("a", task.job())), "two steps named a"),
        (lambda flow: flow.step(" ", task.job()), "must not be blank"),
        (lambda flow: flow.step("a", task.job(), after=["a"]), "a waits for itself"),
        (lambda flow: flow.step("a", task.job(), after=["b"]), "a waits for b"),
        (lambda flow: flow.step("a", task.job(), after="b"), "after of the step a must be a list"),
        (lambda flow: flow.step("a", 7), "a needs what task.job"),
        (lambda flow: flow.gate("a", task.job()), "a is a gate"),
        (lambda flow: flow.gate("a", on_timeout="done"), "on_timeout of the gate a"),
        (lambda flow: flow.step("a", task.using(idempotency_key="k").job()), "a has an idempotency_key"),
        (lambda flow: flow.step("a", task.using(unique_key="k").job()), "a has an unique_key"),
        (lambda flow: [flow.step(f"s{n}", task.job()) for n in range(4)], "s3 is one step too many"),
        (
            lambda flow: (flow.step("a", task.job(), after=["b"]), flow.step("b", task.job(), after=["a"])),
            "wait for one another: a → b → a",
        ),
        (
            lambda flow: flow.step("b", task.job(flow.step("a", task.job()).result)),
            "b uses the result of a, which is not one of its ancestors",
        ),
    ],
)
def test_what_cannot_run_is_refused_and_the_step_named(
    build: Callable[[Workflow], object], said: str
) -> None:
    with pytest.raises(InvalidWorkflow, match=said):
        built(build, most_steps=3).shapes()


def test_an_unknown_result_step_is_refused() -> None:
    with pytest.raises(
        InvalidWorkflow,
        match=r"nowhere, which is not a step of this workflow.+cannot name a step that is appended later",
    ):
        built(lambda flow: flow.step("a", task.job()), result="nowhere").shapes()


def test_no_text_can_be_made_of_a_result_that_is_not_there() -> None:
    result: object = Step("a", task.job()).result
    for text in (lambda: str(result), lambda: f"{result}", lambda: f"{result:>9}", lambda: "%s" % result):  # noqa: UP031
        with pytest.raises(InvalidWorkflow, match="The result of a does not exist yet"):
            text()
    assert repr(result) == "<the result of a>"


def test_the_result_of_a_step_is_no_argument_of_a_job_alone() -> None:
    step = Step("a", task.job())
    with pytest.raises(InvalidOption, match="an argument of a later step"):
        task.enqueue(step.result)


def test_a_drawing_has_every_step_and_edge() -> None:
    flow = Workflow('say "hi"')
    a = flow.step("a", task.job())
    b = flow.gate("b <&>", after=[a])
    flow.step("c", task.job(), after_done=[b])
    assert flow.to_mermaid().splitlines() == [
        "---",
        'title: "say &quot;hi&quot;"',
        "---",
        "flowchart TD",
        '    s0["a"]',
        '    s1{{"b <&amp;>"}}',
        '    s2["c"]',
        "    s0 --> s1",
        "    s1 -.-> s2",
    ]


def test_a_terminal_gets_a_tree() -> None:
    flow = Workflow("flow")
    for key, after in {
        "a": [],
        "b": ["a"],
        "c": ["a"],
        "d": ["b", "c"],
        "e": ["d"],
        "f": ["d"],
        "z": [],
    }.items():
        flow.step(key, task.job(), after=after)
    assert str(flow).splitlines() == [
        "flow",
        "├─ a",
        "│  ├─ b  ← a",
        "│  └─ c  ← a",
        "│     d  ← b, c",
        "│     ├─ e  ← d",
        "│     └─ f  ← d",
        "└─ z",
    ]


def test_a_long_chain_is_drawn_without_end_of_the_stack() -> None:
    assert len(str(chain(*(task.job(n) for n in range(5000)))).splitlines()) == 5001


def test_chains_and_groups_name_their_steps_and_their_result() -> None:
    line = chain(task.job(), task.job(), name="line", tenant="acme")
    assert [(step.key, step.after) for step in line.steps] == [("work", []), ("work-2", ["work"])]
    assert (line.name, line.tenant, line.result_step) == ("line", "acme", "work-2")
    fan = group((task.job() for _ in range(2)), then=task.job())
    assert fan.steps[-1].after == ["work", "work-2"]
    for nothing in (lambda: chain(), lambda: group([])):
        with pytest.raises(InvalidWorkflow, match="no steps"):
            nothing().shapes()
