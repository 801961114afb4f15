"""Workflows: start, release, doom, status, cancel, requeue; on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from perdure import App, StartedWorkflow, Workflow
from perdure.errors import (
    IdempotencyConflict,
    InvalidWorkflow,
    JobFailed,
    Refused,
    TaskDisabled,
    WorkflowCanceled,
    WorkflowFailed,
    WorkflowNotFound,
)
from perdure.model.job import SECOND
from perdure.model.lifecycle import Canceled, Failed, Snoozed, Succeeded
from perdure.ops.notify import notify
from perdure.request.ids import new_id
from perdure.store.postgres import transaction
from perdure.store.statements import load
from perdure.store.store import Store
from tests.conformance.flow import Flow, outcome
from tests.conformance.world import World
from tests.harness.waiting import until
from tests.sql.recorder import Recorder


@contextmanager
def counted(flow: Flow) -> Iterator[list[str]]:
    """The statements that the store is asked for inside the block."""
    store, asked = flow.world.store, list[str]()
    recorder = Recorder(cast(Store, SimpleNamespace(perform=store.perform)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "perform", recorder.perform)
        yield asked
    asked += [query.name for query in recorder.queries]


DIAMOND: dict[str, Any] = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def test_steps_run_after_their_parents(flow: Flow) -> None:
    started = flow.start(flow.of(**DIAMOND))
    assert (started.created, started.status, started.run) == (True, "running", 1)
    assert flow.states(started) == {"a": "ready", "b": "waiting", "c": "waiting", "d": "waiting"}
    assert flow.run_all() == [["a"], ["b", "c"], ["d"]]
    assert flow.status(started) == "succeeded"
    assert started.finished_at is not None


def test_a_step_waits_for_its_last_parent(flow: Flow) -> None:
    started = flow.start(flow.of(**DIAMOND))
    flow.run()
    assert flow.run(n=1) == ["b"]
    assert flow.states(started)["d"] == "waiting"
    assert flow.run(n=1) == ["c"]
    assert flow.states(started)["d"] == "ready"


def test_what_can_no_longer_run_is_canceled_and_names_the_parent(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"], c=["b"], d=["~c"], e=["d"]))
    assert flow.run(fail=["a"]) == ["a"]
    assert flow.states(started) == {
        "a": "failed",
        "b": "canceled",
        "c": "canceled",
        "d": "ready",
        "e": "waiting",
    }
    reasons = flow.reasons(started)
    assert (reasons["b"], reasons["c"]) == ("after a, which failed", "after b, which was canceled")
    assert flow.status(started) == "running"
    assert flow.run_all() == [["d"], ["e"]]
    assert flow.status(started) == "failed"


def test_a_step_is_not_doomed_before_all_its_parents_ended(flow: Flow) -> None:
    """Otherwise a clean-up step would run while another parent still works."""
    started = flow.start(flow.of(a=[], b=[], c=["a", "b"], tidy=["~c"]))
    first, second = flow.claim()
    flow.world.finish(outcome(first, failed=True))
    assert flow.states(started)["c"] == "waiting"
    flow.world.finish(outcome(second))
    assert flow.states(started) == {"a": "failed", "b": "succeeded", "c": "canceled", "tidy": "ready"}
    assert flow.reasons(started)["c"] == "after a, which failed"


def test_of_several_parents_that_failed_the_first_that_was_made_is_told(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=[], c=["b", "a"]))
    flow.run_all(fail=["a", "b"])
    assert flow.reasons(started)["c"] == "after a, which failed"


def test_one_flush_ends_many_steps_of_many_workflows(flow: Flow) -> None:
    graphs = [flow.start(flow.of(a=[], b=[], c=["a", "b"], d=["~b"], e=["c"])) for _ in range(5)]
    plain = [flow.work.enqueue(n) for n in range(5)]
    jobs = flow.claim()
    assert len(jobs) == 15
    # In one: those that fail, those that succeed, and jobs of no workflow.
    flow.world.finish(*(outcome(job, failed=job.step_key == "a") for job in jobs))
    for graph in graphs:
        assert flow.states(graph) == {
            "a": "failed",
            "b": "succeeded",
            "c": "canceled",
            "d": "ready",
            "e": "canceled",
        }
        flow.check(graph)
    assert [job.refresh().state for job in plain] == ["succeeded"] * 5


def test_an_outcome_told_twice_releases_once(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=[], c=["a", "b"]))
    first, _ = flow.claim()
    for _ in range(2):
        assert flow.world.finish(outcome(first)).refused == []
    assert flow.states(started)["c"] == "waiting"
    flow.check(started)


def test_a_stale_lease_releases_nothing(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"]))
    (lost,) = flow.claim()
    assert flow.world.lose_worker() == [lost.id]
    assert flow.world.finish(outcome(lost)).refused == [lost.lease]
    assert flow.states(started) == {"a": "ready", "b": "waiting"}
    assert flow.run_all() == [["a"], ["b"]]
    assert flow.status(started) == "succeeded"


def test_a_step_that_does_not_say_so_is_refused(flow: Flow) -> None:
    flow.start(flow.of(a=[], b=["a"]))
    (job,) = flow.claim()
    assert flow.world.finish(Succeeded(job.lease, "1")).refused == [job.lease]
    other = flow.work.enqueue(1)
    (alone,) = flow.world.claim()
    assert alone.id == other.id
    both = flow.world.finish(Succeeded(job.lease, "1"), Succeeded(alone.lease, "2"))
    assert (both.accepted, both.refused) == ([alone.lease], [job.lease])
    assert flow.world.finish(outcome(job)).refused == []


def test_a_retry_releases_nothing(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"]))
    (job,) = flow.claim()
    flow.world.finish(Failed(job.lease, "error"))
    assert flow.states(started) == {"a": "ready", "b": "waiting"}
    flow.world.advance(3600)
    (job,) = flow.claim()
    flow.world.finish(Snoozed(job.lease, SECOND))
    assert flow.status(started) == "running"


def test_a_handler_that_gives_up_dooms_what_follows(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"]))
    (job,) = flow.claim()
    flow.world.finish(Canceled(job.lease, "no need"))
    assert flow.states(started) == {"a": "canceled", "b": "canceled"}
    assert flow.reasons(started)["b"] == "after a, which was canceled"
    assert flow.status(started) == "failed"


def test_the_loss_of_the_last_attempt_dooms_what_follows(flow: Flow) -> None:
    built = Workflow("once")
    built.step("a", flow.work.using(max_attempts=1).job(1))
    built.step("b", flow.work.job(1), after=["a"])
    built.step("c", flow.work.job(1), after_done=["a"])
    started = flow.start(built)
    flow.claim()
    flow.world.lose_worker()
    assert flow.states(started) == {"a": "failed", "b": "canceled", "c": "ready"}
    flow.check(started)


def test_a_delay_counts_from_the_release(flow: Flow) -> None:
    built = Workflow("slow")
    built.step("a", flow.work.job(1))
    built.step("b", flow.work.using(delay=60).job(1), after=["a"])
    flow.start(built)
    flow.world.advance(100)
    assert flow.run() == ["a"]
    assert flow.claim() == []
    flow.world.advance(59)
    assert flow.claim() == []
    flow.world.advance(1)
    assert flow.run() == ["b"]


def test_a_step_that_expires_dooms_what_follows(flow: Flow) -> None:
    built = Workflow("late")
    built.step("a", flow.work.using(expires=10).job(1))
    built.step("b", flow.work.job(1), after=["a"])
    built.step("c", flow.work.using(expires=10).job(1), after_done=["a"])
    built.step("d", flow.work.job(1), after_done=["a", "c"])
    started = flow.start(built)
    flow.world.advance(11)
    # A claim that meets it leaves it alone: it cannot end it without its workflow.
    assert flow.claim() == []
    assert flow.states(started)["a"] == "ready"
    assert flow.world.operations.expire() == 2
    assert flow.states(started) == {"a": "canceled", "b": "canceled", "c": "canceled", "d": "ready"}
    flow.check(started)
    assert flow.world.operations.expire() == 0


def test_a_released_step_wakes_its_queue(flow: Flow) -> None:
    flow.start(flow.of(a=[], b=["a"]))
    (job,) = flow.claim()
    woken = flow.world.listen()
    flow.world.finish(outcome(job))
    assert frozenset(["queue/default"]) in woken


# Start


def test_a_keyed_workflow_is_started_once(flow: Flow) -> None:
    options = {"idempotency_key": "k", "tenant": "acme"}
    first = flow.start(flow.of(options=options, **DIAMOND))
    again = flow.start(flow.of(options=options, d=["c", "b"], c=["a"], b=["a"], a=[]))
    assert (again.id, again.created) == (first.id, False)
    assert flow.world.count("job") == 4
    other = flow.start(flow.of(options={**options, "tenant": "other"}, **DIAMOND))
    assert other.created


def test_a_different_workflow_under_the_same_key_names_step_and_field(flow: Flow) -> None:
    options = {"idempotency_key": "k"}
    flow.start(flow.of(options=options, a=[], b=["a"]))
    for steps, field in (
        ({"a": [], "b": ["~a"]}, "steps.b.after"),
        ({"a": [], "b": ["a"], "c": []}, "steps.c"),
        ({"a": []}, "steps.b"),
    ):
        with pytest.raises(IdempotencyConflict, match=field) as caught:
            flow.start(flow.of(options=options, **steps))
        assert (caught.value.field, caught.value.code) == (field, "workflow.idempotency_conflict")
    changed = Workflow("flow", idempotency_key="k")
    changed.step("a", flow.work.job(2))
    changed.step("b", flow.work.job(1), after=["a"])
    with pytest.raises(IdempotencyConflict, match=r"steps\.a\.arguments\.n"):
        flow.start(changed)
    assert flow.world.count("job") == 2


def test_at_most_one_lives_under_a_unique_key(flow: Flow) -> None:
    options = {"unique_key": "nightly"}
    first = flow.start(flow.of(options=options, a=[]))
    twin = flow.start(flow.of(options=options, a=[], b=["a"]))
    assert (twin.id, twin.created) == (first.id, False)
    flow.run()
    assert flow.start(flow.of(options=options, a=[])).created


def test_an_unknown_or_disabled_task_starts_nothing(flow: Flow) -> None:
    flow.app.save_tasks()
    flow.app.set_task("work", enabled=False)
    with pytest.raises(TaskDisabled):
        flow.start(flow.of(a=[], gate=["a"]))
    assert (flow.world.count("workflow"), flow.world.count("job")) == (0, 0)


@pytest.mark.parametrize("total", [2_500, pytest.param(10_000, marks=pytest.mark.long)])
def test_thousands_of_steps_are_a_handful_of_statements(flow: Flow, total: int) -> None:
    built = Workflow("wide")
    root = built.step("root", flow.work.job(0))
    middle = [built.step(f"m{n}", flow.work.job(n), after=[root]) for n in range(total - 2)]
    built.step("end", flow.work.job(0), after=middle)
    with counted(flow) as asked:
        started = flow.start(built)
    assert len(asked) <= 10, asked
    (first,) = flow.claim()
    with counted(flow) as asked:
        flow.world.finish(outcome(first))
    long = ["lock_workflows", "finish_succeeded", "count_down", "release_steps", "settle_workflows"]
    assert asked == (long if flow.world.store.dialect == "sqlite" else ["lock_workflows", "succeed_steps"])
    row = started.refresh().row
    assert row is not None
    assert (row.active, row.waiting, row.total) == (total - 2, 1, total)


def test_a_workflow_in_which_something_failed_is_looked_at_from_then_on(postgres_world: World) -> None:
    flow = Flow(postgres_world)
    started = flow.start(flow.of(a=[], b=[], c=[], d=["a", "b"], e=["~a", "~c"]))
    a, b, c = flow.claim()
    flow.world.finish(outcome(a, failed=True))
    long = ["lock_workflows", "finish_succeeded", "count_down", "release_steps"]
    with counted(flow) as asked:
        assert flow.world.finish(outcome(b)).accepted == [b.lease]
    assert asked[:6] == ["lock_workflows", "succeed_steps", *long]
    with counted(flow) as asked:
        assert flow.world.finish(outcome(c)).accepted == [c.lease]
    assert asked == [*long, "settle_workflows"]
    assert flow.world.finish(outcome(c)).accepted == [c.lease], "it was recorded"
    assert flow.states(started) == {
        "a": "failed",
        "b": "succeeded",
        "c": "succeeded",
        "d": "canceled",
        "e": "ready",
    }
    flow.check(started)


def test_a_success_that_is_told_twice_releases_once(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=[], c=["a", "b"]))
    a, b = flow.claim()
    for _ in range(3):
        assert flow.world.finish(outcome(a)).accepted == [a.lease]
    assert flow.states(started)["c"] == "waiting"
    flow.world.finish(outcome(b))
    assert flow.states(started)["c"] == "ready"
    flow.check(started)


def test_a_step_that_is_released_rings_here_and_elsewhere(postgres_world: World) -> None:
    flow = Flow(postgres_world)
    flow.start(flow.of(a=[], b=["a"]))
    (a,) = flow.claim()
    here = flow.world.listen()
    elsewhere: list[frozenset[str]] = []
    with App(flow.world.url) as other:
        end = other.store.listen(elsewhere.append)
        # The first notification says that it listens.
        until(lambda: elsewhere or flow.world.store.perform(notify, frozenset(["queue/test"])))
        flow.world.finish(outcome(a))
        until(lambda: any("queue/default" in topics for topics in elsewhere))
        end()
    assert any("queue/default" in topics for topics in here)


@pytest.mark.parametrize("length", [2_500, pytest.param(10_000, marks=pytest.mark.long)])
def test_cancelling_the_head_of_a_long_chain_is_at_most_ten_statements(flow: Flow, length: int) -> None:
    built = Workflow("long")
    for n in range(length):
        built.step(f"s{n}", flow.work.job(n), after=[f"s{n - 1}"] if n else [])
    started = flow.start(built)
    head = started.steps()[0]
    with counted(flow) as asked:
        assert flow.app.cancel_job(head.id) == "canceled"
    assert len(asked) <= 10, asked
    assert flow.status(started) == "failed"
    assert flow.reasons(started)[f"s{length - 1}"] == f"after s{length - 2}, which was canceled"


def test_a_table_that_was_just_emptied_makes_no_graph_dear(postgres_world: World) -> None:
    """Vacuumed then, it looks like a row or two: a join would try each child with each parent."""
    flow = Flow(postgres_world)

    def line(n: int) -> Workflow:
        steps: dict[str, Any] = {f"s{i}": [f"s{i - 1}"] if i else [] for i in range(n)}
        return flow.of(**steps)

    flow.start(line(3000))
    kept = flow.start(line(2))  # at the end, or the file would be cut
    flow.world.sql(f"DELETE FROM perdure.job WHERE workflow_id <> '{kept.id}'")
    flow.world.sql("DELETE FROM perdure.dependency WHERE child NOT IN (SELECT id FROM perdure.job)")
    with psycopg.connect(flow.world.url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE perdure.job")
        connection.execute("VACUUM ANALYZE perdure.dependency")
        connection.execute(transaction.WRITE_SETTINGS["normal"].text.replace(b"$1", b"false"))
        started = flow.start(line(3000))
        for name in ("list_edges", "list_waiting_edges"):
            text = load("postgres")[name].replace("%(workflow)s", f"'{started.id}'")
            (plan,) = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}".encode()).fetchall()
            assert most_rows(plan[0][0]["Plan"]) <= 10_000, name


def most_rows(node: Any) -> float:
    """The rows that the busiest node of a plan looked at."""
    looked = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    looked += node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"]
    return max(looked, *map(most_rows, node.get("Plans", [])), 0)


# Cancel


def test_a_canceled_workflow_ends_when_its_running_steps_have(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=[], c=["a"], gate=[], d=["~gate"]))
    running = flow.claim(1)
    woken = flow.world.listen()
    assert flow.app.cancel_workflow(started.id, reason="withdrawn") == "cancel_requested"
    assert any("worker/worker-1" in topics for topics in woken)
    assert flow.status(started) == "running"
    assert sorted(flow.states(started).values()) == ["canceled"] * 4 + ["running"]
    assert flow.app.cancel_workflow(started.id) == "cancel_requested"
    assert flow.claim() == []
    flow.world.finish(Failed(running[0].lease, "error"))
    assert flow.status(started) == "canceled"
    assert (started.reason, flow.app.cancel_workflow(started.id)) == ("withdrawn", "already_ended")
    with pytest.raises(WorkflowCanceled):
        started.get(timeout=0)


def test_a_finished_workflow_stays_as_it_is(flow: Flow) -> None:
    started = flow.start(flow.of(a=[]))
    flow.run()
    assert flow.app.cancel_workflow(started.id) == "already_ended"
    assert flow.status(started) == "succeeded"


def test_a_success_under_a_cancel_that_was_the_last_is_a_success(flow: Flow) -> None:
    started = flow.start(flow.of(a=[]))
    (job,) = flow.claim()
    flow.app.cancel_workflow(started.id)
    flow.world.finish(outcome(job))
    assert flow.status(started) == "succeeded"


def test_a_canceled_step_dooms_what_follows(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"], c=["b"], d=["~b"]))
    step = started.steps()[1]
    assert flow.app.cancel_job(step.id, reason="not needed") == "canceled"
    assert flow.states(started) == {"a": "ready", "b": "canceled", "c": "canceled", "d": "ready"}
    flow.check(started)


# Requeue


def test_a_failed_workflow_is_requeued_from_what_failed(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"], c=["b"], d=["~c"], e=["a"]))
    assert flow.app.requeue_workflow(started.id) == "not_ended"
    flow.run_all(fail=["b"])
    assert flow.status(started) == "failed"
    with pytest.raises(WorkflowFailed, match=r"failed: b failed \(job\.fatal\)\.$") as caught:
        started.get(timeout=0)
    cause = caught.value.__cause__
    assert isinstance(cause, JobFailed)
    assert cause.error_kind == "fatal"
    assert flow.app.requeue_workflow(started.id, reason="mended", by="ann") == "requeued"
    assert started.refresh().run == 2
    assert flow.states(started) == {
        "a": "succeeded",
        "b": "ready",
        "c": "waiting",
        "d": "waiting",
        "e": "succeeded",
    }
    assert flow.status(started) == "running"
    assert flow.run_all() == [["b"], ["c"], ["d"]]
    assert flow.status(started) == "succeeded"
    step = started.steps()[1]
    assert [event.kind for event in flow.world.events(step.id)] == ["requeued"]
    assert [attempt.kind for attempt in flow.world.attempts(step.id)] == ["fatal"]


def test_only_what_failed_can_be_requeued(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"], c=["b"]))
    flow.run_all(fail=["b"])
    assert flow.app.requeue_workflow(started.id, steps="failed") == "requeued"
    assert flow.states(started) == {"a": "succeeded", "b": "ready", "c": "canceled"}
    assert flow.run_all() == [["b"]]
    assert flow.status(started) == "failed"
    assert flow.app.requeue_workflow(started.id, steps="failed") == "nothing_to_requeue"
    assert flow.app.requeue_workflow(started.id, steps="all") == "requeued"
    assert flow.run_all() == [["a"], ["b"], ["c"]]
    assert flow.status(started) == "succeeded"
    assert flow.app.requeue_workflow(started.id, steps="all") == "already_succeeded"


def test_a_requeue_of_a_run_that_the_caller_did_not_see_changes_nothing(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"]))
    flow.run(fail=["a"])
    assert flow.app.requeue_workflow(started.id, run=2) == "other_run"
    assert (started.refresh().run, flow.status(started)) == (1, "failed")
    assert flow.app.requeue_workflow(started.id, run=1) == "requeued"
    assert flow.app.requeue_workflow(started.id, run=1) == "not_ended"
    flow.run(fail=["a"])
    assert flow.app.requeue_workflow(started.id, run=1) == "other_run"
    assert (started.refresh().run, flow.status(started)) == (2, "failed")
    assert started.requeue(run=started.run) == "requeued"
    assert started.refresh().run == 3


def test_a_requeue_waits_for_a_unique_key(flow: Flow) -> None:
    options = {"unique_key": "u"}
    first = flow.start(flow.of(options=options, a=[]))
    flow.run(fail=["a"])
    second = flow.start(flow.of(options=options, a=[]))
    assert flow.app.requeue_workflow(first.id) == "unique_key_taken"
    flow.run()
    assert flow.status(second) == "succeeded"
    assert flow.app.requeue_workflow(first.id) == "requeued"


@pytest.mark.parametrize(
    ("verb", "names"),
    [("requeue_job", "requeue_workflow"), ("run_now", "requeue_workflow"), ("delete_job", "cancel_workflow")],
)
def test_a_verb_of_jobs_on_a_step_names_that_of_workflows(flow: Flow, verb: str, names: str) -> None:
    started = flow.start(flow.of(a=[]))
    with pytest.raises(Refused, match=names) as caught:
        getattr(flow.app, verb)(started.steps()[0].id)
    assert caught.value.code == "job.is_a_step"
    assert flow.states(started) == {"a": "ready"}


# Look


def test_workflows_are_listed_newest_first(flow: Flow) -> None:
    first, second = (flow.start(flow.of(name, a=[])) for name in ("one", "two"))
    assert [found.id for found in flow.app.list_workflows()] == [second.id, first.id]
    assert [found.id for found in flow.app.list_workflows(before=second.id)] == [first.id]
    assert [found.id for found in flow.app.list_workflows(name="one", status="running")] == [first.id]
    assert flow.app.list_workflows(status="failed") == []
    assert flow.app.get_workflow(first.id).name == "one"
    for id in (new_id(), "nonsense"):
        with pytest.raises(WorkflowNotFound):
            flow.app.get_workflow(id)


def test_the_result_is_that_of_the_declared_step(flow: Flow) -> None:
    started = flow.start(flow.of(options={"result": "b"}, a=[], b=["a"]))
    assert started.result is None
    flow.run_all()
    assert started.get(timeout=0) == 1


def test_a_graph_that_cannot_run_is_refused_before_anything_is_written(flow: Flow) -> None:
    with pytest.raises(InvalidWorkflow, match="a waits for b"):
        flow.start(flow.of(a=["b"]))
    assert flow.world.count("workflow") == 0


def test_a_failure_names_some_of_the_steps_it_is_due_to(flow: Flow) -> None:
    started = flow.start(flow.of(gate=[], a=[], b=[], c=[], d=["gate"]))
    flow.app.resolve_gate(started.id, "gate", "failed")
    (first, *_) = started.steps()[1:]
    flow.app.cancel_job(first.id)
    flow.run_all(fail=["b", "c"])
    with pytest.raises(
        WorkflowFailed, match=r"gate failed, [bc] failed \(.*\), [bc] failed \(.*\) and others"
    ):
        started.get(timeout=0)


def test_steps_are_listed_in_words_of_ours(flow: Flow) -> None:
    flow_of = flow.of(a=[], gate=["a"], b=["a", "~gate"])
    started = flow.start(flow_of)
    flow.run(fail=["a"])
    a, gate, b = started.steps()
    assert (a.task, a.gate, a.state, a.run, a.attempt) == ("work", False, "failed", 1, 1)
    assert a.error is not None
    assert a.error.kind == "fatal"
    assert a.started_at is not None
    assert a.finished_at is not None
    assert a.created_at <= a.started_at <= a.finished_at
    assert (gate.task, gate.gate, gate.state, gate.error) == (None, True, "canceled", None)
    assert (b.after, b.after_done, b.waits_for) == (["a"], ["gate"], [])


def test_a_start_answers_with_what_it_wrote(flow: Flow) -> None:
    flow_of = flow.of("publish", options={"tenant": "acme", "unique_key": "u", "meta": {"n": 1}}, gate=[])
    first, second = flow.start(flow_of), flow.start(flow_of)
    for started in (first, second):
        assert (started.id, started.name, started.status, started.meta) == (
            first.id,
            "publish",
            "open",
            {"n": 1},
        )
    assert (first.created, second.created) == (True, False)


WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def unique(flow: Flow) -> tuple[Workflow, StartedWorkflow]:
    """One that can be requeued, and another under its key that can be started."""
    built = flow.of(options={"unique_key": "u"}, a=[])
    started = flow.start(built)
    flow.run(fail=["a"])
    return built, started


def test_a_requeue_beside_a_start_under_its_unique_key_waits_for_it(postgres_world: World) -> None:
    flow = Flow(postgres_world)
    built, failed = unique(flow)
    url = postgres_world.url
    with psycopg.connect(url) as conn, psycopg.connect(url) as own, ThreadPoolExecutor(1) as other:
        assert flow.start(built, conn=conn).created
        # In a transaction of its own nobody could run it again.
        requeuing = other.submit(flow.app.requeue_workflow, failed.id, conn=own)
        until(lambda: postgres_world.sql(WAITS))
        conn.commit()
        assert requeuing.result(30) == "unique_key_taken"
        assert own.execute("SELECT 1").fetchone(), "it goes on"
    assert failed.refresh().status == "failed"


def test_a_start_beside_a_requeue_of_its_unique_key_waits_for_it(postgres_world: World) -> None:
    flow = Flow(postgres_world)
    built, failed = unique(flow)
    with psycopg.connect(postgres_world.url) as conn, ThreadPoolExecutor(1) as other:
        assert flow.app.requeue_workflow(failed.id, conn=conn) == "requeued"
        starting = other.submit(flow.start, built)
        until(lambda: postgres_world.sql(WAITS))
        conn.commit()
        started = starting.result(30)
        assert (started.id, started.created, started.status) == (failed.id, False, "running")


def test_a_requeue_finds_its_unique_key_taken_or_free_again(flow: Flow) -> None:
    built, failed = unique(flow)
    other = flow.start(built)
    assert failed.requeue() == "unique_key_taken"
    flow.run()
    assert flow.status(other) == "succeeded"
    assert failed.requeue() == "requeued"
    assert flow.world.count("workflow") == 2
    assert flow.start(built).id == failed.id
