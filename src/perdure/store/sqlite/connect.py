"""How perdure opens an SQLite database, and what it refuses to open."""

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
"""Runs a statement, given its name and parameters."""

MEMORY = ":memory:"
GONE = "The SQLite file was moved, deleted or replaced while it was in use."
LEFT_BEHIND = (
    "The -wal and -shm files beside the SQLite file belong to the one that was there before, and would destroy "
    "this one: stop all programs that use it, then remove both."
)
# In bytes. A WAL that starts over keeps this much of its file: to overwrite is twice as fast as to append,
# where every commit waits for the disk.
LONGEST_WAL = 4 * 1024 * 1024

# In bytes, of a row that is claimed: eight times what perdure stores in one value. SQLite looks at the length that the
# row states before it reads a value.
LARGEST_CLAIMED = 8 * 1024 * 1024
# What they return is run: with replaced characters it would be something else.
_CLAIMS = frozenset(("claim_jobs", "claim_chosen"))

# STRICT tables.
_OLDEST = (3, 37)
# Above the number of statements perdure has, so that none is prepared twice.
_CACHED_STATEMENTS = 512


class Database:
    """A file, or memory, and the connections this process has to it."""

    def __init__(self, path: str, *, synchronous: Synchronous = "full") -> None:
        if not path:
            raise InvalidConfig("An SQLite database needs a path, or :memory:.")
        if synchronous not in ("full", "normal"):
            raise InvalidConfig('synchronous is "full" or "normal".')
        _refuse_impossible_name(path)
        self.in_memory = path == MEMORY
        # SQLite puts the WAL beside the file a link leads to.
        self.path = path if self.in_memory else os.path.realpath(path)
        self.synchronous: Synchronous = synchronous
        self.connections: set[sqlite3.Connection] = set()
        self.lost = False
        """Its file was deleted or replaced, and no other one is open yet."""
        self.noticed = False
        """Whether an open found another file at the path: what is open should be closed."""
        # What is open, and what was until its file was lost.
        self._files: Files | None = None
        self._before: Files | None = None
        self._witness: sqlite3.Connection | None = None
        _databases.add(self)

    def anew(self) -> Database:
        """The same database, without connections."""
        return Database(self.path, synchronous=self.synchronous)

    @property
    def all_connections(self) -> list[sqlite3.Connection]:
        """Also those of other stores in this process."""
        return [each for one in _databases.now() if one.path == self.path for each in list(one.connections)]

    @property
    def exists(self) -> bool:
        return self.in_memory or os.path.exists(self.path)

    def refuse_if_missing(self) -> None:
        """Raise if there is no file: a check must not create one."""
        if self.exists:
            return
        if os.path.isdir(os.path.dirname(self.path)):
            raise SchemaMissing(
                "There is no such database file; call app.migrate() or run perdure migrate to make it."
            )
        raise SchemaMissing(
            "There is no such database file, nor its directory; create that one, then run perdure migrate."
        )

    def note_file(self) -> None:
        """The file that the path leads to is the one that is open."""
        if not self.has_moved:
            self._files = files_at(self.path)
        self.lost = False

    @property
    def has_moved(self) -> bool:
        """Whether the path leads to another file than the one that is open, or to none."""
        return not self.in_memory and self._files is not None and identify(self.path) != self._files.main

    def note_loss(self) -> None:
        """That file is closed; what is opened next is another one, unless it came back."""
        self.noticed = False
        if self.has_moved:
            self._before, self._files, self.lost = self._files, None, True

    def refuse_left_behind(self) -> None:
        """Raise if what lies beside the path belongs to a file that anybody in this process has, or had, open.

        We do not remove it: a program that began since may have taken it for its own and written to it.
        """
        if self.in_memory:
            return
        here = files_at(self.path)
        known = [files for one in _databases.now() if one.path == self.path for files in one._known]
        if any(files.left_behind(here) for files in known):
            raise StoreAway(LEFT_BEHIND, code="store.left_behind")

    def open(self, *, read_only: bool = False, create: bool = True) -> sqlite3.Connection:
        """A connection ready for use. Only "busy" comes as SQLite's own error: the caller may try again."""
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
        raise failed  # here, where it does not carry SQLite's error

    def _ready(self, *, read_only: bool) -> sqlite3.Connection:
        connection = self._connect()
        try:
            # The path may have changed since. SQLite has the file now; it takes the WAL with the first read.
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
        """With its last connection SQLite deletes the WAL by its name, but not if the file was moved.

        Then we keep that connection until another file is open: it keeps the numbers of the old files from
        being given to new ones.
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
        """Nobody opens it any more."""
        self._files = None
        self._release()

    def keep_for_ever(self) -> None:
        """What a parent process had open."""
        keep_for_ever([*self.connections, *([self._witness] if self._witness else ())])

    @property
    def _known(self) -> list[Files]:
        return [files for files in (self._files, self._before) if files is not None]

    def _release(self) -> None:
        witness, self._witness, self._before = self._witness, None, None
        if witness is not None:
            witness.close()

    def _refuse_another_file(self) -> None:
        """One process that has two files open under one path would mix them."""
        if self.has_moved:
            if self.connections:
                self.noticed = True
                self.refuse_left_behind()
                raise StoreAway(GONE)
            # Nobody's heartbeat had to notice.
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
                f"The SQLite file lies on a network file system ({kind}), which would corrupt it; "
                "keep it on a local disk, or use PostgreSQL."
            )

    def _connect(self) -> sqlite3.Connection:
        # No timeout: we wait ourselves, with jitter and without blocking threads that need our locks. SQLite creates no
        # file, not even if ours has just vanished: others could read it.
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
        # Before the first commit: none of our connections may checkpoint by itself, see sqlite/checkpoint.py.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA journal_size_limit = {LONGEST_WAL}")
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        # Where fsync() does not reach the disk, which is macOS.
        connection.execute(f"PRAGMA fullfsync = {self.synchronous == 'full'}")
        connection.execute("PRAGMA foreign_keys = OFF")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
            return
        # What a statement remembers while it runs (IN, RETURNING, a sort) is at most a batch, and in a file
        # of its own costs more than all the rest: 200 page faults in a claim. Readers may have more to sort.
        connection.execute("PRAGMA temp_store = MEMORY")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal" and not self.in_memory:
            raise UnsupportedDatabase("SQLite cannot keep a write-ahead log for this file.")

    def _diagnosis(self, error: sqlite3.Error) -> Exception:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith("SQLITE_CANTOPEN") and not os.access(os.path.dirname(self.path), os.W_OK):
            return StoreReadOnly("The directory of the SQLite file cannot be written to; the WAL lies in it.")
        return translate(error)


def _refuse_impossible_name(path: str) -> None:
    """Raise InvalidConfig if the operating system can have no file of this name."""
    if "\0" in path:
        raise InvalidConfig("The path of the SQLite file contains a NUL character: no file has such a name.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
    else:
        return
    raise InvalidConfig(
        f"The path of the SQLite file cannot be encoded as {encoding}, in which this process writes file names: "
        "use other characters, or set LC_ALL=C.UTF-8 in its environment."
    )


def executor(
    connection: sqlite3.Connection, statements: Mapping[str, str], now: int, *, lossy: bool = False
) -> Execute:
    """Run statements by their names, all at one time. ``lossy``: what is not UTF-8 is replaced, except in a claim."""

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
    """What a statement answers: rows, or how many it has changed."""
    try:
        return cursor.fetchall() if cursor.description else [(cursor.rowcount,)]
    except BaseException:
        # A row that cannot be read leaves the statement in the middle, where it keeps its locks.
        cursor.close()
        raise


# Of all stores in this process: they would all open the same path.
_databases: WeakRegistry[Database] = WeakRegistry()
