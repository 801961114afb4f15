"""The extreme allowed values of every option are stored. tests/test_options.py tests those outside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.errors import InvalidOption
from perdure.model.job import SECOND
from tests.conformance.world import NOON, World, ids

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


def test_the_last_value_inside_is_stored(world: World) -> None:
    task = world.task()
    for option, value, column, stored in ALLOWED:
        asked: Any = {option: value}
        assert getattr(world.row(task.using(**asked).enqueue()), column) == stored, option


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
    for options in (
        {"priority": 32_768},
        {"max_attempts": 0},
        {"timeout": 0},
        {"max_crashes": 0},
        {"queue": ""},
    ):
        with pytest.raises(InvalidOption):
            world.task(**options)
    world.task(priority=32_767, max_attempts=1, timeout=0.000001, max_crashes=1).enqueue()
    assert world.row(world.claim_one()).priority == 32_767
