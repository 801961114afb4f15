"""Open SQLite databases, and refuse databases that perdure cannot work on."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from perdure.errors import InvalidConfig, SchemaMissing, StoreAway, StoreReadOnly, UnsupportedDatabase
from perdure.internal.instances import WeakRegistry
from perdure.ops.op import Param, Rows
from perdure.store.sqlite.errors import is_busy, translate
from perdure.store.sqlite.files import Files, files_at, identify, make_private
from perdure.store.sqlite.fork import keep_for_ever
from perdure.store.sqlite.mounts import network_file_system

Synchronous: TypeAlias = Literal["full", "normal"]
Execute: TypeAlias = Callable[[str, Mapping[str, Param]], Rows]
"""Runs a statement by its name, with parameters."""

MEMORY = ":memory:"
GONE = "The SQLite file was moved, deleted or replaced while it was in use."
LEFT_BEHIND = (
    "The -wal and -shm files beside the SQLite file belong to an earlier file at this path, and would destroy "
    "this one: stop all programs that use it, then remove both."
)
# In bytes. A longer WAL is checkpointed, see checkpoint.py. When it then starts again, its file is truncated to this
# length, not to zero: if every commit waits for the disk, overwriting is twice as fast as appending.
LONGEST_WAL = 4 * 1024 * 1024

# The longest value, in bytes, that a claimed row may have: eight times the largest value that perdure stores. SQLite
# checks the length, which is in the row's header, before it reads the value.
LARGEST_CLAIMED = 8 * 1024 * 1024
# In the rows of these statements ``executor`` never replaces invalid bytes, because the claimed jobs are run.
_CLAIMS = frozenset(("claim_jobs", "claim_chosen"))

# The first version with STRICT tables.
_OLDEST = (3, 37)
# This is more than the number of perdure's statements, so that no statement is prepared twice.
_CACHED_STATEMENTS = 512


class Database:
    """A database in a file or in memory, and this process's connections to it."""

    def __init__(self, path: str, *, synchronous: Synchronous = "full") -> None:
        if not path:
            raise InvalidConfig("An SQLite database needs a path, or :memory:.")
        if synchronous not in ("full", "normal"):
            raise InvalidConfig('synchronous must be "full" or "normal".')
        _refuse_impossible_name(path)
        self.in_memory = path == MEMORY
        # SQLite puts the WAL beside the target of a symbolic link.
        self.path = path if self.in_memory else os.path.realpath(path)
        self.synchronous: Synchronous = synchronous
        self.connections: set[sqlite3.Connection] = set()
        self.lost = False
        """Whether the open file was deleted or replaced, and no other file has been opened since."""
        self.noticed = False
        """Whether another file was found at the path, so that open connections should be closed."""
        # The open files.
        self._files: Files | None = None
        # After a loss: the files that were open before, and a connection that still has them open, see ``close``.
        self._before: Files | None = None
        self._witness: sqlite3.Connection | None = None
        _databases.add(self)

    def anew(self) -> Database:
        """A new object for the same database, without connections."""
        return Database(self.path, synchronous=self.synchronous)

    @property
    def all_connections(self) -> list[sqlite3.Connection]:
        """This process's connections to the same path, including the connections of other stores."""
        return [each for one in _databases.now() if one.path == self.path for each in list(one.connections)]

    @property
    def exists(self) -> bool:
        return self.in_memory or os.path.exists(self.path)

    def refuse_if_missing(self) -> None:
        """Raise an error if there is no file. A check must not create a file."""
        if self.exists:
            return
        if os.path.isdir(os.path.dirname(self.path)):
            raise SchemaMissing(
                "There is no such database file; call app.migrate() or run perdure migrate to create it."
            )
        raise SchemaMissing(
            "Neither the database file nor its directory exists; create the directory, then run perdure migrate."
        )

    def note_file(self) -> None:
        """Remember the identity of the open file. If another file is at the path by now, keep the old record."""
        if not self.has_moved:
            self._files = files_at(self.path)
        self.lost = False

    @property
    def has_moved(self) -> bool:
        """Whether the path no longer leads to the open file."""
        return not self.in_memory and self._files is not None and identify(self.path) != self._files.main

    def note_loss(self) -> None:
        """Remember that the open file was lost and is now closed. Does nothing if the file is back at its path."""
        self.noticed = False
        if self.has_moved:
            self._before, self._files, self.lost = self._files, None, True

    def refuse_left_behind(self) -> None:
        """Raise an error if the -wal and -shm at the path belong to another file that this process has, or had, open.

        These files are not removed: a program that started since then may use them and may have written to them.
        """
        if self.in_memory:
            return
        here = files_at(self.path)
        known = [files for one in _databases.now() if one.path == self.path for files in one._known]
        if any(files.left_behind(here) for files in known):
            raise StoreAway(LEFT_BEHIND, code="store.left_behind")

    def open(self, *, read_only: bool = False, create: bool = True) -> sqlite3.Connection:
        """Open a connection. Errors are translated, except "busy", after which the caller may try again."""
        if not create and not self.exists:
            raise StoreAway(GONE)
        self._refuse_what_cannot_work()
        self._refuse_another_file()
        if create and not self.in_memory:
            make_private(self.path)
        try:
            connection = self._ready(read_only=read_only)
        except sqlite3.Error as error:
            if is_busy(error):
                raise
            failed = self._diagnosis(error)
        else:
            self._note_open()
            return connection
        raise failed  # outside the except block, so that its context is not SQLite's error

    def _ready(self, *, read_only: bool) -> sqlite3.Connection:
        connection = self._connect()
        try:
            # Check again, because another file may have come to the path meanwhile. It is not too late, because SQLite
            # opens the WAL only at the first read.
            self._refuse_another_file()
            self._set_up(connection, read_only=read_only)
        except BaseException:
            self.close(connection)
            raise
        return connection

    def _note_open(self) -> None:
        if self._files is None and not self.in_memory:
            self._files = files_at(self.path)
            self._release()

    def close(self, connection: sqlite3.Connection) -> None:
        """Close a connection.

        When the last connection is closed, SQLite deletes the file that has the name of the WAL, unless the database
        file was moved.

        If the database file was moved, we keep the last connection open until another file is open, so that no new file
        gets the inode number of a file that we remember.
        """
        self.connections.discard(connection)
        if self.connections or not self.has_moved or connection.in_transaction:
            connection.close()
        else:
            self._release()
            self._witness = connection
        if not self.connections and self._witness is None:
            self._files = None

    def forget(self) -> None:
        """Forget the files, because this store does not open the database again."""
        self._files = None
        self._release()

    def keep_for_ever(self) -> None:
        """In a forked child: never close the connections of the parent process, see fork.py."""
        keep_for_ever([*self.connections, *([self._witness] if self._witness else ())])

    @property
    def _known(self) -> list[Files]:
        return [files for files in (self._files, self._before) if files is not None]

    def _release(self) -> None:
        witness, self._witness, self._before = self._witness, None, None
        if witness is not None:
            witness.close()

    def _refuse_another_file(self) -> None:
        """Raise an error if an earlier file at this path is still open, or if its -wal or -shm is still there."""
        if self.has_moved:
            if self.connections:
                self.noticed = True
                self.refuse_left_behind()
                raise StoreAway(GONE)
            # Usually a heartbeat notes the loss, see process_state.py. None has noticed it yet.
            self.note_loss()
        self.refuse_left_behind()

    def _refuse_what_cannot_work(self) -> None:
        if sqlite3.sqlite_version_info < _OLDEST:
            raise UnsupportedDatabase(
                f"perdure needs SQLite 3.37 or newer; this Python comes with {sqlite3.sqlite_version}."
            )
        if self.in_memory:
            return
        if not os.path.isdir(os.path.dirname(self.path)):
            raise InvalidConfig("The directory of the SQLite file does not exist; create it first.")
        if os.path.isdir(self.path):
            raise InvalidConfig("The path of the SQLite file is a directory.")
        if kind := network_file_system(self.path):
            raise UnsupportedDatabase(
                f"The SQLite file is on a network file system ({kind}), which would corrupt it; "
                "keep it on a local disk, or use PostgreSQL."
            )

    def _connect(self) -> sqlite3.Connection:
        # timeout=0: we wait ourselves, with jitter and without blocking threads that need our locks. mode=rw: SQLite
        # must not create a file, even if our file has just vanished, because other users could read the new file.
        connection = sqlite3.connect(
            self.path if self.in_memory else f"{Path(self.path).as_uri()}?mode=rw",
            uri=not self.in_memory,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
        )
        self.connections.add(connection)
        return connection

    def _set_up(self, connection: sqlite3.Connection, *, read_only: bool) -> None:
        # This must be set before the first commit: our connections must never checkpoint automatically, see
        # checkpoint.py.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA journal_size_limit = {LONGEST_WAL}")
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        # This is for macOS, where fsync() alone does not reach the disk.
        connection.execute(f"PRAGMA fullfsync = {self.synchronous == 'full'}")
        connection.execute("PRAGMA foreign_keys = OFF")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
            return
        # A writing statement has at most a batch of temporary data (for IN, RETURNING or a sort). A temporary file
        # would cost more than the rest of the statement: 200 page faults in a claim. Readers use temporary files,
        # because they may have more to sort.
        connection.execute("PRAGMA temp_store = MEMORY")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal" and not self.in_memory:
            raise UnsupportedDatabase("SQLite cannot use a write-ahead log for this file.")

    def _diagnosis(self, error: sqlite3.Error) -> Exception:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith("SQLITE_CANTOPEN") and not os.access(os.path.dirname(self.path), os.W_OK):
            return StoreReadOnly(
                "The directory of the SQLite file is not writable, and the WAL belongs there."
            )
        return translate(error)


def _refuse_impossible_name(path: str) -> None:
    """Raise InvalidConfig if the operating system cannot have a file of this name."""
    if "\0" in path:
        raise InvalidConfig("The path of the SQLite file contains a NUL character: no file has such a name.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
    else:
        return
    raise InvalidConfig(
        f"The path of the SQLite file cannot be encoded as {encoding}, which this process uses for file names: "
        "use other characters, or set LC_ALL=C.UTF-8 in its environment."
    )


def executor(
    connection: sqlite3.Connection, statements: Mapping[str, str], now: int, *, lossy: bool = False
) -> Execute:
    """Return a function that runs statements, all with the same ``now``.

    ``lossy``: replace bytes that are not UTF-8, except in a claim.
    """

    def execute(name: str, params: Mapping[str, Param]) -> Rows:
        if name in _CLAIMS:
            return claim(name, params)
        if lossy:
            connection.text_factory = _replace
        try:
            return rows_in(connection.execute(statements[name], {**params, "now": now}))
        finally:
            if lossy:
                connection.text_factory = str

    def claim(name: str, params: Mapping[str, Param]) -> Rows:
        most = connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_CLAIMED)
        try:
            return rows_in(connection.execute(statements[name], {**params, "now": now}))
        finally:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, most)

    return execute


def _replace(text: bytes) -> str:
    return text.decode(errors="replace")


def rows_in(cursor: sqlite3.Cursor) -> Rows:
    """The answer of a statement: its rows, or one row with the number of rows that it changed."""
    try:
        return cursor.fetchall() if cursor.description else [(cursor.rowcount,)]
    except BaseException:
        # An unreadable row leaves the statement unfinished, and an unfinished statement keeps its locks.
        cursor.close()
        raise


# The databases of all stores in this process. Several stores may open the same path.
_databases: WeakRegistry[Database] = WeakRegistry()
