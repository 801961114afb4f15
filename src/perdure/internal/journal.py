"""The journal: an optional record of what this process did to jobs, for tests that kill the process.

``PERDURE_JOURNAL=directory`` enables it. Each process has a file with one JSON object per line. Each line is written
at once, by one system call, so a killed process loses no line. The variable is read when it is first needed.

    enqueue     an enqueue begins (phase ``invoke``, with the requested keys) or ends: ``ok`` with the returned jobs,
                which may be existing jobs with the same key; or ``unknown`` if the database did not answer
    started     a handler is about to run, under this token
    children    the handler asks to enqueue jobs, at once or with its success
    ended       the handler returned, raised or was stopped: why, and with what outcome
    accepted    the outcome was recorded
    refused     the outcome was not recorded: the lease was lost
    released    a claim whose handler never started is being given back
    failpoint   this process is about to die, fail or hang at this failpoint
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

VARIABLE = "PERDURE_JOURNAL"

_began = time.time_ns()
_files: dict[int, int] = {}

enabled: bool


if not TYPE_CHECKING:  # otherwise type checkers would accept any attribute

    def __getattr__(name: str) -> bool:
        """Read the variable at the first use of ``enabled``.

        From then on ``enabled`` is an ordinary attribute of the module.
        """
        if name != "enabled":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault("enabled", bool(os.environ.get(VARIABLE)))


def note(what: str, jobs: Iterable[str] = (), **more: object) -> None:
    """Write a line. Call this as ``if journal.enabled: journal.note(...)``."""
    line = {"at": time.time_ns() // 1000, "pid": os.getpid(), "what": what, "jobs": list(jobs), **more}
    if (file := _file()) is not None:
        os.write(file, json.dumps(line).encode() + b"\n")


def _file() -> int | None:
    """The file of this process; None if the variable is no longer set. A forked child has its own file."""
    pid = os.getpid()
    if pid not in _files:
        if not (name := os.environ.get(VARIABLE)):
            return None
        directory = Path(name)
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{_began}-{pid}.jsonl"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Two threads may open the file, and one descriptor is kept. A lock would be a trap: a forked child could
        # inherit it locked, without the thread that holds it.
        if _files.setdefault(pid, file) != file:
            os.close(file)
    return _files[pid]
