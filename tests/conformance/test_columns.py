"""The columns of each statement are the fields of its record, in the same order."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pytest

from perdure.model.job import Claimed, JobRow
from perdure.ops.audit import ActRow
from perdure.ops.browse import AttemptRow, EventRow, LogRow
from perdure.ops.enqueue import Enqueued
from perdure.ops.queues import Queue
from perdure.ops.replay import COPIED
from perdure.ops.worker import WorkerRow
from tests.conformance.world import World

NOBODY = "00000000-0000-0000-0000-000000000000"

RECORDS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "get_job": (JobRow.__struct_fields__, {"id": NOBODY}),
    "read_jobs": (JobRow.__struct_fields__, {"ids": "[]"}),
    "list_acts": (
        ActRow._fields,
        {"verb": None, "actor": None, "subject": None, "before": 1, "n": 1},
    ),
    "claim_jobs": (
        (*Claimed.__struct_fields__, "state"),
        {"worker": "w", "tasks": "[]", "queues": None, "n": 1, "limits": 0},
    ),
    "list_attempts": (AttemptRow._fields, {"id": NOBODY}),
    "list_events": (EventRow._fields, {"id": NOBODY}),
    "list_logs": (LogRow._fields, {"id": NOBODY}),
    "list_workers": (WorkerRow._fields, {}),
    "list_queues": (Queue._fields, {}),
    "find_source": (COPIED, {"id": NOBODY}),
    "find_job": (tuple(field for field in Enqueued._fields if field != "created"), {"id": NOBODY}),
}


def columns(world: World, statement: str, params: dict[str, Any]) -> tuple[str, ...]:
    text, params = world.store.statements[statement], {**params, "now": world.now}
    if world.store.dialect == "postgres":
        with psycopg.connect(world.url) as connection:
            described = connection.execute(text.encode(), params).description or []
            return tuple(column.name for column in described)
    lite = sqlite3.connect(world.url.removeprefix("sqlite:///"))
    try:
        return tuple(column[0] for column in lite.execute(text, params).description)
    finally:
        lite.close()


@pytest.mark.parametrize("statement", RECORDS)
def test_columns_are_fields(world: World, statement: str) -> None:
    fields, params = RECORDS[statement]
    assert columns(world, statement, params) == fields


def test_the_front_has_the_columns_of_a_claim(postgres_world: World) -> None:
    front = {"queue": "q", "priority": 0, "since": None, "ahead": None, "behind": None}
    fields = (*Claimed.__struct_fields__, "state")
    asked = {"worker": "w", "tasks": "[]", "n": 1, "limits": 0, **front}
    assert columns(postgres_world, "claim_window", asked) == fields
