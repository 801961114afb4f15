"""``cancel``, ``requeue``, ``run-now``, ``delete``, ``pause``, ``resume`` and ``acts``."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import pytest

from perdure import App
from perdure.cli import acts
from perdure.errors import RowsLocked, StoreBusy
from perdure.model.job import SECOND
from perdure.model.lifecycle import Failed, Succeeded
from tests.cli.shop import NOBODY, Shop
from tests.conformance.flow import Flow
from tests.conformance.world import World


@pytest.fixture(autouse=True)
def ann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_ACTOR", raising=False)
    monkeypatch.setenv("USER", "ann")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acts, "asks", lambda: True)


def by(shop: Shop, id: str) -> dict[str, Any]:
    """Of the last entry of a job's history."""
    entry = shop.app.job_history(id)[-1]
    return {"what": entry.what, **entry.detail}


def test_jobs_are_acted_on_by_their_ids(shop: Shop) -> None:
    first, second = shop.send.using(delay=60).enqueue(), shop.send.enqueue()
    result = shop.run("run-now", first.id)
    assert (result.exit_code, result.stdout.split()) == (0, ["ID", "OUTCOME", first.id, "due_now"])
    told = shop.json("cancel", first.id, second.id, "--reason", "no")
    assert told["counts"] == {"canceled": 2}
    assert told["jobs"] == [{"id": job.id, "outcome": "canceled"} for job in (first, second)]
    assert by(shop, first.id) == {"what": "canceled", "reason": "no", "by": "ann"}
    assert shop.json("requeue", first.id, "--actor", "bob")["counts"] == {"requeued": 1}
    assert by(shop, first.id) == {"what": "requeued", "by": "bob", "was": "canceled", "because": "no"}
    assert shop.json("delete", first.id, second.id)["counts"] == {"deleted": 2}
    assert shop.app.list_jobs() == []


def test_what_is_refused_has_an_exit_code(shop: Shop) -> None:
    job = shop.send.enqueue()
    result = shop.run("requeue", job.id, NOBODY, "nonsense")
    assert result.exit_code == 1
    assert [line.split()[-1] for line in result.stdout.splitlines()[1:]] == [
        "not_ended",
        "not_found",
        "not_found",
    ]


def test_a_step_is_refused_with_the_verb_to_use(url: str) -> None:
    world = World(url)
    flow = Flow(world)
    started = flow.start(flow.of(a=[]))
    shop = Shop(url)
    result = shop.run("delete", started.steps()[0].id)
    assert (result.exit_code, result.stdout.split()[-1]) == (1, "is_a_step")
    assert f"perdure workflow {started.id} cancel ends all of its steps" in result.stderr
    assert shop.json("delete", "--all", "--dry-run")["counts"] == {"is_a_step": 1}
    many = shop.run("delete", "--all", "--yes", "--json")
    assert (many.exit_code, many.stderr) == (1, "Not done: 1 is_a_step.\n")
    assert json.loads(many.stdout)["counts"] == {"is_a_step": 1}
    shop.close()
    world.close()


@pytest.mark.parametrize("error", [RowsLocked, StoreBusy])
def test_a_job_that_somebody_holds_does_not_keep_the_others(
    shop: Shop, error: type[StoreBusy], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, free = shop.send.enqueue(), shop.send.enqueue()
    cancel = App.cancel_job

    def patient(app: App, id: str, **options: Any) -> str:
        if id == held.id:
            raise error
        return cancel(app, id, **options)

    monkeypatch.setattr(App, "cancel_job", patient)
    result = shop.run("cancel", held.id, free.id, "--json")
    assert (result.exit_code, held.id in result.stderr) == (1, True)
    assert [one["outcome"] for one in json.loads(result.stdout)["jobs"]] == ["locked", "canceled"]


def test_jobs_are_acted_on_by_conditions(shop: Shop) -> None:
    shop.serve()
    down = [shop.end(Failed, "fatal", code="http.503", message="no") for _ in range(2)]
    gone = shop.end(Failed, "fatal", code="http.410", message="no")
    conditions = ("--state", "failed", "--task", "mail.send", "--error-code", "http.503")
    assert shop.json("requeue", *conditions, "--dry-run") == {
        "counts": {"requeued": 2},
        "act_id": None,
        "dry_run": True,
    }
    assert {str(shop.app.get_job(job.id).state) for job in down} == {"failed"}
    result = shop.run("requeue", *conditions, "--yes", "--finished-after", "1h")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "requeued  2\n", "")
    assert shop.app.get_job(gone.id).state == "failed"
    nothing = shop.run("requeue", *conditions, "--yes")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "No jobs match.\n")
    assert shop.json("cancel", "--text", '"to":"ann"', "--queue", "mail", "-y")["counts"] == {"canceled": 2}
    assert shop.json("delete", "--all", "--yes")["counts"] == {"deleted": 3}


@pytest.mark.usefixtures("terminal")
def test_a_terminal_is_asked(shop: Shop) -> None:
    job = shop.send.using(tags=["a"]).enqueue()
    no = shop.run("delete", "--tag", "a", input="n\n")
    assert (no.exit_code, no.stderr) == (1, "Delete: 1 deleted? [y/N]: n\nAborted!\n")
    assert shop.app.get_job(job.id).state == "ready"
    assert shop.run("delete", "--tag", "a", input="y\n").stdout == "deleted  1\n"
    assert shop.run("delete", "--tag", "a").stderr == "No jobs match.\n", "nothing to ask"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "Choose the jobs: give either ids, or conditions such as --queue, or --all."),
        ([NOBODY, "--queue", "mail"], "Choose the jobs: give either ids"),
        ([NOBODY, "--all"], "Choose the jobs: give either ids"),
        ([NOBODY, "--dry-run"], "--dry-run counts jobs that match conditions"),
        (
            ["--queue", "mail"],
            "There is no terminal to ask for confirmation: give --yes, or --dry-run to count first.",
        ),
        (["--queue", "mail", "--all", "--yes"], "--all means every job: give conditions or --all, not both."),
        (["--queue", "a\0b", "--yes"], "queue has a character that cannot be stored."),
        (["--text", "\udcff", "--yes"], "text has a character that cannot be stored."),
        (["--state", "succeeded", "--yes"], "perdure cancel takes jobs that are waiting or ready"),
        (["--created-after", "soon", "--yes"], "'soon' is not a time"),
        (["--created-after", "2w", "--yes"], "or how long ago: 90s, 5m, 2h or 1d."),
        (["--created-after", "99999999999999d", "--yes"], "is too long ago."),
        (["--created-after", "2026-01-01", "--yes"], "created_after must be a datetime with a time zone."),
    ],
)
def test_what_is_used_wrongly_changes_nothing(shop: Shop, args: list[str], said: str) -> None:
    job = shop.send.enqueue()
    result = shop.run("cancel", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert (shop.app.get_job(job.id).state, shop.app.list_acts()) == ("ready", [])


def test_a_list_takes_every_condition_and_says_how_to_go_on(shop: Shop) -> None:
    options: dict[str, Any] = {"tags": ["a"], "idempotency_key": "i", "unique_key": "u", "tenant": "acme"}
    job = shop.send.using(**options).enqueue("bob")
    others = [shop.send.enqueue("ann") for _ in range(2)]
    every = "--tag a --key i --unique-key u --tenant acme --text bob --created-after 1h --state ready"
    assert [one["id"] for one in shop.json("jobs", *every.split())] == [job.id]
    assert shop.json("jobs", "--created-before", "1h") == shop.json("jobs", "--finished-before", "0s") == []
    page = shop.run("jobs", "--limit", "1", "--text", "ann")
    assert page.stderr == f"More with --before {others[1].id}\n"
    assert shop.json("jobs", "--text", "ann", "--before", others[1].id)[0]["id"] == others[0].id


def test_queues_are_paused_and_resumed(shop: Shop) -> None:
    shop.send.enqueue()
    result = shop.run("pause", "mail")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "The queue mail is paused.\n", "")
    assert shop.app.stats().queues["mail"].paused
    again = shop.run("resume", "mail").stdout
    assert re.fullmatch(
        r"The queue mail hands out jobs again; it was paused by ann since [-\d]+ [:\d]+ UTC. 1 job is ready.\n",
        again,
    )
    assert not shop.app.stats().queues["mail"].paused
    slip = shop.run("pause", "mial")
    assert (slip.exit_code, slip.stderr) == (0, "No task has this queue. Did you mean 'mail'?\n")


def test_a_pause_has_a_reason_that_is_shown_until_it_ends(shop: Shop) -> None:
    for _ in range(2):
        shop.send.enqueue()
    shop.run("pause", "mail", "--reason", "the gateway is down", "--actor", "bob")
    (queue,) = shop.json("queues")
    assert (queue["paused"], queue["pause"]["by"], queue["pause"]["reason"]) == (
        True,
        "bob",
        "the gateway is down",
    )
    since = f"{datetime.fromisoformat(queue['pause']['at']):%Y-%m-%d %H:%M:%S} UTC"
    why = f"paused by bob since {since}: the gateway is down"
    assert f"  {why}, unserved" in shop.run("queues").stdout
    job = shop.app.list_jobs()[0]
    assert shop.run("explain", job.id).stdout.startswith(
        f"Its queue mail is {why}. perdure resume mail lets workers claim its jobs again"
    )
    assert shop.json("acts")[0]["detail"] == {"reason": "the gateway is down"}
    told = shop.run("resume", "mail").stdout
    assert told == f"The queue mail hands out jobs again; it was {why}. 2 jobs are ready.\n"
    assert shop.run("resume", "mail").stdout == "The queue mail was not paused. 2 jobs are ready.\n"
    slip = shop.run("resume", "mial")
    assert slip.stdout == "The queue mial was not paused. 0 jobs are ready. Did you mean 'mail'?\n"
    assert [one["name"] for one in shop.json("queues")] == ["mail"], "a slip leaves no queue behind"
    shop.run("pause", "mail", "--actor", "bob")
    ended = shop.json("resume", "mail")
    assert (ended["pause"]["by"], ended["pause"]["reason"], ended["ready"]) == ("bob", None, 2)
    assert shop.json("resume", "mail")["pause"] is None


def test_acts_are_listed_with_who_did_them(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.serve()
    shop.end(Succeeded, result="1")
    shop.end(Failed, "error", delay=60 * SECOND)
    shop.run("pause", "mail")
    monkeypatch.setenv("PERDURE_ACTOR", "night shift")
    shop.run("delete", "--state", "succeeded", "--yes")
    shop.run("run-now", "--all", "--yes", "--actor", "bob")
    told = shop.json("acts")
    assert [(act["action"], act["actor"], act["subject"]) for act in told] == [
        ("run_jobs_now", "bob", "jobs"),
        ("delete_jobs", "night shift", "jobs"),
        ("pause_queue", "ann", "queue mail"),
    ]
    assert told[1]["detail"] == {"filter": {"state": "succeeded"}, "counts": {"deleted": 1}}
    assert told[0]["at"].endswith("Z")
    assert [act["action"] for act in shop.json("acts", "--actor", "ann")] == ["pause_queue"]
    assert shop.json("acts", "--subject", "queue mail", "--action", "resume_queue") == []
    page = shop.run("acts", "--limit", "1")
    title, line = page.stdout.splitlines()
    assert title.split() == ["ID", "WHEN", "ACTOR", "ACTION", "SUBJECT", "DETAIL"]
    assert json.loads(line[line.index("{") :]) == {"filter": {}, "counts": {"due_now": 1}}
    assert page.stderr == f"More with --before {told[0]['id']}\n"
    assert shop.json("acts", "--before", str(told[-1]["id"])) == []
    assert shop.run("acts", "--actor", "nobody").stderr == "No acts.\n"
