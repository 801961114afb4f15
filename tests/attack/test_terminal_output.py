"""Commands only write letters to a terminal, whatever jobs, names, messages and arguments contain.

Hostile text stands in every field that takes text. Every command of the tree is run on it; a new one has to be given
an invocation here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from perdure import CONTEXT, App, Cancel, Context, Fatal, Retry, Workflow
from perdure.cli import program
from perdure.model.job import SECOND
from tests.cli.shop import NOBODY, run
from tests.cli.test_tables import in_terminal
from tests.harness.processes import run_cli

FORGED = "2027-01-15 08:00:00Z WARNING forged"

HOSTILE = (
    "\x1b]0;title\x07"  # sets the title
    "\x1b[2J\x1b[31m"  # clears, colours
    "\x9b31m\x85\x90"  # the same in one character, a line break, a device control string
    "\u202e\u2066\u200e\u061c"  # turn the direction of writing
    "\u200b\ufeff\u2028\u2029\u00ad"  # nothing to be seen, and line breaks
    "\r\b\x7f\x0b\x0c\x01"
    f"\n{FORGED}"
)


def named(what: str) -> str:
    return f"{what}{HOSTILE}"


def is_harmless(text: str) -> bool:
    return all(letter.isprintable() or letter in "\n\t" for letter in text)


def assert_harmless(text: str, what: object) -> None:
    found = sorted({f"U+{ord(letter):04X}" for letter in text if not is_harmless(letter)})
    assert not found, f"{what!r} printed {found}"
    assert not [line for line in text.splitlines() if line.startswith("2027")], (
        f"{what!r} printed a forged line"
    )


class Planted:
    """An app whose names are all hostile, with jobs and their history."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = app = App(url)
        add_tasks(app)
        app.save_tasks()
        app.set_task(named("fail"), config={named("limit"): named("value")}, by=named("ann"))
        self.failed = self.enqueue("fail")
        self.retrying = self.enqueue("retry")
        self.succeeded = self.enqueue("talk")
        self.given_up = self.enqueue("give up")
        self.canceled = self.enqueue("fail")
        self.canceled.cancel(reason=named("reason"), by=named("ann"))
        self.gated = self.start("gate")
        assert app.run_worker(burst=True, name=named("worker")) == 0
        self.over = self.start("over")
        self.over.cancel(reason=named("reason"))
        self.ready = self.enqueue("fail")
        self.unserved = self.enqueue("fail", queue=named("unserved"))
        app.pause_queue(named("queue"), by=named("ann"))
        app.operations.register(
            "0198a1b2-1",
            name=named("worker"),
            lease=600 * SECOND,
            tasks=[named("fail")],
            queues=[named("queue")],
        )

    def enqueue(self, task: str, **options: Any) -> Any:
        options.setdefault("queue", named("queue"))
        asked = self.app.tasks[named(task)].using(
            tenant=named("tenant"), tags=[named("tag")], meta={named("key"): named("value")}, **options
        )
        return asked.enqueue(named("argument"))

    def start(self, key: str) -> Any:
        flow = Workflow(named("flow"), tenant=named("tenant"), idempotency_key=named(key))
        first = flow.step(named("first"), self.app.tasks[named("talk")].job("x"))
        gate = flow.gate(named("gate"), after=[first])
        flow.step(named("last"), self.app.tasks[named("fail")].job("x"), after=[gate])
        return self.app.start_workflow(flow)


def add_tasks(app: App) -> None:
    app.limit(named("limit"), concurrency=10)

    @app.task(name=named("fail"), queue=named("queue"), max_attempts=1, limits=[named("limit")])
    def fail(note: str, *, ctx: Context = CONTEXT) -> None:
        ctx.log(named("log"), level=named("level"))
        raise Fatal(named("message"), code=named("code"))

    @app.task(name=named("retry"), queue=named("queue"), backoff=3600)
    def retry(note: str) -> None:
        raise Retry(named("message"), code=named("code")) from ExceptionGroup(
            named("group"), [ValueError(note)]
        )

    @app.task(name=named("talk"), queue=named("queue"))
    def talk(note: str, *, ctx: Context = CONTEXT) -> str:
        ctx.stage(named("stage"))
        ctx.progress(1, 2, named("progress"))
        ctx.log(named("log"), level=named("level"))
        ctx.save({named("saved"): named("value")})
        logging.getLogger(named("logger")).warning(
            named("theirs %s"), note, extra={named("extra"): named("value")}
        )
        return named("result")

    @app.task(name=named("give up"), queue=named("queue"))
    def give_up(note: str) -> None:
        raise Cancel(named("reason"))


ALL = ["--yes", "--queue", named("queue"), "--actor", named("ann"), "--reason", named("reason")]

INVOCATIONS: dict[str, Callable[[Planted], list[list[str]]]] = {
    "enqueue": lambda it: [[named("fail"), '{"note": "x"}'], [named("nobody")], [named("fail"), named("{")]],
    "jobs": lambda it: [
        [], ["--count-by", "queue"], ["--count-by", "error-code"], ["--queue", named("quee")], ["--limit", "1"],
        ["--task", named("fial")], ["--state", named("ready")], ["--created-after", named("x")],
    ],
    "job": lambda it: [
        [one.id] for one in (it.failed, it.retrying, it.succeeded, it.given_up, it.canceled, it.ready)
    ] + [[HOSTILE], [NOBODY]],
    "explain": lambda it: [
        [one.id] for one in (it.failed, it.retrying, it.succeeded, it.canceled, it.ready, it.unserved)
    ] + [[HOSTILE], [NOBODY]],
    "workflows": lambda it: [[], ["--name", named("flow")], ["--before", HOSTILE]],
    "workflow": lambda it: [
        [it.gated.id], [it.over.id], [HOSTILE], [it.gated.id, "gate", named("none"), "--approve"],
        [it.gated.id, "gate", named("gate"), "--approve", "--output", HOSTILE],
        [it.gated.id, "gate", named("gate"), "--approve", "--reason", named("reason"), "--actor", named("ann")],
        [it.gated.id, "gate", named("gate"), "--approve"],
        [it.over.id, "cancel"], [it.over.id, "requeue"],
    ],
    "queues": lambda it: [[]],
    "queue": lambda it: [
        [named("queue")], [named("queu")], [HOSTILE], [named("queue"), HOSTILE], [named("queue"), "set", HOSTILE],
        [named("queue"), "set", f"concurrency={HOSTILE}"], [named("queue"), "set", f"backoff={HOSTILE}"],
        [named("queue"), "set", "timeout=5", "--actor", named("ann")], [named("queue"), "reset"],
        [named("queue"), "pause", "--reason", named("reason"), "--for", "1h"], [named("queue"), "warm"],
        [named("queue"), "pause", "--for", HOSTILE], [named("queue"), "resume"],
    ],
    "limits": lambda it: [[]],
    "limit": lambda it: [[named("limit"), "set", "2"], [named("limt"), "set", "2"], [HOSTILE, "reset"], ["x", HOSTILE]],
    "tasks": lambda it: [[]],
    "workers": lambda it: [[]],
    "stats": lambda it: [[], ["--since", "1d"], ["--since", HOSTILE]],
    "grants": lambda it: [[], ["--reader", HOSTILE], ["--worker", "w", "--schema", named("schema")]],
    "check": lambda it: [[], ["--strict"], ["--limits"]],
    "acts": lambda it: [[], ["--actor", named("ann")], ["--limit", "1"]],
    "pause": lambda it: [[named("queu")], [named("queue"), "--actor", named("ann")], [""]],
    "resume": lambda it: [[named("queue"), "--actor", named("ann")]],
    "replay": lambda it: [[it.succeeded.id], [it.failed.id], [HOSTILE]],
    "run-now": lambda it: [[it.retrying.id], [HOSTILE], ALL[:-2]],
    "cancel": lambda it: [[it.ready.id], [HOSTILE], ["--dry-run", "--queue", named("queue")], ALL],
    "requeue": lambda it: [[it.failed.id], ["--dry-run", "--all"], ALL],
    "delete": lambda it: [[it.failed.id], [HOSTILE], ALL],
    "migrate": lambda it: [[], ["--to", HOSTILE], ["--to", "9999"], ["--sql"]],
    "sql": lambda it: [[], ["postgres", "--schema", named("schema")], [HOSTILE]],
    "move": lambda it: [
        [it.url, it.url], [HOSTILE, it.url], ["sqlite:////no/such/\x1b[2J.db", it.url], [it.url, "--keep"],
        [it.url, "--abandon"], [it.url, f"sqlite:////no/such/{HOSTILE}"],
    ],
    "worker": lambda it: [[named("module:app")], ["tests.cli.shop:" + HOSTILE], ["--queues", named("a="), "x:y"]],
    "demo": lambda it: [["--seconds", HOSTILE]],
    "bench": lambda it: [["--seconds", HOSTILE]],
}  # fmt: skip
"""The arguments of each command. Runs of ``demo`` and ``bench``, which take seconds, are below."""


def commands(group: click.Group = program) -> Iterator[str]:
    """The whole tree."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from (f"{name} {inner}" for inner in commands(command))
        else:
            yield name


def test_every_command_has_an_invocation() -> None:
    assert {*INVOCATIONS} == {*commands()}


def test_no_command_prints_what_it_was_planted_with(sqlite_url: str) -> None:
    run_all_commands(sqlite_url)


@pytest.mark.long
def test_no_command_prints_what_it_was_planted_with_on_postgres(postgres_url: str) -> None:
    run_all_commands(postgres_url)


def run_all_commands(url: str) -> None:
    planted = Planted(url)
    planted.app.close()
    for command, invocations in INVOCATIONS.items():
        for args in invocations(planted):
            for more in ([], ["--json"]):
                ran = run(command, *args, *more, "--url", url)
                assert_harmless(ran.stdout, (command, *args, *more))
                assert_harmless(ran.stderr, (command, *args, *more))
            if command in ("jobs", "queues", "limits", "tasks", "workers", "acts") and not args:
                assert "�]0;title��[2J" in run(command, "--url", url).stdout, "what can be shown is shown"


@pytest.mark.parametrize(
    "args",
    [
        [HOSTILE],
        ["jobs", f"--{HOSTILE}"],
        ["jobs", "--url", named("sqlite:///")],
        ["jobs", "--url", named("postgresql://")],
        ["jobs", "--url", f"postgresql://127.0.0.1:1/{HOSTILE}"],
        ["jobs", "--url", HOSTILE],
        ["jobs", "--url", f"sqlite:////no/such/{HOSTILE}/jobs.db"],
        ["jobs", "--schema", HOSTILE * 9, "--url", "postgresql://127.0.0.1:1/x"],
        ["jobs", "--app", HOSTILE],
        ["jobs", "--app", named("json:")],
        ["migrate", "--url", "sqlite:///\udcff\x1b[2J/jobs.db"],
        ["--schema"],
        [f"--{HOSTILE}", "jobs"],
    ],
    ids=lambda args: ascii(args)[:40],
)
def test_no_error_prints_what_was_typed(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*args)
    assert ran.exit_code in (1, 2, 3, 4)
    assert ran.stderr
    assert_harmless(ran.output, args)


def test_an_app_that_cannot_be_imported_prints_nothing_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile_app.py").write_text(f"raise RuntimeError({HOSTILE!r})\n")
    monkeypatch.chdir(tmp_path)
    ran = run("tasks", "--app", "hostile_app:app")
    assert ran.exit_code == 2
    assert_harmless(ran.output, "tasks")


@pytest.mark.long
def test_a_terminal_gets_no_sequence_but_colours(tmp_path: Path) -> None:
    planted = Planted(f"sqlite:///{tmp_path / 'perdure.db'}")
    planted.app.close()
    for rich in (True, False):
        written = in_terminal(tmp_path, 200, rich=rich).replace("\r\n", "\n")
        assert_harmless(re.sub(r"\x1b\[[\d;]*m", "", written), "jobs")


MODULE = """
from perdure import App
from tests.attack.test_terminal_output import HOSTILE, add_tasks, named
app = App({url!r})
add_tasks(app)
"""


def test_no_log_of_a_worker_has_it(sqlite_url: str, tmp_path: Path) -> None:
    run_worker(sqlite_url, "text", tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("form", ["text", "json"])
def test_no_log_of_a_worker_has_it_anywhere(url: str, form: str, tmp_path: Path) -> None:
    run_worker(url, form, tmp_path)


def run_worker(url: str, form: str, tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(MODULE.format(url=url))
    app = App(url)
    add_tasks(app)
    for task in ("fail", "retry", "talk", "give up"):
        app.tasks[named(task)].enqueue(HOSTILE)
    app.close()
    ran = run_cli(
        "worker", "served:app", "--burst", "--log-level", "debug", "--log-format", form, "--name", named("worker"),
        cwd=tmp_path, PYTHONPATH=f"{Path.cwd()}",
    )  # fmt: skip
    assert ran.returncode == 0
    assert "theirs" in ran.stderr
    assert_harmless(ran.stdout + ran.stderr, form)
    if form == "text":
        entry = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ [A-Z]+ +\S|    ")
        assert all(entry.match(line) for line in ran.stderr.splitlines())
        assert "forged" in ran.stderr, "it is told, but as a part of a record"


@pytest.mark.long
def test_the_demo_and_the_benchmark_print_lines(url: str) -> None:
    for args in (["demo", "--seconds", "5"], ["bench", "--seconds", "10", "--url", url]):
        ran = run(*args)
        assert ran.exit_code == 0
        assert_harmless(ran.output, args)
