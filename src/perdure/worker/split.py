"""Writes many rows although the database refuses some of them.

A batch that is refused is halved, until each refused row fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Generic, NamedTuple, TypeVar

from perdure.plan.plan import Plan
from perdure.worker.database_errors import DAMAGED, PERHAPS_REFUSED, is_refusal

PROVE_WITHIN, MOST_UNPROVEN = 1.0, 30
"""After this many seconds or transactions without a stored row, errors that may mean an outage count as an outage."""

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
    rows: Sequence[T], write: Callable[[Sequence[T]], Plan[R]], *, serves: bool = False
) -> Plan[Split[T, R]]:
    """Write all rows that the database accepts, in few transactions.

    A trigger may refuse a row with the error code of an outage. Such an error counts as an outage only if the database
    accepts no row at all. ``serves``: the caller knows that the database accepts rows.
    """
    done, refused = list[R](), list[tuple[T, Exception]]()
    parts = [rows] if rows else []
    prove_by, unproven, alone, tries = monotonic() + PROVE_WITHIN, False, False, 0
    while parts:
        # An accepted row proves that there is no outage. Refused rows may be neighbours, so after every two of them
        # look for the proof in the first batch, which is the largest.
        elsewhere = unproven and alone and len(refused) % 2 == 0
        part = parts.pop(0 if elsewhere else -1)
        alone, tries = len(part) == 1, tries + 1
        try:
            done.append((yield from write(part)))
            if unproven:  # perhaps an outage has just ended: try the refused rows again
                parts += ([row] for row, _ in refused)
                refused, unproven = [], False
        except PERHAPS_REFUSED as error:
            if not is_refusal(error):
                return Split(done, refused, error)
            if alone:
                refused.append((part[0], error))
            else:
                middle = len(part) // 2
                parts += (part[middle:], part[:middle])
            unproven = not (done or serves or isinstance(error, DAMAGED))
            gave_up = monotonic() > prove_by or tries >= MOST_UNPROVEN or not parts
            if unproven and refused and gave_up:
                return Split(done, refused, error)
    return Split(done, refused)
