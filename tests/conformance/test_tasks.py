"""Sync of tasks to the database: it only adds, and never overrides an operator."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import App
from perdure.client.enqueue import TRIES
from perdure.errors import InternalError, TaskDisabled, UnknownTask
from perdure.model.job import SECOND
from perdure.model.lifecycle import Succeeded
from perdure.ops import tasks as ops
from perdure.ops.tasks import KnownTask
from perdure.plan.plan import Plan
from tests.conformance.world import World


def known(world: World) -> dict[str, KnownTask]:
    return world.store.perform(ops.list_tasks)


def enabled(world: World) -> dict[str, bool]:
    return {name: task.enabled for name, task in known(world).items()}


def program(world: World, *tasks: str) -> World:
    """Another program on the same database, which has these tasks."""
    other = World.__new__(World)
    other.store, other.app = world.store, world.producer()
    for task in tasks:
        other.task(task)
    return other


def test_a_task_is_written_as_the_code_declares_it(world: World) -> None:
    world.task("work", queue="mail", priority=-3, max_attempts=5, timeout=1.5, max_crashes=None, backoff=7)
    world.app.save_tasks()
    (task,) = known(world).values()
    definition = task.definition
    assert (definition.name, definition.queue, definition.priority) == ("work", "mail", -3)
    assert (definition.max_attempts, definition.timeout, definition.max_crashes) == (5, 1_500_000, None)
    assert (definition.backoff, task.enabled) == ('{"base":7,"cap":900.0,"codes":{}}', True)


def test_the_first_enqueue_writes_the_tasks_and_later_ones_do_not(world: World) -> None:
    work = world.task()
    assert known(world) == {}
    work.enqueue()
    assert list(known(world)) == ["work"]
    world.sql("UPDATE perdure.task SET priority = 7")
    work.enqueue()
    assert known(world)["work"].definition.priority == 7


def test_tasks_that_the_database_has_lost_are_written_again(world: World) -> None:
    """The tables were created again, or restored from an old backup without these tasks."""
    work, other = world.task("work"), world.task("other", aliases=["another"])
    work.enqueue()
    world.sql("DELETE FROM perdure.job")
    world.sql("DELETE FROM perdure.task")
    assert work.enqueue().refresh().state == "ready"
    assert list(known(world)) == ["another", "other", "work"]
    world.sql("DELETE FROM perdure.job")
    world.sql("DELETE FROM perdure.task")
    jobs = world.app.enqueue_many([work.job(), other.job()])
    assert [job.refresh().state for job in jobs] == ["ready", "ready"]


async def test_the_same_where_an_event_loop_waits(world: World) -> None:
    work = world.task()
    await work.aenqueue()
    world.sql("DELETE FROM perdure.job")
    world.sql("DELETE FROM perdure.task")
    assert (await (await work.aenqueue()).arefresh()).state == "ready"


def test_a_task_that_is_enabled_again_by_the_time_we_look_refuses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = world.task()
    old = work.enqueue()
    world.attempt(Succeeded)
    blame = App._blame_tasks

    def blame_late(app: App, *args: Any) -> Plan[None]:
        world.sql("UPDATE perdure.task SET enabled = true")
        return (yield from blame(app, *args))

    monkeypatch.setattr(App, "_blame_tasks", blame_late)
    for enqueue in (work.enqueue, lambda: world.app.replay_job(old.id)):
        world.sql("UPDATE perdure.task SET enabled = false")
        assert enqueue().created
    assert world.count("job") == 3


def test_what_breaks_for_another_reason_is_told_after_a_few_tries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, looks = world.task(), []
    work.enqueue()

    def blame_nobody(app: App, *args: Any) -> Plan[None]:
        looks.append(args)
        yield from ()

    monkeypatch.setattr(App, "_blame_tasks", blame_nobody)
    world.sql("UPDATE perdure.task SET enabled = false")
    with pytest.raises(InternalError) as broken:
        work.enqueue()
    assert (broken.value.code, len(looks)) == ("store.constraint", TRIES)


def test_a_task_of_others_that_is_unknown_is_refused_as_before(world: World) -> None:
    world.task("work").enqueue()
    for _ in range(2):
        with pytest.raises(UnknownTask, match="elsewhere"):
            world.app.enqueue("elsewhere")


def test_a_task_that_is_registered_later_is_written_with_its_first_enqueue(world: World) -> None:
    world.task("work").enqueue()
    late = world.task("late", aliases=["later"])
    assert list(known(world)) == ["work"]
    late.enqueue()
    assert list(known(world)) == ["late", "later", "work"]


def test_newer_code_changes_what_is_declared(world: World) -> None:
    world.task("work", timeout=60)
    world.app.save_tasks()
    other = program(world)
    other.task("work", timeout=90).enqueue()
    assert known(world)["work"].definition.timeout == 90 * SECOND


def test_a_sync_adds_and_never_takes_away(world: World) -> None:
    program(world, "a", "b").app.save_tasks()
    program(world, "b", "c").app.save_tasks()
    assert enabled(world) == {"a": True, "b": True, "c": True}


def test_an_exact_sync_disables_what_the_code_lacks(world: World) -> None:
    old = program(world, "a", "b")
    old.app.save_tasks()
    program(world, "b", "c").app.save_tasks(exact=True)
    assert enabled(world) == {"a": False, "b": True, "c": True}
    with pytest.raises(TaskDisabled):
        old.app.enqueue("a")


def test_no_sync_enables_what_was_disabled(world: World) -> None:
    program(world, "a", "b").app.save_tasks()
    world.app.set_task("a", enabled=False)
    for exact in (False, True):
        program(world, "a", "b").app.save_tasks(exact=exact)
        assert enabled(world) == {"a": False, "b": True}
    program(world, "b").app.save_tasks(exact=True)
    program(world, "a", "b").app.save_tasks()
    world.app.set_task("a", enabled=True)
    assert enabled(world) == {"a": True, "b": True}


def test_a_program_without_tasks_may_disable_them_all(world: World) -> None:
    program(world, "a").app.save_tasks()
    world.producer().save_tasks()
    assert enabled(world) == {"a": True}
    world.producer().save_tasks(exact=True)
    assert enabled(world) == {"a": False}
