"""Who a worker is to the database: an identity that is registered, and another once the first was given up for dead."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence

from perdure import failpoints
from perdure.ids import new_id
from perdure.worker.ledger import Ledger
from perdure.worker.options import WorkerOptions

_log = logging.getLogger("perdure.worker")


class Identity:
    def __init__(
        self, ledger: Ledger, options: WorkerOptions, tasks: Sequence[str], sync: Callable[[], None]
    ) -> None:
        """``sync`` writes the tasks into the database: one that knows the worker no more may be a new one."""
        self._ledger = ledger
        self._options = options
        self._tasks = tasks
        self._sync = sync
        self._release: Callable[[], None] = lambda: None
        self.name = options.name or f"{socket.gethostname()}:{os.getpid()}"
        self.id = ""

    def renew(self) -> None:
        """Register under a new id; the old one is retired, or there is none. Blocks."""
        id, options = new_id(), self._options
        if self.id:
            self._sync()
        if failpoints.armed:
            failpoints.reach("before_register")
        self._ledger.register(
            id,
            name=self.name,
            lease=options.lease,
            tasks=self._tasks,
            queues=options.queues,
            slots=options.concurrency,
        )
        if failpoints.armed:
            failpoints.reach("after_register")
        if self.id:
            _log.warning("This worker was believed dead; what it ran is lost to it. It goes on as a new one")
        release, self._release = self._release, self._ledger.store.hold(id)
        self.id = id
        release()

    def give_up(self) -> None:
        """Show no sign of life any more."""
        self._release()
