"""Reads the results that steps need from their parents, for many steps at once, before their handlers begin."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, ParamSpec, TypeVar

from perdure.errors import PayloadTooLarge, ResultMissing
from perdure.model.job import Claimed
from perdure.model.lifecycle import Failed
from perdure.model.reference import refers
from perdure.ops.op import Operation
from perdure.ops.results import ParentResult, bytes_of, find_ancestors, pages, read_parents, read_results
from perdure.store.store import Store
from perdure.worker.attempt import Attempt, Runner
from perdure.worker.handler import Handler
from perdure.worker.health import Health
from perdure.worker.held_results import HeldResults
from perdure.worker.step_needs import StepNeeds

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("perdure.worker")


class Steps:
    """Reads results for the steps of one worker. This is used in the event loop's thread.

    One statement reads the first page of parents for all steps that begin together. Most steps need nothing else and
    begin. For each other step, a separate task reads the remaining results, so that no step waits for another. Large
    reads run one at a time, so that shared parents are read once.
    """

    def __init__(self, store: Store, health: Health) -> None:
        self.held = HeldResults()
        self._store = store
        self._health = health
        self._large_read = asyncio.Lock()
        self._arrived: list[Preparation] = []
        self._reading: set[asyncio.Task[None]] = set()

    def before(self, job: Claimed, handler: Handler, runner: Runner) -> Runner:
        """The runner of a job. If the job needs results of its parents, this runner reads them first."""
        if job.workflow_id is None or (handler.signature.context is None and not refers(job.payload)):
            return runner
        return Preparation(self, runner)

    def prepare(self, preparation: Preparation) -> None:
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._read)
        self._arrived.append(preparation)

    def _read(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._spawn(self._read_first_page(arrived))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        return task

    async def _read_first_page(self, arrived: Sequence[Preparation]) -> None:
        try:
            first = await self._ask(read_parents, [preparation.attempt.job.id for preparation in arrived])
        except Exception as error:
            _log.exception("The results that %d steps need could not be read", len(arrived))
            for preparation in arrived:
                preparation.fail(error)
            return
        for preparation in arrived:
            attempt = preparation.attempt
            if not attempt.ended:  # the attempt may have been stopped meanwhile
                with preparation.guarded():
                    self._go_on(preparation, StepNeeds(attempt, first.pop(attempt.job.id)))

    def _go_on(self, preparation: Preparation, needs: StepNeeds) -> None:
        if needs.complete and not needs.unknown and not needs.unread:
            needs.check()
            needs.hand_over()
            preparation.begin()
        else:
            preparation.reading = self._spawn(self._read_rest(preparation, needs))

    async def _read_rest(self, preparation: Preparation, needs: StepNeeds) -> None:
        job = preparation.attempt.job
        with preparation.guarded():
            while not needs.complete:
                page = await self._ask(read_parents, [job.id], after=needs.last, most_bytes=needs.bytes_left)
                needs.add_page(page[job.id])
            if needs.unknown:
                found = await self._ask(find_ancestors, job.id, job.workflow_id or "", needs.unknown)
                needs.add_ancestors(found.values())
            needs.check()
            if needs.unread:
                preparation.pause()
                async with self._large_read:
                    await self.held.wait_for_room(
                        lambda: needs.argument_bytes + bytes_of(self._absent(needs))
                    )
                    preparation.resume()
                    await self._read_results(preparation.attempt, needs)
            needs.hand_over()
            if not needs.reads_ahead:
                self.held.release_results(preparation.attempt)
            preparation.begin()

    async def _read_results(self, attempt: Attempt, needs: StepNeeds) -> None:
        self.held.hold_arguments(attempt, needs.argument_bytes)
        needs.set_results(self.held.hold(attempt, map(self.held.find, needs.unread)))
        for page in pages(needs.unread):
            results = await self._ask(read_results, [parent.id for parent in page])
            read = [parent._replace(result=results.get(parent.id)) for parent in page]
            needs.set_results(self.held.hold(attempt, read))

    def _absent(self, needs: StepNeeds) -> list[ParentResult]:
        return [parent for parent in needs.unread if self.held.find(parent).unread]

    async def _ask(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._health.until_answered(lambda: self._store.aperform(operation, *args, **kwargs))


class Preparation:
    """The runner of a step while the results that it needs are read. Reading has the same timeout as the handler."""

    def __init__(self, steps: Steps, runner: Runner) -> None:
        self._steps = steps
        self._runner = runner
        self._timer: asyncio.TimerHandle | None = None
        self.reading: asyncio.Task[None] | None = None

    def start(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.resume()
        self._steps.prepare(self)

    def resume(self) -> None:
        if (allowed := self.attempt.allowed) is not None:
            self._timer = asyncio.get_running_loop().call_later(allowed, self.attempt.stop, "timeout")

    def pause(self) -> None:
        """Stop the timer of the timeout, for example while this step waits until other steps release memory."""
        if self._timer is not None:
            self._timer.cancel()

    def begin(self) -> None:
        self.pause()
        self.attempt.runner = self._runner
        self._runner.start(self.attempt)

    def stop(self, attempt: Attempt) -> None:
        """Stop reading, and end the attempt at once: its handler has not begun."""
        self.pause()
        if self.reading is not None:
            self.reading.cancel()
        late = f"The results it needs were not read within {attempt.allowed} s."
        timed_out = attempt.stop_reason == "timeout"
        attempt.end(Failed(attempt.lease, "timeout", message=late) if timed_out else None, monotonic())

    def give_up(self, attempt: Attempt) -> None:
        attempt.give_up()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Let an error fail only this step."""
        lease = self.attempt.lease
        try:
            yield
        except (ResultMissing, PayloadTooLarge) as error:
            self.pause()
            self.attempt.end(Failed(lease, "fatal", error.code, str(error)), monotonic())
        except Exception as error:
            _log.exception("The results that job %s needs could not be read", lease.job)
            self.fail(error)

    def fail(self, error: Exception) -> None:
        self.pause()
        self.attempt.end(Failed(self.attempt.lease, "error", message=str(error)), monotonic())
