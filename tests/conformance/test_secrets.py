"""No error shows arguments, keys, tenants, results or the URL."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

import pytest

from perdure import Workflow
from perdure.errors import PerdureError
from perdure.model.lifecycle import Failed, Succeeded
from tests.chain import assert_carries_no_driver_error, told
from tests.conformance.world import POISON, World

SECRET = "hunter2"


def shown(error: BaseException) -> str:
    """What a log or a client may print of an error and of those it came from, without the lines of code."""
    parts = [told(error)]
    for line in traceback.TracebackException.from_exception(error).format():
        parts += [text for text in line.splitlines() if not text.startswith("    ")]
    return "\n".join(parts)


def conflict(world: World) -> None:
    asked = world.task().using(idempotency_key=SECRET, tenant=SECRET, tags=[SECRET])
    asked.enqueue(note=SECRET)
    asked.enqueue(note=SECRET + SECRET)


def unknown_task(world: World) -> None:
    world.app.enqueue("nobody.has.it", {"password": SECRET}, tenant=SECRET, unique_key=SECRET)


def disabled_task(world: World) -> None:
    work = world.task()
    world.app.save_tasks()
    world.app.set_task("work", enabled=False)
    world.app.enqueue_many([work.using(tenant=SECRET, meta={"x": SECRET}).job(note=SECRET)])


def bad_option(world: World) -> None:
    world.task().using(tenant=SECRET * 99).enqueue()


def bad_argument(world: World) -> None:
    world.task().enqueue(SECRET)


def bad_id(world: World) -> None:
    world.app.get_job(SECRET)


def failed_job(world: World) -> None:
    job = world.task().enqueue(note=SECRET)
    world.attempt(Failed, "fatal", message=SECRET, trace=SECRET)
    job.get()


def canceled_job(world: World) -> None:
    job = world.task().enqueue(note=SECRET)
    job.cancel(reason=SECRET)
    job.get()


def poisoned_row(world: World) -> None:
    world.task().using(tenant=POISON).enqueue(note=SECRET)
    claimed = world.claim_one()
    world.poison()
    world.finish(Succeeded(claimed.lease, f'"{SECRET}"'))


HALF = f"{SECRET}\ud800"
"""No database stores it, and Python's own error about that quotes all of it."""


class Shown:
    """What an error that quotes it would show."""

    def __repr__(self) -> str:
        return SECRET


def unstorable_tenant(world: World) -> None:
    world.task().using(tenant=HALF).enqueue()


def unstorable_key(world: World) -> None:
    world.task().using(idempotency_key=HALF).enqueue()


def unstorable_tag(world: World) -> None:
    world.task().using(tags=[HALF]).enqueue()


def unstorable_meta(world: World) -> None:
    world.task().using(meta={"x": HALF}).enqueue()


def unfit_meta(world: World) -> None:
    world.task().using(meta={"x": Shown()}).enqueue()


def unstorable_argument(world: World) -> None:
    world.task().enqueue(note=HALF)


def large_argument(world: World) -> None:
    world.task().enqueue(note=SECRET * 2**18)


def unfit_argument(world: World) -> None:
    world.task().enqueue(n=Shown())


def unfit_config(world: World) -> None:
    world.task()
    world.app.save_tasks()
    world.app.set_task("work", config={"x": HALF})


def damaged_config(world: World) -> None:
    world.task()
    world.app.save_tasks()
    world.sql("UPDATE perdure.task SET config = :config", config=f'["{SECRET}"]')
    world.app.list_tasks()


def unknown_connection(world: World) -> None:
    world.task().using(tenant=SECRET).enqueue(note=SECRET, conn={"password": SECRET})


def conflicting_workflow(world: World) -> None:
    for note in (SECRET, SECRET + SECRET):
        flow = Workflow("flow", idempotency_key=SECRET, tenant=SECRET)
        flow.step("one", world.task().job(note=note))
        world.app.start_workflow(flow)


def conflicting_gate(world: World) -> None:
    flow = Workflow("flow", tenant=SECRET)
    flow.gate("gate")
    started = world.app.start_workflow(flow)
    for output in (SECRET, SECRET + SECRET):
        world.app.resolve_gate(started.id, "gate", "succeeded", output=output, reason=SECRET, by=SECRET)


def conflicting_replay(world: World) -> None:
    jobs = [world.task().using(tenant=SECRET).enqueue(note=SECRET) for _ in range(2)]
    for job in jobs:
        world.attempt(Succeeded, f'"{SECRET}"')
        world.app.replay_job(job.id, request_key=SECRET)
    world.app.replay_job(world.task().enqueue(note=SECRET).id, request_key=SECRET)


def bad_filter(world: World) -> None:
    world.app.list_jobs(text=HALF)


REFUSED: list[Callable[[World], None]] = [
    conflict,
    unknown_task,
    disabled_task,
    bad_option,
    bad_argument,
    bad_id,
    failed_job,
    canceled_job,
    unstorable_tenant,
    unstorable_key,
    unstorable_tag,
    unstorable_meta,
    unfit_meta,
    unstorable_argument,
    large_argument,
    unfit_argument,
    unfit_config,
    unknown_connection,
    conflicting_workflow,
    conflicting_gate,
    conflicting_replay,
    bad_filter,
]


@pytest.mark.parametrize("act", REFUSED)
def test_an_error_shows_no_secret(
    world: World, act: Callable[[World], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(PerdureError) as raised:
        act(world)
    assert SECRET not in shown(raised.value)
    assert_carries_no_driver_error(raised.value)
    assert SECRET not in caplog.text
    assert raised.value.code
    assert str(raised.value)


@pytest.mark.parametrize("act", [poisoned_row, damaged_config])
def test_what_is_done_around_a_damaged_row_logs_no_secret(
    world: World, act: Callable[[World], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    act(world)
    assert SECRET not in caplog.text
