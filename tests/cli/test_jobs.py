"""``jobs``, ``job``, ``explain`` and ``enqueue``."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import pytest

from perdure.model.job import SECOND, State
from perdure.model.lifecycle import Failed, Report, Succeeded
from perdure.model.visible_state import VISIBLE_STATES
from perdure.ops.report import JobReport, LogLine
from tests.cli.shop import Shop


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_jobs_are_listed_with_what_matters(shop: Shop) -> None:
    shop.serve()
    done = shop.end(Succeeded, result='"ann"')
    message = "no\nroute \x1b[31mto host"
    retrying = shop.end(Failed, "error", code="smtp.down", message=message, delay=3600 * SECOND)
    later = shop.send.using(delay=7200).enqueue()
    running = shop.send.enqueue()
    shop.claim()
    result = shop.run("jobs")
    title, *rows = lines(result.stdout)
    assert title == ["ID", "STATE", "TASK", "QUEUE", "ATTEMPT", "WHEN", "NOTE"]
    assert [row[:5] for row in rows] == [
        [running.id, "running", "mail.send", "mail", "1/8"],
        [later.id, "scheduled", "mail.send", "mail", "0/8"],
        [retrying.id, "retrying", "mail.send", "mail", "1/8"],
        [done.id, "succeeded", "mail.send", "mail", "1/8"],
    ]
    assert rows[1][5:] == ["in", "119", "min"]
    assert " ".join(rows[2][-5:]) == "smtp.down: no route �[31mto host", (
        "one line, and nothing a terminal would obey"
    )


def test_lists_are_filtered_and_paged(shop: Shop) -> None:
    shop.serve()
    first = shop.send.using(tenant="acme").enqueue()
    shop.claim()
    second, third = shop.send.enqueue(), shop.send.using(queue="slow").enqueue()

    def ids(*args: str) -> list[str]:
        return [job["id"] for job in shop.json("jobs", *args)]

    assert ids() == [third.id, second.id, first.id]
    assert ids("--queue", "slow") == [third.id]
    assert ids("--state", "running") == [first.id]
    assert ids("--tenant", "acme") == [first.id]
    assert ids("--task", "mail.send", "--limit", "1") == [third.id]
    assert ids("--before", third.id) == [second.id, first.id]
    page = shop.run("jobs", "--limit", "2")
    assert page.stderr == f"More with --before {second.id}\n"


def test_jobs_are_counted_by_what_they_have(shop: Shop) -> None:
    shop.serve()
    for code in ("smtp.down", "smtp.full", "smtp.down"):
        shop.end(Failed, "fatal", code=code)
    shop.send.using(tenant="acme").enqueue()
    errors = shop.run("jobs", "--state", "failed", "--finished-after", "1h", "--count-by", "error-code")
    assert lines(errors.stdout) == [["ERROR", "CODE", "JOBS"], ["smtp.down", "2"], ["smtp.full", "1"]]
    assert shop.json("jobs", "--count-by", "tenant") == [
        {"tenant": None, "jobs": 3},
        {"tenant": "acme", "jobs": 1},
    ]
    assert lines(shop.run("jobs", "--count-by", "tenant").stdout)[1] == ["-", "3"]
    none = shop.run("jobs", "--task", "mail.sned", "--count-by", "state")
    assert (none.stdout, none.stderr) == ("", "No jobs. Did you mean 'mail.send'?\n")
    assert shop.run("jobs", "--count-by", "colour").exit_code == 2


def test_a_list_has_what_is_scheduled_and_what_waits_for_a_retry(shop: Shop) -> None:
    shop.serve()
    retrying = shop.end(Failed, "error", delay=3600 * SECOND)
    later, due = shop.send.using(delay=7200).enqueue(), shop.send.enqueue()
    for state, found in {
        "scheduled": [later],
        "retrying": [retrying],
        "ready": [due],
    }.items():
        rows = lines(shop.run("jobs", "--state", state).stdout)[1:]
        assert [row[0] for row in rows] == [job.id for job in found]
        assert {row[1] for row in rows} == {state}


def test_the_words_for_states_are_those_of_the_ledger() -> None:
    """And a job that is stored in one of these is seen in one."""
    assert set(get_args(State)) < set(VISIBLE_STATES)


def test_the_json_of_a_list_has_stable_names_and_times_in_utc(shop: Shop) -> None:
    job = shop.send.using(tags=["a"], meta={"x": 1}, timeout=90).enqueue()
    (told,) = shop.json("jobs")
    expected = {"id": job.id, "state": "ready", "tags": ["a"], "meta": {"x": 1}, "timeout": 90, "attempt": 0}
    assert {name: told[name] for name in expected} == expected
    assert told["created_at"].endswith("Z")
    age = datetime.now(UTC) - datetime.fromisoformat(told["created_at"])
    assert abs(age.total_seconds()) < 60
    assert {"payload", "result", "checkpoint", "error_trace"} & told.keys() == set()


def test_nothing_found_suggests_what_was_meant(shop: Shop) -> None:
    shop.send.enqueue()
    assert shop.run("jobs", "--queue", "mial").stderr == "No jobs. Did you mean 'mail'?\n"
    assert shop.run("jobs", "--task", "mail.sent").stderr == "No jobs. Did you mean 'mail.send'?\n"
    assert shop.run("jobs", "--queue", "mail", "--state", "failed").stderr == "No jobs.\n"
    assert shop.json("jobs", "--queue", "mial") == []


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("faild", "'faild' is not a state. Did you mean 'failed'?"),
        (
            "7",
            "'7' is not a state. Use one of waiting, ready, scheduled, retrying, held, running, open, succeeded, "
            "failed, canceled.",
        ),
        ("retry", "'retry' is not a state. Did you mean 'retrying'?"),
    ],
)
def test_a_state_that_is_none_is_refused(shop: Shop, state: str, said: str) -> None:
    result = shop.run("jobs", "--state", state)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"Error: Invalid value for '--state': {said}"


def test_a_job_tells_its_whole_story(shop: Shop) -> None:
    shop.serve()
    job = shop.send.using(tenant="acme").enqueue("ann", n=3)
    claimed = shop.claim()
    report = Report(stage="half", done=1, total=2, message="so far", checkpoint='{"page": 7}')
    shop.app.operations.report([JobReport(claimed.lease, report, [LogLine("info", "wrote \x1b[2J a line")])])
    trace = "Traceback\n  File x\nboom"
    shop.app.operations.finish([Failed(claimed.lease, "fatal", code="smtp.no", message="boom", trace=trace)])
    told = shop.run("job", job.id).stdout
    facts = dict(line.split(None, 1) for line in told.partition("\n\n")[0].splitlines())
    assert (facts["state"], facts["queue"], facts["tenant"]) == ("failed", "mail", "acme")
    assert (facts["attempt"], facts["progress"]) == ("1 of 8, run 1", "half, 1 of 2, so far")
    assert facts["why"].startswith("It failed at 20")
    sections = dict(part.split("\n", 1) for part in told.rstrip().split("\n\n")[1:])
    assert list(sections) == ["Timeline", "Attempts", "Error", "Arguments", "Checkpoint", "Log"]
    timeline = [row[2] for row in lines(sections["Timeline"])[1:]]
    assert timeline == ["enqueued", "started", "stage", "failed"]
    assert lines(sections["Attempts"])[1][:3] == ["1", "1", "fatal"]
    assert sections["Error"] == "fatal smtp.no: boom\n    Traceback\n      File x\n    boom"
    assert json.loads(sections["Arguments"]) == {"to": "ann", "n": 3}
    assert json.loads(sections["Checkpoint"]) == {"page": 7}
    assert sections["Log"].endswith("info     wrote �[2J a line")


def test_the_story_as_json(shop: Shop) -> None:
    shop.serve()
    job = shop.end(Failed, "error", code="smtp.down", message="no route", trace="Traceback", delay=SECOND)
    shop.app.run_now(job.id)
    shop.app.operations.finish([Succeeded(shop.claim().lease, result='"ann"')])
    told = shop.json("job", job.id)
    assert (told["state"], told["result"], told["payload"]) == ("succeeded", "ann", {"to": "ann"})
    assert told["explanation"]["code"] == "ended"
    assert [entry["what"] for entry in told["history"]] == [
        "enqueued",
        "started",
        "error",
        "run now",
        "started",
        "succeeded",
    ]
    attempt, last = told["attempts"]
    assert (attempt["kind"], attempt["code"], attempt["trace"]) == ("error", "smtp.down", "Traceback")
    assert attempt["finished_at"].endswith("Z")
    assert (last["attempt"], last["kind"], last["code"], last["trace"]) == (2, "succeeded", None, None)
    assert last.keys() == attempt.keys()


def test_the_json_tells_the_same_attempts_as_the_text(shop: Shop) -> None:
    shop.serve()

    def told(id: str) -> list[list[object]]:
        text = shop.run("job", id).stdout
        _, _, section = text.partition("\nAttempts\n")
        rows = [row[:3] for row in lines(section.partition("\n\n")[0])[1:]]
        attempts = shop.json("job", id)["attempts"]
        assert [[str(one["run"]), str(one["attempt"]), one["kind"]] for one in attempts] == rows
        return [[one["attempt"], one["kind"], one["code"], one["message"], one["trace"]] for one in attempts]

    fatal = shop.end(Failed, "fatal", code="smtp.no", message="boom", trace="Traceback")
    assert told(fatal.id) == [[1, "fatal", "smtp.no", "boom", "Traceback"]]
    before = [1, "error", "smtp.down", "no route", "Traceback"]
    retried = shop.end(
        Failed, "error", code="smtp.down", message="no route", trace="Traceback", delay=3600 * SECOND
    )
    assert told(retried.id) == [before]
    shop.app.run_now(retried.id)
    lease = shop.claim().lease
    assert told(retried.id) == [before, [2, "running", None, None, None]]
    shop.app.operations.finish([Succeeded(lease)])
    assert told(retried.id) == [before, [2, "succeeded", None, None, None]]
    assert told(shop.send.enqueue().id) == []


def test_explain_says_why_and_what_else(shop: Shop) -> None:
    job = shop.send.using(delay=7200).enqueue()
    shop.app.pause_queue("mail")
    first, *others = shop.run("explain", job.id).stdout.splitlines()
    assert first.startswith("It is scheduled for 20")
    assert first.endswith(f" perdure run-now {job.id} makes it due.")
    (queue,) = shop.app.list_queues()
    assert queue.pause is not None
    since = f"{queue.pause.at:%Y-%m-%d %H:%M:%S} UTC"
    assert others == [
        f"Also: Its queue mail is paused since {since}. perdure resume mail lets workers claim its jobs again.",
        "Also: No worker is live. Start one: perdure worker MODULE:APP.",
    ]
    told = shop.json("explain", job.id)
    assert told["code"] == "scheduled"
    assert [reason["code"] for reason in told["also"]] == ["queue_paused", "no_worker"]


def test_enqueue_takes_every_option(shop: Shop) -> None:
    shop.app.save_tasks()
    options = (
        "--queue slow --priority 5 --delay 2h --max-attempts 3 --timeout 1m --tenant acme --tag a --tag b"
    )
    keys = ("--key", "k", "--unique-key", "u", "--expires", "1d", "--meta", '{"x": 1}')
    result = shop.run("enqueue", "mail.send", '{"to": "bob"}', *options.split(), *keys)
    job = shop.app.get_job(result.stdout.strip())
    row = job.row
    assert row is not None
    assert (job.queue, row.priority, row.max_attempts, row.timeout) == ("slow", 5, 3, 60_000_000)
    assert (row.tenant, job.tags, job.meta, row.unique_key) == ("acme", ["a", "b"], {"x": 1}, "u")
    assert row.run_at - row.created_at == 7_200_000_000
    assert row.expires_at is not None
    assert row.expires_at - row.created_at == 86_400_000_000
    again = shop.run("enqueue", "mail.send", '{"to": "bob"}', *options.split(), *keys)
    assert (again.stdout.strip(), again.stderr) == (job.id, "This job existed already.\n")


def test_enqueue_reads_stdin_and_a_time(shop: Shop) -> None:
    shop.app.save_tasks()
    result = shop.run("enqueue", "mail.send", "-", "--run-at", "2100-01-01T01:00:00+01:00", input='{"n": 2}')
    row = shop.app.get_job(result.stdout.strip()).row
    assert row is not None
    assert row.payload == '{"n":2}'
    assert row.run_at == 4_102_444_800_000_000
    told = shop.json("enqueue", "mail.send")
    assert (told["task"], told["queue"], told["state"], told["created"]) == (
        "mail.send",
        "mail",
        "ready",
        True,
    )


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["mail.sned"], 1, "Did you mean 'mail.send'? [task.unknown]"),
        (["mail.send", "{"], 2, "this is not JSON: "),
        (["mail.send", "[1]"], 2, 'it must be a JSON object, such as {"to": "a@b.c"}.'),
        (["mail.send", "--delay", "soon"], 2, "'soon' is not a duration: use 90, 90s, 5m, 2h or 1d."),
        (["mail.send", "--run-at", "noon"], 2, "'noon' is not a time: use 2026-03-01T12:00:00+01:00."),
        (["mail.send", "--run-at", "2100-01-01"], 2, "run_at must be a datetime with a time zone."),
        (["mail.send", "--priority", "99999"], 2, "priority must lie between -32768 and 32767."),
    ],
)
def test_enqueue_refuses_what_cannot_be(shop: Shop, args: list[str], code: int, said: str) -> None:
    shop.app.save_tasks()
    result = shop.run("enqueue", *args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr.splitlines()[-1]
    assert shop.app.list_jobs() == []


def test_enqueue_with_the_app_checks_the_arguments(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"shop_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "from perdure import App\napp = App()\n@app.task(name='mail.send')\ndef send(to: str): ...\n"
    )
    result = shop.run("enqueue", "mail.send", '{"to": 7}', "--app", f"{name}:app")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith("[job.bad_arguments]\n")
