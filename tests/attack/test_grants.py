"""Roles with exactly the rights that ``perdure grants`` prints: they suffice, and an error names a missing one."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from perdure import CONTEXT, App, Context, Step, Workflow
from perdure.client.database import DatabaseSettings
from perdure.errors import StoreReadOnly
from perdure.store.postgres.grants import RIGHTS
from perdure.store.schema.files import migrations, tables
from tests.attack import rights_app
from tests.attack.roles import role
from tests.cli.shop import run
from tests.harness.processes import run_cli
from tests.sql import recorder
from tests.sql.recorder import Recorder

ROOT = Path(__file__).parents[2]
RoleFor: TypeAlias = Callable[..., AbstractContextManager[str]]


def nothing(n: int = 0) -> None: ...


@pytest.fixture
def role_for(postgres_url: str) -> RoleFor:
    """The URL of a role with the rights printed for a purpose, except those revoked."""
    with closing(App(postgres_url)) as app:
        app.migrate()

    @contextmanager
    def grant(purpose: str, *revoked: str) -> Iterator[str]:
        with role(postgres_url, f'a "{purpose}"') as (name, url), psycopg.connect(postgres_url) as admin:
            printed = run("grants", f"--{purpose}", name)
            assert (printed.exit_code, printed.stderr) == (0, "")
            admin.execute(printed.stdout.encode())
            for rights in revoked:
                admin.execute(SQL("REVOKE {} FROM {}").format(SQL(rights), Identifier(name)))
            admin.commit()
            yield url

    return grant


def test_a_producer(role_for: RoleFor) -> None:
    with role_for("producer") as url, closing(App(url)) as app:
        app.check_schema()
        task = app.task(name="send")(nothing)
        job = task.enqueue(1)
        app.enqueue_many([task.job(1), task.job(2)])
        app.enqueue_many([task.job(1), task.using(priority=1).job(2)])
        for _ in range(2):
            task.using(idempotency_key="k", unique_key="u", expires=60).enqueue(1)
        with psycopg.connect(url) as conn:
            app.enqueue("send", {"n": 1}, unique_key="v", conn=conn)
        flow = Workflow("flow", idempotency_key="k", unique_key="u")
        gate = flow.gate("gate")
        flow.step("step", task.job(1), after=[gate])
        started = app.start_workflow(flow)
        app.append_steps(
            started.id, window="gate", mutation_key="m", steps=[Step("late", task.job(2), after=["gate"])]
        )
        app.resolve_gate(started.id, "gate", "succeeded")
        app.cancel_workflow(started.id)
        assert app.cancel_job(job.id) == "canceled"
        assert app.get_job(job.id).state == "canceled"
        app.job_history(job.id)
        app.explain_job(job.id)
        app.save_tasks(exact=True)


def test_a_worker(role_for: RoleFor) -> None:
    with role_for("worker") as url, closing(App(url)) as app:
        store = Recorder(app.store)
        for act in (recorder.set_up, recorder.live, recorder.look, recorder.sweep_up):
            act(store)


@pytest.mark.long
def test_a_worker_that_runs(role_for: RoleFor, monkeypatch: pytest.MonkeyPatch) -> None:
    with role_for("producer") as producer, role_for("worker") as url:
        monkeypatch.setattr(rights_app.app, "database", DatabaseSettings(producer))
        flow = Workflow("flow")
        flow.step("grow", rights_app.grow.job())
        with closing(rights_app.app):
            rights_app.app.enqueue_many([task.job() for task in (rights_app.rest, rights_app.alone)])
            rights_app.app.start_workflow(flow)
        ended = run_cli("worker", "tests.attack.rights_app:app", "--burst", cwd=ROOT, PERDURE_URL=url)
        assert (ended.returncode, "cannot serve" in ended.stderr) == (0, False), ended.stderr
        with closing(App(url)) as app:
            assert app.count_jobs_by("state") == {"succeeded": 6}


async def test_a_worker_that_may_not_write_lines_still_records_outcomes(
    role_for: RoleFor, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, the outcome waited behind the lines for ever, and each stop cost the job an attempt."""
    with role_for("worker", "INSERT ON perdure.log") as url:
        app = App(url)

        @app.task(name="talk")
        async def talk(*, ctx: Context = CONTEXT) -> str:
            ctx.log("on the way")
            return "done"

        async with app.worker():
            job = await talk.aenqueue()
            assert await job.aget(30) == "done"
        await app.aclose()
    (line,) = (line for line in caplog.messages if "cannot be recorded" in line)
    assert job.id in line
    assert "lacks INSERT on the table log" in line


def test_a_reader(role_for: RoleFor, postgres_url: str) -> None:
    with closing(App(postgres_url)) as app:
        recorder.perform_everything(Recorder(app.store))
        job, workflow = app.list_jobs()[0].id, app.list_workflows()[0].id
    asked = ["jobs", "acts", "workflows", "queues", "tasks", "workers", "stats", "check"]
    with role_for("reader") as url:
        for command in [*([one] for one in asked), ["job", job], ["explain", job], ["workflow", workflow]]:
            result = run(*command, "--url", url)
            assert result.exit_code == 0, (command, result.stderr)
        refused = run("cancel", job, "--url", url)
    assert refused.exit_code == 3
    assert "lacks INSERT, UPDATE on the table " in refused.stderr, "a worker needs no more of it"
    assert "of the schema perdure: run perdure grants" in refused.stderr


def test_an_operator(role_for: RoleFor, postgres_url: str) -> None:
    with closing(App(postgres_url)) as app:
        recorder.perform_everything(Recorder(app.store))
        before = sum(app.count_jobs_by("state").values())
    with role_for("operator") as url:
        for command in (["pause", "default"], ["resume", "default"], ["cancel", "--all", "--yes"]):
            assert run(*command, "--url", url).exit_code in (0, 1)
        deleted = run("delete", "--all", "--yes", "--url", url)
        assert "lacks" not in deleted.stderr
    with closing(App(postgres_url)) as app:
        assert sum(app.count_jobs_by("state").values()) < before


def test_one_new_task_that_cannot_be_written_does_not_stop_the_others(
    role_for: RoleFor, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(App(postgres_url)) as owner:
        owner.task(name="old")(nothing)
        owner.save_tasks()
    with role_for("producer", "INSERT, UPDATE ON perdure.task") as url, closing(App(url)) as app:
        old, new = app.task(name="old")(nothing), app.task(name="new")(nothing)
        assert old.enqueue().created
        assert app.enqueue_many([old.job(), old.job()])
        (warned,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert "lacks INSERT, UPDATE on the table task" in warned.getMessage()
        for _ in range(2):
            with pytest.raises(StoreReadOnly, match="lacks INSERT, UPDATE on the table task") as refused:
                new.enqueue()
            assert refused.value.code == "store.forbidden"
        assert old.enqueue().created


def test_a_program_that_may_not_write_settings_of_queues_goes_on(
    role_for: RoleFor, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with role_for("producer") as url, closing(App(url)) as app:
        app.queue("mail", concurrency=20)
        work = app.task(name="work")(nothing)
        assert work.enqueue().created
        app.save_tasks()
        warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warned) == 2
        assert "lacks INSERT, UPDATE on the table queue" in warned[0]
    with closing(App(postgres_url)) as owner:
        owner.queue("mail", concurrency=20)
        owner.save_tasks()
        assert [queue.concurrency for queue in owner.list_queues()] == [20]
    caplog.clear()
    with role_for("producer") as url, closing(App(url)) as app:
        app.queue("mail", concurrency=20)
        app.save_tasks()
        assert not caplog.records, "nothing differs, so nothing is written"


def test_what_the_database_knows_is_not_written_again(role_for: RoleFor, postgres_url: str) -> None:
    with closing(App(postgres_url)) as owner:
        owner.task(name="old")(nothing)
        owner.save_tasks()
    with role_for("worker", "INSERT, UPDATE ON perdure.task") as url, closing(App(url)) as app:
        app.task(name="old")(nothing).enqueue()
        app.save_tasks()
        app.save_tasks(exact=True)
        assert app.run_worker(burst=True) == 0


@pytest.mark.parametrize("table", ["task", "worker"])
def test_a_worker_without_rights_ends_and_names_them(role_for: RoleFor, table: str) -> None:
    with role_for("worker", f"ALL ON perdure.{table}") as url:
        ended = run_cli("worker", "tests.attack.rights_app:app", cwd=ROOT, PERDURE_URL=url)
    assert ended.returncode == 3
    assert f"lacks SELECT, INSERT, UPDATE on the table {table} of the schema perdure" in ended.stderr


def test_a_role_that_may_not_enter_the_schema_is_told_of_the_command(role_for: RoleFor) -> None:
    with (
        role_for("producer", "USAGE ON SCHEMA perdure") as url,
        closing(App(url)) as app,
        pytest.raises(StoreReadOnly, match="perdure grants") as refused,
    ):
        app.list_jobs()
    assert refused.value.code == "store.forbidden"


def test_every_table_is_thought_of() -> None:
    assert set(RIGHTS["reader"]) == {*tables(migrations("postgres")), "migration"}
    assert all(set(rights) <= set(RIGHTS["reader"]) for rights in RIGHTS.values())


def test_names_are_quoted() -> None:
    printed = json.loads(run("grants", "--reader", 'a"; DROP', "--schema", "my jobs", "--json").stdout)
    assert printed["sql"][0] == 'GRANT USAGE ON SCHEMA "my jobs" TO "a""; DROP";'


def test_sqlite_has_no_roles() -> None:
    refused = run("grants", "--reader", "ann", "--url", "sqlite:///jobs.db")
    assert refused.exit_code == 2
    assert "SQLite has no roles" in refused.stderr


def test_whose_rights_must_be_said() -> None:
    assert run("grants").exit_code == 2
    assert run("grants", "--reader", "").exit_code == 2
