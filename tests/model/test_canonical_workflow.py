"""Canonical requests of workflows and appends: golden snapshots, and what counts as the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.errors import InternalError
from perdure.model.canonical import Request
from perdure.model.canonical_workflow import (
    StepRequest,
    append_difference,
    canonical_append,
    canonical_workflow,
    workflow_difference,
)
from perdure.model.job import Options


def step(key: str, arguments: str = '{"n":1}', *, tenant: str | None = None, **options: Any) -> StepRequest:
    parents = {name: options.pop(name, ()) for name in ("after", "after_done")}
    request = Request(arguments, Options(**options))
    return StepRequest(key=key, task="work", tenant=tenant, request=request, **parents)


GATE = StepRequest(key="gate", after=["b", "a"], timeout=60_000_000, on_timeout="failed")


def test_the_snapshot_of_an_append_stays_as_it_is() -> None:
    """Stored requests are compared with those of later versions."""
    child = step(
        "child", '{"kind":"golden"}', priority=5, max_attempts=2, timeout=60_000_000, after_done=["gate"]
    )
    assert canonical_append([child, GATE], tenant="acme", window="gate") == (
        '{"v":1,"window":"gate","steps":['
        '{"key":"child","task":"work","arguments":{"kind":"golden"},"priority":5,"max_attempts":2,'
        '"timeout":60000000,"tenant":"acme","after":[],"after_done":["gate"]},'
        '{"key":"gate","gate":true,"timeout":60000000,"on_timeout":"failed","tenant":"acme",'
        '"after":["a","b"],"after_done":[]}]}'
    )


def test_the_snapshot_of_a_workflow_stays_as_it_is() -> None:
    asked = canonical_workflow(
        [step("b", after=["a"], queue="q"), step("a")], tenant=None, result="b", unique_key="u"
    )
    assert asked == (
        '{"v":1,"result":"b","unique_key":"u","steps":['
        '{"key":"a","task":"work","arguments":{"n":1},"after":[],"after_done":[]},'
        '{"key":"b","task":"work","arguments":{"n":1},"queue":"q","after":["a"],"after_done":[]}]}'
    )


def append(*steps: StepRequest, tenant: str | None = "acme", window: str = "gate") -> str:
    return canonical_append(steps, tenant=tenant, window=window)


def differ(one: str, other: str) -> str | None:
    return append_difference(one, other, tenant="acme")


def test_order_tenant_and_the_spelling_of_numbers_do_not_count() -> None:
    one = append(step("a"), step("b", '{"n":1.0}', after=["a", "gate"]))
    assert differ(one, append(step("b", '{"n":1}', after=["gate", "a"]), step("a"))) is None
    assert differ(one, append(step("a", tenant="acme"), step("b", after=["gate", "a"]))) is None


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ([step("a", '{"n":2}')], "steps.a.arguments.n"),
        ([step("a", '{"n":true}')], "steps.a.arguments.n"),
        ([step("a", tenant="other")], "steps.a.tenant"),
        ([step("a", priority=0)], "steps.a.priority"),
        ([step("a", after=["gate"])], "steps.a.after"),
        ([step("a"), step("b")], "steps.b"),
        ([StepRequest(key="a")], "steps.a.arguments"),
    ],
)
def test_a_difference_names_step_and_field(other: list[StepRequest], field: str) -> None:
    assert differ(append(step("a")), append(*other)) == field


def test_another_window_is_another_request() -> None:
    assert differ(append(step("a")), append(step("a"), window="other")) == "window"


def test_a_request_of_an_older_format_still_matches() -> None:
    """Without version, window and tenants, in any order, and with nothing written as null."""
    older = {
        "steps": [
            {"key": "b", "task": "work", "arguments": {"n": 1}, "after": ["gate", "a"], "priority": None},
            {"key": "a", "task": "work", "arguments": {"n": 1}, "after_done": ["gate"]},
        ]
    }
    now = append(step("a", after_done=["gate"]), step("b", after=["a", "gate"]))
    assert differ(json.dumps(older), now) is None
    assert differ(json.dumps({"v": 0, **older}), now) is None


@pytest.mark.parametrize("stored", ["", "[]", '{"v":2,"steps":[]}', '{"v":true,"steps":[]}', '{"steps":[1]}'])
def test_what_is_damaged_or_newer_is_told(stored: str) -> None:
    with pytest.raises(InternalError) as caught:
        differ(stored, append(step("a")))
    assert caught.value.code == "workflow.bad_snapshot"


def test_a_workflow_is_compared_by_its_result_too() -> None:
    one, other = (
        canonical_workflow([step("a")], tenant=None, result=result, unique_key=None) for result in (None, "a")
    )
    assert workflow_difference(one, one, tenant=None) is None
    assert workflow_difference(one, other, tenant=None) == "result"
