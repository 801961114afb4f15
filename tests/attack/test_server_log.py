"""Arguments of an enqueue never reach the PostgreSQL server's log, whatever refuses the enqueue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from perdure import App, Fatal, Step, Task, Workflow
from perdure.errors import PerdureError, TaskDisabled, UnknownTask
from perdure.ops.insert_steps import ALIKE
from tests.postgres import FAST, Server

SECRET = "hunter2"


class Shop(NamedTuple):
    """An app on a server whose log can be read; the task was disabled by an operator."""

    app: App
    url: str
    task: Task[..., Any]
    log: Path

    @property
    def keyed(self) -> Any:
        return self.plain.using(unique_key=SECRET, idempotency_key=SECRET)

    @property
    def plain(self) -> Any:
        return self.task.using(tenant=SECRET, meta={SECRET: SECRET}, tags=[SECRET], queue=SECRET)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server.start({**FAST, "log_error_verbosity": "verbose"}) as server:
        yield server


@pytest.fixture
def shop(server: Server) -> Iterator[Shop]:
    url = server.url()
    log = server.data_directory.parent / f"log-{server.handle.start().port}"
    with closing(App(url)) as app:
        app.migrate()
        task = app.task(name="send", redact=["password"])(send)
        app.save_tasks()
        app.set_task("send", enabled=False)
        yield Shop(app, url, task, log)


def send(password: str) -> str:
    """Succeeds or fails, and shows its arguments either way."""
    if len(password) % 2:
        return password
    raise Fatal(password)


def single(shop: Shop) -> None:
    shop.plain.enqueue(SECRET)


def keyed(shop: Shop) -> None:
    shop.keyed.enqueue(SECRET)


def unknown(shop: Shop) -> None:
    given: Any = {"tenant": SECRET, "meta": {"x": SECRET}, "tags": [SECRET], "queue": SECRET}
    shop.app.enqueue("nobody.has.it", {"password": SECRET}, unique_key=SECRET, **given)


def alike(shop: Shop) -> None:
    shop.app.enqueue_many([shop.plain.job(SECRET), shop.plain.job(SECRET)])


def different(shop: Shop) -> None:
    shop.app.enqueue_many([shop.plain.job(SECRET), shop.plain.using(priority=1).job(SECRET)])


def on_a_connection(shop: Shop) -> None:
    with psycopg.connect(shop.url) as conn:
        shop.app.enqueue_many([shop.plain.job(SECRET), shop.plain.job(SECRET)], conn=conn)


def workflow(shop: Shop) -> None:
    shop.app.start_workflow(flow(shop, 1))


def large_workflow(shop: Shop) -> None:
    shop.app.start_workflow(flow(shop, ALIKE + 1))


def append(shop: Shop) -> None:
    flow = Workflow("flow")
    flow.gate("gate")
    started = shop.app.start_workflow(flow)
    step = Step(SECRET, shop.plain.job(SECRET), after=["gate"])
    shop.app.append_steps(started.id, window="gate", mutation_key=SECRET, steps=[step])


def flow(shop: Shop, steps: int) -> Workflow:
    flow = Workflow(SECRET, idempotency_key=SECRET, unique_key=SECRET, tenant=SECRET, meta={"x": SECRET})
    for n in range(steps):
        flow.step(f"{SECRET}-{n}", shop.plain.using(tenant=None).job(SECRET))
    return flow


@pytest.mark.parametrize(
    "refused", [single, keyed, unknown, alike, different, on_a_connection, workflow, large_workflow, append]
)
def test_a_task_that_is_unknown_or_disabled(shop: Shop, refused: Callable[[Shop], None]) -> None:
    before = len(shop.log.read_bytes())
    with pytest.raises((TaskDisabled, UnknownTask)):
        refused(shop)
    said = shop.log.read_bytes()[before:].decode()
    # The server refused it, not we: otherwise there would be nothing to see.
    assert "null value in column" in said
    assert SECRET not in said


@pytest.mark.parametrize("odd", ["\0", "\udc80", "\\u0000", "\ufffd" * 300])
def test_values_that_do_not_fit(shop: Shop, odd: str) -> None:
    shop.app.set_task("send", enabled=True)
    before = len(shop.log.read_bytes())
    value = f"{SECRET}{odd}"
    given: dict[str, Any] = {"tags": [value], "meta": {"x": value}}
    given |= dict.fromkeys(("tenant", "unique_key", "idempotency_key", "queue"), value)
    for options in ({}, *({name: one} for name, one in given.items())):
        with suppress(PerdureError):
            shop.task.using(**options).enqueue(value)
        with suppress(PerdureError):
            shop.app.enqueue_many([shop.task.using(**options).job(value)] * 2)
    shop.app.run_worker(burst=True)
    assert SECRET not in shop.log.read_bytes()[before:].decode()
