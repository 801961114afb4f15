"""``perdure queue``: everything about one queue, and changes of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from perdure import Backoff
from perdure.model.lifecycle import Throttled
from tests.cli.shop import Shop


def settings(shop: Shop) -> tuple[Any, ...]:
    (mail,) = shop.app.list_queues()
    return mail.concurrency, mail.timeout, mail.backoff


def declare(shop: Shop) -> None:
    shop.app.queue("mail", concurrency=20, timeout=60)
    shop.app.save_tasks()


def test_settings_are_changed_and_the_difference_from_the_code_is_shown(shop: Shop) -> None:
    declare(shop)
    done = shop.run("queue", "mail", "set", "concurrency=5", "timeout=none", "backoff=2m")
    told = "backoff 120 s to 900 s; no timeout, code says 60 s; concurrency 5, code says 20"
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"The queue mail has {told}.\n", "")
    assert settings(shop) == (5, None, Backoff(120, 900))
    assert f"set by operator: {told}" in shop.run("queues").stdout
    lines = shop.run("queue", "mail").stdout.splitlines()
    assert [line.split(None, 1) for line in lines[:4]] == [
        ["queue", "mail"],
        ["status", "open"],
        ["jobs", "none"],
        ["backoff", "120 s to 900 s (set by operator)"],
    ]
    assert lines[4].endswith("none (set by operator, code says 60 s)")
    assert lines[5].endswith("5 (set by operator, code says 20)")
    assert [line.split() for line in lines[6:8]] == [
        ["tasks", "mail.send"],
        ["served", "by", "no", "live", "worker"],
    ]
    assert "set_queue  queue mail" in lines[-1]
    again = shop.run("queue", "mail", "reset").stdout
    assert again == f"The queue mail has the settings of the code again; it had {told}.\n"
    assert settings(shop) == (20, 60.0, None)
    assert "60 s (declared in code)" in shop.run("queue", "mail").stdout
    assert shop.run("queue", "mail", "reset").stdout == "No operator has set anything for the queue mail.\n"


def test_a_backoff_may_be_a_whole_policy(shop: Shop) -> None:
    shop.app.save_tasks()
    policy = '{"base": 1, "cap": 2, "codes": {"http.503": 60}}'
    changed = shop.json("queue", "mail", "set", f"backoff={policy}")
    assert changed["settings"]["backoff"] == {"base": 1.0, "cap": 2.0, "codes": {"http.503": 60.0}}
    assert settings(shop)[2] == Backoff(1, 2, {"http.503": 60})
    shop.run("queue", "mail", "set", "backoff=none")
    assert settings(shop)[2] is None


def test_documents_have_what_is_in_effect_and_what_is_declared(shop: Shop) -> None:
    declare(shop)
    shop.serve()
    shop.send.enqueue()
    shop.app.set_queue("mail", concurrency=5, by="ann")
    (listed,), one = shop.json("queues"), shop.json("queue", "mail")
    assert listed["settings"] == {
        "backoff": None,
        "timeout": 60.0,
        "concurrency": 5,
        "declared": {"timeout": 60.0, "concurrency": 20},
        "edited": ["concurrency"],
    }
    assert (one["name"], one["counts"], one["settings"]) == ("mail", {"ready": 1}, listed["settings"])
    assert (one["tasks"], one["served_by"]) == (["mail.send"], ["ann"])
    assert [(act["action"], act["actor"]) for act in one["acts"]] == [("set_queue", "ann")]
    assert shop.json("queue", "mail", "reset") == {"queue": "mail", "reset": ["concurrency"]}
    assert shop.json("queue", "mail", "warm") == {"queue": "mail", "warmed": False}


@pytest.mark.parametrize("command", [["pause", "mail"], ["queue", "mail", "pause"]])
def test_a_pause_may_end_by_itself(shop: Shop, command: list[str]) -> None:
    shop.app.save_tasks()
    done = shop.run(*command, "--for", "2h", "--reason", "a deploy")
    (queue,) = shop.app.list_queues()
    assert queue.pause is not None
    assert queue.pause.at is not None
    assert queue.pause.resume_at is not None
    assert timedelta(hours=1.99) < queue.pause.resume_at - queue.pause.at <= timedelta(hours=2)
    until = f"{queue.pause.resume_at:%Y-%m-%d %H:%M:%S} UTC"
    assert done.stdout == f"The queue mail is paused until {until}.\n"
    assert f" until {until}: a deploy" in shop.run("queues").stdout
    assert datetime.fromisoformat(shop.json("queues")[0]["pause"]["resume_at"]) == queue.pause.resume_at
    shop.run(*command, "--resume-at", "2199-01-01T00:00:00+00:00")
    assert "until 2199-01-01 00:00:00 UTC" in shop.run("queue", "mail").stdout
    assert shop.run("queue", "mail", "resume").stdout.startswith(
        "The queue mail hands out jobs again; it was paused"
    )
    assert shop.json("queue", "mail", "pause")["pause"]["resume_at"] is None


def test_a_cool_down_is_ended(shop: Shop) -> None:
    shop.serve()
    shop.end(Throttled, None)
    assert "cools for" in shop.run("queue", "mail").stdout
    assert shop.run("queue", "mail", "warm").stdout == "The cool-down of the queue mail has ended.\n"
    assert shop.run("queue", "mail", "warm").stdout == "The queue mail did not cool down.\n"
    assert shop.run("queue", "mail").stdout.splitlines()[1].split() == ["status", "open"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["set"], "Give a setting and its value, such as concurrency=5."),
        (["set", "concurrency"], "'concurrency' has no value"),
        (["set", "concurency=5"], "'concurency' is not a setting. Did you mean 'concurrency'?"),
        (["set", "x=5"], "'x' is not a setting. Use concurrency, timeout or backoff."),
        (["set", "concurrency=0"], "concurrency must lie between 1 and 2147483647."),
        (["set", "concurrency=many"], "concurrency is a whole number, not 'many'."),
        (["set", "timeout=soon"], "'soon' is not a duration"),
        (["set", "timeout=0"], "timeout must be more than 0"),
        (["set", 'backoff={"base": -1}'], "A backoff is a duration, or JSON"),
        (["set", "concurrency=5", "--for", "1h"], "--reason, --resume-at and --for belong to pause."),
        (["pause", "concurrency=5"], "'concurrency=5' does not belong here"),
        (
            ["pause", "--for", "1h", "--resume-at", "2199-01-01T00:00:00Z"],
            "Give --resume-at or --for, not both.",
        ),
        (["pause", "--resume-at", "2001-01-01T00:00:00Z"], "resume_at must lie in the future."),
        (["pause", "--for", "9999999999999999d"], "is too long."),
        (["stop"], "'stop' is not one of"),
    ],
)
def test_what_is_used_wrongly_changes_nothing(shop: Shop, args: list[str], said: str) -> None:
    shop.app.save_tasks()
    result = shop.run("queue", "mail", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert (shop.app.list_queues(), shop.app.list_acts()) == ([], [])


def test_a_slip_in_the_name_is_pointed_out(shop: Shop) -> None:
    shop.app.save_tasks()
    result = shop.run("queue", "mial")
    assert (result.exit_code, result.stderr) == (1, "Error: There is no queue mial. Did you mean 'mail'?\n")
    assert (
        shop.run("queue", "mial", "set", "timeout=5").stderr
        == "No task has this queue. Did you mean 'mail'?\n"
    )
    assert shop.run("queue", "mail").exit_code == 0
