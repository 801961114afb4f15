"""Notice commits of other processes to an SQLite file, by watching the WAL to which they write.

A commit first writes to the WAL, and then waits for the disk (2 ms where we measured). The commit becomes visible only
after that, and SQLite does not announce it. So after each write we check a few times. A check is ``PRAGMA
data_version`` on our write connection, and takes 6 µs. On that connection the value changes with the commits of other
connections, and never with its own. While that connection is in use, no check is needed, because no other connection
can commit. The median time from the end of another process's COMMIT until we notice it is below 1 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from time import monotonic
from typing import Final

from perdure.ops.topics import ANYTHING
from perdure.store.listener_thread import ListenerThread, Waiter
from perdure.store.sqlite.inotify import FileWatch

POLL_SECONDS = 0.025
"""Seconds between two checks on systems without inotify."""

# Seconds to wait after the first write of a commit, so that its other writes do not wake us again.
_SETTLE: Final = 0.0003
# Seconds between the checks after a write. If the disk takes longer than all these checks, listeners find the commit
# when they poll.
_LOOKS: Final = (0.0007, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
# Seconds between further checks after a check that found a commit: the last write may belong to a later commit.
_LAST_LOOKS: Final = (0.004, 0.016, 0.064)
# The least number of seconds between two reactions to continuous writes.
_LEAST_PAUSE: Final = 0.002
_IDLE: Final = 15.0


class WalWatcher(ListenerThread):
    """Watches the WAL.

    ``seen`` returns a value that changes when other connections have committed, or None if unknown.
    """

    def __init__(self, path: str, *, seen: Callable[[], object | None]) -> None:
        super().__init__("perdure-sqlite-listener")
        self._wal = path + "-wal"
        self._seen = seen
        self._last: object | None = None

    def listen(self, waiter: Waiter) -> None:
        with suppress(OSError), closing(FileWatch(self._wal)) as file:
            self._follow(waiter, file)
        self._poll(waiter)

    def _poll(self, waiter: Waiter) -> None:
        while True:
            self._look()
            waiter.wait(POLL_SECONDS)

    def _follow(self, waiter: Waiter, file: FileWatch) -> None:
        looks, since = iter(_LOOKS), monotonic()
        while True:
            if self._look():
                looks = iter(_LAST_LOOKS)
            files = (file.fd,) if monotonic() - since >= _LEAST_PAUSE else ()
            if waiter.wait(next(looks, _IDLE), *files):
                waiter.wait(_SETTLE)
                if file.changed():
                    looks, since = iter(_LOOKS), monotonic()

    def _look(self) -> bool:
        seen = self._seen()
        if seen is None or seen == self._last:
            return False
        self._last = seen
        self.notify(frozenset([ANYTHING]))
        return True
