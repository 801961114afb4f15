"""What the table ``move`` tells of a database: whether its rows are on their way in or out, or have left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from perdure.errors import Refused

if TYPE_CHECKING:
    from perdure.store.migrate import Target


class Mark(NamedTuple):
    """One side of a move."""

    id: str
    way: Literal["in", "out"]
    address: str
    """Of the other side."""
    position: str | None
    ended: bool


def marks(target: Target) -> list[Mark]:
    rows = target.rows(
        "SELECT id, way, address, position, ended_at IS NOT NULL FROM perdure.move ORDER BY began_at, id"
    )
    return [Mark(id, way, address, position, bool(ended)) for id, way, address, position, ended in rows]


def refuse_moved(target: Target) -> None:
    """Raise where nobody but a mover may write."""
    for mark in marks(target) if _may_read(target) else ():
        if mark.way == "out":
            what = "were moved" if mark.ended else "are being moved"
            raise Refused(f"The jobs of this database {what} to {mark.address}.", code="store.moved")
        if not mark.ended:
            raise Refused(
                f"The jobs of {mark.address} are being moved here, and not all have come: "
                "run perdure move again.",
                code="store.moved",
            )


def _may_read(target: Target) -> bool:
    """To check a schema takes no right but to read its history."""
    if target.dialect == "sqlite":
        return True
    sql = (
        "SELECT pg_catalog.has_table_privilege(pg_catalog.format('%I.move', CAST(:schema AS text)), 'SELECT')"
    )
    return bool(target.rows(sql, {"schema": target.schema})[0][0])
