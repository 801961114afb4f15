"""``redact=``: arguments that a task's handlers are given, and nobody is shown."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import CONTEXT, App, Cancel, Context, Fatal, Retry
from perdure.errors import BadArguments, InvalidOption, InvalidTask
from perdure.events import JobEvent
from perdure.model.redact import HIDDEN, hide, redacted
from perdure.ops.tasks import list_tasks
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


HANDLERS: list[Callable[..., Any]] = [
    shout, quote, quote_at_the_cut, shout_in_a_chain, say_fatal, say_cancel, talk, talk_async,
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
    app.sync()
    assert names() == '["password","user"]'
    with App(url) as later:
        later.task(name="enter")(lambda user, password: None)
        later.sync()
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


def test_keys_of_that_name_are_hidden_wherever_they_stand() -> None:
    payload = '{"users":[{"name":"ann","password":"hunter2"}],"password":{"old":"swordfish","pin":[123456,true,12]}}'
    shown = redacted(payload, {"password"})
    assert json.loads(shown) == {"users": [{"name": "ann", "password": HIDDEN}], "password": HIDDEN}
    said = "ann: hunter2, swordfish, 123456, True, 12"
    assert hide(said, payload, {"password"}) == f"ann: {HIDDEN}, {HIDDEN}, {HIDDEN}, True, 12"


@pytest.mark.parametrize("spell", [str, repr, ascii, json.dumps])
def test_a_value_is_hidden_however_it_is_spelled(spell: Callable[[object], str]) -> None:
    payload = json.dumps({"password": {SECRET: "swördfish"}})
    for secret in (SECRET, "swördfish"):
        assert hide(spell(secret), payload, {"password"}).strip("'\"") == HIDDEN
        assert hide(spell({secret: 1}), payload, {"password"}).count(HIDDEN) == 1


def test_a_value_that_is_part_of_another_leaves_no_rest() -> None:
    payload = '{"a":"swordfish","b":"sword"}'
    assert hide("swordfish sword", payload, {"a", "b"}) == f"{HIDDEN} {HIDDEN}"


@pytest.mark.parametrize("payload", ["{not json", "NaN", "[" * 5000, '"\ud800"'])
def test_arguments_that_cannot_be_read_are_hidden_whole(payload: str) -> None:
    assert redacted(payload, {"password"}) == f'"{HIDDEN}"'
    assert hide("said", payload, {"password"}) == "said"
    assert redacted(payload, frozenset()) == payload
