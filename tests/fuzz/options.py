"""Options of jobs, tasks, apps, workers and workflows: stored as requested, or refused by name."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

from hypothesis import strategies as st

from perdure import App, Step, Workflow, chain, group
from perdure.client.worker_api import worker_options
from perdure.errors import PerdureError
from perdure.model.job import SECOND
from perdure.request.signals import Cancel, Continue, Fatal, Retry, Snooze, Throttle
from perdure.request.times import from_us
from tests.fuzz.alike import alike
from tests.fuzz.explore import Subject
from tests.fuzz.ground import Ground, judge
from tests.fuzz.methods import backoff, key, keyed, name, options
from tests.fuzz.odd import (
    Values,
    anything,
    floats,
    integers,
    mostly,
    plain,
    some,
    spans,
    texts,
)


def _using(ground: Ground, asked: dict[str, Any]) -> None:
    """Accepted options are stored as requested."""
    job = ground.ask(lambda: ground.work.using(**asked).enqueue(1))
    if isinstance(job, Exception):
        return
    row = job.refresh().row
    stored = {field: getattr(row, field) for field in row.__struct_fields__}
    if not job.created:
        return  # a unique key: another job answers
    for option in ("queue", "tenant", "unique_key", "concurrency_key"):
        if (value := asked.get(option)) is not None:
            assert stored[option] == (value.value if isinstance(value, Enum) else str.__str__(value))
    for option in ("priority", "max_attempts"):
        if (value := asked.get(option)) is not None:
            assert stored[option] == int(value)
    if (timeout := asked.get("timeout")) is not None:
        assert abs(stored["timeout"] - _micros(timeout)) <= 1
    if (delay := asked.get("delay")) is not None:
        assert abs(row.run_at - row.created_at - _micros(delay)) <= 1
    if (run_at := asked.get("run_at")) is not None:
        assert from_us(row.run_at) == run_at
    if isinstance(expires := asked.get("expires"), datetime):
        assert from_us(row.expires_at) == expires
    elif expires is not None:
        assert abs(row.expires_at - row.created_at - _micros(expires)) <= 1
    assert job.tags == [str(tag) for tag in asked.get("tags") or []]
    assert alike(job.meta, dict(asked.get("meta") or {}))


def _micros(span: Any) -> int:
    if isinstance(span, timedelta):
        return span // timedelta(microseconds=1)
    return round(Decimal(span) * SECOND)


task_options: Values = some(
    name=mostly("a", texts),
    aliases=mostly([], ["b"], st.lists(texts, max_size=2)),
    queue=name,
    priority=mostly(0, integers),
    max_attempts=mostly(1, integers),
    timeout=mostly(None, 1, spans),
    backoff=backoff,
    max_crashes=mostly(None, 1, integers),
    concurrency=mostly(None, 1, integers),
    concurrency_key=mostly(None, "{n}", lambda n=0: n, texts),
    limits=mostly([], ["printer"], st.lists(texts, max_size=2)),
    run_in=mostly(None, "async", "thread", "process"),
    fatal=mostly((), ValueError, [KeyError]),
    timeout_grace=mostly(1, spans),
    on_failed=mostly(None, print),
    redact=mostly([], ["n"], st.lists(texts, max_size=2)),
)


async def _async(n: int = 0) -> None: ...


def _plain(n: int = 0) -> None: ...


def _generate(n: int) -> Any:
    yield n


def _unreadable(n: Literal[1.5]) -> None: ...  # type: ignore[valid-type]


functions: Values = mostly(
    st.sampled_from((_async, _plain, _generate, _unreadable, len, int, print, lambda *a, **k: None))
)


def _register(ground: Ground, example: tuple[Any, dict[str, Any]]) -> None:
    """A task is registered whole or not at all."""
    function, asked = example
    app = App(ground.url)
    try:
        task = app.task(**asked)(function)
    except PerdureError as error:
        judge(error)
        assert app.tasks == {}
    except TypeError:
        # Of Python's own: what is decorated is no function.
        assert not callable(function)
    else:
        assert app.tasks[task.name] is task


urls: Values = mostly(
    None, "sqlite:///:memory:", "sqlite:///x.db", "postgresql://localhost/x", "postgres://u:hunter2@h:5/x", texts,
    st.builds(str.__add__, st.sampled_from(("sqlite:///", "sqlite://", "postgresql://", "x:")), texts),
)  # fmt: skip


def _app(ground: Ground, asked: dict[str, Any]) -> None:
    """Nothing is opened: an app only looks at what it is given."""
    try:
        app = App(**asked)
        if asked.get("url") is not None:
            assert app.store.address
    except PerdureError as error:
        judge(error)


app_options: Values = some(
    url=urls,
    imports=mostly((), ["json"], st.lists(texts, max_size=2)),
    schema=mostly("perdure", texts),
    listen_url=mostly(None, texts),
    synchronous=mostly("full", "normal"),
    keep_keys_for=mostly(None, spans),
    lease=mostly(30, spans),
    prepare=mostly(None, True, False),
)


def _worker(ground: Ground, asked: dict[str, Any]) -> None:
    usual = {
        "queues": None,
        "concurrency": 1,
        "processes": None,
        "burst": True,
        "drain": 1,
        "poll": 1,
        "name": None,
    }
    try:
        worker_options(ground.app, **{**usual, **asked})
    except PerdureError as error:
        judge(error)


worker: Values = some(
    queues=mostly(
        None,
        ["a"],
        {"a": 1},
        st.lists(texts, max_size=2),
        st.dictionaries(texts, floats | integers, max_size=2),
    ),
    concurrency=mostly(1, integers),
    processes=mostly(None, 0, integers),
    burst=mostly(True, False),
    drain=mostly(0, floats, integers),
    poll=mostly(1, floats, integers),
    name=mostly(None, texts),
)


flow_options: Values = st.builds(
    lambda one, more: {**one, **more},
    keyed,
    some(
        tenant=mostly(None, texts),
        result=mostly(None, "a", texts),
        meta=mostly(None, plain),
        most_steps=mostly(5, integers),
    ),
)
some_steps: Values = st.lists(
    st.tuples(
        mostly("a", "b", "c", key),
        mostly("job", "gate", "refers", anything),
        mostly([], ["a"], ["b", "c"], texts),
        mostly([], ["a"], texts),
        mostly(None, 3, spans),
    ),
    max_size=4,
)


def _build(ground: Ground, example: tuple[str, dict[str, Any], list[tuple[Any, ...]]]) -> None:
    """A workflow that can be built can be started, or is refused with the name of a step."""
    how, asked, steps = example

    def start() -> object:
        if how == "chain":
            return ground.app.start_workflow(chain(*(_job(ground, one[1]) for one in steps), **asked))
        if how == "group":
            return ground.app.start_workflow(group([_job(ground, one[1]) for one in steps], **asked))
        flow = Workflow("flow", **asked)
        for step, what, after, after_done, timeout in steps:
            if what == "gate":
                flow.gate(step, after=after, after_done=after_done, timeout=timeout)
            else:
                flow.add(Step(step, _job(ground, what), after=after, after_done=after_done))
        str(flow)
        flow.to_mermaid()
        return ground.app.start_workflow(flow)

    ground.ask(start)


def _job(ground: Ground, what: Any) -> Any:
    if what == "job":
        return ground.work.job(1)
    return ground.work.job([Step("a", ground.work.job()).result]) if what == "refers" else what


signals: Values = st.tuples(
    st.sampled_from((Retry, Snooze, Throttle, Fatal, Cancel, Continue)),
    some(message=anything, delay=anything),
)


def _signal(ground: Ground, example: tuple[Any, dict[str, Any]]) -> None:
    """Made inside a handler, where an error of Python's own would only be another failed attempt."""
    kind, asked = example
    said = [asked["message"]] if "message" in asked and kind in (Retry, Fatal) else []
    delay = (
        {"delay": asked["delay"]} if "delay" in asked and kind in (Retry, Snooze, Throttle, Continue) else {}
    )
    needed = {Snooze: {"delay": 1}, Fatal: {}, Cancel: {}}.get(kind, {})
    if kind in (Fatal, Cancel) and not said:
        said = ["because"]
    try:
        kind(*said, **{**needed, **delay})
    except PerdureError as error:
        judge(error)


SUBJECTS: dict[str, Subject] = {
    "options of a job": Subject(options, _using, 400),
    "options of a task": Subject(st.tuples(functions, task_options), _register, 300),
    "options of an app": Subject(app_options, _app, 200),
    "options of a worker": Subject(worker, _worker, 200),
    "workflows": Subject(
        st.tuples(st.sampled_from(("chain", "group", "flow", "flow")), flow_options, some_steps), _build, 400
    ),
    "signals": Subject(signals, _signal, 150),
}
