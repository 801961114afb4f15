"""Which -wal and -shm belong to which SQLite file.

SQLite finds them by their names alone. Beside a file that took another one's place it takes the old -wal for
its own, and writes the pages of one database over those of the other. Nothing in the files tells them apart,
so a process that had the old ones open has to remember them.

And who may read them: what we make is its owner's alone, for payloads may be secrets.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

FileId: TypeAlias = tuple[int, int]
"""Device and inode. While somebody has a file open, its numbers are not given to another one."""

NOWHERE: FileId = (0, 0)


class Files(NamedTuple):
    """A database, and what lies beside it."""

    main: FileId
    beside: frozenset[FileId]

    def left_behind(self, here: Files) -> bool:
        """Whether our WAL files are beside another database file, or beside none."""
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
    """Make an empty file that only its owner can read, unless there is one: that keeps the mode it has.

    SQLite gives the -wal and the -shm the mode of the file. It would itself make one that the umask alone restricts.
    """
    # SQLite will find any obstacle, and report it better.
    with suppress(OSError):
        if _MAKES_FILES:
            # Without opening it: to close it would drop the locks of a thread that was quick to open it by SQLite.
            os.mknod(path, 0o600)
        else:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def share_like(path: str, file: int) -> None:
    """Let those use a new file of ours, made for its owner alone, who may use the database at this path.

    As SQLite does with the -wal: the same mode and group, and if root makes it, the same owner.
    """
    with suppress(OSError):
        database = os.stat(path)
        mode = database.st_mode & 0o666
        try:
            os.fchown(file, database.st_uid if os.geteuid() == 0 else -1, database.st_gid)
        except OSError:
            mode &= ~0o060  # the group would be another one
        os.fchmod(file, mode)


# Elsewhere only the superuser may.
_MAKES_FILES: Final = sys.platform == "linux"
