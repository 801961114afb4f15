"""The catalog of tasks, and what operators set for them."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import InvalidOption, UnknownTask
from perdure.model.backoff import Backoff
from perdure.model.job import SECOND
from perdure.model.lifecycle import Failed, Succeeded
from perdure.ops.topics import TASKS
from perdure.request.options import CONFIG_BYTES
from perdure.request.times import from_us
from tests.conformance.world import LEASE, NOON, World

CONFIGS: list[dict[str, Any]] = [
    {},
    {"limit": 3, "hosts": ["a", {"b": None}], "on": True, "ratio": 0.1},
    {"big": 1e16, "whole": 2**64 - 1, "least": -(2**63), "zero": -0.0, "tiny": 5e-324},
    {"z": 1, "a": 2, "": "", "nul": "\0", "é": "\U0001f600", "quote": "'\"; DROP TABLE perdure.task --"},
    {"x": "y" * (CONFIG_BYTES - 8)},
]
REFUSED: list[tuple[Any, str]] = [
    ([], "a dict, or None"),
    ("{}", "a dict, or None"),
    ({1: 2}, "plain JSON"),
    ({"when": {"at": from_us(NOON)}}, r"see config\.when"),
    ({"x": float("nan")}, r"see config\.x"),
    ({"x": {1, 2}}, r"see config\.x"),
    ({"x": "\ud800"}, r"see config\.x"),
    ({"x": 2**64}, r"see config\.x"),
    ({"x": "y" * (CONFIG_BYTES - 7)}, f"at most {CONFIG_BYTES} bytes"),
    ({"x": "y" * 2**21}, f"at most {CONFIG_BYTES} bytes"),
]


def config(world: World) -> dict[str, Any] | None:
    return world.app.get_task("work").config


@pytest.mark.parametrize("given", CONFIGS, ids=range(len(CONFIGS)))
def test_a_config_comes_back_as_it_was_set(world: World, given: dict[str, Any]) -> None:
    world.task()
    world.app.save_tasks()
    world.app.set_task("work", config=given)
    told = config(world)
    assert told == given
    assert told is not None
    assert [*told] == [*given], "in its order"
    assert [type(value) for value in told.values()] == [type(value) for value in given.values()]
    assert repr(told) == repr(given), "also which zero it is"


@pytest.mark.parametrize(("given", "why"), REFUSED, ids=range(len(REFUSED)))
def test_a_config_that_would_not_is_refused_and_changes_nothing(world: World, given: Any, why: str) -> None:
    world.task()
    world.app.save_tasks()
    world.app.set_task("work", config={"limit": 3})
    with pytest.raises(InvalidOption, match=why):
        world.app.set_task("work", enabled=False, config=given)
    assert world.app.get_task("work")[1:3] == (True, {"limit": 3})


def test_what_is_not_given_stays(world: World) -> None:
    world.task()
    world.app.save_tasks()
    world.app.set_task("work", enabled=False, config={"limit": 3})
    world.app.set_task("work", enabled=True)
    assert config(world) == {"limit": 3}
    world.app.set_task("work", config=None)
    assert world.app.get_task("work")[1:3] == (True, None)
    with pytest.raises(InvalidOption, match="nothing to set"):
        world.app.set_task("work")
    with pytest.raises(InvalidOption, match="True or False"):
        world.app.set_task("work", enabled="no")  # type: ignore[arg-type]
    several: list[dict[str, Any]] = [{"enabled": True}, {"config": {}}, {"enabled": True, "config": None}]
    for changes in several:
        with pytest.raises(UnknownTask):
            world.app.set_task("nobody", **changes)


def test_no_sync_of_code_takes_a_config_away(world: World) -> None:
    world.task(timeout=5)
    world.app.save_tasks()
    world.app.set_task("work", config={"limit": 3})
    for exact in (False, True):
        other = world.producer()
        other.task(name="work", timeout=9)(lambda: None)
        other.save_tasks(exact=exact)
        assert config(world) == {"limit": 3}
    world.producer().save_tasks(exact=True)
    assert world.app.get_task("work")[1:3] == (False, {"limit": 3})


def test_workers_hear_of_a_config_and_read_it_with_each_beat(world: World) -> None:
    world.task()
    world.app.save_tasks()
    heard = world.listen()
    world.app.set_task("work", config={"limit": 3})
    assert heard == [frozenset([TASKS])]
    assert world.operations.heartbeat(world.worker).configs == {"work": '{"limit":3}'}
    assert world.operations.peek(world.worker).configs == {"work": '{"limit":3}'}
    assert world.operations.register("next", name="bob", lease=LEASE) == {"work": '{"limit":3}'}
    world.app.set_task("work", enabled=True)
    assert len(heard) == 1, "whether it may be enqueued concerns no worker"
    world.app.set_task("work", config=None)
    assert world.operations.heartbeat(world.worker).configs == {}


def test_the_tasks_there_are(world: World) -> None:
    work = world.task(queue="mail", priority=2, timeout=1.5, max_attempts=3, backoff=7, max_crashes=None)
    world.task("idle", timeout=None)
    world.app.save_tasks()
    world.advance(60)
    world.operations.register("server", name="ann", lease=LEASE, tasks=["work", "other"])
    work.enqueue()
    world.attempt(Failed, "error", delay=60 * SECOND)
    work.enqueue()
    world.attempt(Succeeded)
    work.using(delay=60).enqueue()
    for _ in range(3):
        work.enqueue()
    world.claim()
    idle, told = world.app.list_tasks()
    assert told == (
        "work",
        True,
        None,
        ("mail", 2, 3, 1.5, Backoff(base=7), None),
        from_us(NOON),
        ["ann"],
        {"ready": 2, "scheduled": 1, "retrying": 1, "running": 1},
    )
    assert (idle.name, idle.defaults and idle.defaults.timeout, idle.counts, idle.served_by) == (
        "idle",
        None,
        {},
        [],
    )
    world.advance(LEASE / SECOND)
    assert world.app.get_task("work").served_by == [], "a silent worker serves nobody"


def test_a_task_that_only_jobs_name_is_told_too(world: World) -> None:
    ready, ended = world.task("ready"), world.task("ended")
    ended.enqueue()
    world.attempt(Succeeded)
    ready.enqueue()
    world.sql("DELETE FROM perdure.task")
    assert [(task.name, task.enabled, task.defaults, task.counts) for task in world.app.list_tasks()] == [
        ("ended", False, None, {}),
        ("ready", False, None, {"ready": 1}),
    ]
    assert world.app.get_task("ready").saved_at is None
    with pytest.raises(UnknownTask):
        world.app.get_task("nobody")


async def test_the_async_twins(world: World) -> None:
    world.task()
    await world.app.asave_tasks()
    await world.app.aset_task("work", config={"limit": 3})
    assert [task.config for task in await world.app.alist_tasks()] == [{"limit": 3}]
    assert (await world.app.aget_task("work")).config == {"limit": 3}
