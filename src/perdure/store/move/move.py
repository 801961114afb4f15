"""Move all rows from one database to another: seal both, copy in batches, compare, open the target.

Every step is a transaction on one side. Each side has a mark, a row of the table ``move``, which shows a second run how
far the first came. At any time other programs can write to at most one side, see docs/decisions/0019.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from itertools import zip_longest
from typing import Final, NamedTuple, TypeAlias

import msgspec

from perdure.errors import Conflict, InternalError, Refused, StoreBusy
from perdure.internal import failpoints
from perdure.ops.op import Row
from perdure.store.move.marks import Mark, give_up, is_given_up, marks
from perdure.store.move.side import MOVED, Side, Table, misfit

# A batch ends when it reaches either limit. It fits into any memory, and is so large that commits cost little.
_MOST_ROWS: Final = 5000
_MOST_BYTES: Final = 4_000_000

Progress: TypeAlias = Callable[[str, int, int], object]
"""Called with the phase ("copy" or "compare"), the number of rows done, and the total over all tables."""


class Moved(NamedTuple):
    """The result of a move: for each table, the number of rows and their checksum, which is the same on both sides."""

    id: str
    rows: dict[str, int]
    checksums: dict[str, str]


class Position(NamedTuple):
    """How far the copy came: the table, the last key in it, and the number of rows over all tables."""

    table: str
    after: list[int | str]
    rows: int


def move(source: Side, target: Side, *, id: str, progress: Progress) -> Moved | None:
    """Move all rows, or continue an interrupted move. Return None if the move was finished before.

    ``id``: the id of the move, if a new move begins.
    """
    if source.address == target.address:
        raise Refused("Source and target are the same database.", code="move.same")
    leaving, coming = _agree(source, target)
    if leaving is not None and coming is not None and coming.ended:
        # ``perdure move --keep`` opens the target without closing the source, so close it now.
        if not leaving.ended:
            _end(source, leaving.id)
        return None
    if leaving is None:
        # Test whether the target can be sealed, before the source is sealed.
        with suppress(_TakeBack), target.exclusive_transaction():
            _close_to_others(target, "in", id)
            raise _TakeBack
        _begin(source, "out", target.address, id)
    else:
        id = leaving.id
    if coming is None:
        try:
            _begin(target, "in", source.address, id)
        except Refused:
            _take_back(source, id)
            raise
    tables = [_table(source, target, name) for name in MOVED]
    with source.look():
        total = sum(
            count for name in MOVED for (count,) in source.ask(f"SELECT count(*) FROM perdure.{name}")
        )
    _copy(source, target, id, tables, lambda rows: progress("copy", rows, total))
    moved = _compare(source, target, id, tables, lambda rows: progress("compare", rows, total))
    # The source is closed before the target opens. In between, both refuse writes, and another run can finish the move.
    if coming is None or not _arrived(coming):
        _arrive(source, target, id)
    if leaving is None or not leaving.ended:
        _end(source, id)
    _end(target, id)
    return moved


def abandon(side: Side, source: Side | None = None) -> bool:
    """Give up an unfinished move: a target deletes the rows that have arrived, a source accepts writes again.

    ``source``: the source, if ``side`` is a target. If all rows have arrived, delete them only if the source gave up.
    """
    with _act(side):
        here = marks(side)
        if gone := [mark for mark in here if mark.way == "out" and mark.ended]:
            raise Refused(f"The jobs of this database were moved to {gone[0].address}.", code="store.moved")
        mark = _under_way(here)
        if mark is None:
            return False
        if _arrived(mark) and not (source and is_given_up(source, mark.id)):
            raise Refused(
                f"All jobs of {mark.address} have arrived here: run perdure move again to finish it, or give it up "
                "by naming both databases. If the source is gone, perdure move --keep opens this one.",
                code="move.arrived",
            )
        _clear(side, mark)
    return True


def keep(target: Side) -> bool:
    """Open the target after all rows have arrived, if the source is no longer available."""
    with _act(target):
        mark = _under_way(marks(target))
        if mark is None:
            return False
        if not _arrived(mark):
            raise Refused("Not all jobs have arrived here.", code="move.incomplete")
        _close(target, mark)
    return True


def _under_way(here: list[Mark]) -> Mark | None:
    return next((mark for mark in here if not mark.ended), None)


def _arrived(mark: Mark) -> bool:
    return mark.position == _encoded(_ARRIVED)


def _clear(side: Side, mark: Mark) -> None:
    side.unseal()
    if mark.way == "out":
        give_up(side, mark.id)
        return
    for table in MOVED:
        side.ask(f"DELETE FROM perdure.{table}")
    side.ask("DELETE FROM perdure.move WHERE id = :id", id=mark.id)


def _take_back(source: Side, id: str) -> None:
    """Open the source again, because the target refused the move."""
    with _act(source):
        if (mark := _under_way(marks(source))) and mark.id == id:
            _clear(source, mark)


def _agree(source: Side, target: Side) -> tuple[Mark | None, Mark | None]:
    """The marks of this move on both sides; None where it has not begun. Refuse if another move is in the way."""
    with source.look(), target.look():
        here, there = marks(source), marks(target)
    leaving = next((mark for mark in here if mark.way == "out"), None)
    coming = next((mark for mark in there if mark.way == "in" and leaving and mark.id == leaving.id), None)
    for mark in here:
        if mark.way == "in" and not mark.ended:
            raise _other(
                f"The jobs of {mark.address} are being moved into the source, and not all have arrived."
            )
    for mark in there:
        if mark.way == "out":
            raise _other(
                f"The jobs of the target were themselves moved, or are being moved, to {mark.address}."
            )
        if mark is not coming and not mark.ended:
            raise _other(
                f"The jobs of {mark.address} are being moved into the target: this is another move, or one that was "
                "given up only at its source. perdure move --abandon with both databases empties the target."
            )
    if leaving is not None and coming is None and (leaving.ended or leaving.address != target.address):
        what = "were moved" if leaving.ended else "are being moved"
        raise _other(f"The jobs of the source {what} to {leaving.address}.")
    return leaving, coming


def _other(sentence: str) -> Refused:
    return Refused(sentence, code="move.other")


def _begin(side: Side, way: str, address: str, id: str) -> None:
    with _act(side):
        _close_to_others(side, way, id)
        side.ask(
            "INSERT INTO perdure.move (id, way, address, began_at) VALUES (:id, :way, :address, :now)",
            id=id,
            way=way,
            address=address,
        )


def _close_to_others(side: Side, way: str, id: str) -> None:
    taken = [mark for mark in marks(side) if mark.way == "out" or not mark.ended]
    if way == "in" and taken and taken[0].id != id:
        raise _other("Another perdure move has just begun at the target.")
    if taken:
        raise StoreBusy("Another perdure move has just begun here.")
    side.seal()
    # All rows that were written before the seal are visible now.
    _refuse_workers(side) if way == "out" else _refuse_rows(side)


def _arrive(source: Side, target: Side, id: str) -> None:
    before = _position(target, id)
    with _act(target):
        with source.look():
            _find(source, id)
        _advance(target, id, before, _ARRIVED)


def _end(side: Side, id: str) -> None:
    with _act(side):
        mark = _find(side, id)
        # Another process may have ended this move already, and a later move may have begun.
        if not mark.ended:
            _close(side, mark)


def _close(side: Side, mark: Mark) -> None:
    if mark.way == "in":
        side.unseal()
    side.ask("UPDATE perdure.move SET ended_at = :now WHERE id = :id", id=mark.id)


def _find(side: Side, id: str) -> Mark:
    for mark in marks(side):
        if mark.id == id:
            return mark
    raise Refused(
        "perdure move --abandon has given up the move meanwhile; with both databases it empties the target.",
        code="move.abandoned",
    )


def _refuse_workers(source: Side) -> None:
    live = source.ask(
        "SELECT name FROM perdure.worker WHERE retired_at IS NULL AND expires_at > :now ORDER BY name"
    )
    if live:
        raise Refused(
            f"Live workers: {', '.join(name for (name,) in live[:3])}{', …' * (len(live) > 3)}. Stop all workers "
            "first; a killed worker counts as live until its lease expires.",
            code="move.workers",
        )


def _refuse_rows(target: Side) -> None:
    taken = [name for name in MOVED if target.ask(f"SELECT 1 FROM perdure.{name} LIMIT 1")]
    if taken:
        raise Refused(
            f"The target is in use: it has rows in {', '.join(taken)}. Move into a new file or schema.",
            code="move.not_empty",
        )


def _table(source: Side, target: Side, name: str) -> Table:
    table = source.table(name)
    if target.table(name) != table:
        raise InternalError(f"The table {name} does not have the same columns on both sides.")
    return table


def _copy(
    source: Side, target: Side, id: str, tables: Sequence[Table], report: Callable[[int], object]
) -> None:
    position = _position(target, id)
    names = [table.name for table in tables]
    for table in tables[names.index(position.table) :] if position != _ARRIVED else ():
        after = position.after if position.table == table.name else []
        with source.look(), closing(source.stream(table, after)) as stream:
            for batch in _batches(stream):
                new = Position(table.name, table.key_of(batch[-1]), position.rows + len(batch))
                _write(target, id, table, batch, position, new)
                position = new
                report(position.rows)
            last = source.last_number(table)
        if last is not None and last != target.last_number(table):
            with _act(target):
                target.count_on(table, last)


def _position(target: Side, id: str) -> Position:
    with target.look():
        found = target.ask("SELECT position FROM perdure.move WHERE id = :id AND position IS NOT NULL", id=id)
    return msgspec.json.decode(found[0][0], type=Position) if found else _START


_START: Final = Position(MOVED[0], [], 0)
_ARRIVED: Final = Position("", [], 0)
"""All rows have arrived unchanged. From now on the source may be closed, so the target must keep its rows."""


def _write(target: Side, id: str, table: Table, batch: list[Row], before: Position, after: Position) -> None:
    try:
        with _act(target, table):
            _advance(target, id, before, after)
            target.insert(table, batch)
    except target.misfits:
        _refuse_misfit(target, table, batch)
        raise


def _advance(target: Side, id: str, before: Position, after: Position) -> None:
    if not target.ask(
        "UPDATE perdure.move SET position = :after"
        " WHERE id = :id AND coalesce(position, :start) = :before RETURNING id",
        id=id,
        start=_encoded(_START),
        before=_encoded(before),
        after=_encoded(after),
    ):
        raise StoreBusy("Another perdure move is running here, or this one was given up.")


def _encoded(position: Position) -> str:
    return msgspec.json.encode(position).decode()


def _refuse_misfit(target: Side, table: Table, batch: list[Row]) -> None:
    """Find the first row that cannot be stored, by test inserts, and raise an error that names it."""

    def fails(n: int) -> bool:
        try:
            with target.writing(table):
                target.insert(table, batch[:n])
                raise _TakeBack
        except _TakeBack:
            return False
        except target.misfits:
            return True

    rows = bisect_left(range(len(batch)), True, key=lambda n: fails(n + 1))
    if rows < len(batch):
        raise misfit(table, table.pick(table.shown, batch[rows]), target.address) from None


class _TakeBack(Exception):
    """Raised to roll back a transaction that was only a test."""


def _compare(
    source: Side, target: Side, id: str, tables: Sequence[Table], report: Callable[[int], object]
) -> Moved:
    """Compare every row of both sides."""
    moved = Moved(id, {}, {})
    for table in tables:
        digest, rows = sha256(), 0
        with (
            source.look(),
            target.look(),
            closing(source.stream(table)) as left,
            closing(target.stream(table)) as arrived,
        ):
            nothing: list[Row] = []
            for ours, theirs in zip_longest(left, arrived, fillvalue=nothing):
                encoded = _ENCODER.encode_lines(ours)
                if encoded != _ENCODER.encode_lines(theirs):
                    raise _difference(table, ours, theirs)
                digest.update(encoded)
                rows += len(ours)
                report(sum(moved.rows.values()) + rows)
        moved.rows[table.name], moved.checksums[table.name] = rows, digest.hexdigest()
    return moved


_ENCODER: Final = msgspec.json.Encoder()


def _difference(table: Table, ours: Sequence[Row], theirs: Sequence[Row]) -> Conflict:
    row = next(one or other for one, other in zip_longest(ours, theirs) if one != other)
    shown = table.describe(table.pick(table.shown, row))
    return Conflict(
        f"The databases differ in the table {table.name}, first at {shown}. The old one is complete; "
        "perdure move --abandon opens it again.",
        code="move.differs",
    )


def _batches(pages: Iterable[list[Row]]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for page in pages:
        batch += page
        size += len(_ENCODER.encode(page))
        if len(batch) >= _MOST_ROWS or size >= _MOST_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@contextmanager
def _act(side: Side, table: Table | None = None) -> Iterator[None]:
    """A transaction of the move. If ``table`` is given, the transaction may insert into it."""
    with side.exclusive_transaction() if table is None else side.writing(table):
        yield
        if failpoints.armed:
            failpoints.reach("before_move_commit")
    if failpoints.armed:
        failpoints.reach("after_move_commit")
