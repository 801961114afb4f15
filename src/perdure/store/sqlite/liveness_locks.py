"""Liveness locks: they show at once that a worker on this host has died, because the kernel releases its lock.

Each worker holds a lock on its own file beside the database. A pid is not enough: another process may have got the same
pid, and processes in other containers are invisible.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Final

from perdure.store.sqlite.files import share_like

# Windows has no fcntl.
_CAN_LOCK: Final = find_spec("fcntl") is not None
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_log = logging.getLogger("perdure.store")


class LivenessLocks:
    """The locks of the workers of the database at ``path``.

    If file locks do not work here, ``absent`` returns no worker.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._complained = False

    def lock_liveness(self, worker: str) -> Callable[[], None]:
        """Take a lock that lasts until this process ends; return a function that releases it earlier."""
        path = self._file_of(worker)
        if path is None:
            return _nothing
        try:
            file = _lock_new(path, self._path)
        except OSError as error:
            if not self._complained:
                self._complained = True
                _log.warning(
                    "No file beside the database can be locked (%s): %s", error.strerror, _CONSEQUENCE
                )
            return _nothing
        return partial(_give_up, path, file, os.getpid(), [])

    def absent(self, workers: Iterable[str]) -> list[str]:
        """The workers among these that are certainly dead. A worker without a file may be alive."""
        return [worker for worker in workers if (path := self._file_of(worker)) and _is_abandoned(path)]

    def _file_of(self, worker: str) -> str | None:
        """The path of a worker's file; None if there are no file locks, or if the name is not safe in a path."""
        if not _CAN_LOCK or not _PLAIN_NAME.fullmatch(worker):
            return None
        return f"{self._path}-worker-{worker}"


_CONSEQUENCE: Final = "a dead worker is noticed only when its lease expires"

# Open file descriptors. A forked child closes its copies, because a lock ends only when all copies are closed.
_open: set[int] = set()
_no_fork = threading.Lock()


def _lock_new(path: str, database: str) -> int:
    """Create a locked file at this path.

    The file is locked before it appears there, so no process finds it unlocked.
    """
    beginning = f"{path}.{secrets.token_hex(4)}"
    file = _opened(beginning, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        share_like(database, file)
        _lock(file)
        os.rename(beginning, path)
    except OSError:
        _close(file)
        with suppress(OSError):
            os.unlink(beginning)
        raise
    return file


def _lock(file: int) -> None:
    """Lock a file. Raises OSError if another process has locked it, or if this file system has no locks."""
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _give_up(path: str, file: int, holder: int, given_up: list[bool]) -> None:
    # In a forked child the file is already closed, and its descriptor may belong to another file.
    if holder == os.getpid() and not given_up:
        given_up.append(True)
        _unlink(path, file)
        _close(file)


def _is_abandoned(path: str) -> bool:
    """Whether the lock is free. If so, remove its file. If several callers ask at the same time, only one gets True."""
    try:
        file = _opened(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        _lock(file)
        return _unlink(path, file)
    except OSError:
        return False
    finally:
        _close(file)


def _unlink(path: str, file: int) -> bool:
    """Remove the path if it still leads to this locked file, not to a newer file. Return whether it was removed."""
    try:
        found, ours = os.stat(path), os.fstat(file)
    except OSError:
        return False
    if (found.st_dev, found.st_ino) != (ours.st_dev, ours.st_ino):
        return False
    with suppress(OSError):
        os.unlink(path)
    return True


def _opened(path: str, flags: int) -> int:
    with _no_fork:
        file = os.open(path, flags | os.O_CLOEXEC, 0o600)
        _open.add(file)
        return file


def _close(file: int) -> None:
    with _no_fork:
        _open.discard(file)
        os.close(file)


def _nothing() -> None:
    pass


def _after_fork() -> None:
    for file in _open:
        os.close(file)
    _open.clear()
    _no_fork.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_after_fork)
