"""An optional journal of what this process did to jobs, for tests that kill the process: ``PERDURE_JOURNAL=directory``.

One file for each process, one JSON object a line, each written by one system call as it happens: what a killed
process has noted stays. The variable is read when it is first needed.

    enqueue     before (phase ``invoke``, with the keys asked for) and after (``ok`` with the jobs that were
                answered, which a key may have found rather than made; or ``unknown``)
    started     a handler is about to run, under this token
    children    what it enqueues with its success, when it asks for that
    ended       it ran to its end, or was stopped: why, and with what outcome
    accepted    its outcome is recorded
    refused     its outcome is not: the lease was gone
    released    a claim whose handler never started is being given back
    failpoint   this process is about to die, fail or hang at this place, as it was told to
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


if not TYPE_CHECKING:  # or every name would be one of the module's

    def __getattr__(name: str) -> bool:
        """Read the variable when ``enabled`` is first asked for. From then on it is a plain attribute of the module."""
        if name != "enabled":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault("enabled", bool(os.environ.get(VARIABLE)))


def note(what: str, jobs: Iterable[str] = (), **more: object) -> None:
    """Call it as ``if journal.enabled: journal.note(...)``."""
    line = {"at": time.time_ns() // 1000, "pid": os.getpid(), "what": what, "jobs": list(jobs), **more}
    if (file := _file()) is not None:
        os.write(file, json.dumps(line).encode() + b"\n")


def _file() -> int | None:
    """This process's own: a forked child does not write into its parent's. None if the variable is gone by now."""
    pid = os.getpid()
    if pid not in _files:
        if not (name := os.environ.get(VARIABLE)):
            return None
        directory = Path(name)
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{_began}-{pid}.jsonl"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Two threads may get here. No lock: a child could inherit it, held by a thread that it does not have.
        if _files.setdefault(pid, file) != file:
            os.close(file)
    return _files[pid]
