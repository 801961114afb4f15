"""One line at INFO for each outcome, with the ids as extra fields."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from perdure import App, Snooze

FAR = 3600


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(None, "succeeded"), (ValueError(), "retried"), (Snooze(FAR), "snoozed")],
)
async def test_an_outcome_is_one_line(
    app: App, caplog: pytest.LogCaptureFixture, error: Any, outcome: str
) -> None:
    from tests.store.waiting import auntil

    caplog.set_level(logging.INFO, "perdure.worker")

    @app.task(name="work", queue="q", backoff=FAR)
    async def work() -> None:
        if error is not None:
            raise error

    def lines() -> list[Any]:
        return [record for record in caplog.records if hasattr(record, "job")]

    async with app.worker():
        job = await work.aenqueue()
        await auntil(lines)
    (line,) = lines()
    assert (line.levelname, line.name) == ("INFO", "perdure.worker")
    assert (line.job, line.task, line.queue, line.run, line.attempt) == (job.id, "work", "q", 1, 1)
    assert line.outcome == outcome
    assert 0 <= line.seconds < 10
    assert line.getMessage().startswith(f"Job {job.id} of work {outcome} after ")


async def test_payloads_and_results_are_in_no_line(app: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    @app.task(name="work")
    async def work(word: str) -> str:
        return word

    async with app.worker():
        await (await work.aenqueue("a secret word")).aget(30)
    assert "secret" not in caplog.text
