"""Events that tell subscribers what happened to jobs. They are sent after the commit, never before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from perdure.model.lifecycle import AttemptEvent

EventName: TypeAlias = Literal["started", AttemptEvent, "lease_lost", "rescued"]


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of one job.

    ``retried``: the attempt failed and there will be another attempt. ``failed``: the attempt failed and was the last.
    A rescue sends ``rescued``, and then ``failed`` or ``canceled`` if it ended the job. A job that expires sends
    ``canceled``.
    """

    name: EventName
    job_id: str
    task: str
    queue: str
    run: int
    attempt: int
    tenant: str | None = None
    worker: str | None = None
    kind: str | None = None
    code: str | None = None
    message: str | None = None
    seconds: float | None = None
    """How long the handler ran, if it was started."""


Listener: TypeAlias = Callable[[JobEvent], object]
"""A function, synchronous or async."""
