"""Lists by every condition, on both databases: all conditions must hold, and a text is taken literally."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.client.job import Job
from perdure.errors import InvalidOption
from perdure.model.job import SECOND
from perdure.model.lifecycle import Failed, Snoozed, Succeeded
from perdure.ops import browse
from perdure.ops.bulk_actions import DELETE, look
from perdure.request.filter import Filter
from perdure.request.times import from_us
from tests.conformance.world import NOON, World, ids


@pytest.fixture
def sqlite_world(sqlite_url: str) -> Iterator[World]:
    world = World(sqlite_url)
    yield world
    world.close()


HOSTILE = "'; DROP TABLE perdure_job; --"


def found(world: World, **wanted: Any) -> list[str]:
    return ids(world.app.list_jobs(**wanted))


def test_a_tag_is_one_of_those_a_job_has(world: World) -> None:
    work = world.task()
    red = work.using(tags=["red", "loud"]).enqueue()
    both = work.using(tags=["blue", "red"]).enqueue()
    work.using(tags=["reddish", 'x"red"']).enqueue()
    work.enqueue()
    assert found(world, tag="red") == ids([both, red])
    assert found(world, tag="re") == []
    assert found(world, tag='x"red"') != []
    world.sql("UPDATE perdure.job SET tags = '7' WHERE id = :id", id=both.id)
    assert found(world, tag="red") == [red.id], "what others wrote is no list of tags"


def test_keys_find_their_jobs(world: World) -> None:
    work, other = world.task(), world.task("other")
    keyed = work.using(idempotency_key="order-7").enqueue()
    theirs = other.using(idempotency_key="order-7", tenant="acme").enqueue()
    unique = work.using(unique_key="order-7").enqueue()
    work.using(idempotency_key="order-8", unique_key="order-8").enqueue()
    assert found(world, idempotency_key="order-7") == ids([theirs, keyed])
    assert found(world, idempotency_key="order-7", task="work") == [keyed.id]
    assert found(world, idempotency_key="order-7", tenant="acme") == [theirs.id]
    assert found(world, idempotency_key="order-7", before=theirs.id) == [keyed.id]
    assert found(world, idempotency_key="order-7", state="failed") == []
    assert found(world, unique_key="order-7") == [unique.id]
    world.app.cancel_job(unique.id)
    assert found(world, unique_key="order-7") == [unique.id], "also when it has ended"


def test_an_error_code_is_that_of_the_last_attempt(world: World) -> None:
    work = world.task(backoff=60)
    down = work.enqueue()
    world.attempt(Failed, "error", code="http.503", delay=60 * SECOND)
    gone = work.enqueue()
    world.attempt(Failed, "fatal", code="http.410")
    assert found(world, error_code="http.503") == [down.id]
    assert found(world, error_code="http.503", state="retrying") == [down.id]
    assert found(world, error_code="http.410", state="failed") == [gone.id]
    assert found(world, error_code="http") == []


def test_windows_of_time_are_open_at_their_end(world: World) -> None:
    work, jobs = world.task(), list[Job[Any]]()
    for _ in range(3):
        jobs.append(work.enqueue())
        world.advance(10)
        world.attempt(Succeeded)
    begun, ended = [from_us(NOON + n * 10 * SECOND) for n in range(3)], from_us(NOON + 20 * SECOND)
    assert found(world, created_after=begun[1]) == ids([jobs[2], jobs[1]])
    assert found(world, created_before=begun[1]) == [jobs[0].id]
    assert found(world, created_after=begun[1], created_before=begun[2]) == [jobs[1].id]
    assert found(world, finished_after=ended) == ids([jobs[2], jobs[1]])
    assert found(world, finished_before=ended) == [jobs[0].id]
    berlin = ended.astimezone().replace(microsecond=0)
    assert found(world, finished_after=berlin, task="work") == ids([jobs[2], jobs[1]])
    waiting = work.enqueue()
    assert waiting.id not in found(world, finished_before=datetime(2199, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    "text", ["50%", "a_b", "C:\\temp", 'say "hi"', "två\nrader", "日本", "[x]*", HOSTILE, "\\", "a\tb"]
)
def test_a_text_in_the_arguments_means_itself(world: World, text: str) -> None:
    work = world.task()
    job = work.enqueue(note=f"before {text} after")
    work.enqueue(note="50 percent, aXb, C:/temp, say hi, x")
    assert found(world, text=text) == [job.id]


def test_a_text_may_be_json_as_it_is_stored(world: World) -> None:
    job = world.task().enqueue(7, note="x")
    assert found(world, text='"n":7') == [job.id]
    assert found(world, text='{"n":7,"note":"x"}') == [job.id]
    assert found(world, text="N") == [], "letter by letter"


@pytest.mark.parametrize("name", ["queue", "tenant", "tag", "idempotency_key", "unique_key"])
def test_names_that_look_like_sql_are_names(world: World, name: str) -> None:
    work = world.task()
    option: Any = {name: [HOSTILE] if name == "tag" else HOSTILE}
    if name == "tag":
        option = {"tags": option["tag"]}
    job = work.using(**option).enqueue()
    work.enqueue()
    assert found(world, **{name: HOSTILE}) == [job.id]
    assert found(world, **{name: "' OR 1=1 --"}) == []


def test_all_conditions_hold_at_once(world: World) -> None:
    work = world.task(queue="mail")
    asked: dict[str, Any] = {"tenant": "acme", "tags": ["a"], "idempotency_key": "i", "unique_key": "u"}
    job = work.using(**asked).enqueue(7)
    world.attempt(Failed, "fatal", code="x.y")
    wanted: dict[str, Any] = {
        "queue": "mail",
        "task": "work",
        "state": "failed",
        "tenant": "acme",
        "tag": "a",
        "idempotency_key": "i",
        "unique_key": "u",
        "error_code": "x.y",
        "text": "7",
        "created_after": from_us(NOON),
        "created_before": from_us(NOON + 1),
        "finished_after": from_us(NOON),
        "finished_before": from_us(NOON + 1),
    }
    assert found(world, **wanted) == [job.id]
    other = {**dict.fromkeys(wanted, "other"), "state": "ready"}
    earlier, later = from_us(NOON - 1), from_us(NOON + 2)
    times = {"created_after": later, "created_before": earlier}
    times |= {"finished_after": later, "finished_before": earlier}
    for name, value in {**other, **times}.items():
        lone = {key: kept for key, kept in wanted.items() if key.split("_")[0] != name.split("_")[0]}
        assert found(world, **lone, **{name: value}) == [], name


def test_a_task_stands_for_its_name(world: World) -> None:
    work, other = world.task(), world.task("other")
    job, theirs = work.enqueue(), world.app.enqueue(other, {"n": 1})
    assert theirs.task == "other"
    assert found(world, task=work) == found(world, task="work") == [job.id]
    assert world.app.cancel_jobs(task=other).counts == {"canceled": 1}
    world.app.set_task(work, config={"limit": 3})
    assert world.app.get_task(work) == world.app.get_task("work")
    neither: Any = work.using(delay=5)
    for verb in (world.app.get_task, world.app.enqueue):
        with pytest.raises(InvalidOption, match="the task itself"):
            verb(neither)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"queue": "a\0b"}, "queue has a character that cannot be stored."),
        ({"text": "\ud800"}, "text has a character that cannot be stored."),
        ({"text": "\0"}, "text has a character that cannot be stored."),
        ({"text": " "}, "text must not be blank."),
        ({"text": "x" * 1001}, "text must be at most 1000 bytes long."),
        ({"tag": 7}, "tag must be a text."),
        ({"task": len}, "task must be the name of a task, or the task itself: what @app.task makes."),
        ({"idempotency_key": "k" * 513}, "idempotency_key must be at most 512 bytes long."),
        ({"state": "done"}, "state must be one of waiting, ready"),
        ({"state": ["failed"]}, "state must be one of"),
        ({"created_after": datetime(2026, 1, 1)}, "created_after must be a datetime with a time zone."),
        ({"finished_before": "yesterday"}, "finished_before must be a datetime with a time zone."),
        ({"colour": "red"}, "colour is not a condition: use queue, task, state"),
        (
            {"created_after": from_us(NOON), "created_before": from_us(NOON)},
            "created_after must be earlier than created_before",
        ),
    ],
)
def test_a_condition_that_cannot_be_is_refused(
    sqlite_world: World, wanted: dict[str, Any], said: str
) -> None:
    for verb in (sqlite_world.app.list_jobs, sqlite_world.app.cancel_jobs):
        with pytest.raises(InvalidOption) as refused:
            verb(**wanted)
        assert str(refused.value).startswith(said)


def test_few_among_many_are_found_in_stretches(world: World) -> None:
    work = world.task()
    jobs = world.app.enqueue_many(
        [work.using(queue="rare" if n % 40 == 7 else "a").job() for n in range(300)]
    )
    rare = [job.id for job in reversed(jobs) if job.queue == "rare"]
    pages, before = list[str](), None
    while page := found(world, queue="rare", limit=3, before=before):
        pages += page
        before = page[-1]
    assert pages == rare
    scan = world.store.perform(look, Filter(queue="rare"), among=DELETE.takes, length=100)
    assert [job.id for job in scan.jobs] == [id for id in rare if id in ids(jobs[-100:])]
    assert scan.end == jobs[-100].id


def test_what_runs_and_what_is_not_due_is_found_through_its_index(world: World) -> None:
    work = world.task(backoff=60)
    jobs = [work.enqueue() for _ in range(4)]
    world.attempt(Failed, "error", delay=60 * SECOND)
    world.attempt(Snoozed, 60 * SECOND)
    world.claim()
    assert found(world, state="running") == [jobs[2].id]
    assert found(world, state="running", text="nothing") == []
    assert found(world, state="retrying", queue="default") == [jobs[0].id]
    assert found(world, state="scheduled", before=jobs[1].id) == []
    assert found(world, state="scheduled", created_after=from_us(NOON) - timedelta(1)) == [jobs[1].id]


def test_a_page_of_everything_is_everything(world: World) -> None:
    work = world.task()
    jobs = world.app.enqueue_many([work.job() for _ in range(5)])
    assert [row.id for row in world.store.perform(browse.list_jobs, n=5)] == ids(jobs)[::-1]
