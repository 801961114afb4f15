"""The identity of SQLite files, and their access rights.

SQLite finds the -wal and -shm files only by name. If another file takes the place of the database, SQLite uses the old
-wal with the new file, and writes pages of one database over pages of the other. Nothing in the files shows this, so a
process that had the old files open has to remember them.

Files that we create can be read only by their owner, because payloads may be secret.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

FileId: TypeAlias = tuple[int, int]
"""Device and inode. While a process has the file open, no other file gets these numbers."""

NOWHERE: FileId = (0, 0)


class Files(NamedTuple):
    """A database file, its -wal and its -shm."""

    main: FileId
    beside: frozenset[FileId]

    def left_behind(self, here: Files) -> bool:
        """Whether our -wal or -shm is now beside another database file, or beside no database file."""
        return here.main != self.main and not self.beside.isdisjoint(here.beside)


def identify(path: str) -> FileId:
    try:
        found = os.stat(path)
    except OSError:
        return NOWHERE
    return found.st_dev, found.st_ino


def files_at(path: str) -> Files:
    beside = {identify(path + "-wal"), identify(path + "-shm")} - {NOWHERE}
    return Files(identify(path), frozenset(beside))


def make_private(path: str) -> None:
    """Create an empty file that only its owner can read. An existing file keeps its mode.

    SQLite gives the -wal and the -shm the mode of this file. If SQLite created the file, only the umask would restrict
    the mode.
    """
    # If this fails, SQLite will fail for the same reason and report it better.
    with suppress(OSError):
        if _MAKES_FILES:
            # Create the file without opening it. Closing it would drop SQLite's locks, if another thread has just
            # opened it with SQLite.
            os.mknod(path, 0o600)
        else:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def share_like(path: str, file: int) -> None:
    """Give a new private file the access rights of the database at this path.

    SQLite does the same for the -wal: it sets the same mode and group, and the same owner if root creates the file.
    """
    with suppress(OSError):
        database = os.stat(path)
        mode = database.st_mode & 0o666
        try:
            os.fchown(file, database.st_uid if os.geteuid() == 0 else -1, database.st_gid)
        except OSError:
            mode &= ~0o060  # the file keeps another group, which gets no access
        os.fchmod(file, mode)


# On systems other than Linux only the superuser may call mknod.
_MAKES_FILES: Final = sys.platform == "linux"
