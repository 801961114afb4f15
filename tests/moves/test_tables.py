"""Every table is moved or excluded with a reason, and every type of column can be moved."""

from __future__ import annotations

from perdure.store.move.postgres import PACKERS
from perdure.store.move.side import LEFT, MOVED, SEALED, open_side
from perdure.store.schema.files import migrations, tables
from perdure.store.store import open_store
from tests.moves.ends import Ends
from tests.moves.small_store import run


def test_every_table_is_moved_or_left_for_a_reason() -> None:
    """A new table fails here: put it into MOVED, or say in LEFT why it stays."""
    for dialect in ("sqlite", "postgres"):
        assert sorted([*MOVED, *LEFT]) == sorted([*tables(migrations(dialect)), "migration"])
    assert {*SEALED} == {*MOVED, *LEFT} - {"migration", "move"}


def test_every_table_has_a_key_and_the_same_columns_on_both_sides(ends: Ends) -> None:
    ends.migrate()
    with (
        open_side(open_store(ends.source), ends.source, "perdure", patience=30) as source,
        open_side(open_store(ends.target), ends.target, "perdure", patience=30) as target,
    ):
        for name in MOVED:
            table = source.table(name)
            assert table == target.table(name)
            assert {*table.key} <= {*table.columns}
            assert table.key


def test_every_type_can_be_written(postgres_url: str) -> None:
    Ends(postgres_url, postgres_url).migrate()
    types = run(
        postgres_url,
        "SELECT DISTINCT udt_name FROM information_schema.columns"
        " WHERE table_schema = 'perdure' AND table_name <> 'migration'",
    )
    assert {type for (type,) in types} <= PACKERS.keys()
