"""Regressions that the fuzzing found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import CONTEXT, App, Context, Fatal
from perdure.client.worker_api import worker_options
from perdure.errors import BadArguments, InternalError, InvalidConfig, InvalidOption, PerdureError
from perdure.model.json_text import shown_json
from perdure.ops.queues import list_queues
from perdure.worker.context import JobContext
from tests.cli.shop import NOBODY
from tests.fuzz.ground import Ground
from tests.fuzz.looks import PRINTS, look_at, run
from tests.fuzz.odd import SECRET, Fancy, Hostile, nested

ENDS_OF_TIME = (
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=23, minutes=59))),
    datetime(9999, 12, 31, 23, 59, tzinfo=timezone(-timedelta(hours=12))),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
)


@pytest.mark.parametrize("at", ENDS_OF_TIME)
def test_a_datetime_whose_instant_has_no_year_in_utc_arrives(ground: Ground, at: datetime) -> None:
    def wait(at: datetime) -> None: ...

    wait.__annotations__ = {"at": datetime}
    task = ground.app.tasks.get("wait") or ground.app.task(name="wait")(wait)
    row = task.enqueue(at).refresh().row
    assert row is not None
    assert task.arguments.decode(row.payload) == {"at": at}


REFUSED: dict[str, tuple[type[PerdureError], Callable[[App], object]]] = {
    "ids that are no list": (InvalidOption, lambda app: app.get_jobs(0.0)),  # type: ignore[arg-type]
    "an id for ids": (InvalidOption, lambda app: app.get_jobs("abc")),
    "a version that is no number": (InvalidOption, lambda app: app.migrate(to=SECRET)),  # type: ignore[arg-type]
    "a version that cannot be shown": (InvalidOption, lambda app: app.migrate(to=10**5000)),
    "maybe enabled": (InvalidOption, lambda app: app.set_task("work", enabled="no")),  # type: ignore[arg-type]
    "maybe kept": (InvalidOption, lambda app: app.requeue_job(NOBODY, keep_checkpoint="no")),  # type: ignore[arg-type]
    "maybe exact": (InvalidOption, lambda app: app.save_tasks(exact=1)),  # type: ignore[arg-type]
    "queues of a worker that are none": (InvalidOption, lambda app: _serve(app, queues=0)),
    "a worker's name that is none": (InvalidOption, lambda app: _serve(app, name="nul\0")),
    "a URL that is no text": (InvalidConfig, lambda app: App(3)),  # type: ignore[arg-type]
    "a listen_url that is no text": (InvalidConfig, lambda app: App(listen_url=3)),  # type: ignore[arg-type]
    "half synchronous": (InvalidConfig, lambda app: App(synchronous="off; DROP")),  # type: ignore[arg-type]
    "maybe prepared": (InvalidConfig, lambda app: App(prepare=3)),  # type: ignore[arg-type]
    "too deep": (BadArguments, lambda app: app.enqueue("work", {"n": nested(100_000)})),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused(ground: Ground, case: str) -> None:
    expected, act = REFUSED[case]
    assert isinstance(ground.ask(lambda: act(ground.app)), expected)


def _serve(app: App, **asked: Any) -> None:
    usual = {
        "queues": None,
        "concurrency": 1,
        "processes": None,
        "burst": True,
        "drain": 1,
        "poll": 1,
        "name": None,
    }
    worker_options(app, **{**usual, **asked})


def test_the_name_of_a_task_may_be_a_text_of_a_subclass(ground: Ground) -> None:
    assert ground.app.enqueue(Fancy("elsewhere")).created


@pytest.mark.parametrize("said", [10**5000, nested(100_000), Hostile()], ids=["number", "list", "object"])
def test_what_cannot_be_shown_is_logged_all_the_same(ground: Ground, said: Any) -> None:
    job = ground.job(queue="log")
    operations, handlers = ground.app.operations, ground.app.handlers()
    (claimed,) = operations.claim("fuzz", tasks=["work"], queues=["log"], n=1)
    context = JobContext(claimed, handlers, worker="fuzz", operations=operations)
    context.log(said, level=said)
    context.stage(said)
    context.progress(message=said)
    assert (told := context.take()) is not None
    assert operations.report([told]) == ["ok"]
    assert f"a {type(said).__name__} that cannot be shown" in str(ground.app.job_history(job.id))


FAR = (-(2**63), 2**63 - 1)


@pytest.mark.parametrize("at", FAR)
@pytest.mark.parametrize("printed", PRINTS, ids=" ".join)
def test_a_time_that_no_datetime_can_hold_is_shown_as_the_last_it_can(
    ground: Ground, at: int, printed: tuple[str, ...]
) -> None:
    job = ground.job()
    far: Any = at if ground.dialect == "sqlite" else "infinity" if at > 0 else "-infinity"
    for column in ("run_at", "created_at", "expires_at"):
        ground.sql(f"UPDATE perdure.job SET {column} = ? WHERE id = ?", far, job.id)
    look_at(ground, job.id, printed)
    assert ground.app.get_job(job.id).run_at == (datetime.max if at > 0 else datetime.min).replace(tzinfo=UTC)
    ground.sql("DELETE FROM perdure.job")


# Too deep to be read up to Python 3.12.
DEEP = "[" * 5000 + "]" * 5000


@pytest.mark.parametrize("printed", PRINTS, ids=" ".join)
def test_json_that_cannot_be_read_is_shown_as_it_stands(ground: Ground, printed: tuple[str, ...]) -> None:
    job = ground.job()
    # PostgreSQL takes any number.
    text = "{not json" if ground.dialect == "sqlite" else "[1e999]"
    kind = "text" if ground.dialect == "sqlite" else "json"
    for column in ("payload", "meta", "tags", "checkpoint", "result"):
        ground.sql(f"UPDATE perdure.job SET {column} = CAST(? AS {kind}) WHERE id = ?", text, job.id)
    look_at(ground, job.id, printed)
    damaged = ground.app.get_job(job.id)
    for fact in ("meta", "tags", "result"):
        with pytest.raises(InternalError, match="perdure did not write it") as refusal:
            getattr(damaged, fact)
        assert (refusal.value.code, refusal.value.__context__) == ("job.damaged", None)
    ground.sql("DELETE FROM perdure.job")


@pytest.mark.parametrize("printed", PRINTS, ids=" ".join)
def test_json_that_is_nested_deeply_is_shown(ground: Ground, printed: tuple[str, ...]) -> None:
    job = ground.job()
    kind = "text" if ground.dialect == "sqlite" else "json"
    for column in ("payload", "meta", "tags", "checkpoint", "result"):
        ground.sql(f"UPDATE perdure.job SET {column} = CAST(? AS {kind}) WHERE id = ?", DEEP, job.id)
    look_at(ground, job.id, printed)
    ground.sql("DELETE FROM perdure.job")


def test_an_event_and_a_queue_that_were_damaged_hide_no_other(ground: Ground) -> None:
    job = ground.job()
    job.cancel(reason="because")
    kind = "text" if ground.dialect == "sqlite" else "json"
    ground.sql(f"UPDATE perdure.event SET detail = CAST(? AS {kind}) WHERE job = ?", "[1]", job.id)
    assert {"detail": [1]} in [entry.detail for entry in ground.app.job_history(job.id)]
    ground.app.set_queue("damaged", backoff=3)
    ground.sql(f"UPDATE perdure.queue SET backoff = CAST(? AS {kind}) WHERE name = 'damaged'", DEEP)
    assert "damaged" in [queue.name for queue in ground.app.store.perform(list_queues)]
    ground.sql("DELETE FROM perdure.queue")


def test_a_worker_whose_row_was_damaged_hides_no_other(ground: Ground) -> None:
    job = ground.job(delay=60)
    kind = "text" if ground.dialect == "sqlite" else "json"
    for text in ('{"a": 1}', DEEP, "[1, null]"):
        ground.sql(f"UPDATE perdure.worker SET tasks = CAST(? AS {kind})", text)
        assert ground.app.explain_job(job.id).sentence
        assert run(ground, "stats", "--json").exit_code == run(ground, "workers").exit_code == 0
    ground.sql(f"UPDATE perdure.worker SET tasks = CAST(? AS {kind})", '["work"]')


def test_what_can_be_read_is_shown_as_json() -> None:
    assert shown_json('{"a": 1}') == {"a": 1}
    assert shown_json("NaN") == "NaN"


def test_how_deep_json_is_shown_is_the_same_on_every_python() -> None:
    deepest, deeper = "[" * 900 + "]" * 900, "[" * 901 + "]" * 901
    assert shown_json(deepest) == msgspec.json.decode(deepest)
    assert shown_json(deeper) == deeper
    assert shown_json(DEEP) == DEEP


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000], ids=["arrays", "objects"])
def test_json_that_is_typed_and_nested_too_deeply_is_refused(ground: Ground, text: str) -> None:
    answer = run(ground, "enqueue", "work", text)
    assert (answer.exit_code, "nested too deeply" in answer.stderr) == (2, True)


GARBAGE = {
    "PERDURE_URL": ("mysql://hunter2@nowhere/x", "URL"),
    "PERDURE_QUEUES": ("a=1,b", "PERDURE_QUEUES"),
    "PERDURE_CONCURRENCY": ("many", "PERDURE_CONCURRENCY"),
    "PERDURE_LOG_LEVEL": ("loud", "PERDURE_LOG_LEVEL"),
    "PERDURE_APP": ("no.such.module:app", "no.such"),
}


@pytest.mark.parametrize("variable", GARBAGE)
def test_garbage_in_the_environment_is_misuse_and_gets_a_sentence(ground: Ground, variable: str) -> None:
    value, named = GARBAGE[variable]
    app = {} if variable == "PERDURE_APP" else {"PERDURE_APP": "tests.fuzz.nothing:app"}
    verb = ("jobs",) if variable == "PERDURE_URL" else ("worker", "--burst")
    answer = run(ground, *verb, env={**(app if verb[0] == "worker" else {}), variable: value})
    assert (answer.exit_code, named in answer.stderr) == (2, True), answer.output
    assert SECRET not in answer.output


def test_bytes_that_are_no_text_are_misuse_and_no_crash(tmp_path: Path) -> None:
    """As an operating system passes them: not through click's own runner."""
    typed = [b"jobs", b"--queue", b"\xff\xfe", b"--url", f"sqlite:///{tmp_path}/jobs.db".encode()]
    program = [os.fsencode(sys.executable), b"-m", b"perdure"]
    subprocess.run([*program, b"migrate", *typed[3:]], check=True, capture_output=True, timeout=60)
    answer = subprocess.run([*program, *typed], capture_output=True, timeout=60)
    assert (answer.returncode, b"queue has a character" in answer.stderr) == (2, True)
    assert b"Traceback" not in answer.stderr


def test_a_row_of_a_task_that_nobody_has_is_read_and_left_alone(ground: Ground) -> None:
    job = ground.job(queue="lost")
    ground.sql("UPDATE perdure.job SET task = ? WHERE id = ?", 'nobody\'s "task"', job.id)
    for printed in PRINTS:
        look_at(ground, job.id, printed)
    assert ground.app.operations.claim("fuzz", tasks=["work"], queues=["lost"], n=1) == []
    assert json.loads(run(ground, "explain", job.id, "--json").stdout)["code"]


class Wordy(Exception):
    def __str__(self) -> str:
        return MUCH


MUCH = "much \0\ud800" * 7_200_000
"""50 million characters, not all of which can be stored."""


@pytest.mark.long
def test_fifty_megabytes_of_anything_block_no_outcome(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(ground.url)

    @app.task(name="wordy", queue="wordy", max_attempts=1)
    def wordy(how: str, *, ctx: Context = CONTEXT) -> Any:
        ctx.log(MUCH)
        ctx.progress(message=MUCH)
        match how:
            case "returns":
                return MUCH
            case "raises":
                raise Wordy
            case "in a group":
                raise ExceptionGroup(MUCH, [Wordy(), ExceptionGroup("inner", [KeyError(MUCH)])])
            case "recurses":
                return wordy.function(how, ctx=CONTEXT)
        raise Fatal(MUCH, code=MUCH)

    ways = ["returns", "raises", "in a group", "recurses", "ends"]
    jobs = [wordy.enqueue(how) for how in ways]
    assert app.run_worker(burst=True, queues=["wordy"], concurrency=1) == 0
    assert [job.refresh().state for job in jobs] == ["succeeded", *["failed"] * 4]
    assert jobs[0].reason == "result.too_large"
    assert b"Wordy: much \xef\xbf\xbd" in caplog.text.encode(), "a line that no stream takes would be lost"
    for job, printed in zip(jobs, PRINTS, strict=True):
        look_at(ground, job.id, printed)
    app.close()
    ground.sql("DELETE FROM perdure.job")
