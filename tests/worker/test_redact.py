"""``redact=``: arguments that a task's handlers are given, and nobody is shown."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import CONTEXT, App, Cancel, Context, Fatal, Retry
from perdure.errors import BadArguments, InvalidOption, InvalidTask
from perdure.model.redact import HIDDEN, redacted
from perdure.ops.tasks import list_tasks
from perdure.request.events import JobEvent
from tests.cli.shop import run

SECRET = 'hünter2 "\\'
"""With what repr, JSON and a terminal each spell in another way."""


@pytest.fixture
def app(url: str) -> Iterator[App]:
    app = App(url)
    app.migrate()
    yield app
    app.close()


def shout(password: str) -> None:
    raise ValueError(f"no entry with {password}")


def quote(password: str) -> None:
    raise KeyError(password)


def quote_at_the_cut(password: str) -> None:
    raise ValueError("x" * 1995 + password)


def shout_in_a_chain(password: str) -> None:
    try:
        raise KeyError(password)
    except KeyError:
        raise Retry("again") from ExceptionGroup(password, [ValueError(password)])


def say_fatal(password: str) -> None:
    raise Fatal(password)


def say_fatal_code(password: str) -> None:
    raise Fatal("no entry", code=password)


def say_retry_code(password: str) -> None:
    raise Retry("no entry", code=password)


def say_cancel(password: str) -> None:
    raise Cancel(password)


def talk(password: str, *, ctx: Context = CONTEXT) -> None:
    ctx.stage(password)
    ctx.progress(1, 2, password)
    ctx.log(password)
    ctx.log("x" * 7995 + password)


async def talk_async(password: str, *, ctx: Context = CONTEXT) -> None:
    talk(password, ctx=ctx)
    shout(password)


async def leave_a_task(password: str) -> None:
    async def fail() -> None:
        shout(password)

    task = asyncio.create_task(fail())
    await asyncio.wait([task])


async def leave_a_future(password: str) -> None:
    future = asyncio.get_running_loop().create_future()
    future.set_exception(ValueError(password))


async def leave_a_callback(password: str) -> None:
    asyncio.get_running_loop().call_soon(shout, password)
    await asyncio.sleep(0)


UNCAUGHT: list[Callable[..., Any]] = [leave_a_task, leave_a_future, leave_a_callback]

HANDLERS: list[Callable[..., Any]] = [
    shout, quote, quote_at_the_cut, shout_in_a_chain, say_fatal, say_fatal_code, say_retry_code, say_cancel,
    talk, talk_async, *UNCAUGHT,
]  # fmt: skip


@pytest.mark.parametrize("function", HANDLERS)
def test_what_is_redacted_is_shown_nowhere(
    app: App, url: str, function: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[JobEvent] = []
    app.on("started", "succeeded", "failed", "canceled")(told.append)
    job = app.task(name="enter", max_attempts=1, redact=["password"])(function).enqueue(SECRET)
    assert app.run_worker(burst=True) == 0
    shown = [
        *(run(*verb, "--url", url).output for verb in _looks(job.id)),
        str(app.job_history(job.id)),
        str(app.explain_job(job.id)),
        str(job.refresh().error),
        str(job.progress),
        str(told),
        caplog.text,
    ]
    for text in shown:
        assert text
        assert not any(
            spelling in text for spelling in (SECRET, repr(SECRET)[1:-1], json.dumps(SECRET)[1:-1])
        )
        assert "hünt" not in text
        assert "h\\u00fcnt" not in text
    assert HIDDEN in shown[0], "as it is without the app's code"
    assert json.loads(shown[1])["payload"] == {"password": HIDDEN}
    assert job.row is not None
    assert json.loads(job.row.payload) == {"password": SECRET}, "the database has it, and so does the handler"


def _looks(id: str) -> list[list[str]]:
    return [["job", id], ["job", id, "--json"], ["jobs"], ["jobs", "--json"], ["explain", id]]


@pytest.mark.parametrize("function", UNCAUGHT)
@pytest.mark.parametrize("redact", [[], ["password"]])
def test_an_error_that_nobody_caught_is_logged(
    app: App, function: Callable[..., Any], redact: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    app.task(name="enter", redact=redact)(function).enqueue(SECRET)
    assert app.run_worker(burst=True) == 0
    gc.collect()
    assert "ValueError" in caplog.text
    assert ("hünt" in caplog.text) == (not redact)


def test_a_child_keeps_its_mouth_shut(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"vault_on_{url.partition(':')[0]}"
    (tmp_path / f"{name}.py").write_text(
        "from perdure import App, CONTEXT\n"
        f"app = App({url!r})\n"
        "@app.task(name='enter', run_in='process', max_attempts=1, redact=['password'])\n"
        "def enter(password: str, *, ctx=CONTEXT):\n"
        "    ctx.log('x' * 7995 + password)\n"
        "    raise ValueError('x' * 1990 + password)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    vault = importlib.import_module(name)
    app: App = vault.app
    app.migrate()
    job = app.tasks["enter"].enqueue(SECRET)
    assert app.run_worker(burst=True, processes=1) == 0
    assert job.refresh().state == "failed"
    told = str(app.job_history(job.id)) + str(job.error)
    assert "xxx" in told
    assert "hünt" not in told
    app.close()


def test_a_child_logs_no_secret_of_an_error_that_nobody_caught(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vault_of_tasks.py").write_text(
        "from perdure import App\n"
        "from tests.worker.test_redact import leave_a_task\n"
        f"app = App({sqlite_url!r})\n"
        "app.task(name='enter', run_in='process', redact=['password'])(leave_a_task)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    app: App = importlib.import_module("vault_of_tasks").app
    app.migrate()
    app.tasks["enter"].enqueue(SECRET)
    assert app.run_worker(burst=True, processes=1) == 0
    said = capfd.readouterr().err
    assert "ValueError" in said
    assert "hünt" not in said
    app.close()


def test_a_name_that_is_no_parameter_is_refused(app: App) -> None:
    with pytest.raises(
        InvalidTask, match="redact names 'pasword', which is not a parameter of the task enter"
    ):
        app.task(name="enter", redact=["password", "pasword"])(shout)
    assert app.tasks == {}
    with pytest.raises(InvalidOption, match="redact must be a list of texts"):
        app.task(name="enter", redact="password")(shout)
    with pytest.raises(InvalidOption):
        app.task(name="enter", redact=[3])(shout)  # type: ignore[list-item]


def test_what_is_no_parameter_may_be_an_extra(app: App) -> None:
    task = app.task(name="enter", redact=["password"])(lambda **extra: None)
    job = task.enqueue(password=SECRET, user="ann")
    assert job.refresh().row is not None
    assert redacted(job.row.payload, task.redact) == '{"extra":{"password":"[redacted]","user":"ann"}}'  # type: ignore[union-attr]


def test_names_are_written_with_the_task_and_changed_with_it(app: App, url: str) -> None:
    def names() -> str | None:
        return app.store.perform(list_tasks)["enter"].definition.redact

    app.task(name="enter", redact=["user", "password", "user"])(lambda user, password: None)
    app.save_tasks()
    assert names() == '["password","user"]'
    with App(url) as later:
        later.task(name="enter")(lambda user, password: None)
        later.save_tasks()
    assert names() is None


def test_a_refusal_of_arguments_shows_no_value(app: App) -> None:
    task = app.task(name="enter", redact=["password"])(shout)
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((SECRET, SECRET), {}),
        ((SECRET,), {"password": SECRET}),
        ((), {SECRET: SECRET}),
        (([SECRET],), {}),
        ((SECRET.encode(),), {}),
    ]
    for args, kwargs in wrong:
        with pytest.raises(BadArguments) as refusal:
            task.enqueue(*args, **kwargs)
        assert "hünt" not in str(refusal.value)
