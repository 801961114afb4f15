"""Watch a file for writes on Linux, without opening it.

SQLite's files must not be opened here: when a process closes any descriptor of a file, the system drops all locks that
the process holds on that file, including SQLite's.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

_MODIFY: Final = 0x2
_MOVED_TO: Final = 0x80
_CREATE: Final = 0x100
_OVERFLOW: Final = 0x4000

# The head of an event: watch, kind, cookie, and the length of the name after it.
_EVENT: Final = struct.Struct("iIII")
_MOST_BYTES: Final = 64 * 1024


class FileWatch:
    """A watched file, which need not exist yet. Raises OSError if the file cannot be watched. Works only on Linux."""

    def __init__(self, path: str) -> None:
        self._path = os.fsencode(path)
        self._libc = _libc()
        self.fd = _checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            directory = os.path.dirname(self._path) or b"."
            _checked(self._libc.inotify_add_watch(self.fd, directory, _CREATE | _MOVED_TO))
            self._watch_file()
        except OSError:
            self.close()
            raise

    def changed(self) -> bool:
        """Whether the file was written to, or replaced, since the last call. Does not wait."""
        changed = False
        for kind, name in self._events():
            # Watch the new file from now on. Earlier writes to the new file are part of this change.
            if kind & (_CREATE | _MOVED_TO | _OVERFLOW) and name in (b"", os.path.basename(self._path)):
                with suppress(OSError):
                    self._watch_file()
                changed = True
            changed |= bool(kind & _MODIFY)
        return changed

    def close(self) -> None:
        os.close(self.fd)

    def _watch_file(self) -> None:
        """Watch the file, if it exists. If the same file is already watched, this changes nothing."""
        with suppress(FileNotFoundError):
            _checked(self._libc.inotify_add_watch(self.fd, self._path, _MODIFY))

    def _events(self) -> Iterator[tuple[int, bytes]]:
        try:
            data = os.read(self.fd, _MOST_BYTES)
        except BlockingIOError:
            return
        place = 0
        while place < len(data):
            _, kind, _, length = _EVENT.unpack_from(data, place)
            place += _EVENT.size + length
            yield kind, data[place - length : place].rstrip(b"\0")


def _libc() -> Any:
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "no inotify")
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        return libc if libc.inotify_init1 and libc.inotify_add_watch else None
    except (ImportError, AttributeError):
        raise OSError(errno.ENOSYS, "no inotify") from None


def _checked(answer: int) -> int:
    if answer < 0:
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
