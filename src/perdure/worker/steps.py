"""What a step needs of those before it: read for many at once, before their handlers begin."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from time import monotonic

import msgspec

from perdure.errors import ResultMissing
from perdure.model.job import Claimed
from perdure.model.lifecycle import Failed
from perdure.model.reference import refers, resolved
from perdure.ops.results import ParentResult, find_ancestor, read_parents
from perdure.store.store import Store
from perdure.worker.attempt import Attempt, Runner
from perdure.worker.handler import Handler
from perdure.worker.health import Health
from perdure.worker.results import missing

_log = logging.getLogger("perdure.worker")


class Steps:
    """Belongs to the event loop's thread. Whoever begins in one go is read for in one go."""

    def __init__(self, store: Store, health: Health) -> None:
        self._store = store
        self._health = health
        self._arrived: dict[Attempt, Runner] = {}
        self._reading: set[asyncio.Task[None]] = set()

    def before(self, job: Claimed, handler: Handler, runner: Runner) -> Runner:
        """Where the job runs. One that asks for no result is not waited for."""
        if job.workflow_id is None or (handler.signature.context is None and not refers(job.payload)):
            return runner
        return Preparation(self, runner)

    def prepare(self, attempt: Attempt, runner: Runner) -> None:
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._read)
        self._arrived[attempt] = runner

    def _read(self) -> None:
        arrived, self._arrived = self._arrived, {}
        task = asyncio.create_task(self._begin(arrived))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _begin(self, arrived: dict[Attempt, Runner]) -> None:
        try:
            ids = [attempt.job.id for attempt in arrived]
            parents = await self._health.until_answered(lambda: self._store.aperform(read_parents, ids))
            found = await self._resolve([*arrived], parents)
        except Exception as error:
            _log.exception("The results that %d steps need could not be read", len(arrived))
            found = {attempt: Failed(attempt.lease, "error", message=str(error)) for attempt in arrived}
        for attempt, runner in arrived.items():
            if attempt.ended:
                continue  # it was stopped meanwhile
            if (failure := found.get(attempt)) is not None:
                attempt.end(failure, monotonic())
            else:
                attempt.runner = runner
                runner.start(attempt)

    async def _resolve(
        self, attempts: Sequence[Attempt], parents: dict[str, list[ParentResult]]
    ) -> dict[Attempt, Failed]:
        """Give each its results, and its arguments in place of references to them; return what is impossible."""
        failed: dict[Attempt, Failed] = {}
        for attempt in attempts:
            job = attempt.job
            attempt.context.parents = parents[job.id]
            if refers(job.payload):
                try:
                    payload = await self._payload(job, parents[job.id])
                except ResultMissing as error:
                    failed[attempt] = Failed(attempt.lease, "fatal", error.code, str(error))
                    continue
                attempt.job = attempt.context.row = msgspec.structs.replace(job, payload=payload)
        return failed

    async def _payload(self, job: Claimed, parents: Sequence[ParentResult]) -> str:
        known = {parent.key: parent for parent in parents}
        lacking: list[str] = []

        def result_of(key: str) -> str:
            if key not in known:
                lacking.append(key)
                return "null"
            parent = known[key]
            if parent.state != "succeeded" or parent.dropped:
                raise missing(parent.key, parent)
            return "null" if parent.result is None else parent.result

        payload = resolved(job.payload, result_of)
        if not lacking:
            return payload
        for key in dict.fromkeys(lacking):
            found = await self._health.until_answered(partial(self._ancestor, job, key))
            if found is None:
                raise missing(key, None)
            known[key] = found
        return resolved(job.payload, result_of)

    async def _ancestor(self, job: Claimed, key: str) -> ParentResult | None:
        return await self._store.aperform(find_ancestor, job.id, job.workflow_id or "", key)


class Preparation:
    """A runner for as long as a step's results are read."""

    def __init__(self, steps: Steps, runner: Runner) -> None:
        self._steps = steps
        self._runner = runner

    def start(self, attempt: Attempt) -> None:
        self._steps.prepare(attempt, self._runner)

    def stop(self, attempt: Attempt) -> None:
        """Its handler has not begun."""
        attempt.end(None, monotonic())

    def give_up(self, attempt: Attempt) -> None:
        attempt.give_up()
