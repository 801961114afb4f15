"""A worker's identity in the database. The worker registers at its start, and again after it was retired as dead."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from perdure.internal import failpoints
from perdure.ops import worker as worker_ops
from perdure.plan.plan import Plan, async_method, perform, sync_method
from perdure.request.ids import new_id
from perdure.worker.database_errors import FORBIDDEN, OUT_OF_SERVICE
from perdure.worker.health import Health, unless_stopped
from perdure.worker.operations import WorkerOperations
from perdure.worker.options import WorkerOptions

_log = logging.getLogger("perdure.worker")

BELIEVED_DEAD = "This worker was believed dead; what it ran is lost to it. It goes on as a new one"
UNKNOWN = (
    "The database does not know this worker: it was made anew or restored. What ran is lost to it; "
    "the worker goes on as a new one"
)


class Identity:
    def __init__(
        self,
        operations: WorkerOperations,
        options: WorkerOptions,
        tasks: Sequence[str],
        sync: Callable[[], Plan[None]] | None,
    ) -> None:
        """Set up; nothing is registered yet. ``sync`` writes the tasks into the database.

        ``sync`` is called before the worker registers again, because a database that does not know the worker may be
        new.
        """
        self.store = operations.store
        self._operations = operations
        self._options = options
        self._tasks = tasks
        self._sync = sync
        self._unlock: Callable[[], None] = lambda: None
        self.name = options.name or f"{socket.gethostname()}:{os.getpid()}"
        self.id = ""
        self.registered_at = 0.0
        """When the registration was sent, by the monotonic clock."""
        self.configs: Mapping[str, str] = {}
        """The configs that operators have set for tasks, as of the last heartbeat."""

    def _renew(self) -> Plan[None]:
        """Register under a new id. If there was an old id, it is retired already."""
        id = new_id()
        known = False
        if self.id:
            if self._sync is not None:
                yield from self._sync()
            known = yield from perform(worker_ops.knows, self.id)
        if failpoints.armed:
            failpoints.reach("before_register")
        registered_at = monotonic()
        self.configs = yield from self._operations._register(
            id,
            name=self.name,
            lease=self._options.lease,
            tasks=self._tasks,
            queues=self._options.queues,
            slots=self._options.concurrency,
        )
        self._operations.forget_limits()
        if failpoints.armed:
            failpoints.reach("after_register")
        if self.id:
            _log.warning(BELIEVED_DEAD if known else UNKNOWN)
        unlock, self._unlock = self._unlock, self.store.lock_liveness(id)
        self.id, self.registered_at = id, registered_at
        unlock()

    renew, arenew = sync_method(_renew), async_method(_renew)

    async def take(self, health: Health, *, unless: asyncio.Event) -> None:
        """Register for the first time. Wait for a database that is away, until ``unless`` is set."""
        await unless_stopped(unless, self._take(health))

    async def _take(self, health: Health) -> None:
        while True:
            try:
                return await self.arenew()
            except OUT_OF_SERVICE as error:
                if error.code == FORBIDDEN:
                    raise  # waiting would not grant the privilege
                await asyncio.sleep(health.failed(error))

    def config_of(self, task: str, name: str) -> str | None:
        """The config for a job.

        ``task``: the task's name in the job, which may be an alias. ``name``: the task's current name. An alias
        without its own config uses the config of ``name``.
        """
        return self.configs.get(task) or self.configs.get(name) if self.configs else None

    def release_lock(self) -> None:
        """Release the lock that shows that this worker is alive.

        Then other workers need not wait for the end of its lease to take the jobs that it has left.
        """
        self._unlock()
