"""Settings of queues: what the code declares, what operators set, and which of the two is in effect."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure.app import App
from perdure.errors import InvalidOption
from perdure.model.backoff import Backoff
from perdure.ops.queues import list_live_settings
from perdure.ops.topics import QUEUES
from tests.conformance.world import World


def program(world: World, **queues: dict[str, Any]) -> App:
    """A version of the code that declares these queues."""
    app = world.producer()
    app.task(name="work")(lambda: None)
    for name, settings in queues.items():
        app.queue(name, **settings)
    return app


def in_effect(world: World, name: str = "mail") -> tuple[Any, ...]:
    (found,) = [queue for queue in world.app.list_queues() if queue.name == name]
    return found.concurrency, found.timeout, found.backoff


def edits(world: World, name: str = "mail") -> list[str]:
    (found,) = [queue for queue in world.app.list_queues() if queue.name == name]
    return [str(edit) for edit in found.edits]


def test_declared_settings_are_in_effect(world: World) -> None:
    program(world, mail={"concurrency": 20, "timeout": timedelta(minutes=1)}, plain={}).save_tasks()
    assert in_effect(world) == (20, 60.0, None)
    assert [queue.declared for queue in world.app.list_queues()] == [{"timeout": 60.0, "concurrency": 20}, {}]
    program(world, mail={"concurrency": 30, "backoff": 7}).save_tasks()
    assert in_effect(world) == (30, None, Backoff(7, 900)), "a newer version of the code"
    assert edits(world) == []


def test_a_sync_does_not_overwrite_what_an_operator_set(world: World) -> None:
    program(world, mail={"concurrency": 20, "timeout": 60}).save_tasks()
    world.app.set_queue("mail", concurrency=5)
    program(world, mail={"concurrency": 20, "timeout": 60}).save_tasks()
    assert in_effect(world) == (5, 60.0, None)
    program(world, mail={"concurrency": 30, "timeout": 90, "backoff": 7}).save_tasks()
    assert in_effect(world) == (5, 90.0, Backoff(7, 900)), "what was not edited follows the code"
    assert edits(world) == ["concurrency 5, code says 30"]
    world.app.set_queue("mail", timeout=None)
    program(world, mail={"timeout": 120}).save_tasks()
    assert in_effect(world) == (5, None, None), "nor what was removed"
    assert edits(world) == ["no timeout, code says 120 s", "concurrency 5"]


def test_reset_returns_to_what_the_code_declares(world: World) -> None:
    program(world, mail={"concurrency": 20, "timeout": 60}).save_tasks()
    world.app.set_queue("mail", concurrency=5, backoff=Backoff(1, 2), timeout=None)
    program(world, mail={"concurrency": 25}).save_tasks()
    assert world.app.reset_queue("mail", by="ann") == [
        ("backoff", Backoff(1, 2), None),
        ("timeout", None, None),
        ("concurrency", 5, 25),
    ]
    assert in_effect(world) == (25, None, None)
    assert edits(world) == []
    world.app.set_queue("other", concurrency=1)
    world.app.reset_queue("other")
    assert in_effect(world, "other") == (None, None, None)
    assert world.app.reset_queue("other") == []
    assert world.app.reset_queue("nobody's") == []
    assert len(world.app.list_acts(action="reset_queue")) == 2, "what changes nothing is not recorded"
    assert [queue.name for queue in world.app.list_queues()] == ["mail", "other"]


def test_settings_go_only_with_a_program_that_says_exact(world: World) -> None:
    program(world, mail={"concurrency": 20}, other={"timeout": 1}).save_tasks()
    world.app.set_queue("other", backoff=7)
    program(world, new={"timeout": 3}).save_tasks()
    assert (in_effect(world)[0], in_effect(world, "other")[1]) == (20, 1.0)
    program(world, new={"timeout": 3}).save_tasks(exact=True)
    assert in_effect(world) == (None, None, None)
    assert in_effect(world, "other") == (None, None, Backoff(7, 900)), "an operator's edit stays"
    assert in_effect(world, "new") == (None, 3.0, None)
    assert [queue.declared for queue in world.app.list_queues()] == [None, {"timeout": 3.0}, None]
    world.producer().save_tasks(exact=True)
    assert in_effect(world, "new") == (None, None, None)


def test_an_enqueue_saves_declared_queues_once(world: World) -> None:
    app = program(world, mail={"concurrency": 20})
    app.tasks["work"].enqueue()
    assert in_effect(world) == (20, None, None)
    app.queue("late", timeout=5)
    listening = world.listen()
    app.tasks["work"].enqueue()
    assert in_effect(world, "late") == (None, 5.0, None)
    assert frozenset([QUEUES]) in listening
    listening.clear()
    app.tasks["work"].enqueue()
    program(world, mail={"concurrency": 20}).save_tasks()
    assert not any(QUEUES in topics for topics in listening), "nothing differs, so nothing is written"


def test_a_queue_is_declared_once(world: World) -> None:
    app = program(world, mail={"concurrency": 20, "timeout": 60})
    app.queue("mail", timeout=timedelta(seconds=60), concurrency=20)
    with pytest.raises(InvalidOption, match="mail is declared already") as refusal:
        app.queue("mail", concurrency=21)
    assert refusal.value.code == "queue.declared_twice"
    with pytest.raises(InvalidOption, match="concurency is not an option of a queue"):
        app.queue("mail", concurency=21)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "nonsense",
    [{"concurrency": 0}, {"concurrency": 1.5}, {"concurrency": 2**31}, {"timeout": 0}, {"timeout": "1"}],
)
def test_a_wrong_setting_is_refused_and_changes_nothing(world: World, nonsense: dict[str, Any]) -> None:
    world.app.set_queue("mail", concurrency=5, timeout=1)
    with pytest.raises(InvalidOption):
        world.app.set_queue("mail", **nonsense)
    with pytest.raises(InvalidOption):
        world.app.queue("mail", **nonsense)
    assert in_effect(world) == (5, 1.0, None)


def test_acts_say_what_was_set_and_what_was_removed(world: World) -> None:
    program(world, mail={"concurrency": 20, "timeout": 60}).save_tasks()
    world.app.set_queue("mail", concurrency=5, backoff=Backoff(1, 2), by="ann")
    world.app.set_queue("mail", timeout=None, by="bob")
    world.app.reset_queue("mail", by="eve")
    backoff = {"base": 1, "cap": 2, "codes": {}}
    assert [
        (act.action, act.actor, act.detail) for act in reversed(world.app.list_acts(subject="queue mail"))
    ] == [
        ("set_queue", "ann", {"backoff": backoff, "concurrency": 5, "before": {"concurrency": 20}}),
        ("set_queue", "bob", {"removed": {"timeout": 60.0}}),
        ("reset_queue", "eve", {"removed": {"backoff": backoff, "concurrency": 5}}),
    ]


def test_damaged_settings_count_as_none(world: World) -> None:
    program(world, mail={"concurrency": 20}).save_tasks()
    world.sql("UPDATE perdure.queue SET declared = '[1]', edited = '{\"a\": 1}'")
    (queue,) = world.app.list_queues()
    assert (queue.declared, queue.edits, queue.concurrency) == (None, [], 20)
    program(world, mail={"concurrency": 20}).save_tasks()
    assert world.app.list_queues()[0].declared == {"concurrency": 20}


@pytest.mark.parametrize("end", ["infinity", "-infinity", "9999-12-31", "0001-01-01"])
def test_extreme_values_that_others_wrote_stop_nobody(world: World, end: str) -> None:
    job = world.task(queue="mail").enqueue()
    world.app.pause_queue("mail", resume_at=timedelta(hours=1))
    far = {"infinity": 2**63 - 1, "-infinity": -(2**63), "9999-12-31": 253_402_214_400_000_000}.get(end, -1)
    at = f"'{end}'" if world.store.dialect == "postgres" else str(far)
    world.sql(f"UPDATE perdure.queue SET resume_at = {at}, timeout = {2**63 - 1}")
    past = end in ("-infinity", "0001-01-01")
    assert world.app.list_queues()[0].paused is not past
    assert world.app.stats().queues["mail"].paused is not past
    assert (world.app.explain_job(job.id).code == "queue_paused") is not past
    live = world.store.perform(list_live_settings)
    assert live.timeouts == {"mail": 2**63 - 1}
    assert (live.opens_in is None) is past
    assert bool(world.claim()) is past
