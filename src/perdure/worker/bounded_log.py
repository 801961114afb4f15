"""Log lines that do not block the writer for long.

A logger may block for ever: another thread may hold a lock of logging, or nobody may read the pipe that it writes to.
"""

from __future__ import annotations

import logging
import threading
from functools import partial

LOG_WITHIN = 1.0
"""Seconds for which the writer waits until its line is logged."""


class BoundedLog:
    """Writes each line from a daemon thread. While a line is stuck, later lines are dropped."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._thread: threading.Thread | None = None

    def write(
        self,
        level: int,
        message: str,
        *args: object,
        error: BaseException | None = None,
        within: float = LOG_WITHIN,
    ) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        line = partial(self._logger.log, level, message, *args, exc_info=error)
        self._thread = threading.Thread(target=line, name="perdure-bounded-log", daemon=True)
        self._thread.start()
        self._thread.join(within)
