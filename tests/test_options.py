"""Options of a job: each bound from both sides; a refusal names the option and never shows the value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from perdure import App, Workflow
from perdure.errors import InvalidOption, InvalidTask
from perdure.model.canonical import Request, canonical
from perdure.model.job import Options
from perdure.request.options import Asked, checked

SECOND = 1_000_000
CENTURY = 36_525 * 86_400
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
NOON_MICROS = 1_893_499_200 * SECOND
SECRET = "hunter2"


def check(**asked: Any) -> Options:
    return checked(cast(Asked, asked))


def long(size: int) -> str:
    return SECRET.ljust(size, "x")


TAKEN: list[tuple[str, Any, dict[str, Any]]] = [
    ("queue", "mail", {"queue": "mail"}),
    ("queue", long(255), {"queue": long(255)}),
    ("tenant", long(255), {"tenant": long(255)}),
    ("tenant", "ä" * 127, {"tenant": "ä" * 127}),
    ("idempotency_key", long(512), {"idempotency_key": long(512)}),
    ("unique_key", long(512), {"unique_key": long(512)}),
    ("priority", -32_768, {"priority": -32_768}),
    ("priority", 0, {"priority": 0}),
    ("priority", 32_767, {"priority": 32_767}),
    ("max_attempts", 1, {"max_attempts": 1}),
    ("max_attempts", 2_147_483_647, {"max_attempts": 2_147_483_647}),
    ("delay", 0, {"delay": 0}),
    ("delay", 1.5, {"delay": 1_500_000}),
    ("delay", timedelta(minutes=1), {"delay": 60 * SECOND}),
    ("delay", CENTURY, {"delay": CENTURY * SECOND}),
    ("run_at", NOON, {"run_at": NOON_MICROS}),
    ("expires", 0, {"expires_in": 0}),
    ("expires", 60, {"expires_in": 60 * SECOND}),
    ("expires", CENTURY, {"expires_in": CENTURY * SECOND}),
    ("expires", NOON, {"expires_at": NOON_MICROS}),
    ("timeout", 1e-6, {"timeout": 1}),
    ("timeout", timedelta(days=1), {"timeout": 86_400 * SECOND}),
    ("timeout", CENTURY, {"timeout": CENTURY * SECOND}),
    ("tags", [], {"tags": "[]"}),
    ("tags", ("a", long(255)), {"tags": f'["a","{long(255)}"]'}),
    ("meta", {}, {"meta": "{}"}),
    ("meta", {"who": {"id": [1, None, 0.5, True]}}, {"meta": '{"who":{"id":[1,null,0.5,true]}}'}),
]

REFUSED: list[tuple[str, Any]] = [
    *((name, value) for name in ("queue", "tenant", "idempotency_key", "unique_key") for value in (
        "", " \t\n", f"{SECRET}\0", f"{SECRET}\ud800", 7, SECRET.encode(), [SECRET],
    )),
    ("queue", long(256)),
    ("tenant", long(256)),
    ("tenant", "ä" * 128),
    ("idempotency_key", long(513)),
    ("unique_key", long(513)),
    *((name, value) for name in ("priority", "max_attempts") for value in (1.0, True, SECRET, 10**400)),
    ("priority", -32_769),
    ("priority", 32_768),
    ("max_attempts", 0),
    ("max_attempts", -1),
    ("max_attempts", 2_147_483_648),
    *((name, value) for name in ("delay", "expires", "timeout") for value in (
        -1e-6, timedelta(microseconds=-1), CENTURY + 1, math.nan, math.inf, 10**400, True, SECRET, [60],
    )),
    ("timeout", 0),
    ("timeout", timedelta(0)),
    *((name, value) for name in ("run_at", "expires") for value in (
        NOON.replace(tzinfo=None), NOON.replace(year=1969), NOON.replace(year=2200),
    )),
    ("run_at", 60),
    ("run_at", SECRET),
    ("tags", SECRET),
    ("tags", 7),
    ("tags", [SECRET, 7]),
    ("tags", [""]),
    ("tags", [long(256)]),
    ("tags", {SECRET: 1}),
    ("meta", SECRET),
    ("meta", [SECRET]),
    ("meta", 7),
    ("meta", {SECRET: math.nan}),
    ("meta", {SECRET: object()}),
    ("meta", {7: SECRET}),
    ("meta", {"x": NOON}),
    ("meta", {"x": "y" * (1 << 20)}),
    ("colour", SECRET),
]  # fmt: skip


def named(case: tuple[Any, ...]) -> str:
    return f"{case[0]}-{case[1]!r:.20}"


@pytest.mark.parametrize("case", TAKEN, ids=named)
def test_an_option_within_its_bounds_is_taken(case: tuple[str, Any, dict[str, Any]]) -> None:
    name, value, stored = case
    assert check(**{name: value}) == Options(**stored)


@pytest.mark.parametrize("case", REFUSED, ids=named)
def test_an_option_beyond_is_refused_by_name_and_never_with_its_value(case: tuple[str, Any]) -> None:
    name, value = case
    with pytest.raises(InvalidOption) as refusal:
        check(**{name: value})
    assert re.match(rf"{name}\b", str(refusal.value))
    assert SECRET not in str(refusal.value)
    assert refusal.value.__cause__ is None


@pytest.mark.parametrize("name", Asked.__annotations__)
def test_an_option_that_is_none_was_not_asked_for(name: str) -> None:
    assert check(**{name: None}) == check() == Options()


def test_a_delay_and_a_moment_exclude_each_other() -> None:
    with pytest.raises(InvalidOption, match=r"^Use delay or run_at, not both\.$"):
        check(delay=60, run_at=NOON)


NEVER_DUE = [
    {"delay": 5, "expires": 1},
    {"delay": 5, "expires": 5},
    {"delay": timedelta(minutes=1), "expires": 59},
    {"delay": 1e-6, "expires": 0},
    {"run_at": NOON, "expires": NOON},
    {"run_at": NOON, "expires": NOON - timedelta(hours=1)},
]


@pytest.mark.parametrize("asked", NEVER_DUE, ids=str)
def test_a_job_that_would_expire_before_it_is_due_is_refused(asked: dict[str, Any]) -> None:
    start = next(iter(asked))
    with pytest.raises(InvalidOption, match=rf"^expires must be later than {start}\b"):
        check(**asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"delay": 5, "expires": 5.000_001},
        {"delay": 0, "expires": 0},
        {"run_at": NOON, "expires": NOON + timedelta(microseconds=1)},
        # Which of these comes first only the database's clock can say.
        {"delay": 5, "expires": NOON},
        {"run_at": NOON, "expires": 1},
    ],
    ids=str,
)
def test_a_job_that_may_be_due_before_it_expires_is_taken(asked: dict[str, Any]) -> None:
    check(**asked)


def test_every_way_to_give_options_refuses_a_job_that_is_never_due(sqlite_url: str) -> None:
    with App(sqlite_url) as app:

        @app.task(name="work")
        def work() -> None: ...

        never: Asked = {"delay": 5, "expires": 1}
        ways: list[Callable[[], object]] = [
            lambda: work.using(**never),
            lambda: work.using(delay=5).using(expires=1),
            lambda: work.using(expires=1).using(delay=5),
            lambda: app.enqueue(work, **never),
            lambda: app.enqueue("work", **never),
            lambda: app.enqueue("unknown here", **never),
            lambda: app.enqueue_many([work.using(**never).job()]),
            lambda: Workflow("flow").step("a", work.using(**never).job()),
        ]
        for way in ways:
            with pytest.raises(InvalidOption, match="expires must be later than delay"):
                way()
        assert app.list_jobs() == []


@pytest.mark.parametrize(
    ("asked", "keyed"),
    [({}, False), ({"queue": "a"}, False), ({"idempotency_key": "a"}, True), ({"unique_key": "a"}, True)],
)
def test_a_key_of_either_kind_makes_a_job_keyed(asked: dict[str, Any], keyed: bool) -> None:
    assert check(**asked).keyed is keyed


def test_the_canonical_request_has_each_field_as_it_was_asked() -> None:
    asked = check(
        queue="mail", priority=0, delay=5, expires=NOON, tags=["b", "a"], unique_key="u", tenant="t"
    )
    assert json.loads(canonical(Request('{"to":"ann"}', asked))) == {
        "v": 1,
        "arguments": {"to": "ann"},
        "queue": "mail",
        "priority": 0,
        "delay": 5 * SECOND,
        "expires": "2030-01-01T12:00:00.000000Z",
        "tags": ["b", "a"],
        "unique_key": "u",
    }


def test_the_canonical_request_of_nothing_asked_has_no_field() -> None:
    assert json.loads(canonical(Request("{}", check()))) == {"v": 1, "arguments": {}}


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("retries", "max_attempts, which counts the first try, too"),
        ("time_limit", "timeout"),
        ("max_atempts", "'max_attempts'"),
        ("retry_delay", "backoff"),
    ],
)
def test_an_option_that_a_task_lacks_is_named_with_what_was_meant(option: str, meant: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        App("sqlite:///nowhere.db").task(**{option: 3})  # type: ignore[call-overload]
    assert str(caught.value) == f"{option} is not an option of a task. Did you mean {meant}?"


def test_what_nobody_can_have_meant_is_only_named() -> None:
    app = App("sqlite:///nowhere.db")
    with pytest.raises(InvalidTask, match=r"^zzz is not an option of a task\.$"):
        app.task(zzz=1)  # type: ignore[call-overload]
    with pytest.raises(InvalidTask, match=r"^handling is not an option"):
        app.task(handling=1)  # type: ignore[call-overload]
    work = app.task(name="work")(len)
    with pytest.raises(InvalidOption, match=r"^eta is not an option of a job\. Did you mean run_at\?$"):
        work.using(eta=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidOption, match=r"^time_limits is not an option of a job\.$"):
        work.using(time_limits=1)  # type: ignore[call-arg]
