"""``limits``, ``limit`` and ``check --limits``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.shop import Shop


def work(n: int = 0) -> None: ...


def rows(shop: Shop) -> list[list[str]]:
    """The cells of the table."""
    return [line.split() for line in shop.run("limits").stdout.splitlines()[1:]]


def claim(shop: Shop, n: int) -> list[str]:
    shop.app.operations.limits_may_have_changed()
    claimed = shop.app.operations.claim("ann-1", tasks=sorted(shop.app.tasks), n=n)
    return [job.id for job in claimed]


@pytest.fixture
def tasks(shop: Shop) -> dict[str, Any]:
    """Tasks under limits of each kind, and a worker."""
    shop.app.limit("printer", concurrency=2)
    tasks = {
        "paper": shop.app.task(name="paper", limits=["printer"])(work),
        "label": shop.app.task(name="label", limits=["printer"], concurrency=5)(work),
        "sync": shop.app.task(name="sync", concurrency=1, concurrency_key="{n}", queue="slow")(work),
    }
    shop.app.save_tasks()
    shop.serve(tasks=tuple(tasks))
    return tasks


def test_no_limits_are_said_to_be_none(shop: Shop) -> None:
    shop.app.save_tasks()
    result = shop.run("limits")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No limits.\n")
    assert shop.json("limits") == []
    assert (
        shop.run("check", "--limits").stdout.splitlines()[-1] == "0 limits were compared, none is exceeded."
    )


def test_limits_are_listed_with_what_runs_and_what_waits(shop: Shop, tasks: dict[str, Any]) -> None:
    for task, n in (("paper", 3), ("label", 2)):
        for _ in range(n):
            tasks[task].enqueue()
    tasks["paper"].using(delay=60).enqueue()
    tasks["label"].using(priority=3, queue="other").enqueue()
    for n in (1, 1, 2):
        tasks["sync"].enqueue(n)
    assert len(claim(shop, 9)) == 4
    label, sync, printer = shop.json("limits")
    assert (label["name"], label["kind"], label["running"], label["waiting"]) == ("label", "task", 1, 2)
    assert (sync["name"], sync["kind"], sync["running"], sync["waiting"]) == ("sync", "key", 2, 1)
    assert (sync["keys"], sync["full_keys"], sync["tasks"]) == (2, 2, ["sync"])
    assert printer == {
        **{"name": "printer", "kind": "named", "concurrency": 2, "declared": 2, "edited": False},
        **{"running": 2, "waiting": 4, "more_waiting": False, "keys": 0, "full_keys": 0, "exceeded": []},
        "tasks": ["label", "paper"],
    }
    assert rows(shop) == [
        ["label", "task", "5", "1", "2", "label"],
        ["sync", "key", "1", "2", "1", "2", "keys,", "2", "full", "sync"],
        ["printer", "named", "2", "2", "4", "label,", "paper"],
    ]
    assert shop.run("limits").stdout.split()[:5] == ["LIMIT", "KIND", "CONCURRENCY", "RUNNING", "WAITING"]


def test_jobs_without_a_key_do_not_wait_for_a_slot_of_a_key(shop: Shop) -> None:
    task: Any = shop.app.task(name="maybe", concurrency=1, concurrency_key=lambda n=0: n or None)(work)
    for n in (0, 0, 4, 0):
        task.enqueue(n)
    (limit,) = shop.json("limits")
    assert (limit["waiting"], limit["running"]) == (1, 0)


def test_what_waits_is_counted_up_to_a_bound(shop: Shop, tasks: dict[str, Any]) -> None:
    shop.app.enqueue_many([tasks["paper"].job() for _ in range(1001)])
    printer = shop.json("limits")[-1]
    assert (printer["waiting"], printer["more_waiting"]) == (1000, True)
    assert rows(shop)[-1][:4] == ["printer", "named", "2", "1,000+"]


def test_a_named_limit_is_set_lifted_and_reset(shop: Shop, tasks: dict[str, Any]) -> None:
    def told(*args: str) -> str:
        result = shop.run("limit", "printer", *args, "--actor", "ann")
        assert (result.exit_code, result.stderr) == (0, "")
        return " ".join([result.stdout.strip(), "|", *rows(shop)[-1]])

    assert told("set", "5") == (
        "The limit printer is 5. | printer named 5 set to 5 by an operator, code says 2 label, paper"
    )
    assert told("set", "none") == (
        "The limit printer is lifted. | printer named none lifted by an operator, code says 2 label, paper"
    )
    for _ in range(3):
        tasks["paper"].enqueue()
    assert len(claim(shop, 3)) == 3, "lifted"
    assert shop.json("limits")[-1]["running"] == 3
    assert (
        told("reset") == "The limit printer is 2, as the code says. | printer named 2 3 exceeded label, paper"
    )
    assert shop.json("limit", "printer", "set", "7") == {"limit": "printer", "concurrency": 7, "edited": True}
    assert shop.json("limit", "printer", "reset") == {"limit": "printer", "concurrency": 2, "edited": False}
    acts = [(act.action, act.actor) for act in shop.app.list_acts(subject="limit printer")]
    assert acts[2:] == [("reset_limit", "ann"), ("set_limit", "ann"), ("set_limit", "ann")]


def test_a_limit_that_no_task_has_is_noticed(shop: Shop, tasks: dict[str, Any]) -> None:
    result = shop.run("limit", "pinter", "set", "3")
    assert (result.exit_code, result.stdout) == (0, "The limit pinter is 3.\n")
    assert result.stderr == "No task has this limit. Did you mean 'printer'?\n"
    assert rows(shop)[-2] == ["pinter", "named", "3", "set", "to", "3", "by", "an", "operator"]
    unknown = shop.run("limit", "nothing", "reset")
    assert (unknown.exit_code, unknown.stderr) == (
        1,
        "Error: There is no limit named nothing. [limit.unknown]\n",
    )


@pytest.mark.parametrize(
    "args",
    [["set"], ["reset", "3"], ["set", "0"], ["set", "-1"], ["set", "many"], ["set", "9" * 30], ["raise"]],
)
def test_a_change_that_makes_no_sense_is_refused(shop: Shop, tasks: dict[str, Any], args: list[str]) -> None:
    result = shop.run("limit", "printer", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert shop.json("limits")[-1]["edited"] is False


def test_check_compares_the_limits_with_what_runs(shop: Shop, tasks: dict[str, Any]) -> None:
    for _ in range(2):
        tasks["paper"].enqueue()
    tasks["sync"].enqueue(4)
    jobs = claim(shop, 9)
    result = shop.run("check", "--limits")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "3 limits were compared, none is exceeded."
    assert "printer  named" in result.stdout
    assert "limits" not in json.loads(shop.run("check", "--json").stdout)
    shop.app.set_limit("printer", concurrency=1)
    exceeded = shop.run("check", "--limits")
    assert exceeded.exit_code == 1
    papers = [id for id in jobs if shop.app.get_job(id).task == "paper"]
    assert exceeded.stdout.splitlines()[-1] == (
        f"exceeded: the limit printer is 1, but 2 jobs run: {', '.join(papers)}"
    )
    assert shop.run("check").exit_code == 0
    found = json.loads(shop.run("check", "--limits", "--json").stdout)
    assert found["ok"] is False
    assert found["limits"][-1]["exceeded"] == [{"key": None, "running": 2, "jobs": papers}]
