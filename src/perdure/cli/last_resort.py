"""End a process although its threads do not: Python waits for every non-daemon thread, however long it takes."""

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
    """End the process within GRACE seconds; call this last. A handler that hangs in its own thread keeps it alive."""
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
