"""Bad arguments and options are refused before anything is written, even the task."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

import pytest

from perdure.errors import BadArguments, InvalidOption, PayloadTooLarge, PerdureError
from tests.conformance.world import World
from tests.sql.tally import TABLES

SECRET = "hunter2"


def send(to: str, subject: str = "", *, at: datetime | None = None, extra: Any = None) -> dict[str, str]:
    return {"to": to, "subject": subject}


CIRCLE: list[Any] = [SECRET]
CIRCLE.append(CIRCLE)

Call = Callable[[Any], object]

BAD_ARGUMENTS: dict[str, tuple[Call, str]] = {
    "wrong type": (lambda task: task.enqueue(to=3), "$.to"),
    "wrong type by position": (lambda task: task.enqueue(SECRET.encode()), "$.to"),
    "wrong type by another verb": (lambda task: task.delay(to=None), "$.to"),
    "wrong type with options": (lambda task: task.using(delay=5, unique_key="u").enqueue(3), "$.to"),
    "missing": (lambda task: task.enqueue(subject=SECRET), "$.to"),
    "unknown": (lambda task: task.enqueue(SECRET, copies=3), "$.copies"),
    "too many": (lambda task: task.enqueue(SECRET, SECRET, SECRET), "$"),
    "given twice": (lambda task: task.enqueue(SECRET, to=SECRET), "$.to"),
    "naive datetime": (lambda task: task.enqueue(SECRET, at=datetime(2030, 1, 1)), "$.at"),
    "not a number": (lambda task: task.enqueue(SECRET, extra=math.nan), "$.extra"),
    "too large a number": (lambda task: task.enqueue(SECRET, extra=2**80), "$.extra"),
    "no JSON": (lambda task: task.enqueue(SECRET, extra=object()), "$.extra"),
    "deep inside": (lambda task: task.enqueue(SECRET, extra=[1, {SECRET: {2}}]), "$.extra[1][...]"),
    "contains itself": (lambda task: task.enqueue(SECRET, extra=CIRCLE), "$.extra"),
    "one of many": (lambda task: task.app.enqueue_many([task.job("a"), task.job(3)]), "$.to"),
    "by name": (lambda task: task.app.enqueue("send", {"to": {SECRET}}), "$.to"),
    "by name, no names": (lambda task: task.app.enqueue("send", [SECRET]), "$"),
}

BAD_OPTIONS: dict[str, Call] = {
    "unknown": lambda task: task.using(colour=SECRET).enqueue("a"),
    "unknown, by name": lambda task: task.app.enqueue("send", {"to": "a"}, colour=SECRET),
    "out of bounds": lambda task: task.using(priority=32_768).enqueue("a"),
    "both": lambda task: task.using(delay=1, run_at=datetime(2030, 1, 1)).enqueue("a"),
    "half of it later": lambda task: task.using(delay=1).using(tenant="").enqueue("a"),
    "a connection in a batch": lambda task: task.app.enqueue_many([task.using(conn=object()).job("a")]),
    "no request in a batch": lambda task: task.app.enqueue_many([task]),
    "a request alone": lambda task: task.app.enqueue_many(task.job("a")),
    "a blank task": lambda task: task.app.enqueue("", {"to": "a"}),
}


def written(world: World) -> dict[str, int]:
    return {table: world.count(table) for table in TABLES}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_are_refused_before_anything_is_written(world: World, case: str) -> None:
    task = world.app.task(name="send")(send)
    before, (call, path) = written(world), BAD_ARGUMENTS[case]
    with pytest.raises(BadArguments) as refusal:
        call(task)
    assert refusal.value.path == path
    assert SECRET not in str(refusal.value)
    assert written(world) == before


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options_are_refused_before_anything_is_written(world: World, case: str) -> None:
    task = world.app.task(name="send")(send)
    before = written(world)
    with pytest.raises(InvalidOption) as refusal:
        BAD_OPTIONS[case](task)
    assert SECRET not in str(refusal.value)
    assert written(world) == before


def test_arguments_that_are_too_large_are_refused_before_anything_is_written(world: World) -> None:
    task = world.app.task(name="send")(send)
    before = written(world)
    with pytest.raises(PayloadTooLarge):
        task.enqueue("x" * (1 << 20))
    assert written(world) == before


async def test_async_code_is_refused_alike(world: World) -> None:
    task: Any = world.app.task(name="send")(send)
    before = written(world)
    calls = [
        (lambda: task.aenqueue(to=3), BadArguments),
        (lambda: task.adelay(), BadArguments),
        (lambda: task.using(delay=1).aenqueue(3), BadArguments),
        (lambda: world.app.aenqueue("send", {"to": {1}}), BadArguments),
        (lambda: world.app.aenqueue_many(cast(Any, ["send"])), InvalidOption),
    ]
    for call, refusal in calls:
        with pytest.raises(refusal):
            await call()
    assert written(world) == before


def test_what_is_right_is_written(world: World) -> None:
    task = world.app.task(name="send")(send)
    before = written(world)
    task.enqueue("ann@example.com", subject="hi")
    after = written(world)
    assert {table: after[table] - before[table] for table in after if after[table] != before[table]} == {
        "job": 1,
        "task": 1,
    }


def test_a_refusal_is_an_error_of_ours(world: World) -> None:
    task: Any = world.app.task(name="send")(send)
    with pytest.raises(PerdureError) as refusal:
        task.enqueue()
    assert (refusal.value.code, refusal.value.category) == ("job.bad_arguments", "invalid")
