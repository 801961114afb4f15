"""The end of a process that a thread would hold up: Python waits for each that is no daemon, however long it takes."""

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
    """Call it last. A handler that hangs in a thread or an executor of its own leaves such a thread."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        timer = threading.Timer(GRACE, _end, [code])
        timer.daemon = True
        timer.start()


def _end(code: int) -> None:
    _log.warning("Threads of handlers do not end: the process ends without them")
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)
