"""The end of a worker whose event loop cannot run any more, as where a handler closed what the loop waits on."""

from __future__ import annotations

import traceback

from perdure.worker.loop_watch import Verdict
from perdure.worker.options import Exit
from perdure.worker.worker import Worker


def end_collapsed(worker: Worker, error: BaseException) -> None:
    """Record from this thread what runs, and end the process if the worker owns it."""
    if not worker.ready.is_set():
        return
    for attempt in worker._attempts.values():
        # Not by stop(): to cancel a handler takes the loop.
        if not attempt.ended and attempt.why is None:
            attempt.why = "collapse"
    said = f"The event loop cannot run any more ({type(error).__name__})."
    stack = "".join(traceback.format_tb(error.__traceback__))
    worker._guard.give_up_loop(Verdict(Exit.CRASHED, said), stack)
    worker._heartbeat.end()  # in another thread of a program: what ran is rescued by others
