"""``perdure worker``: what it asks of the app, and how it exits. The app is a stand-in, but for one burst."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure import App
from tests.cli.shop import Shop, run
from tests.harness.processes import Process, run_cli
from tests.harness.waiting import until
from tests.worker.worker_app import make

ASKED: dict[str, Any] = {
    "queues": None,
    "concurrency": 20,
    "processes": None,
    "burst": False,
    "drain": 30,
    "name": None,
    "target": "shop:app",
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """What run_worker was asked for."""
    calls: list[dict[str, Any]] = []

    def run_worker(app: App, **options: Any) -> int:
        calls.append(options)
        return 7

    monkeypatch.setattr(App, "run_worker", run_worker)
    monkeypatch.setattr("perdure.cli.logs.set_up", lambda level, form: calls.append({level: form}))
    monkeypatch.setattr("perdure.cli.target.load_app", lambda path: App("sqlite:///:memory:"))
    return calls


def test_the_worker_is_run_and_its_exit_code_is_ours(asked: list[dict[str, Any]]) -> None:
    assert run("worker", "shop:app").exit_code == 7
    assert asked == [{"info": "text"}, ASKED]


@pytest.mark.parametrize("flags", [["worker", "--app", "shop:app"], ["--app", "shop:app", "worker"]])
def test_the_app_may_be_named_as_for_every_verb(asked: list[dict[str, Any]], flags: list[str]) -> None:
    assert run(*flags).exit_code == 7


def test_every_option_reaches_the_worker(asked: list[dict[str, Any]]) -> None:
    flags = "--queues a,b --concurrency 50 --processes 2 --burst --drain 1.5 --name ann"
    logs = "--log-level DEBUG --log-format json"
    run("worker", "shop:app", *flags.split(), *logs.split())
    assert asked == [
        {"debug": "json"},
        ASKED
        | {
            "queues": ["a", "b"],
            "concurrency": 50,
            "processes": 2,
            "burst": True,
            "drain": 1.5,
            "name": "ann",
        },
    ]


def test_a_child_process_is_told_where_the_app_is(asked: list[dict[str, Any]]) -> None:
    for path, target in {"shop": "shop:app", "shop.jobs:Box.inner": "shop.jobs:Box.inner"}.items():
        run("worker", path)
        assert asked[-1]["target"] == target


@pytest.mark.parametrize(
    ("text", "queues"),
    [("a", ["a"]), ("b, a", ["b", "a"]), ("a=3,b=1", {"a": 3, "b": 1}), ("a = 2", None), ("a=10", {"a": 10})],
)
def test_queues_are_an_order_or_weights(asked: list[dict[str, Any]], text: str, queues: Any) -> None:
    result = run("worker", "shop:app", "--queues", text)
    if queues is None:
        assert result.exit_code == 2
    else:
        assert asked[-1]["queues"] == queues


@pytest.mark.parametrize("text", ["a=3,b", "a=0", "a=-1", "a=x", "=3", "a,,b", ",", "a=1.5"])
def test_queues_that_make_no_sense_are_refused(asked: list[dict[str, Any]], text: str) -> None:
    assert run("worker", "shop:app", "--queues", text).exit_code == 2
    assert asked == []


def test_the_environment_has_defaults_and_a_flag_goes_before_them(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"APP": "shop:app", "QUEUES": "a=2", "CONCURRENCY": "5", "LOG_LEVEL": "error"}.items():
        monkeypatch.setenv(f"PERDURE_{name}", value)
    run("worker")
    assert asked == [{"error": "text"}, {**ASKED, "queues": {"a": 2}, "concurrency": 5}]
    run("worker", "--queues", "b", "--concurrency", "6")
    assert asked[-1] == {**ASKED, "queues": ["b"], "concurrency": 6}


def test_a_worker_without_an_app_is_told_how_to_name_one(asked: list[dict[str, Any]]) -> None:
    result = run("worker")
    assert result.exit_code == 2
    assert (
        result.stderr.splitlines()[-1]
        == "Error: Which app? Run perdure worker MODULE:APP, or set $PERDURE_APP."
    )
    assert asked == []


def test_a_burst_runs_what_is_there_and_logs_json(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from perdure import App\napp = App()\n"
        "@app.task(name='mail.send', queue='mail')\ndef send(to: str) -> str:\n    return to.upper()\n"
    )
    job = shop.send.enqueue("ann")
    ran = run_cli("worker", "shop:app", "--burst", "--log-format", "json", "--url", shop.url, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert shop.json("job", job.id)["result"] == "ANN"
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    assert any(line["logger"] == "perdure.worker" and line.get("job") == job.id for line in lines)


PRESS = """
import os
from perdure import App
class Box:
    inner = App()
@Box.inner.task(name="press", run_in="process")
def press() -> int:
    return os.getpid()
@Box.inner.task(name="look")
def look() -> int:
    return os.getpid()
"""


def test_a_process_task_runs_where_its_app_is_no_name_of_its_module(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PRESS)
    here = {"PERDURE_APP": "shop:Box.inner", "PERDURE_URL": "sqlite:///jobs.db"}
    jobs = [run_cli("enqueue", task, cwd=tmp_path, **here).stdout.strip() for task in ("press", "look")]
    ran = run_cli("worker", "--burst", "--processes", "0", cwd=tmp_path, **here)
    assert ran.returncode == 0
    assert "With processes=0 this worker leaves these tasks to other workers: press\n" in ran.stderr
    with App(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        press, look = (app.get_job(id) for id in jobs)
        assert (press.state, look.state) == ("ready", "succeeded")
        ran = run_cli("worker", "--burst", "--processes", "1", cwd=tmp_path, **here)
        assert ran.returncode == 0, ran.stderr
        assert press.get(0) != look.get(0)


def test_a_thread_that_a_handler_left_behind_does_not_hold_up_the_exit(shop: Shop, tmp_path: Path) -> None:
    """Cancelled, an executor is no longer awaited, and Python would wait for its thread for ever."""
    notes = tmp_path / "notes"
    command = ["-m", "perdure", "worker", "tests.worker.worker_app:app", "--drain", "0.1"]
    worker = Process(*command, log=tmp_path / "log", env={"PERDURE_URL": shop.url})
    try:
        app = make(shop.url)
        job = app.tasks["rest_in_executor"].enqueue(note_to=str(notes))
        until(notes.exists)
        assert worker.stop() == 10
        assert (
            "Threads of handlers are still running: the process ends without waiting for them" in worker.log
        )
        assert (job.refresh().state, job.attempt) == ("ready", 0)
        app.close()
    finally:
        worker.remove()
