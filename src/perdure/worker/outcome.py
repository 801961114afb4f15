"""Turns the returned value or raised error of a handler into the outcome of its attempt."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException, walk_tb
from typing import assert_never

from perdure.errors import PerdureError
from perdure.internal import journal
from perdure.model.job import Claimed, Lease, Span
from perdure.model.lifecycle import (
    Canceled,
    Continued,
    Failed,
    FailureKind,
    Outcome,
    Snoozed,
    Succeeded,
    Throttled,
)
from perdure.request.signals import Cancel, Continue, Fatal, OutcomeSignal, Retry, Snooze, Stopped, Throttle
from perdure.worker.handler import Handler, Redact

MESSAGE = 2_000
"""How many characters of a message are kept. A handler may raise an error with a gigabyte of text."""

MOST_LINKED = 100
"""How many linked errors (causes, members of groups) a traceback may show.

With 20,000 linked errors, the event loop was blocked for 17 s.
"""


_PACKAGE = Path(__file__).parent.parent
OURS = {
    str(_PACKAGE / name)
    for name in (
        "worker/runners.py",
        "worker/process/child.py",
        "worker/handler.py",
        "request/middleware.py",
        "testing/run.py",
    )
}
"""perdure's own files whose frames call the handler, or the middleware around it."""


def returned(handler: Handler, lease: Lease, value: object) -> Succeeded:
    """The outcome of a returned value. A value that cannot be stored is dropped, and the attempt still succeeds."""
    if value is None:
        return Succeeded(lease, "null")
    return Succeeded(lease, *handler.results.encode(value))


def raised(handler: Handler, job: Claimed, error: BaseException) -> Outcome | None:
    """The outcome of a raised error.

    None if the handler stopped because it was asked to. In that case ``executor.classify`` decides.
    """
    if isinstance(error, Stopped):
        return None
    lease, redact = job.lease, handler.redactor(job.payload)
    try:
        return _classify(handler, lease, error, redact)
    except BaseException:
        # The signal's class did not call its parent's ``__init__``, or the error raises when it is shown.
        return Failed(lease, "error", None, _name(error), _traced(error, redact))


def _classify(handler: Handler, lease: Lease, error: BaseException, redact: Redact) -> Outcome:
    if isinstance(error, OutcomeSignal):
        return _signalled(lease, error, redact)
    kind: FailureKind = "fatal" if isinstance(error, handler.fatal) else "error"
    if isinstance(error, PerdureError) and not error.costs_attempt:
        kind = "interrupted"
    code = _code(error.code, redact) if isinstance(error, PerdureError) else None
    name, message = _name(error), _message(error, redact)
    return Failed(lease, kind, code, f"{name}: {message}" if message else name, _traced(error, redact))


def _signalled(lease: Lease, signal: OutcomeSignal, redact: Redact) -> Outcome:
    match signal:
        case Snooze():
            return Snoozed(lease, _checked_delay(signal.delay))
        case Throttle():
            return Throttled(lease, _optional_delay(signal.delay), bool(signal.cool_queue))
        case Continue():
            return Continued(lease, _checked_delay(signal.delay))
        case Cancel():
            return Canceled(lease, redact(str(signal.reason)))
        case Fatal():
            message, trace = _message(signal, redact), _traced(signal, redact)
            return Failed(lease, "fatal", _code(signal.code, redact), message, trace)
        case Retry():
            message, trace = _message(signal, redact), _traced(signal, redact)
            code, delay = _code(signal.code, redact), _optional_delay(signal.delay)
            return Failed(lease, "error", code, message, trace, delay)
        case _:
            assert_never(signal)


def traced(error: BaseException) -> str | None:
    """The traceback without perdure's own frames. None if the error raises when it is shown."""
    try:
        if _links_too_many(error):
            return _traced_alone(error)
        trace = TracebackException.from_exception(error, compact=True)
        _drop_our_frames(trace)
        return "".join(trace.format())
    except BaseException:
        return None


def _links_too_many(error: BaseException) -> bool:
    """Whether a traceback of this error would show more than ``MOST_LINKED`` errors."""
    found, queue = {id(error)}, [error]
    while queue and len(found) <= MOST_LINKED:
        one = queue.pop()
        members = one.exceptions[: MOST_LINKED + 1] if isinstance(one, BaseExceptionGroup) else ()
        linked = [other for other in (one.__cause__, one.__context__, *members) if other is not None]
        queue += [other for other in linked if id(other) not in found]
        found.update(map(id, linked))
    return len(found) > MOST_LINKED


def _traced_alone(error: BaseException) -> str:
    frames = StackSummary.extract(walk_tb(error.__traceback__))
    lines = StackSummary.from_list(_theirs(frames)).format()
    return "".join(
        [
            "Traceback (most recent call last):\n",
            *lines,
            f"{_name(error)}: {error}\n",
            f"It is linked to more than {MOST_LINKED} other errors, which are left out.\n",
        ]
    )


def _traced(error: BaseException, redact: Redact) -> str | None:
    trace = traced(error)
    return None if trace is None else redact(trace)


def _drop_our_frames(trace: TracebackException) -> None:
    """Drop perdure's own frames from a traceback, and from the tracebacks of linked errors."""
    chain = [trace]
    while chain:
        one = chain.pop()
        one.stack[:] = _theirs(one.stack)
        chain += filter(None, (one.__cause__, one.__context__, *(one.exceptions or ())))


def _theirs(frames: Iterable[FrameSummary]) -> list[FrameSummary]:
    """The frames of user code. perdure's own frames may lie between them, because middleware encloses the handler."""
    theirs, ours = [], False
    for frame in frames:
        # A frame of contextlib counts like the frame before it: contextlib enters the middleware for perdure, but also
        # context managers for user code.
        if frame.filename != contextlib.__file__:
            ours = frame.filename in OURS
        if not ours:
            theirs.append(frame)
    return theirs


def _code(code: object, redact: Redact) -> str | None:
    """The code as text, even if it was given as a number: ``Retry(code=503)``."""
    return None if code is None else redact(str(code))


def _message(error: BaseException, redact: Redact) -> str:
    try:
        # Redact before the text is cut: a cut could leave half of a secret, which would not be found.
        return redact(str(error))[:MESSAGE]
    except BaseException:
        return ""


def _name(error: BaseException) -> str:
    try:
        return str(type(error).__name__)
    except BaseException:
        return "an error without a name"


def _checked_delay(delay: object) -> Span:
    """The delay of a signal.

    Raise an error if the delay is not valid: a subclass of a signal may have set any value.
    """
    if type(delay) is not int or delay < 0:
        raise TypeError(delay)
    return delay


def _optional_delay(delay: object) -> Span | None:
    return None if delay is None else _checked_delay(delay)


def note(what: str, lease: Lease, outcome: Outcome | None, **more: object) -> None:
    """Write a line into the test journal."""
    kind = outcome.kind if isinstance(outcome, Failed) else type(outcome).__name__.lower()
    journal.note(what, [lease.job], token=lease.token, outcome=kind, **more)
