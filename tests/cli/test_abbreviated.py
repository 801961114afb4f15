"""Ids that are abbreviated to their first characters."""

from __future__ import annotations

import json

import pytest

from perdure import Workflow
from perdure.client.abbreviated import MOST_NAMED
from perdure.model.lifecycle import Failed, Succeeded
from tests.cli.shop import NOBODY, Shop


def insert(shop: Shop, *ids: str) -> None:
    """Jobs with these ids."""
    for id in ids:
        made = shop.send.enqueue()
        connection = shop.app.store.connect()
        table = "perdure_job" if shop.url.startswith("sqlite") else "perdure.job"
        connection.execute(f"UPDATE {table} SET id = '{id}' WHERE id = '{made.id}'")
        connection.commit()
        connection.close()


A = "01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10"
B = "01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e11"
C = "01990c5f-0000-7cc0-b7d2-3f1c8a2d9e10"


@pytest.mark.parametrize("typed", ["01990c5f", "01990C5F-0000-7", "01990c5f00007", C, C.replace("-", "")])
def test_a_job_is_found_by_the_start_of_its_id(shop: Shop, typed: str) -> None:
    insert(shop, A, B, C)
    assert shop.json("job", typed)["id"] == C
    assert shop.json("explain", typed)["code"] == "no_worker"


def test_every_command_takes_the_start_of_an_id(shop: Shop) -> None:
    shop.serve()
    done, failed = shop.end(Succeeded, result="1"), shop.end(Failed, "fatal")
    later = shop.send.using(delay=60).enqueue()

    def short(id: str) -> str:
        """As few characters as are enough."""
        every = [job.id for job in shop.app.list_jobs()]
        return next(id[:n] for n in range(8, 37) if sum(one.startswith(id[:n]) for one in every) == 1)

    replayed = shop.json("replay", short(done.id))
    assert replayed["replay_of"] == done.id
    assert shop.json("requeue", short(failed.id))["jobs"] == [{"id": failed.id, "outcome": "requeued"}]
    assert shop.json("run-now", short(later.id))["jobs"] == [{"id": later.id, "outcome": "due_now"}]
    assert shop.json("cancel", short(later.id))["jobs"] == [{"id": later.id, "outcome": "canceled"}]
    assert shop.json("delete", short(later.id))["jobs"] == [{"id": later.id, "outcome": "deleted"}]
    flow = Workflow("publish")
    flow.gate("approve")
    started = shop.app.start_workflow(flow)
    assert shop.json("workflow", started.id[:8])["id"] == started.id
    told = shop.json("workflow", started.id[:13], "gate", "approve", "--approve")
    assert (told["workflow"], told["changed"]) == (started.id, True)
    assert shop.app.get_workflow(started.id).status == "succeeded"


def test_what_begins_several_ids_is_refused_with_some_of_them(shop: Shop) -> None:
    insert(shop, A, B, C)
    result = shop.run("job", "01990c5e-6f3a")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: The ids of 2 jobs begin with 01990c5e-6f3a: {B} (mail.send, ready), {A} (mail.send, ready). "
        "Give more characters of the one you mean. [request.ambiguous_id]\n"
    )
    insert(shop, *(f"01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e2{n}" for n in range(MOST_NAMED)))
    many = shop.run("job", "01990c5e").stderr
    assert many.startswith("Error: The ids of more than 5 jobs begin with 01990c5e: ")
    assert many.count("mail.send") == MOST_NAMED


def test_one_that_is_ambiguous_changes_nothing(shop: Shop) -> None:
    insert(shop, A, B, C)
    result = shop.run("delete", C, "01990c5e")
    assert (result.exit_code, "[request.ambiguous_id]" in result.stderr) == (1, True)
    assert [job.id for job in shop.app.list_jobs()] == [C, B, A]


@pytest.mark.parametrize("command", ["job", "explain", "workflow", "cancel", "replay"])
def test_too_few_characters_are_refused(shop: Shop, command: str) -> None:
    insert(shop, A)
    for typed in ("", "0", "019"):
        result = shop.run(command, typed)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "Give at least 4 characters of an id." in result.stderr
    assert shop.app.get_job(A).state == "ready"


def test_what_is_no_id_finds_nothing(shop: Shop) -> None:
    insert(shop, A)
    for typed in (NOBODY, "019a", f"{A}0", "nonsense", "mail"):
        assert shop.run("job", typed).stderr.endswith("There is no job with this id. [job.not_found]\n")
        wrong = shop.run("workflow", typed).stderr
        assert wrong.endswith("There is no workflow with this id. [workflow.not_found]\n")


def test_a_job_and_a_workflow_point_to_the_command_of_the_other(shop: Shop) -> None:
    flow = Workflow("publish")
    flow.step("send", shop.send.job("ann"))
    started = shop.app.start_workflow(flow)
    (step,) = started.steps()
    job = shop.send.enqueue()
    this = f"This is a workflow, not a job: perdure workflow {started.id} shows it."
    for command in ("job", "explain", "replay"):
        result = shop.run(command, started.id)
        assert (result.exit_code, result.stderr) == (1, f"Error: {this} [job.not_found]\n")
    cancel = shop.run("cancel", started.id, "--json")
    assert (cancel.exit_code, cancel.stderr) == (1, f"{started.id}: {this}\n")
    assert json.loads(cancel.stdout)["counts"] == {"not_found": 1}
    plain = shop.run("workflow", job.id)
    assert (plain.exit_code, plain.stderr) == (
        1,
        f"Error: This is a job, not a workflow: perdure job {job.id} shows it. [workflow.not_found]\n",
    )
    assert shop.run("workflow", step.id, "cancel").stderr == (
        f"Error: This is a job, not a workflow: perdure job {step.id} shows it, and perdure workflow {started.id} "
        "shows its workflow. [workflow.not_found]\n"
    )
    assert shop.app.get_job(step.id).state == "ready"
