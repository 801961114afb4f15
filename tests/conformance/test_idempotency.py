"""Idempotency keys: the same request returns the same job; for a different one, the error names the field."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure.errors import IdempotencyConflict, JobGone, TaskDisabled
from perdure.model.lifecycle import Canceled, Failed, Succeeded
from perdure.request.times import from_us
from tests.conformance.world import NOON, World


def test_the_same_request_gives_the_same_job(world: World) -> None:
    asked = world.task(queue="mail").using(idempotency_key="k", priority=2, tags=["a"])
    first = asked.enqueue(1, note="x")
    again = asked.enqueue(1, note="x")
    assert first.created
    assert not again.created
    assert (again.id, again.state, again.queue, again.run) == (first.id, "ready", "mail", 1)
    assert (world.count("job"), world.count("key")) == (1, 1)


def test_positional_and_keyword_arguments_are_the_same_request(world: World) -> None:
    asked = world.task().using(idempotency_key="k")
    assert asked.enqueue(1).id == asked.enqueue(n=1).id


def test_meta_is_no_part_of_the_request(world: World) -> None:
    asked = world.task().using(idempotency_key="k")
    assert asked.using(meta={"trace": 1}).enqueue().id == asked.using(meta={"trace": 2}).enqueue().id


DIFFERENT_OPTIONS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("queue", {"queue": "a"}, {"queue": "b"}),
    ("queue", {"queue": "default"}, {}),
    ("priority", {"priority": 0}, {}),
    ("max_attempts", {"max_attempts": 8}, {"max_attempts": 9}),
    ("timeout", {"timeout": 900}, {}),
    ("delay", {"delay": 1}, {"delay": 2}),
    ("delay", {"delay": 0}, {}),
    ("run_at", {"run_at": from_us(NOON)}, {"run_at": from_us(NOON + 1)}),
    ("expires", {"expires": 60}, {"expires": timedelta(hours=1)}),
    ("tags", {"tags": ["a", "b"]}, {"tags": ["b", "a"]}),
    ("unique_key", {"unique_key": "u"}, {"unique_key": "v"}),
]


def test_a_different_option_is_a_conflict(world: World) -> None:
    task = world.task()
    for n, (field, one, other) in enumerate(DIFFERENT_OPTIONS):
        for key, first, second in ((f"{n}", one, other), (f"{n} back", other, one)):
            asked = task.using(idempotency_key=key, tenant=key)
            kept = asked.using(**first).enqueue()
            with pytest.raises(IdempotencyConflict) as conflict:
                asked.using(**second).enqueue()
            assert conflict.value.field == field
            assert asked.using(**first).enqueue().id == kept.id


DIFFERENT_ARGUMENTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("arguments.n", {"n": 1}, {"n": 2}),
    ("arguments.n", {"n": 0}, {}),
    ("arguments.note", {"n": 1}, {"n": 1, "note": ""}),
    ("arguments.n", {"n": 1}, {"n": True}),
    ("arguments.n", {"n": 0}, {"n": None}),
    ("arguments.n", {"n": "1"}, {"n": 1}),
    ("arguments.n", {"n": [1, 2]}, {"n": [2, 1]}),
    ("arguments.n", {"n": 2**53}, {"n": 2**53 + 1}),
]


def test_different_arguments_are_a_conflict(world: World) -> None:
    world.task()
    world.app.save_tasks()
    app = world.producer()
    for n, (field, one, other) in enumerate(DIFFERENT_ARGUMENTS):
        app.enqueue("work", one, idempotency_key=f"{n}")
        with pytest.raises(IdempotencyConflict) as conflict:
            app.enqueue("work", other, idempotency_key=f"{n}")
        assert conflict.value.field == field


EQUAL_ARGUMENTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"n": 1, "note": "x"}, {"note": "x", "n": 1}),
    ({"n": {"a": 1, "b": {"c": 2, "d": 3}}}, {"n": {"b": {"d": 3, "c": 2}, "a": 1}}),
    ({"n": 1}, {"n": 1.0}),
    ({"n": 10**16}, {"n": 1e16}),
]


def test_equal_arguments_in_another_spelling_are_the_same_request(world: World) -> None:
    world.task()
    world.app.save_tasks()
    app = world.producer()
    for n, (one, other) in enumerate(EQUAL_ARGUMENTS):
        first = app.enqueue("work", one, idempotency_key=f"{n}")
        again = app.enqueue("work", other, idempotency_key=f"{n}")
        assert (again.id, again.created) == (first.id, False)


def test_a_key_belongs_to_one_task_and_one_tenant_or_to_none(world: World) -> None:
    work, play = world.task("work"), world.task("play")
    scopes: list[tuple[Any, str | None]] = [(work, None), (work, "a"), (work, "b"), (play, None), (play, "a")]
    jobs = [task.using(idempotency_key="k", tenant=tenant).enqueue() for task, tenant in scopes]
    assert len({job.id for job in jobs}) == len(scopes)
    again = [task.using(idempotency_key="k", tenant=tenant).enqueue() for task, tenant in scopes]
    assert [job.id for job in again] == [job.id for job in jobs]


def test_a_key_answers_after_its_task_was_disabled(world: World) -> None:
    asked = world.task().using(idempotency_key="k")
    job = asked.enqueue(1)
    world.app.set_task("work", enabled=False)
    assert asked.enqueue(1).id == job.id
    with pytest.raises(IdempotencyConflict):
        asked.enqueue(2)
    with pytest.raises(TaskDisabled):
        asked.using(idempotency_key="new").enqueue(1)


def test_a_refused_enqueue_leaves_its_key_free(world: World) -> None:
    asked = world.task().using(idempotency_key="k")
    world.app.save_tasks()
    world.app.set_task("work", enabled=False)
    with pytest.raises(TaskDisabled):
        asked.enqueue(1)
    world.app.set_task("work", enabled=True)
    assert asked.enqueue(2).created


def test_a_key_answers_after_its_job_ended(world: World) -> None:
    task = world.task()
    asked = [task.using(idempotency_key=key) for key in ("1", "2", "3")]
    jobs = [one.enqueue() for one in asked]
    world.attempt(Succeeded)
    world.attempt(Failed, "fatal")
    world.attempt(Canceled, "enough")
    again = [one.enqueue() for one in asked]
    assert [(job.id, job.created, job.attempt) for job in again] == [(job.id, False, 1) for job in jobs]
    assert [job.state for job in again] == ["succeeded", "failed", "canceled"]


def test_a_deleted_job_takes_its_key_along(world: World) -> None:
    asked = world.task().using(idempotency_key="k")
    job = asked.enqueue(1)
    assert world.app.delete_job(job.id) == "deleted"
    assert world.count("key") == 0
    fresh = asked.enqueue(2)
    assert fresh.created
    assert fresh.id != job.id


def test_a_kept_key_outlives_its_job(url: str) -> None:
    world = World(url, keep_keys_for=3600)
    asked = world.task().using(idempotency_key="k")
    job = asked.enqueue(1)
    world.app.delete_job(job.id)
    again = asked.enqueue(1)
    assert (again.id, again.created, again.state, again.queue) == (job.id, False, None, None)
    with pytest.raises(JobGone):
        again.refresh()
    with pytest.raises(IdempotencyConflict):
        asked.enqueue(2)
    assert world.count("job") == 0
    world.close()


def test_a_conflict_inside_a_batch_undoes_the_batch(world: World) -> None:
    work = world.task()
    kept = work.using(idempotency_key="k").enqueue(1)
    heard = world.listen()
    with pytest.raises(IdempotencyConflict):
        world.app.enqueue_many(
            [work.job(1), work.using(idempotency_key="new").job(1), work.using(idempotency_key="k").job(2)]
        )
    assert [job.id for job in world.app.list_jobs()] == [kept.id]
    assert world.count("key") == 1
    assert heard == []
