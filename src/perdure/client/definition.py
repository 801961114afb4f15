"""A task's options, as declared in code and stored in the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias, get_args

from perdure.client.task import default_name
from perdure.errors import InvalidTask
from perdure.model.backoff import DEFAULT_BACKOFF, Backoff, as_backoff, dump_backoff
from perdure.model.job import TaskDefinition
from perdure.model.redact import dump_names
from perdure.request.options import INTEGER, SMALLINT, number, text, texts, whole
from perdure.request.times import duration_us

WhenFull: TypeAlias = Literal["wait", "cancel_running"]
"""What happens when the limit of a task or key is reached: new jobs wait, or older jobs are canceled."""


def define(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    max_attempts: int = 8,
    timeout: float | timedelta | None = 900,
    backoff: float | Backoff = DEFAULT_BACKOFF,
    max_crashes: int | None = 3,
    concurrency: int | None = None,
    concurrency_key: object = None,
    when_full: str = "wait",
    limits: Sequence[str] = (),
    redact: Sequence[str] = (),
) -> TaskDefinition:
    """Validate the options of a task."""
    if concurrency_key is not None and concurrency is None:
        raise InvalidTask("concurrency_key needs concurrency: how many jobs of the same key may run at once.")
    if when_full not in get_args(WhenFull):
        raise InvalidTask(f"when_full is {when_full!r}: it must be 'wait' or 'cancel_running'.")
    if when_full == "cancel_running" and concurrency is None:
        raise InvalidTask("when_full needs concurrency: how many jobs may run at once.")
    return TaskDefinition(
        name=text("name", name if name is not None else default_name(function)),
        queue=text("queue", queue),
        priority=number("priority", priority, -SMALLINT - 1, SMALLINT),
        max_attempts=number("max_attempts", max_attempts, 1, INTEGER),
        timeout=None if timeout is None else duration_us("timeout", timeout, least=1),
        backoff=dump_backoff(as_backoff(backoff)),
        max_crashes=whole("max_crashes", max_crashes, 1, INTEGER),
        redact=dump_names(texts("redact", redact)),
        concurrency=whole("concurrency", concurrency, 1, INTEGER),
        keyed=concurrency_key is not None,
        cancels_running=when_full == "cancel_running",
        limits=dump_names(texts("limits", limits)),
    )
