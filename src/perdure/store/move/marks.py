"""Marks: rows of the table ``move``. Each records a move into or out of this database, under way or ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from perdure.errors import Refused

if TYPE_CHECKING:
    from perdure.store.move.side import Side
    from perdure.store.schema.migrate import Target


class Mark(NamedTuple):
    """The record of a move on one side."""

    id: str
    way: Literal["in", "out"]
    address: str
    """The address of the other side."""
    position: str | None
    ended: bool


def marks(target: Target) -> list[Mark]:
    rows = target.rows(
        "SELECT id, way, address, position, ended_at IS NOT NULL FROM perdure.move ORDER BY began_at, id"
    )
    found = [Mark(id, way, address, position, bool(ended)) for id, way, address, position, ended in rows]
    return [mark for mark in found if mark.position != _GIVEN_UP]


def give_up(source: Side, id: str) -> None:
    # The row stays. It shows that this move will never close the source, so the target may delete its copied rows.
    source.ask("UPDATE perdure.move SET position = :position WHERE id = :id", id=id, position=_GIVEN_UP)


def is_given_up(source: Side, id: str) -> bool:
    with source.look():
        sql = "SELECT 1 FROM perdure.move WHERE id = :id AND position = :position"
        return bool(source.ask(sql, id=id, position=_GIVEN_UP))


def refuse_kept(source: Side, target: Side) -> None:
    """Raise Refused if ``perdure move --keep`` has opened the target and the source is not closed yet."""
    with source.look(), target.look():
        leaving = [mark.id for mark in marks(source) if not mark.ended]
        if [mark for mark in marks(target) if mark.ended and mark.id in leaving]:
            raise Refused(
                "The target was kept: run perdure move again, which closes the source.", code="move.arrived"
            )


_GIVEN_UP: Final = "given up"
"""The position in the mark of a source whose move was given up. Otherwise the mark of a source has no position."""


def refuse_moved(target: Target) -> None:
    """Raise Refused if the jobs of this database have left or are leaving, or if a move into it has not ended."""
    for mark in marks(target) if _may_read(target) else ():
        if mark.way == "out":
            what = "were moved" if mark.ended else "are being moved"
            raise Refused(f"The jobs of this database {what} to {mark.address}.", code="store.moved")
        if not mark.ended:
            raise Refused(
                f"The jobs of {mark.address} are being moved here, and not all have arrived: "
                "run perdure move again.",
                code="store.moved",
            )


def _may_read(target: Target) -> bool:
    """Whether the role may read the marks. If not, its check of the schema ignores them."""
    if target.dialect == "sqlite":
        return True
    sql = (
        "SELECT pg_catalog.has_table_privilege(pg_catalog.format('%I.move', CAST(:schema AS text)), 'SELECT')"
    )
    return bool(target.rows(sql, {"schema": target.schema})[0][0])
