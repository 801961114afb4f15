"""What people see is redacted and limited in size, through every method."""

from __future__ import annotations

import json

import pytest

from perdure.errors import JobNotFound, WorkflowNotFound
from perdure.model.lifecycle import Failed, Report, Succeeded
from perdure.ops.report import JobReport
from perdure.request.ids import new_id
from tests.conformance.flow import Flow
from tests.conformance.world import World

SECRET = "open sesame"
HIDDEN = "[redacted]"


def test_what_a_task_redacts_is_hidden_in_every_value_of_its_jobs(world: World) -> None:
    task = world.task(redact=["note"])
    job = task.using(meta={"note": SECRET, "door": 3}).enqueue(1, note=SECRET)
    claimed = world.claim_one()
    result = json.dumps({"note": SECRET, "rooms": [{"note": SECRET}, 7]})
    assert world.operations.finish([Succeeded(claimed.lease, result)]).accepted
    # A program without the task's code knows the names from the database.
    for app in (world.app, world.producer()):
        view = app.views.job(job.id)
        assert SECRET not in str(view)
        assert json.loads(view.job.payload) == {"n": 1, "note": HIDDEN}
        assert json.loads(view.job.result or "") == {"note": HIDDEN, "rooms": [{"note": HIDDEN}, 7]}
        assert json.loads(view.job.meta or "") == {"note": HIDDEN, "door": 3}
        (row,) = app.views.jobs()
        assert SECRET not in str(row)
        assert (row.id, row.state, row.result) == (job.id, "succeeded", None)


def test_nothing_that_is_shown_is_larger_than_asked_for(world: World) -> None:
    job = world.task(max_attempts=2, backoff=0).enqueue(1, note="x" * 500)
    for _ in range(2):
        failed = Failed(world.claim_one().lease, "error", message="m" * 500, trace="t" * 500)
        assert world.operations.finish([failed]).accepted
        world.advance(3600)
    view = world.app.views.job(job.id, most=100)
    assert view.job.payload == '{"n":1,"note":"' + "x" * 85 + "… (517 characters)"
    texts = [view.job.error_message, view.job.error_trace]
    texts += [text for one in view.attempts for text in (one.message, one.trace)]
    assert len(texts) == 6
    for text in texts:
        assert text is not None
        assert text.endswith("… (500 characters)")
    assert "m" * 101 not in str(view.history)
    whole = world.app.views.job(job.id, most=None)
    assert (whole.job.error_trace, json.loads(whole.job.payload)["note"]) == ("t" * 500, "x" * 500)


def test_a_workflow_is_shown_with_its_graph(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"]))
    view = flow.app.views.workflow(started.id)
    assert [(one.row.key, [*one.shape.after], one.waits_for) for one in view.steps] == [
        ("a", [], []),
        ("b", ["a"], ["a"]),
    ]
    assert [row.id for row in flow.app.views.workflows()] == [started.id]


def test_what_is_not_there_is_told(world: World) -> None:
    with pytest.raises(JobNotFound):
        world.app.views.job(new_id())
    with pytest.raises(WorkflowNotFound):
        world.app.views.workflow("no id")


def test_what_a_requeue_dropped_is_redacted_and_cut_in_the_history(world: World) -> None:
    job = world.task(redact=["note"], max_attempts=1).enqueue(1)
    lease = world.claim_one().lease
    saved = json.dumps({"note": SECRET, "pad": "x" * 500})
    world.operations.report([JobReport(lease, Report(checkpoint=saved))])
    assert world.operations.finish([Failed(lease, "error")]).accepted
    assert job.requeue() == "requeued"
    view = world.app.views.job(job.id, most=100)
    (requeued,) = [entry for entry in view.history if entry.what == "requeued"]
    assert HIDDEN in requeued.detail["checkpoint"]
    assert SECRET not in str(view)
    assert "x" * 101 not in str(view)
