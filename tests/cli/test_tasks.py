"""``tasks``."""

from __future__ import annotations

from tests.cli.shop import Shop


def test_tasks_are_listed_with_what_is_set_and_who_serves_them(shop: Shop) -> None:
    shop.send.enqueue()
    shop.send.using(delay=60).enqueue()
    shop.app.task(name="mail.idle")(lambda: None)
    shop.app.save_tasks()
    shop.app.set_task("mail.idle", enabled=False, config={"limit": 3})
    shop.serve()
    idle, send = shop.json("tasks")
    assert (idle["name"], idle["enabled"], idle["config"], idle["served_by"]) == (
        "mail.idle",
        False,
        {"limit": 3},
        [],
    )
    assert (send["served_by"], send["counts"]) == (["ann"], {"ready": 1, "scheduled": 1})
    assert send["defaults"] == {
        "queue": "mail",
        "priority": 0,
        "max_attempts": 8,
        "timeout": 900,
        "backoff": {"base": 3600, "cap": 3600, "codes": {}},
        "max_crashes": 3,
    }
    assert send["saved_at"].endswith("Z")
    title, *rows = [line.split() for line in shop.run("tasks").stdout.splitlines()]
    assert title[:3] == ["TASK", "QUEUE", "READY"]
    assert rows == [
        ["mail.idle", "default", "disabled", '{"limit":3}'],
        ["mail.send", "mail", "1", "1", "ann"],
    ]


def test_no_tasks_are_said_to_be_none(shop: Shop) -> None:
    assert shop.run("tasks").stderr.startswith("No tasks")
    assert shop.json("tasks") == []
