"""The last outcomes that a worker records before it ends, either in order or because its event loop does not answer."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from perdure.model.job import Lease
from perdure.model.lifecycle import Outcome, Released
from perdure.plan.plan import Plan, run
from perdure.worker.attempt import Attempt
from perdure.worker.bounded_log import BoundedLog
from perdure.worker.database_errors import PERHAPS_REFUSED, is_refusal
from perdure.worker.executor import last_outcome
from perdure.worker.loop_watch import Verdict
from perdure.worker.operations import WorkerOperations

MOST_NAMED = 10
"""How many jobs a log line names."""

RECORD_WITHIN = 5.0
"""Seconds to record all outcomes before a process with a blocked loop ends. Other workers rescue the remaining jobs."""

LOG_WITHIN = 0.2
"""Seconds for the last log line, and for flushing.

The time is short, because the handlers of recorded jobs still run here while other workers may already run these jobs.
"""

_log = logging.getLogger("perdure.worker")


def abort_transactions(attempts: Collection[Attempt]) -> None:
    """Roll back every ``ctx.transaction()`` of these attempts, because recording would wait for its locks."""
    for attempt in attempts:
        block = attempt.context.block
        if block is not None:
            with suppress(Exception):  # the transaction may end at this moment
                block.abort()


def record_last(
    operations: WorkerOperations, attempts: Collection[Attempt], charge: Outcome | None = None
) -> Plan[list[Lease]]:
    """Record the log lines of handlers, and then the outcome of every attempt, ended or not.

    ``charge`` replaces the outcome of the attempt that it names. Return the leases whose outcomes could not be
    recorded, because their rows are locked or the database refuses them.
    """
    outcomes = {attempt.lease: last_outcome(attempt) for attempt in attempts}
    if charge is not None:
        outcomes[charge.lease] = charge
    lines = [report for attempt in attempts if (report := attempt.context.take_logs())]
    yield from operations._report([report for report in lines if outcomes[report.lease]])
    last = [outcome for outcome in outcomes.values() if outcome]
    try:
        finished = yield from operations._finish(last, last=True)
    except PERHAPS_REFUSED as error:
        if not is_refusal(error):
            raise
        return [outcome.lease for outcome in last]
    taken = {*finished.accepted, *finished.refused}
    return [outcome.lease for outcome in last if outcome.lease not in taken]


def warn_of_unrecorded(left: Sequence[Lease]) -> bool:
    """Log which outcomes could not be recorded. Return whether there are such outcomes."""
    if left:
        named = ", ".join(lease.job for lease in left[:MOST_NAMED])
        _log.error(
            "The outcomes of %d jobs could not be recorded, so that other workers run them again: %s%s",
            len(left),
            named,
            " and others" if len(left) > MOST_NAMED else "",
        )
    return bool(left)


def end_process(
    operations: WorkerOperations,
    identity: str,
    attempts: Sequence[Attempt],
    verdict: Verdict,
    stack: str,
) -> None:
    """Record all outcomes from this thread and end the process, because the loop's thread is stuck in a handler.

    The process ends even if the loop answers meanwhile, because by then transactions are rolled back, and other workers
    may run the recorded jobs.
    """

    def record() -> None:
        abort_transactions(attempts)
        run(operations.store, _retire(operations, identity, attempts, verdict.charge(stack)))

    # Record first, then log: the handler that blocks the loop may hold a lock of logging.
    log, left = BoundedLog(_log), ""
    if not _within(RECORD_WITHIN, record):
        left = " The database did not answer in time: other workers will find what is left."
    line = "%s The worker ends.%s The loop is here:\n%s"
    log.write(logging.ERROR, line, verdict.message, left, stack, within=LOG_WITHIN)
    _within(LOG_WITHIN, _flush)
    os._exit(verdict.status)


def _retire(
    operations: WorkerOperations, identity: str, attempts: Sequence[Attempt], charge: Outcome | None
) -> Plan[None]:
    yield from record_last(operations, attempts, charge)
    known: set[Lease] = {attempt.lease for attempt in attempts}
    beat = yield from operations._peek(identity)
    # Release the claims whose answer the loop has not read.
    yield from operations._finish([Released(lease) for lease in beat.running if lease not in known])
    yield from operations._retire(identity)


def _flush() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _within(seconds: float, work: Callable[[], object]) -> bool:
    """Do the work in a thread. Return whether it ended in time and without an error."""
    done = threading.Event()

    def do() -> None:
        try:
            work()
        except Exception:
            _log.exception("The end of this worker could not be recorded")
        else:
            done.set()

    thread = threading.Thread(target=do, name="perdure-last-record", daemon=True)
    thread.start()
    thread.join(seconds)
    return done.is_set()
