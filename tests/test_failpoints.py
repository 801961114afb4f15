"""Failpoints: the actions, when they happen, and that unset ones cost nothing."""

from __future__ import annotations

import ast
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import perdure
from perdure.app import App
from perdure.internal import failpoints, journal
from perdure.internal.failpoints import Failpoint, Fault, Place, parse
from perdure.model.job import SECOND
from perdure.model.lifecycle import Succeeded
from tests.harness import processes

PASS_THRICE = """
from perdure.internal import failpoints
for n in range(3):
    print(n, flush=True)
    if failpoints.armed:
        failpoints.reach("before_claim")
"""


def run(failpoint: str | None, program: str = PASS_THRICE) -> tuple[int, str]:
    """How a program ends that comes by ``before_claim`` three times, and what it printed."""
    ran = processes.run("-c", program, env=None if failpoint is None else {failpoints.VARIABLE: failpoint})
    return ran.returncode, "".join(ran.stdout.split())


def arm(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(failpoints, "_faults", parse(text))
    monkeypatch.setattr(failpoints, "_reached", Counter())


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", {}),
        ("before_claim:kill", {"before_claim": Fault("kill", 0, 1)}),
        ("before_claim:exit@3", {"before_claim": Fault("exit", 0, 3)}),
        ("before_claim:sleep=0.5", {"before_claim": Fault("sleep", 0.5, 1)}),
        ("before_claim:sleep=2@4", {"before_claim": Fault("sleep", 2, 4)}),
        ("before_claim:sleep=2@4+", {"before_claim": Fault("sleep", 2, 4, onwards=True)}),
        (
            "before_claim:kill, after_commit:raise@2,",
            {"before_claim": Fault("kill", 0, 1), "after_commit": Fault("raise", 0, 2)},
        ),
    ],
)
def test_a_place_has_an_action_and_a_time(text: str, faults: dict[str, Fault]) -> None:
    assert parse(text) == faults


@pytest.mark.parametrize(
    "text",
    ["before_claim", "before_claim:", "before_claim:die", "before_claim:kill@x", "nowhere:kill", ":kill"],
)
def test_what_would_never_happen_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"before_claim|place|literal"):
        parse(text)


@pytest.mark.parametrize(
    ("failpoint", "code", "printed"),
    [
        (None, 0, "012"),
        ("", 0, "012"),
        ("before_claim:kill", -signal.SIGKILL, "0"),
        ("before_claim:kill@3", -signal.SIGKILL, "012"),
        ("before_claim:kill@4", 0, "012"),
        ("before_claim:exit@2", 70, "01"),
        ("before_claim:raise@2", 1, "01"),
        ("before_commit:kill", 0, "012"),
    ],
)
def test_a_process_ends_where_it_is_told_to(failpoint: str | None, code: int, printed: str) -> None:
    assert run(failpoint) == (code, printed)


def test_a_place_may_raise_once(monkeypatch: pytest.MonkeyPatch) -> None:
    arm(monkeypatch, "before_claim:raise@2")
    failpoints.reach("before_claim")
    with pytest.raises(Failpoint, match="before_claim"):
        failpoints.reach("before_claim")
    failpoints.reach("before_claim")


def test_a_place_may_hang_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    arm(monkeypatch, "before_claim:sleep=2.5")
    failpoints.reach("before_claim")
    failpoints.reach("before_claim")
    assert slept == [2.5]


def test_a_place_may_hang_each_time_from_one_on(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    arm(monkeypatch, "before_claim:sleep=2.5@2+")
    for _ in range(3):
        failpoints.reach("before_claim")
    assert slept == [2.5, 2.5]


def test_a_diary_tells_that_it_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(journal, "enabled", True)
    monkeypatch.setattr(journal, "note", lambda what, **more: told.append((what, more)))
    arm(monkeypatch, "before_claim:sleep@2")
    failpoints.reach("before_claim")
    assert told == []
    failpoints.reach("before_claim")
    assert told == [("failpoint", {"place": "before_claim"})]


def test_places_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    arm(monkeypatch, "before_claim:raise@2,before_flush:raise@2")
    failpoints.reach("before_claim")
    failpoints.reach("before_flush")
    with pytest.raises(Failpoint, match="before_flush"):
        failpoints.reach("before_flush")


def test_nobody_reaches_a_place_where_none_is_armed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(place: Place) -> None:
        raise AssertionError(f"{place} was reached")

    assert not failpoints.armed
    monkeypatch.setattr(failpoints, "reach", reach)
    with App(url) as app:
        app.migrate()
        app.task(name="pay")(lambda: None).enqueue()
        app.operations.register("ann", name="ann", lease=600 * SECOND)
        (claimed,) = app.operations.claim("ann", tasks=["pay"], n=1)
        assert app.operations.finish([Succeeded(claimed.lease)]).accepted
        app.operations.rescue()


def test_every_place_is_somewhere() -> None:
    named = {place for path in Path(perdure.__file__).parent.rglob("*.py") for place in places_in(path)}
    assert named == set(get_args(Place))


def places_in(path: Path) -> Iterator[str]:
    """The places that a module says it reaches."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="reach") | ast.Name(id="_reach"),
                args=[ast.Constant(value=str(place))],
            ):
                yield place
