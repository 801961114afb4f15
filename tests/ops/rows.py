"""Rows of jobs under their lock, as the statements return them."""

from __future__ import annotations

from typing import Any

from perdure.ops.job_actions import Locked
from tests.ops.script import A

RUNNING = {
    "id": A,
    "token": 1,
    "queue": "mail",
    "run": 1,
    "attempt": 1,
    "max_attempts": 8,
    "throttles": 0,
    "crashes": 0,
    "interruptions": 0,
    "cancel_requested": False,
    "progress_done": None,
    "progress_total": None,
    "backoff": None,
    "max_crashes": 3,
    "stage": None,
    "workflow": None,
}
"""The columns of ``lock_running`` and ``find_orphans``, in their order."""


def running(id: str = A, **columns: Any) -> tuple[Any, ...]:
    assert not columns.keys() - RUNNING.keys()
    return tuple({**RUNNING, "id": id, **columns}.values())


def locked(state: str = "ready", **columns: Any) -> tuple[Any, ...]:
    """A row of ``lock_job``."""
    known = {
        "state": state,
        "run": 1,
        "token": 1,
        "worker": "w" if state == "running" else None,
        "checkpoint": None,
        "result": None,
        "unique_key": None,
        "task": "work",
        "tenant": "",
        "due": True,
        "workflow": None,
        "step": None,
    }
    assert not columns.keys() - known.keys()
    return tuple(Locked(**{**known, **columns}))
