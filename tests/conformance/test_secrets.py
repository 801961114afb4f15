"""No error that is raised shows what was in it: arguments, keys, tenants, results, the URL."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

import pytest

from perdure.errors import PerdureError
from perdure.model.lifecycle import Failed, Succeeded
from tests.conformance.world import POISON, World

SECRET = "hunter2"


def shown(error: BaseException) -> str:
    """What a log or a client may print of an error and of those it came from, without the lines of code."""
    parts = [str(error), repr(error), repr(error.args)]
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
    world.app.sync()
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


REFUSED: list[Callable[[World], None]] = [
    conflict,
    unknown_task,
    disabled_task,
    bad_option,
    bad_argument,
    bad_id,
    failed_job,
    canceled_job,
    poisoned_row,
]


@pytest.mark.parametrize("act", REFUSED)
def test_an_error_shows_no_secret(
    world: World, act: Callable[[World], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(PerdureError) as raised:
        act(world)
    assert SECRET not in shown(raised.value)
    assert SECRET not in caplog.text
    assert raised.value.code
    assert str(raised.value)
