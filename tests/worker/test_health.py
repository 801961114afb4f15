"""One line in the log for each change of the database's health."""

from __future__ import annotations

import pytest

from perdure.errors import StoreAway, StoreReadOnly
from perdure.worker.health import Health


def test_what_was_asked_before_a_failure_does_not_say_that_the_database_serves_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    health = Health()
    early = health.ask()
    health.failed(StoreAway("It is away."))
    health.worked(early)
    assert "serves again" not in caplog.text
    health.failed(StoreAway("It is away."))
    assert caplog.text.count("cannot serve") == 1
    health.worked(health.ask())
    assert caplog.text.count("serves again") == 1


def test_a_call_that_is_refused_beside_others_that_succeed_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING")
    health = Health()
    for _ in range(20):
        asked = health.ask()
        health.failed(
            StoreReadOnly("The database role lacks INSERT on the table attempt.", code="store.forbidden")
        )
        health.worked(asked)
        health.worked(health.ask())
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "The database cannot serve",
        "The database serves again.",
    ]
