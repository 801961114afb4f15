"""Everything that an error carries: its causes, its contexts, its group, its notes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import psycopg


def chain(error: BaseException) -> Iterator[BaseException]:
    """Also what ``from None`` hides only from tracebacks: a debugger and an error tracker find it."""
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    while found:
        one = found.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        found += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def told(error: BaseException) -> str:
    """Every text in it."""
    parts = []
    for one in chain(error):
        parts += [str(one), repr(one), repr(one.args)]
        parts += [*getattr(one, "__notes__", ())]
    return "\n".join(parts)


def assert_carries_no_driver_error(error: BaseException) -> None:
    """Drivers quote values, statements and addresses."""
    theirs = [one for one in chain(error) if isinstance(one, psycopg.Error | sqlite3.Error)]
    assert not theirs
