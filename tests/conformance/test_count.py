"""Counts by every condition equal what a list shows over all its pages, on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.client import bulk
from perdure.errors import InvalidOption
from perdure.model.job import SECOND
from perdure.model.lifecycle import Failed, Succeeded
from perdure.ops.count import By
from perdure.request.times import from_us
from tests.conformance.world import World


@pytest.fixture
def counted(world: World) -> World:
    """Two that failed, one that retries, one that has succeeded, one for later, and two that are ready."""
    work, other = world.task(), world.task("other", queue="slow")
    for code in ("http.503", "http.503", "http.410", None):
        work.enqueue()
        if code is None:
            world.attempt(Succeeded)
        elif code == "http.410":
            world.attempt(Failed, "error", code=code, delay=60 * SECOND)
        else:
            world.attempt(Failed, "fatal", code=code)
        world.advance(1)
    work.using(delay=60, tenant="acme").enqueue()
    held = other.using(delay=60).enqueue()
    other.enqueue()
    world.sql("UPDATE perdure.job SET held = 'a limit' WHERE id = :id", id=held.id)
    return world


BY: list[tuple[By, dict[str | None, int]]] = [
    ("state", {"failed": 2, "held": 1, "ready": 1, "retrying": 1, "succeeded": 1, "scheduled": 1}),
    ("queue", {"default": 5, "slow": 2}),
    ("task", {"work": 5, "other": 2}),
    ("tenant", {None: 6, "acme": 1}),
    ("error_code", {None: 4, "http.503": 2, "http.410": 1}),
]


@pytest.mark.parametrize("stretch", [2, 500])
def test_jobs_are_counted_by_what_they_have(
    counted: World, monkeypatch: pytest.MonkeyPatch, stretch: int
) -> None:
    monkeypatch.setattr(bulk, "CHUNK", stretch)
    for by, numbers in BY:
        found = counted.app.count_jobs_by(by)
        assert found == numbers
        assert [*found] == sorted(found, key=lambda one: (-found[one], one or "")), "the most come first"


async def test_only_those_that_fit_are_counted(counted: World) -> None:
    app = counted.app
    now = from_us(counted.now)
    assert await app.acount_jobs_by("error_code", state="failed", finished_before=now) == {"http.503": 2}
    assert await app.acount_jobs_by("task", queue="slow", task=app.tasks["other"]) == {"other": 2}
    assert await app.acount_jobs_by("state", state="scheduled") == {"scheduled": 1}
    assert await app.acount_jobs_by("queue", tenant="nobody") == {}


def test_what_cannot_be_counted_by_is_refused(sqlite_url: str) -> None:
    world = World(sqlite_url)
    wrong: Any
    for wrong in ("payload", "state; --", None, ["state"]):
        with pytest.raises(
            InvalidOption, match=r"^by must be one of state, queue, task, tenant, error_code\.$"
        ):
            world.app.count_jobs_by(wrong)
    wrong = {"colour": "red"}
    with pytest.raises(InvalidOption, match="colour is not a condition"):
        world.app.count_jobs_by("state", **wrong)
    world.close()
