"""Writes many rows although the database refuses some of them.

A batch that is refused is halved, until each refused row fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Generic, NamedTuple, TypeVar

from perdure.plan.plan import Plan
from perdure.worker.database_errors import DAMAGED, PERHAPS_REFUSED, is_refusal

PROVE_WITHIN, MOST_UNPROVEN = 1.0, 6
"""Seconds, and transactions since a row was first refused alone, after which errors that may mean an outage count as
one, if no row was taken."""

T = TypeVar("T")
R = TypeVar("R")


class Split(NamedTuple, Generic[T, R]):
    """The result of ``split``.

    ``done``: the return value of ``write`` for each batch. ``refused``: rows that failed alone, each with its error.
    ``outage``: the error that ended the writing early. After an outage, all rows neither written nor refused must be
    written again.
    """

    done: list[R]
    refused: list[tuple[T, Exception]]
    outage: Exception | None = None


def split(
    rows: Sequence[T],
    write: Callable[[Sequence[T]], Plan[R]],
    *,
    serves: bool = False,
    gives_up: bool = False,
) -> Plan[Split[T, R]]:
    """Write all rows that the database accepts, in few transactions.

    A trigger may refuse a row with the error code of an outage. Such an error counts as an outage only if the database
    takes no row at all. ``serves``: the caller knows that the database takes rows. ``gives_up``: any error counts as an
    outage if the database has taken no row by then.
    """
    done, refused = list[R](), list[tuple[T, Exception]]()
    parts = [rows] if rows else []
    prove_by, unproven, tries = monotonic() + PROVE_WITHIN, False, 0
    while parts:
        # A row that is taken proves that there is no outage. Refused rows may lie side by side, so after two of them
        # look for the proof elsewhere.
        part = _take_one(parts) if unproven and len(refused) >= 2 else parts.pop()
        tries += bool(refused)
        try:
            done.append((yield from write(part)))
            if unproven:  # perhaps an outage has just ended: try the refused rows again
                parts += ([row] for row, _ in refused)
                refused, unproven = [], False
        except PERHAPS_REFUSED as error:
            if not is_refusal(error):
                return Split(done, refused, error)
            if len(part) == 1:
                refused.append((part[0], error))
            else:
                middle = len(part) // 2
                parts += (part[middle:], part[:middle])
            damaged = isinstance(error, DAMAGED)
            unproven = not (done or serves or (damaged and not gives_up))
            gave_up = monotonic() > prove_by or tries >= MOST_UNPROVEN or not (parts or damaged)
            if unproven and refused and gave_up:
                return Split(done, refused, error)
    return Split(done, refused)


def _take_one(parts: list[Sequence[T]]) -> Sequence[T]:
    """Take the row in the middle of the longest part."""
    longest = max(range(len(parts)), key=lambda i: len(parts[i]))
    part = parts.pop(longest)
    middle = len(part) // 2
    parts[longest:longest] = [rest for rest in (part[middle + 1 :], part[:middle]) if rest]
    return part[middle : middle + 1]
