"""Migration files: numbered SQL files that create and change the tables, one series of files for each dialect.

A file runs in one transaction. A file that begins with ``-- online`` runs statement by statement, each in its own
transaction, so that workers can go on meanwhile. After an interruption, the migration continues where it stopped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from perdure.store.statements import Dialect


class Migration(NamedTuple):
    """One numbered file."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return _digest(self.text)

    @property
    def is_online(self) -> bool:
        return self.text.startswith("-- online")

    @property
    def statements(self) -> list[str]:
        """The statements with their comments. Joined without separators, they are the text of the file."""
        return split(self.text)

    def checksum_after(self, done: int) -> str:
        """The checksum of the first ``done`` statements.

        The history stores this checksum while an online migration is under way.
        """
        return _digest("".join(self.statements[:done]))

    def __str__(self) -> str:
        return f"{self.version:04} {self.name}"


def split(text: str) -> list[str]:
    """Split a text into statements. A semicolon in a string, comment, function or trigger does not end a statement."""
    pieces = [found[0] for found in _STATEMENT.finditer(text) if found[0]]
    if len(pieces) > 1 and not bare(pieces[-1]):
        rest = pieces.pop()
        pieces[-1] += rest
    return pieces


def bare(statement: str) -> str:
    """The statement without its comments."""
    return _COMMENT.sub("", statement).strip()


@lru_cache
def migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """Every migration of this version, in order."""
    found = (_FILE.fullmatch(file.name) for file in _folder(dialect).iterdir())
    return tuple(
        sorted(
            Migration(int(name["version"]), name["name"].replace("_", " "), _read(dialect, name.string))
            for name in found
            if name
        )
    )


def tables(migrations: Iterable[Migration]) -> list[str]:
    """The tables that these migrations create."""
    return [table for migration in migrations for table in _CREATES.findall(migration.text)]


def history(dialect: Dialect) -> str:
    """The SQL that creates the history: the table that records which migrations were applied."""
    return _read(dialect, "history.sql")


def titles(migrations: Iterable[Migration]) -> str:
    """The names of migrations for an error message."""
    names = [str(migration) for migration in migrations]
    return ("migration " if len(names) == 1 else "migrations ") + ", ".join(names)


_FILE = re.compile(r"(?P<version>\d{4})_(?P<name>\w+)\.sql")

_CREATES = re.compile(r"^CREATE TABLE perdure\.(\w+)", re.MULTILINE)

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

# The repetition is possessive (*+), so that a match cannot backtrack into a comment or a string. BEGIN … END is the
# body of a trigger on SQLite.
_STATEMENT = re.compile(
    r"""(?s: -- [^\n]*
           | /\* .*? \*/
           | ' (?:[^']|'')* '
           | " (?:[^"]|"")* "
           | (?P<dollar>\$\w*\$) .*? (?P=dollar)
           | \bBEGIN\b .*? ; \s* END\b
           | [^;]
        )*+ ;?""",
    re.VERBOSE,
)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _read(dialect: Dialect, name: str) -> str:
    return _folder(dialect).joinpath(name).read_text("utf-8")


def _folder(dialect: Dialect) -> Traversable:
    return files("perdure.store").joinpath("sql", "migrations", dialect)
