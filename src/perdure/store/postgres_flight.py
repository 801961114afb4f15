"""Operations that the event loop itself carries out, because they take one round trip.

A thread would cost them two changes of thread and turns at the interpreter's lock: 0.2 ms of a single enqueue, and in
a busy worker the overlap of database and handlers. All is sent at the start, COMMIT included: a loop which stands still
holds no lock, unless what is sent or answered is more than the sockets hold. And it holds no more than half of the
connections, none of those for heartbeats.

A turn of a worker may be sent behind another that is not answered yet: the server goes from one to the next without a
pause. On two connections it would do both at once, and then wait for us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE
from time import monotonic
from typing import Any, Generic, TypeVar

import psycopg

from perdure.ops.op import Kind
from perdure.store.postgres_pool import LANES, Lane, Pool, lanes
from perdure.store.postgres_session import LATE, LOST, Session, Waiting

T = TypeVar("T")


class Flight(Generic[T]):
    """One operation. It lands by itself, whether or not somebody still waits for it."""

    def __init__(
        self,
        session: Session,
        work: Waiting[T],
        over: Callable[[Flight[Any]], None],
        *,
        leader: Flight[Any] | None = None,
    ) -> None:
        self._work = work
        self._over = over
        self._writes = False
        self._down = False
        self._timer: asyncio.TimerHandle | None = None
        self.session = session
        self.leader = leader
        self.follower: Flight[Any] | None = None
        self.loop = asyncio.get_running_loop()
        self.landed: asyncio.Future[T] = self.loop.create_future()

    def depart(self) -> None:
        if self.leader is None:
            self.loop.add_reader(self.session.socket, self._go_on)
        else:
            self.leader.follower = self
        self._go_on()

    def lead(self) -> None:
        """What it was sent behind has landed: the next answer is its own."""
        self.leader = None
        self._writes = False
        try:
            self.loop.add_reader(self.session.socket, self._go_on)
        except OSError:  # libpq has closed the socket
            self.session.spoiled = True
        if self.session.spoiled:
            self.lose()
        else:
            self._go_on()

    def lose(self) -> None:
        """Its connection is gone."""
        self._go_on(psycopg.OperationalError(LOST))

    @property
    def takes_another(self) -> bool:
        """Whether another may be sent behind it."""
        alone = self.leader is None and self.follower is None
        return alone and not self._writes and self.session.takes_another

    def crash(self) -> None:
        """Its loop was closed: nobody hears the answer."""
        self._down = True
        self._work.close()

    def _go_on(self, fault: psycopg.Error | None = None) -> None:
        if self._down:
            return  # the socket was ready to be read and to be written, and the first was the end
        try:
            event = next(self._work) if fault is None else self._work.throw(fault)
        except StopIteration as end:
            if not self.landed.done():
                self.landed.set_result(end.value)
            self._land()
        except BaseException as error:
            if not self.landed.done():
                self.landed.set_exception(error)
            self._land()
            if not isinstance(error, Exception):
                raise
        else:
            large = self._writes or bool(event & EVENT_WRITE)
            self._wait(event)
            if large and self.leader is not None:
                self.leader._go_on()  # whoever writes much reads meanwhile, and what came was for the leader

    def _wait(self, event: int) -> None:
        if bool(event & EVENT_WRITE) != self._writes:
            self._writes = not self._writes
            if self._writes:
                self.loop.add_writer(self.session.socket, self._go_on)
            else:
                self.loop.remove_writer(self.session.socket)
        if self._timer is None:
            self._timer = self.loop.call_later(self.session.deadline - monotonic(), self._late)

    def _late(self) -> None:
        self._timer = None
        if monotonic() < self.session.deadline:  # another answer is awaited by now
            self._wait(EVENT_READ | EVENT_WRITE if self._writes else EVENT_READ)
        else:
            self._go_on(psycopg.OperationalError(LATE))

    def _land(self) -> None:
        self._down = True
        # libpq closes the socket of a connection that is lost, and not every selector forgives that.
        if self.leader is None:
            with suppress(OSError):
                self.loop.remove_reader(self.session.socket)
        with suppress(OSError):
            self.loop.remove_writer(self.session.socket)
        if self._timer is not None:
            self._timer.cancel()
        self._over(self)


class Airport:
    """The flights of a store, each with a session of its pool that lay idle, or behind another one."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._flights: dict[Flight[Any], Kind] = {}
        self._open = True

    def depart(self, kind: Kind, work: Callable[[Session], Waiting[T]]) -> asyncio.Future[T] | None:
        """Have it carried out on an idle session; None where there is none, or the loop cannot wait for sockets."""
        self.clear()
        leader = self._leader() if kind == "turn" else None
        session = leader.session if leader is not None else self._lend_idle(LANES[kind])
        if session is None:
            return None
        flight = Flight(session, work(session), self._over, leader=leader)
        self._flights[flight] = kind
        try:
            flight.depart()
        except NotImplementedError:  # Windows, by default
            self._open = False
            self._crash(flight)
            return None
        except BaseException:
            self._crash(flight)
            raise
        return flight.landed

    @property
    def takes_another_turn(self) -> bool:
        return self._leader() is not None

    def _leader(self) -> Flight[Any] | None:
        """The turn of this loop's that another may be sent behind."""
        loop = asyncio.get_running_loop()
        for flight, kind in self._flights.copy().items():  # others add and remove theirs
            if kind == "turn" and flight.loop is loop and flight.takes_another:
                return flight
        return None

    def _lend_idle(self, lane: Lane) -> Session | None:
        most = lanes(self._pool.size)[lane] // 2
        full = sum(LANES[kind] == lane for kind in tuple(self._flights.values())) >= most
        return self._pool.lend_idle(lane) if self._open and not full else None

    def clear(self) -> None:
        """Give up the flights of loops that were closed."""
        for flight in list(self._flights):
            if flight.loop.is_closed():
                self._crash(flight)

    def forget(self) -> None:
        """In a forked child."""
        self._flights = {}

    def _crash(self, flight: Flight[Any]) -> None:
        # Whoever takes it off the list crashes it: several threads may come upon it.
        kind = self._flights.pop(flight, None)
        if kind is None:
            return
        flight.crash()
        if flight.leader is not None:
            flight.leader.follower = None
        else:
            self._pool.take_back(flight.session, LANES[kind])

    def _over(self, flight: Flight[Any]) -> None:
        kind = self._flights.pop(flight, None)
        if kind is None:
            return
        if (leader := flight.leader) is not None:
            leader.follower = None
            if flight.session.spoiled:
                leader.lose()
        elif flight.follower is not None:
            flight.follower.lead()  # and the session is its own
        else:
            self._pool.take_back(flight.session, LANES[kind])
