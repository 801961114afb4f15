"""Bulk actions on all jobs that match a filter: in batches, only on allowed states, and always finite."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
import pytest

from perdure.client import bulk
from perdure.client.job import Job
from perdure.errors import InvalidOption
from perdure.model.job import Lease
from perdure.model.lifecycle import Canceled, Failed, Outcome, Succeeded
from perdure.model.redact import HIDDEN
from perdure.ops import bulk_actions
from perdure.request.filter import Filter
from perdure.request.times import from_us
from perdure.store.store import Store
from tests.conformance.flow import Flow
from tests.conformance.test_operate import detail
from tests.conformance.world import NOON, World, ids
from tests.harness.processes import read_line, start
from tests.sql.recorder import Recorder

HOSTILE = "x'); DELETE FROM perdure.job; --"


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scan ranges of seven jobs at first, batches of three."""
    monkeypatch.setattr(bulk, "BATCH", 3)
    monkeypatch.setattr(bulk, "CHUNK", 7)


def in_every_state(world: World) -> dict[str, Job[Any]]:
    """One job of each state, under its name."""
    work = world.task(backoff=3600)
    jobs: dict[str, Job[Any]] = {}
    ends: dict[str, Callable[[Lease], Outcome]] = {
        "succeeded": Succeeded,
        "failed": lambda lease: Failed(lease, "fatal", code="x.fatal"),
        "canceled": lambda lease: Canceled(lease, "enough"),
        "retrying": lambda lease: Failed(lease, "error", code="x.error"),
    }
    for name, end in ends.items():
        jobs[name] = work.enqueue()
        world.attempt(end)
    jobs["running"] = work.enqueue()
    world.claim_one()
    jobs["scheduled"] = work.using(delay=3600).enqueue()
    jobs["ready"] = work.enqueue()
    return jobs


def states(world: World, jobs: dict[str, Job[Any]]) -> dict[str, str]:
    found = world.app.get_jobs(ids([*jobs.values()]))
    return {name: "gone" if job is None else str(job.state) for name, job in zip(jobs, found, strict=True)}


def test_cancel_takes_what_has_not_ended(world: World) -> None:
    jobs = in_every_state(world)
    world.listen()
    acted = world.app.cancel_jobs(task="work", reason="withdrawn", by="ann")
    assert acted.counts == {"canceled": 3, "cancel_requested": 1}
    changed = dict.fromkeys(("retrying", "scheduled", "ready"), "canceled")
    ended = {name: name for name in ("succeeded", "failed", "canceled", "running")}
    assert states(world, jobs) == {**changed, **ended}
    for name in changed:
        row = world.row(jobs[name])
        assert (row.reason, row.finished_at, row.cancel_requested_at) == ("withdrawn", NOON, NOON)
        assert detail(world, jobs[name]) == {"kind": "canceled", "reason": "withdrawn", "by": "ann"}
    assert detail(world, jobs["running"])["kind"] == "cancel requested"
    assert world.woken == [frozenset(["ended", f"worker/{world.worker}"])]
    assert world.app.cancel_jobs(task="work").counts == {"cancel_requested": 1}, (
        "asked once more, nothing else"
    )


def test_requeue_takes_what_failed_or_was_canceled(world: World) -> None:
    jobs = in_every_state(world)
    before = {name: world.row(job) for name, job in jobs.items()}
    world.listen()
    assert world.app.requeue_jobs(all=True, reason="fixed", by="ann").counts == {"requeued": 2}
    for name in ("failed", "canceled"):
        row = world.row(jobs[name])
        assert (row.state, row.run, row.attempt, row.error_code, row.reason) == ("ready", 2, 0, None, None)
        was = {"was": name, "because": before[name].reason}
        assert detail(world, jobs[name]) == {"kind": "requeued", "reason": "fixed", "by": "ann", **was}
        assert [attempt.run for attempt in world.attempts(jobs[name])] == [1]
    others = jobs.keys() - {"failed", "canceled"}
    assert {name: world.row(jobs[name]) for name in others} == {name: before[name] for name in others}
    assert world.woken == [frozenset(["queue/default"])]


@pytest.mark.parametrize("keep", [False, True])
def test_requeue_may_keep_checkpoints(world: World, keep: bool) -> None:
    job = world.task().enqueue()
    world.sql("UPDATE perdure.job SET checkpoint = '{\"page\":7}'")
    world.attempt(Failed, "fatal")
    world.app.requeue_jobs(state="failed", keep_checkpoint=keep)
    assert world.row(job).checkpoint == ('{"page":7}' if keep else None)
    dropped = {} if keep else {"checkpoint": '{"page":7}'}
    assert detail(world, job) == {"kind": "requeued", "was": "failed", "because": "fatal", **dropped}


def test_run_now_takes_what_waits_for_its_time(world: World) -> None:
    jobs = in_every_state(world)
    before = {name: world.row(job) for name, job in jobs.items()}
    world.listen()
    assert world.app.run_jobs_now(all=True, by="ann").counts == {"due_now": 2}
    for name in ("scheduled", "retrying"):
        assert world.row(jobs[name]).run_at == NOON
        assert detail(world, jobs[name]) == {"kind": "run now", "by": "ann"}
    others = jobs.keys() - {"scheduled", "retrying"}
    assert {name: world.row(jobs[name]) for name in others} == {name: before[name] for name in others}
    assert world.woken == [frozenset(["queue/default"])]
    assert world.app.run_jobs_now(all=True).counts == {}


def test_delete_takes_all_and_asks_what_runs_to_stop(world: World) -> None:
    jobs = in_every_state(world)
    kept = world.task("other").using(queue="kept", idempotency_key="k").enqueue()
    assert world.app.delete_jobs(queue="default", by="ann").counts == {"deleted": 6, "cancel_requested": 1}
    assert states(world, jobs) == {**dict.fromkeys(jobs, "gone"), "running": "running"}
    assert detail(world, jobs["running"]) == {"kind": "cancel requested", "reason": "deleted", "by": "ann"}
    assert world.row(jobs["running"]).reason == "deleted"
    assert world.row(kept).state == "ready", "and no other"
    assert [world.count(table) for table in ("attempt", "key", "log")] == [0, 1, 0]
    world.lose_worker()
    assert world.app.delete_jobs(queue="default").counts == {"deleted": 1}


@pytest.mark.parametrize("keep", [None, 60])
def test_deleted_jobs_leave_their_keys_as_long_as_one_that_is_deleted(url: str, keep: int | None) -> None:
    world = World(url, keep_keys_for=keep)
    work = world.task()
    for n in range(3):
        work.using(idempotency_key=f"k-{n}").enqueue()
    world.app.delete_jobs(all=True)
    until = "SELECT kept_until IS NOT NULL FROM perdure.key"
    assert [bool(kept) for (kept,) in world.sql(until)] == ([] if keep is None else [True] * 3)
    world.close()


def test_a_filter_may_choose_any_of_them(world: World) -> None:
    jobs = in_every_state(world)
    assert world.app.cancel_jobs(state="retrying", error_code="x.error").counts == {"canceled": 1}
    assert world.app.delete_jobs(state="running").counts == {"cancel_requested": 1}
    assert world.app.delete_jobs(state="failed", finished_before=from_us(NOON)).counts == {}
    assert world.app.delete_jobs(state="failed", finished_after=from_us(NOON)).counts == {"deleted": 1}
    expected = {**{name: name for name in jobs}, "retrying": "canceled", "failed": "gone"}
    assert states(world, jobs) == {**expected, "scheduled": "ready"}


@pytest.mark.parametrize(
    ("verb", "state", "takes"),
    [
        ("cancel_jobs", "failed", "waiting or ready or scheduled or retrying or held or running or open"),
        ("requeue_jobs", "succeeded", "failed or canceled"),
        ("requeue_jobs", "running", "failed or canceled"),
        ("run_jobs_now", "ready", "scheduled or retrying"),
    ],
)
def test_a_state_that_the_act_does_not_take_is_refused(
    world: World, verb: str, state: str, takes: str
) -> None:
    with pytest.raises(InvalidOption, match=f"^{verb} takes jobs that are {takes}, not {state}\\.$"):
        getattr(world.app, verb)(state=state)


@pytest.mark.parametrize("verb", ["cancel_jobs", "requeue_jobs", "run_jobs_now", "delete_jobs"])
def test_every_job_must_be_asked_for(world: World, verb: str) -> None:
    job = world.task().enqueue()
    act = getattr(world.app, verb)
    for nothing in ({}, {"queue": None}, {"all": False}):
        with pytest.raises(InvalidOption, match="for every job give all=True"):
            act(**nothing)
    with pytest.raises(InvalidOption, match="give conditions or all, not both"):
        act(all=True, queue="default")
    for flag in ({"all": "yes"}, {"all": True, "dry_run": "no"}):
        with pytest.raises(InvalidOption, match="must be True or False"):
            act(**flag)
    with pytest.raises(InvalidOption, match="progress must be a function"):
        act(all=True, progress="loud")
    assert (world.row(job).state, world.count("act")) == ("ready", 0)


def test_a_unique_key_that_is_taken_is_skipped_and_counted(world: World) -> None:
    unique = world.task().using(unique_key="u")
    first = unique.enqueue()
    world.attempt(Failed, "fatal")
    second = unique.enqueue()
    world.attempt(Failed, "fatal")
    third = unique.using(unique_key="v").enqueue()
    world.attempt(Failed, "fatal")
    elsewhere = unique.using(unique_key="v", tenant="acme").enqueue()
    world.attempt(Failed, "fatal")
    active = unique.using(unique_key="v").enqueue()
    assert world.app.requeue_jobs(all=True).counts == {"requeued": 2, "unique_key_taken": 2}
    jobs = (first, second, third, elsewhere, active)
    assert [world.row(job).state for job in jobs] == ["failed", "ready", "failed", "ready", "ready"]


def test_a_twin_that_expired_gives_its_key_up(world: World) -> None:
    unique = world.task().using(unique_key="u")
    job = unique.enqueue()
    world.attempt(Failed, "fatal")
    twin = unique.using(expires=5).enqueue()
    world.advance(5)
    assert world.app.requeue_jobs(state="failed").counts == {"requeued": 1}
    assert (world.row(job).state, world.row(twin).reason) == ("ready", "expired")


def test_steps_are_canceled_with_what_needs_them_and_skipped_otherwise(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"], c=["~b"], gate=["a"]))
    lone = flow.work.using(queue="lone").enqueue()
    app = flow.app
    assert app.delete_jobs(task="work", queue="default").counts == {"is_a_step": 3}
    assert app.cancel_jobs(state="ready").counts == {"canceled": 2}
    assert flow.states(started) == {"a": "canceled", "b": "canceled", "c": "ready", "gate": "canceled"}
    assert flow.status(started) == "running"
    assert app.requeue_jobs(all=True).counts == {"requeued": 1, "is_a_step": 3}
    assert flow.world.row(lone).run == 2
    assert app.cancel_jobs(all=True).counts == {"canceled": 2}
    assert flow.status(started) == "failed"


def test_parents_and_children_in_one_batch(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"], c=["b"], d=["~c"]))
    other = flow.start(flow.of(a=[], gate=["a"]))
    flow.world.listen()
    assert flow.app.cancel_jobs(all=True).counts == {"canceled": 6}
    assert set(flow.states(started).values()) == {"canceled"}
    assert (flow.status(started), flow.status(other)) == ("failed", "failed")
    assert flow.world.woken == [frozenset(["ended"])]


@pytest.mark.usefixtures("small_batches")
def test_each_batch_is_told_and_each_job_is_met_once(world: World) -> None:
    work = world.task()
    world.app.enqueue_many([work.job() for _ in range(20)])
    seen: list[dict[str, int]] = []

    def progress(counts: Any) -> None:
        seen.append(dict(counts))
        work.enqueue()

    acted = world.app.cancel_jobs(queue="default", progress=progress)
    assert acted.counts == {"canceled": 20}, "what is newer is not met"
    assert seen[0] == {"canceled": 3}
    assert [counts["canceled"] for counts in seen] == [3, 6, 7, 10, 13, 16, 19, 20]
    assert len(world.app.list_jobs(state="ready")) == len(seen)


@pytest.mark.usefixtures("small_batches")
def test_an_act_that_is_stopped_goes_on_when_it_is_called_again(world: World) -> None:
    work = world.task()
    jobs = world.app.enqueue_many([work.job() for _ in range(10)])

    def stop(counts: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.app.delete_jobs(all=True, progress=stop, by="ann")
    assert world.count("job") == 7
    (told,) = world.app.list_acts()
    assert (told.detail["counts"], told.actor) == ({"deleted": 3}, "ann"), "what was done is told"
    assert world.app.delete_jobs(all=True).counts == {"deleted": 7}
    assert world.app.get_jobs(ids(jobs)) == [None] * 10


PROGRAM = """
import sys
from perdure import App
from perdure.client import bulk

bulk.BATCH = 3
app = App(sys.argv[1])
app.delete_jobs(queue="default", by="ann", progress=lambda counts: (print(counts, flush=True), sys.stdin.read()))
"""


def test_an_act_whose_process_is_killed_goes_on_when_it_is_called_again(world: World) -> None:
    work = world.task()
    world.app.enqueue_many([work.job() for _ in range(10)])
    with start("-c", PROGRAM, world.url) as killed:
        assert read_line(killed) == "Counter({'deleted': 3})"
        killed.kill()
    assert world.count("job") == 7
    assert world.app.list_acts()[0].detail["counts"] == {"deleted": 3}
    assert world.app.delete_jobs(queue="default").counts == {"deleted": 7}


def test_twenty_thousand_jobs_cost_twenty_times_as_much_as_a_thousand(world: World) -> None:
    work = world.task()
    asked: dict[int, int] = {}
    for number in (1000, 19_000):
        world.app.enqueue_many([work.job() for _ in range(number)])
        recorder = Recorder(world.store)
        world.app._store = cast(Store, recorder)
        assert world.app.cancel_jobs(queue="default").counts == {"canceled": number}
        world.app._store = world.store
        asked[number] = len(recorder.queries)
    batches = {number: number // bulk_actions.BATCH for number in asked}
    assert all(asked[number] <= 4 * batches[number] + 6 for number in asked), asked


@pytest.mark.usefixtures("small_batches")
def test_a_dry_run_counts_and_changes_nothing(world: World) -> None:
    jobs = in_every_state(world)
    before = {name: world.row(job) for name, job in jobs.items()}
    app = world.app
    assert app.cancel_jobs(all=True, dry_run=True).counts == {"canceled": 3, "cancel_requested": 1}
    assert app.requeue_jobs(all=True, dry_run=True).counts == {"requeued": 2}
    assert app.run_jobs_now(all=True, dry_run=True).counts == {"due_now": 2}
    assert app.delete_jobs(all=True, dry_run=True) == ({"deleted": 6, "cancel_requested": 1}, None)
    assert {name: world.row(job) for name, job in jobs.items()} == before
    assert (world.count("act"), world.count("event")) == (0, 0)


@contextmanager
def holding(world: World, *jobs: Job[Any]) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(world.url) as connection:
        for job in jobs:
            connection.execute("SELECT FROM perdure.job WHERE id = %s FOR UPDATE", [job.id])
        yield connection


def test_a_row_that_somebody_holds_is_asked_for_again(postgres_world: World) -> None:
    world = postgres_world
    work = world.task()
    jobs = [work.enqueue() for _ in range(3)]
    with holding(world, jobs[1]) as other:

        def let_go(counts: Any) -> None:
            assert counts == {"canceled": 2} or other.info.transaction_status == 0
            other.commit()

        assert world.app.cancel_jobs(all=True, progress=let_go).counts == {"canceled": 3}


def test_a_row_that_is_held_for_ever_is_counted(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PATIENCE", 0.1)
    world = postgres_world
    flow = Flow(world)
    started = flow.start(flow.of(a=[], b=["a"]))
    jobs = [flow.work.enqueue() for _ in range(3)]
    with holding(world, jobs[1]) as other:
        other.execute("SELECT FROM perdure.workflow WHERE id = %s FOR UPDATE", [started.id])
        assert world.app.cancel_jobs(all=True).counts == {"canceled": 2, "locked": 3}
    assert world.app.cancel_jobs(all=True).counts == {"canceled": 3}
    assert flow.status(started) == "failed"


def test_what_no_longer_fits_under_its_lock_is_left_alone(world: World) -> None:
    work = world.task()
    jobs = [work.using(delay=60).enqueue() for _ in range(4)]
    action = bulk_actions.BulkProgress("delete_jobs", Filter(state="scheduled"), bulk_actions.Counts())
    found = world.store.perform(
        bulk_actions.look, action.filter, among=bulk_actions.DELETE.takes, length=9
    ).jobs
    assert len(found) == 4
    world.app.run_now(jobs[0].id)
    world.claim()
    world.app.cancel_job(jobs[1].id)
    world.app.delete_job(jobs[2].id)
    action, locked = world.store.perform(bulk_actions.DELETE.batch, found, action)
    assert (action.counts, locked) == ({"deleted": 1}, [])
    assert [world.row(job).state for job in jobs[:2]] == ["running", "canceled"]


def test_a_batch_takes_a_handful_of_statements(world: World) -> None:
    work = world.task()
    world.app.enqueue_many([work.using(delay=60, unique_key=str(n)).job() for n in range(bulk_actions.BATCH)])
    recorder = Recorder(world.store)
    action = bulk_actions.BulkProgress("act", Filter(queue="default"), bulk_actions.Counts())
    for verb, most in (
        (bulk_actions.RUN_NOW, 4),
        (bulk_actions.CANCEL, 4),
        (bulk_actions.REQUEUE, 7),
        (bulk_actions.DELETE, 10),
    ):
        found = recorder.perform(bulk_actions.look, action.filter, among=verb.takes, length=1000).jobs
        assert len(found) == bulk_actions.BATCH
        recorder.queries.clear()
        recorder.perform(verb.batch, found, action)
        assert len(recorder.queries) <= most, [query.name for query in recorder.queries]


@pytest.mark.parametrize("flag", ["all", "dry_run", "keep_checkpoint"])
@pytest.mark.parametrize("value", ["no", 1, None])
def test_yes_or_no_is_no_text(world: World, flag: str, value: Any) -> None:
    job = world.task().enqueue()
    job.cancel()
    asked = {flag: value} if flag == "all" else {"all": True, flag: value}
    with pytest.raises(InvalidOption, match=f"{flag} must be True or False"):
        world.app.requeue_jobs(**asked)
    with pytest.raises(InvalidOption, match=f"{flag} must be True or False"):
        world.app.requeue_jobs(**{"queue": "default", flag: value})
    assert world.row(job).state == "canceled"


def test_names_that_look_like_sql_are_names(world: World) -> None:
    work = world.task()
    job = work.using(queue=HOSTILE, tags=[HOSTILE]).enqueue(note=HOSTILE)
    other = work.enqueue()
    acted = world.app.cancel_jobs(queue=HOSTILE, tag=HOSTILE, text=HOSTILE, reason=HOSTILE, by=HOSTILE)
    assert acted.counts == {"canceled": 1}
    assert (world.row(job).reason, world.row(other).state) == (HOSTILE, "ready")
    (told,) = world.app.list_acts(actor=HOSTILE)
    assert told.detail["filter"] == {"queue": HOSTILE, "tag": HOSTILE, "text": HIDDEN}


def test_requeues_beside_workers_that_go_on_failing_end_and_take_each_job_once(url: str) -> None:
    world = World(url)
    work, over = world.task(), threading.Event()
    jobs = world.app.enqueue_many([work.job() for _ in range(300)])
    while claimed := world.claim(100):
        world.finish(*(Failed(job.lease, "fatal") for job in claimed))

    def fail() -> None:
        while not over.is_set():
            taken = world.claim(20)
            world.finish(*(Failed(job.lease, "fatal") for job in taken))

    workers = [threading.Thread(target=fail) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        acted = world.app.requeue_jobs(state="failed", by="ann")
    finally:
        over.set()
        for worker in workers:
            worker.join()
    assert acted.counts == {"requeued": 300}
    assert {world.row(job).run for job in jobs} == {2}
    world.close()


def test_an_act_on_many_is_told_once(world: World) -> None:
    work = world.task()
    for _ in range(2):
        world.app.pause_queue("mail", by="bob")
    acts = world.app.list_acts()
    world.app.enqueue_many([work.job() for _ in range(2 * bulk_actions.BATCH + 1)])
    acted = world.app.cancel_jobs(queue="default", created_after=from_us(NOON), reason="late", by="ann")
    told, *others = world.app.list_acts()
    assert others == acts
    assert (told.id, told.at, told.actor, told.action, told.subject) == (
        acted.act_id,
        from_us(NOON),
        "ann",
        "cancel_jobs",
        "jobs",
    )
    assert told.detail == {
        "filter": {"queue": "default", "created_after": "2027-01-15T08:00:00+00:00"},
        "reason": "late",
        "counts": {"canceled": 2 * bulk_actions.BATCH + 1},
    }
    assert world.app.cancel_jobs(queue="default") == ({}, None), "what changes nothing is not told"
    assert world.app.list_acts() == [told, *others]


def test_acts_on_what_is_no_job_are_told(flow: Flow) -> None:
    app = flow.app
    job = flow.work.enqueue()
    app.pause_queue("mail", by="ann")
    app.resume_queue("mail", by="bob")
    app.set_queue("mail", backoff=5)
    app.set_task("work", enabled=False, by="ann")
    app.set_task("work", enabled=True, by="ann")
    started = flow.start(flow.of(gate=[]))
    app.resolve_gate(started.id, "gate", "failed", reason="too dear", by="ann")
    app.requeue_workflow(started.id, by="ann")
    app.cancel_workflow(started.id, reason="enough", by="ann")
    app.delete_job(job.id, by="ann")
    told = [(act.action, act.actor, act.subject) for act in reversed(app.list_acts())]
    workflow = f"workflow {started.id}"
    assert told == [
        ("pause_queue", "ann", "queue mail"),
        ("resume_queue", "bob", "queue mail"),
        ("set_queue", None, "queue mail"),
        ("set_task", "ann", "task work"),
        ("set_task", "ann", "task work"),
        ("resolve_gate", "ann", workflow),
        ("requeue_workflow", "ann", workflow),
        ("cancel_workflow", "ann", workflow),
        ("delete_job", "ann", f"job {job.id}"),
    ]
    assert app.list_acts(action="resolve_gate")[0].detail == {
        "gate": "gate",
        "resolution": "failed",
        "reason": "too dear",
    }
    assert app.list_acts(action="delete_job")[0].detail == {"task": "work", "state": "ready"}
    page = app.list_acts(subject="queue mail", limit=2)
    assert [act.action for act in page] == ["set_queue", "resume_queue"]
    assert json.dumps(page[0].detail).startswith('{"backoff": {"base"')
    assert [act.action for act in app.list_acts(subject="queue mail", before=page[-1].id)] == ["pause_queue"]
    assert app.list_acts(actor="bob", action="pause_queue") == []


def test_a_refused_act_is_not_told(flow: Flow) -> None:
    started = flow.start(flow.of(a=[]))
    assert flow.app.requeue_workflow(started.id) == "not_ended"
    assert flow.app.list_acts() == []


async def test_the_async_twins_do_the_same(world: World) -> None:
    work, app = world.task(), world.app
    await app.aenqueue_many([work.using(delay=60).job() for _ in range(3)])
    assert (await app.arun_jobs_now(queue="default")).counts == {"due_now": 3}
    assert (await app.acancel_jobs(queue="default")).counts == {"canceled": 3}
    assert (await app.arequeue_jobs(queue="default")).counts == {"requeued": 3}
    assert (await app.adelete_jobs(queue="default")).counts == {"deleted": 3}
    assert len(await app.alist_acts()) == 4
