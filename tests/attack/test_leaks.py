"""Secrets are planted in every field that can carry one, and searched for in every output.

What is promised:

- An argument under ``redact``, that is its value, the keys in it and each of its lines, is never in what commands
  print, in events, in the history, in errors of jobs or in the worker's log.
- The password of a URL is never in what commands print, in errors with all that they carry, in logs, in reprs or in
  the arguments of a process that we start.
- Arguments, tenant, keys, tags, meta, config, results and checkpoints are never in errors that perdure raises, in our
  log or in the repr of a public object.
- Files that we make are for their owner alone.

Shown on purpose, to those who may read the database: tenant, keys, tags, meta, config, result, checkpoint, reasons and
whatever a handler says, without what is redacted. Errors are also searched in tests/conformance/test_secrets.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure import CONTEXT, App, Cancel, Context, Fatal, Retry, Workflow
from perdure.errors import PerdureError
from perdure.model.redact import HIDDEN
from perdure.store.store import open_store
from tests.attack.test_terminal_output import INVOCATIONS, Planted
from tests.chain import assert_carries_no_driver_error, told
from tests.cli.shop import run
from tests.harness.processes import run_cli, start
from tests.harness.waiting import until
from tests.store.test_sqlite_modes import umask

KEY = "-----BEGIN KEY-----\nMIIEvQIBADAN\n\tkqhkiG9w0BAQ\r\nEFAASC'öffnen\"\n-----END KEY-----"
PASSWORDS: dict[str, Any] = {
    "text": "hunter2-text",
    "quoted": 'hünter2 "quoted" \\',
    "number": 271828182845,
    "lines": KEY,
    "nested": {"hunter2-key": ["hunter2-nested", {"deep": "hunter2-deep"}]},
}
NEVER = (
    "hunter2", "hünter2", "h\\u00fcnter2", "h\\xfcnter2", "271828182845", "MIIEvQIBADAN", "kqhkiG9w0BAQ", "EFAASC",
)  # fmt: skip


def assert_hidden(text: str, where: object) -> None:
    found = [secret for secret in NEVER if secret in text]
    assert not found, f"{where!r} has {found}"


def add_vault(app: App) -> None:
    """Handlers that leak their arguments, each in another way."""

    def task(function: Callable[..., Any]) -> None:
        app.task(name=function.__name__, max_attempts=1, redact=["password"])(function)

    @task
    def raise_it(password: Any) -> None:
        raise ValueError(f"no entry with {password}")

    @task
    def raise_a_group(password: Any) -> None:
        inner = ValueError(password)
        inner.add_note(f"noted: {password}")
        raise ExceptionGroup(f"for {password}", [ExceptionGroup("inner", [inner, KeyError(str(password))])])

    @task
    def raise_a_chain(password: Any) -> None:
        try:
            raise KeyError(str(password))
        except KeyError as error:
            raise Retry(json.dumps(password)) from error

    @task
    def fatal(password: Any) -> None:
        raise Fatal(repr(password))

    @task
    def cancel(password: Any) -> None:
        raise Cancel(ascii(password))

    @task
    async def talk(password: Any, *, ctx: Context = CONTEXT) -> None:
        ctx.stage(f"opened by {password}")
        ctx.progress(1, 2, f"with {password}")
        ctx.log(json.dumps({"password": password}), level="warning")
        ctx.log("x" * 16_370 + str(password))

    @task
    def succeed(password: Any) -> int:
        return 7


VAULT = """
from perdure import App
from tests.attack.test_leaks import add_vault
app = App({url!r})
add_vault(app)
"""


@pytest.mark.long
@pytest.mark.parametrize("form", ["text", "json"])
def test_what_is_redacted_is_in_no_output(url: str, form: str, tmp_path: Path) -> None:
    (tmp_path / "vault.py").write_text(VAULT.format(url=url))
    app = App(url)
    add_vault(app)
    jobs = [task.enqueue(password) for task in app.tasks.values() for password in PASSWORDS.values()]
    ran = run_cli(
        "worker", "vault:app", "--burst", "--log-level", "debug", "--log-format", form,
        cwd=tmp_path, PYTHONPATH=f"{Path.cwd()}",
    )  # fmt: skip
    assert ran.returncode == 0
    assert HIDDEN in ran.stderr
    assert_hidden(ran.stdout + ran.stderr, "the log")
    for job in jobs:
        assert job.refresh().state in ("succeeded", "failed", "canceled")
        seen = (
            job.error,
            job.progress,
            job.reason,
            app.job_history(job.id),
            app.explain_job(job.id),
            repr(job),
        )
        assert_hidden(str(seen), job.task)
    app.close()
    for args in commands([job.id for job in jobs]):
        assert_hidden(run(*args, "--url", url).output, args)


def commands(ids: list[str]) -> Iterator[list[str]]:
    for more in ([], ["--json"]):
        for id in ids:
            yield from (["job", id, *more], ["explain", id, *more])
        for command in ("jobs", "tasks", "queues", "workers", "stats", "check", "acts", "workflows"):
            yield [command, *more]
        yield ["jobs", "--count-by", "error-code", *more]
        yield ["requeue", ids[0], *more]
        yield ["delete", "--all", "--dry-run", *more]


def test_events_and_the_log_of_this_process_tell_no_secret(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[object] = []
    with closing(App(url)) as app:
        add_vault(app)
        app.on("started", "succeeded", "failed", "canceled")(seen.append)
        jobs = [task.enqueue(password) for task in app.tasks.values() for password in PASSWORDS.values()]
        assert app.run_worker(burst=True) == 0
        for job in jobs:
            if job.refresh().state == "failed":
                with pytest.raises(PerdureError) as failed:
                    job.get()
                assert_hidden(told(failed.value) + str(vars(failed.value)), job.task)
    assert seen
    assert_hidden(str(seen), "events")
    assert_hidden(caplog.text, "the log")


SECRET = "swordfish"


def test_no_repr_of_a_public_object_has_what_was_given_to_it(url: str) -> None:
    seen: list[object] = []
    with closing(App(url)) as app:

        @app.task(name="keep")
        def keep(note: str, *, ctx: Context = CONTEXT) -> str:
            ctx.save(note)
            seen.extend([ctx, Context.current()])
            return note

        asked = keep.using(
            tenant=SECRET, tags=[SECRET], meta={SECRET: SECRET}, unique_key=SECRET, idempotency_key=SECRET
        )
        flow = Workflow("flow", tenant=SECRET, idempotency_key=SECRET, meta={SECRET: SECRET})
        step = flow.step("one", keep.using(tenant=SECRET).job(SECRET))
        seen += [
            app,
            keep,
            asked,
            asked.job(SECRET),
            flow,
            step,
            step.result,
            app.store,
            asked.enqueue(SECRET),
        ]
        seen += [app.start_workflow(flow), app.worker()]
        app.set_task("keep", config={"password": SECRET})
        assert app.run_worker(burst=True) == 0
        seen += [*app.list_jobs(), *app.list_workflows()]
        for one in seen:
            assert SECRET not in repr(one), type(one)


def test_the_password_of_a_url_is_in_no_output(postgres_url: str) -> None:
    password = urlsplit(postgres_url).password
    assert password
    seen = []
    with closing(App(postgres_url)) as app:
        seen += [repr(app), repr(app.store), app.store.address, str(app.stats()), str(app.store.facts())]
    for args in (
        ["check"],
        ["stats"],
        ["stats", "--json"],
        ["check", "--json"],
        ["move", postgres_url, postgres_url],
    ):
        seen.append(run(*args, "--url", postgres_url).output)
    assert password not in "\n".join(seen)


@pytest.mark.long
def test_the_password_of_a_url_is_in_the_output_of_no_command(postgres_url: str) -> None:
    password = urlsplit(postgres_url).password
    assert password
    planted = Planted(postgres_url)
    planted.app.close()
    for command, invocations in INVOCATIONS.items():
        for args in invocations(planted):
            assert password not in run(command, *args, "--url", postgres_url).output


WRONG = {
    "away": "postgresql://ann:swordfish@127.0.0.1:1/shop",
    "unknown host": "postgresql://ann:swordfish@nowhere.invalid/shop",
    "unreadable": "postgresql://ann:swordfish%@db/shop",
    "an option": "postgresql://ann:pw@db/shop?sslmode=swordfish",
    "not encoded": "postgresql://ann:sword/fish@swordfish@db/shop",
    "a port": "postgresql://ann:pw@db:swordfish/shop",
    "nothing known": "mysql://ann:swordfish@db/shop",
    "no slash": "sqlite://swordfish",
    "a directory": "sqlite:////no/such/directory/swordfish/../jobs.db?password=swordfish",
}


@pytest.mark.parametrize("wrong", [*WRONG, "login"])
def test_no_error_carries_the_password_of_a_url(
    wrong: str, postgres_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("perdure.cli.target.PATIENCE", 0)
    monkeypatch.setattr("perdure.move.PATIENCE_AWAY", 0)
    if wrong == "login":
        parts = urlsplit(postgres_url)
        address = postgres_url.replace(f":{parts.password}@", f":{SECRET}@")
    else:
        address = WRONG[wrong]
    acts: list[Callable[[Any], object]] = [
        lambda store: store.check_schema(),
        lambda store: store.migrate(),
        lambda store: store.connect(),
        lambda store: asyncio.run(store.aconnect()),
    ]
    for act in acts:
        with pytest.raises(PerdureError) as refused:
            act(open_store(address, patience=0))
        assert SECRET not in told(refused.value)
        assert SECRET not in repr(vars(refused.value))
        assert_carries_no_driver_error(refused.value)
    assert SECRET not in caplog.text
    for args in (["jobs"], ["check", "--json"], ["migrate"]):
        ran = run(*args, "--url", address)
        assert ran.exit_code in (2, 3)
        assert SECRET not in ran.output
    assert SECRET not in run("move", address, "sqlite:///:memory:").output


WAITING = """
import os, time
from pathlib import Path
from perdure import App
app = App()
@app.task(name="wait", run_in="process")
def wait(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.02)
"""


@pytest.mark.long
def test_no_process_has_a_password_in_its_arguments(postgres_url: str, tmp_path: Path) -> None:
    password = urlsplit(postgres_url).password
    assert password
    (tmp_path / "waits.py").write_text(WAITING)
    with closing(App(postgres_url)) as app:
        app.task(name="wait")(lambda path: None)
        job = app.enqueue("wait", {"path": str(tmp_path / "go")})
        command = ["-m", "perdure", "worker", "waits:app", "--burst", "--processes", "1"]
        with start(*command, cwd=tmp_path, env={"PERDURE_URL": postgres_url}) as worker:
            until(lambda: job.refresh().state == "running")
            processes = [*arguments(worker.pid)]
            (tmp_path / "go").touch()
            _, errors = worker.communicate()
        assert worker.returncode == 0, errors
    assert len(processes) >= 2, "a worker and its child"
    assert not [line for line in processes if password in line]


def arguments(parent: int) -> Iterator[str]:
    """What ``ps`` shows of a process and its children."""
    yield Path(f"/proc/{parent}/cmdline").read_text()
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            if f"\nPPid:\t{parent}\n" in path.read_text():
                yield path.with_name("cmdline").read_text()
        except OSError:
            continue  # it has ended


def test_only_its_owner_reads_what_a_worker_makes(tmp_path: Path) -> None:
    modes: dict[str, str] = {}
    with umask(0), closing(App(f"sqlite:///{tmp_path / 'jobs.db'}")) as app:

        @app.task(name="look")
        def look() -> None:
            modes.update({path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in tmp_path.iterdir()})

        look.enqueue()
        assert app.run_worker(burst=True) == 0
    assert any("-worker-" in name for name in modes)
    assert {"jobs.db", "jobs.db-wal"} <= {*modes}
    assert {*modes.values()} == {"0o600"}
