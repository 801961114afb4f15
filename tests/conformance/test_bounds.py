"""Both sides of every bound of an option: the last value that is stored, the first that is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.app import App
from perdure.errors import InvalidOption
from perdure.model.job import SECOND
from tests.conformance.world import NOON, World, ids, work

CENTURY = timedelta(days=36_525)
MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(2200, 1, 1, tzinfo=UTC)

ALLOWED: list[tuple[str, Any, str, Any]] = [
    ("priority", -32_768, "priority", -32_768),
    ("priority", 32_767, "priority", 32_767),
    ("max_attempts", 1, "max_attempts", 1),
    ("max_attempts", 2_147_483_647, "max_attempts", 2_147_483_647),
    ("timeout", 0.000001, "timeout", 1),
    ("timeout", CENTURY, "timeout", 36_525 * 86_400 * SECOND),
    ("delay", 0, "run_at", NOON),
    ("delay", CENTURY, "run_at", NOON + 36_525 * 86_400 * SECOND),
    ("run_at", EPOCH, "run_at", 0),
    ("run_at", LATEST - MICROSECOND, "run_at", (LATEST - EPOCH) // MICROSECOND - 1),
    ("expires", 0, "expires_at", NOON),
    ("expires", CENTURY, "expires_at", NOON + 36_525 * 86_400 * SECOND),
    ("expires", EPOCH, "expires_at", 0),
    ("queue", "q" * 255, "queue", "q" * 255),
    ("tenant", "ü" * 127, "tenant", "ü" * 127),
    ("unique_key", "k" * 512, "unique_key", "k" * 512),
    ("tags", [], "tags", "[]"),
    ("meta", {}, "meta", "{}"),
]

REFUSED: list[tuple[str, Any]] = [
    ("priority", -32_769),
    ("priority", 32_768),
    ("priority", True),
    ("priority", 1.0),
    ("max_attempts", 0),
    ("max_attempts", 2_147_483_648),
    ("timeout", 0),
    ("timeout", -1),
    ("timeout", CENTURY + MICROSECOND),
    ("timeout", float("inf")),
    ("delay", -0.000001),
    ("delay", CENTURY + MICROSECOND),
    ("delay", float("nan")),
    ("delay", True),
    ("run_at", EPOCH - MICROSECOND),
    ("run_at", LATEST),
    ("run_at", datetime(2026, 1, 1)),  # noqa: DTZ001
    ("expires", -1),
    ("expires", CENTURY + MICROSECOND),
    ("expires", LATEST),
    ("queue", ""),
    ("queue", " \t"),
    ("queue", "q" * 256),
    ("queue", "a\0b"),
    ("queue", "\ud800"),
    ("queue", 7),
    ("tenant", ""),
    ("tenant", "ü" * 128),
    ("idempotency_key", ""),
    ("idempotency_key", "k" * 513),
    ("unique_key", ""),
    ("unique_key", "k" * 513),
    ("tags", "one"),
    ("tags", ["", "two"]),
]


@pytest.mark.parametrize(("option", "value", "column", "stored"), ALLOWED)
def test_the_last_value_inside_is_stored(world: World, option: Any, value: Any, column: str, stored: Any) -> None:
    job = world.task().using(**{option: value}).enqueue()
    assert getattr(world.row(job), column) == stored


@pytest.mark.parametrize(("option", "value"), REFUSED)
def test_the_first_value_outside_is_refused(option: Any, value: Any) -> None:
    with pytest.raises(InvalidOption, match="tag" if option == "tags" else option):
        App("sqlite:///:memory:").task(name="work")(work).using(**{option: value})


def test_every_text_may_be_as_long_as_allowed_at_once(world: World) -> None:
    """Index entries have room for all of them together."""
    task = world.task(name="t" * 255, queue="q" * 255)
    asked = task.using(tenant="n" * 255, idempotency_key="i" * 512, unique_key="u" * 512)
    job = asked.enqueue()
    again = asked.enqueue()
    assert (again.id, again.created) == (job.id, False)
    assert ids(world.claim()) == [job.id]


def test_priorities_at_the_bounds_are_in_order(world: World) -> None:
    task = world.task()
    low, normal, high = (task.using(priority=p).enqueue() for p in (-32_768, 0, 32_767))
    assert ids(world.claim(3)) == ids([high, normal, low])


def test_a_task_has_the_same_bounds(world: World) -> None:
    for options in ({"priority": 32_768}, {"max_attempts": 0}, {"timeout": 0}, {"max_crashes": 0}, {"queue": ""}):
        with pytest.raises(InvalidOption):
            world.task(**options)
    world.task(priority=32_767, max_attempts=1, timeout=0.000001, max_crashes=1).enqueue()
    assert world.row(world.claim_one()).priority == 32_767
