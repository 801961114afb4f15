"""Logs errors that reach a worker's event loop uncaught, without the values of redacted arguments.

asyncio's own handler would log messages, tasks and arguments of callbacks unredacted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from traceback import StackSummary, walk_tb
from typing import Any

from perdure.request.context import current_context
from perdure.worker.context import JobContext
from perdure.worker.handler import Handler
from perdure.worker.outcome import traced

_log = logging.getLogger("perdure.worker")


def log_redacted(loop: asyncio.AbstractEventLoop, handlers: Iterable[Handler]) -> None:
    """Log errors that reach this loop, redacted by the rules of the job that they come from.

    If that job is unknown and any handler redacts, log only where the error was raised.
    """
    redacting = any(handler.redact for handler in handlers)

    def log(_loop: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
        error, context = details.get("exception"), _context_of(details)
        trace = "" if error is None else traced(error) or _frames(error)
        text = f"{details.get('message', 'An error')}\n{trace}".rstrip()
        if context is not None:
            _log.error("In the event loop, from job %s: %s", context.job_id, context._redacted(text))
        elif not redacting:
            _log.error("In the event loop: %s", text)
        else:
            _log.error("In the event loop, from an unknown job: %s", _frames(error))

    loop.set_exception_handler(log)


def _context_of(details: dict[str, Any]) -> JobContext | None:
    """The context of the job that created the failed asyncio task or callback; None if unknown.

    A future has no context, and Python 3.11 does not expose the context of a task.
    """
    source = details.get("task") or details.get("future") or details.get("handle")
    variables = getattr(source, "get_context", dict[Any, Any])()
    context = variables.get(current_context) if variables is not None else None
    return context if isinstance(context, JobContext) else None


def _frames(error: BaseException | None) -> str:
    """Where an error was raised, without its message."""
    if error is None:
        return "a message that is not shown, without an exception"
    frames = StackSummary.extract(walk_tb(error.__traceback__)).format()
    return f"{type(error).__name__}, whose message is not shown\n{''.join(frames)}"
