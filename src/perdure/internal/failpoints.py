"""Failpoints: places where a test makes a process die, fail or hang.

A test sets ``PERDURE_FAILPOINT=after_handler_before_flush:kill``: the name of a place and an action. The actions:

    name:kill       SIGKILL to this process        name:raise      an unexpected error
    name:exit       os._exit(70)                   name:sleep=0.5  sleep this many seconds

The action happens the first time that the place is reached; with ``@3`` at the end, only the third time; with ``@3+``,
the third and each later time. Commas separate several failpoints. The variable is read when the first place is reached.
If it is not set, a place costs one check of a flag.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from perdure.internal import journal

VARIABLE = "PERDURE_FAILPOINT"

Place: TypeAlias = Literal[
    "before_enqueue",
    "after_enqueue_before_answer",
    "before_commit",
    "after_commit",
    "before_register",
    "after_register",
    "before_claim",
    "after_claim_before_start",
    "before_handler",
    "after_handler_before_flush",
    "before_flush",
    "after_flush_before_answer",
    "before_heartbeat",
    "after_heartbeat",
    "before_report",
    "before_own_commit",
    "after_own_commit",
    "before_rescue",
    "between_retirement_and_rescue",
    "after_rescue",
    "while_draining",
    "before_retirement",
    "before_migration_statement",
    "after_migration_statement",
    "before_move_commit",
    "after_move_commit",
]


class Failpoint(Exception):
    """Raised by a failpoint with the action ``raise``."""


class Fault(NamedTuple):
    action: str
    seconds: float
    time: int
    onwards: bool = False


def parse(text: str) -> dict[str, Fault]:
    """Parse failpoints: ``name:action[=seconds][@n[+]]``, separated by commas."""
    faults: dict[str, Fault] = {}
    for part in filter(None, text.split(",")):
        name, _, rest = part.strip().partition(":")
        action, _, which = rest.partition("@")
        action, _, seconds = action.partition("=")
        if action not in ("kill", "exit", "raise", "sleep"):
            raise ValueError(f"{VARIABLE}: {part!r} is not name:kill, :exit, :raise or :sleep=seconds")
        if name not in get_args(Place):
            raise ValueError(f"{VARIABLE}: there is no place {name!r}")
        faults[name] = Fault(action, float(seconds or 0), int(which.rstrip("+") or 1), which.endswith("+"))
    return faults


_faults: dict[str, Fault] = {}
_reached: Counter[str] = Counter()
_lock = threading.Lock()

armed: bool


if not TYPE_CHECKING:  # otherwise type checkers would accept any attribute

    def __getattr__(name: str) -> bool:
        """Read the variable at the first use of ``armed``.

        From then on ``armed`` is an ordinary attribute of the module.
        """
        if name != "armed":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        _faults.update(parse(os.environ.get(VARIABLE, "")))
        return globals().setdefault("armed", bool(_faults))


def reach(place: Place) -> None:
    """Act if a failpoint is set here. Call this as ``if failpoints.armed: failpoints.reach(...)``."""
    fault = _faults.get(place)
    if fault is None:
        return
    with _lock:
        _reached[place] += 1
        if _reached[place] < fault.time or (_reached[place] > fault.time and not fault.onwards):
            return
    if journal.enabled:
        journal.note("failpoint", place=place)
    match fault.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # until the signal arrives
        case "exit":
            os._exit(70)
        case "sleep":
            time.sleep(fault.seconds)
        case _:
            raise Failpoint(place)
