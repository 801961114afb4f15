"""The heartbeat: from a thread of its own, so that a handler that blocks the event loop costs no lease."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from perdure import failpoints
from perdure.errors import PerdureError
from perdure.model.job import Lease
from perdure.ops.worker import Beat
from perdure.worker.health import OUT_OF_SERVICE, Health
from perdure.worker.ledger import Ledger

GLANCE = 0.25
"""Seconds between two looks at what is asked of the worker, at least."""

_log = logging.getLogger("perdure.worker")


class Beating(Protocol):
    """The worker, as its heartbeat sees it."""

    @property
    def identity(self) -> str: ...

    def leases(self) -> Sequence[Lease]:
        """What it runs. Called from the heartbeat's thread."""
        ...

    def heard(self, identity: str, before: Sequence[Lease], beat: Beat) -> None:
        """What the database believes, beside what the worker ran before it was asked. Called in the loop."""
        ...

    def renew_identity(self) -> None:
        """The worker was retired: register anew. Called from the heartbeat's thread."""
        ...


class Pulse:
    def __init__(self, worker: Beating, ledger: Ledger, health: Health, *, interval: float) -> None:
        self._worker = worker
        self._ledger = ledger
        self._health = health
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._kicked = threading.Event()
        self._stopped = threading.Event()
        self._over = asyncio.Event()
        self._answered = True
        self._told_blocked = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="perdure-pulse", daemon=True)

    def start(self, died: Callable[[], None]) -> None:
        """``died`` is called in the loop if the thread ends by an error."""
        self._died = died
        self._thread.start()

    def kick(self) -> None:
        """Look soon: something may have been asked of the worker. From any thread."""
        self._kicked.set()

    async def stop(self) -> None:
        self.end()
        await self._over.wait()

    def end(self) -> None:
        """Not to beat again, whenever the beat that is under way is answered."""
        self._stopped.set()
        self._kicked.set()

    def _run(self) -> None:
        try:
            self._beat_until_stopped()
        except BaseException as error:
            self.error = error
            _log.exception("The heartbeat ended by an error")
            self._in_loop(self._died)
        finally:
            self._in_loop(self._over.set)

    def _beat_until_stopped(self) -> None:
        due = monotonic() + self._interval
        while not self._stopped.is_set():
            kicked = self._kicked.wait(max(0.0, due - monotonic()))
            self._kicked.clear()
            if self._stopped.is_set():
                return
            beats = monotonic() >= due
            if not (beats or kicked):
                continue
            asked = self._health.ask()
            try:
                self._ask(self._ledger.heartbeat if beats else self._ledger.glance)
                self._health.worked(asked)
            except OUT_OF_SERVICE as error:
                due = monotonic() + min(self._health.failed(error), self._interval)
                continue
            except PerdureError:
                _log.exception("A heartbeat failed")
            if beats:
                due = monotonic() + self._interval
                self._look_at_loop()
            else:
                self._pause()

    def _ask(self, verb: Callable[[str], Beat]) -> None:
        identity, before = self._worker.identity, list(self._worker.leases())
        if failpoints.armed:
            failpoints.reach("before_heartbeat")
        beat = verb(identity)
        if failpoints.armed:
            failpoints.reach("after_heartbeat")
        if not beat.live:
            self._worker.renew_identity()
        self._in_loop(self._worker.heard, identity, before, beat)

    def _pause(self) -> None:
        """Kicks come with every commit of others on SQLite; one look serves many."""
        self._stopped.wait(min(GLANCE, self._interval / 4))

    def _look_at_loop(self) -> None:
        if not self._answered:
            if not self._told_blocked:
                self._told_blocked = True
                frame = sys._current_frames().get(self._loop_thread)
                stack = "".join(traceback.format_stack(frame)) if frame else "(its thread is gone)"
                _log.warning(
                    "The event loop has not answered for %.1f s; jobs keep their leases. It is here:\n%s",
                    self._interval,
                    stack,
                )
            return
        self._answered = False
        self._in_loop(self._answer)

    def _answer(self) -> None:
        self._answered = True
        self._told_blocked = False

    def _in_loop(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            self._stopped.set()  # the loop was closed
