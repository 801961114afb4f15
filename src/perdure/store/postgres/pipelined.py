"""Pipelined operations: the next is sent before the previous one on the connection is answered (decision 0020).

The server then goes from one operation to the next without a pause. With two connections it would work on both
operations at the same time, and then wait for us. Everything about pipelining is in this module. The rest of the store
only lends it a session.

- ``store.takes_another_cycle`` says whether an operation of this event loop, marked ``pipelined``, is in flight and
  another can be sent behind it. A worker then calls ``store.aperform``, as for any operation. A caller may skip this
  check: an operation that cannot be sent behind another gets its own connection.
- At most two operations are in flight on a connection, the leader and its follower. The session must allow this
  (``Session.takes_another``), so that a failure of the leader's transaction does not affect the follower's.
- Answers arrive in the order of sending. The follower waits (``BEHIND``) until the leader has ended. Then the follower
  becomes the leader.
- If the connection is lost, both operations fail at once, and the store retries each of them separately.
- The session goes back to the pool when both have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import psycopg

from perdure.store.postgres.loop_operation import LoopOperation
from perdure.store.postgres.session import Session, SocketWaits

T = TypeVar("T")


class PipelinedOperation(LoopOperation[T]):
    """An operation on a session of its own, or behind ``leader`` on the leader's session."""

    def __init__(
        self,
        session: Session,
        work: SocketWaits[T],
        over: Callable[[LoopOperation[Any]], None],
        *,
        leader: PipelinedOperation[Any] | None,
    ) -> None:
        super().__init__(session, work, over)
        self._leader = leader
        self._follower: PipelinedOperation[Any] | None = None

    @property
    def takes_another(self) -> bool:
        """Whether another operation can be sent behind this operation."""
        alone = self._leader is None and self._follower is None
        return alone and not self._writes and self.session.takes_another

    def start(self) -> None:
        if self._leader is None:
            super().start()
        else:
            self._leader._follower = self
            self._advance()

    def abort(self) -> bool:
        super().abort()
        if self._leader is not None:
            self._leader._follower = None
        return self._leader is None

    def leave(self) -> bool:
        if self._leader is not None:
            self._leader._follower = None
            if self.session.broken:
                self._leader._lose()
        elif self._follower is not None:
            self._follower._lead()
        else:
            return True
        return False

    def _lead(self) -> None:
        """Become the leader, because the previous leader has ended: the next answer is for this operation."""
        self._leader = None
        self._writes = False  # the leader has removed the writer of their shared socket
        try:
            self._read()
        except OSError:  # libpq has closed the socket
            self.session.broken = True
        if self.session.broken:
            self._lose()
        else:
            self._advance()

    def _advance(self, fault: psycopg.Error | None = None) -> None:
        wrote = self._writes
        super()._advance(fault)
        if self._leader is not None and not self._finished and (wrote or self._writes):
            # While flushing we may have read the leader's answer, so let the leader proceed.
            self._leader._advance()


def find_leader(operations: Iterable[LoopOperation[Any]]) -> PipelinedOperation[Any] | None:
    """The operation of this event loop behind which another operation can be sent."""
    loop = asyncio.get_running_loop()
    for operation in operations:
        if isinstance(operation, PipelinedOperation) and operation.loop is loop and operation.takes_another:
            return operation
    return None
