"""Ends a process whose threads do not end. Python itself would wait for every non-daemon thread."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress

GRACE = 5.0
"""Seconds that threads get to end by themselves."""

_log = logging.getLogger("perdure.cli")


def end_in_time(code: int) -> None:
    """End the process within GRACE seconds, even if a handler hangs in a thread of its own. Call this last."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        timer = threading.Timer(GRACE, _end, [code])
        timer.daemon = True
        timer.start()


def _end(code: int) -> None:
    _log.warning("Threads of handlers are still running: the process ends without waiting for them")
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)
