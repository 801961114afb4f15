"""Moves that are given up at any moment: one side can be written to, and no side stays closed for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure.errors import Refused, StoreReadOnly
from perdure.internal.failpoints import Failpoint
from perdure.move import abandon, keep, move
from perdure.store.move import move as mover
from perdure.store.move.side import Side
from tests.moves import large_store, small_store
from tests.moves.ends import Ends, is_open
from tests.moves.test_interrupted import interrupt


def opened(ends: Ends) -> list[bool]:
    return [is_open(url) for url in ends]


def break_after(name: str, ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    act = getattr(mover, name)

    def act_and_break(*args: object) -> None:
        act(*args)
        raise Failpoint

    with monkeypatch.context() as patch:
        patch.setattr(mover, name, act_and_break)
        with pytest.raises(Failpoint):
            move(*ends)


@pytest.mark.parametrize("which", ["source", "target"])
def test_it_decides_when_it_has_its_turn(ends: Ends, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    large_store.make(ends.source, 20)
    assert interrupt(ends, monkeypatch, "after_move_commit:raise@6")
    act = mover._act

    def act_late(*args: Any) -> object:
        monkeypatch.setattr(mover, "_act", act)
        assert move(*ends) is not None
        return act(*args)

    monkeypatch.setattr(mover, "_act", act_late)
    if which == "source":
        with pytest.raises(Refused) as refusal:
            abandon(ends.source)
        assert refusal.value.code == "store.moved"
    else:
        assert not abandon(ends.target)
    assert opened(ends) == [False, True]
    assert small_store.contents(ends.target) == small_store.contents(ends.source)


def test_what_has_arrived_goes_if_its_source_is_open_again(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    large_store.make(ends.source, 20)
    break_after("_arrive", ends, monkeypatch)
    assert abandon(ends.source)
    with pytest.raises(Refused, match="perdure move --abandon with both") as refusal:
        move(*ends)
    assert refusal.value.code == "move.other"
    with pytest.raises(Refused, match="naming both"):
        abandon(ends.target)
    assert opened(ends) == [True, False]
    assert abandon(*ends)
    assert not abandon(*ends)
    assert opened(ends) == [True, True]
    assert not any(small_store.contents(ends.target).values())
    assert move(*ends) is not None


def test_a_source_that_only_has_the_name_gives_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends(f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}")
    large_store.make(ends.source, 20)
    before = small_store.contents(ends.source)
    break_after("_end", ends, monkeypatch)
    for file in tmp_path.glob("a.db*"):
        file.unlink()
    ends.migrate()
    with pytest.raises(Refused) as refusal:
        abandon(*ends)
    assert refusal.value.code == "move.arrived"
    assert small_store.contents(ends.target) == before


def test_a_target_is_kept_if_its_source_is_gone(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    large_store.make(ends.source, 20)
    assert interrupt(ends, monkeypatch, "after_move_commit:raise@6")
    with pytest.raises(Refused) as refusal:
        keep(ends.target)
    assert refusal.value.code == "move.incomplete"
    break_after("_arrive", ends, monkeypatch)
    assert keep(ends.target)
    assert not keep(ends.target)
    assert opened(ends) == [False, True]
    small_store.run(ends.target, "DELETE FROM perdure.log")
    # It was not gone after all.
    with pytest.raises(Refused, match="The target was kept"):
        abandon(*ends)
    assert opened(ends) == [False, True]
    assert move(*ends) is None
    with pytest.raises(Refused, match="were moved to"):
        abandon(ends.source)
    assert opened(ends) == [False, True]


def test_a_mover_whose_source_was_opened_stops_before_it_arrives(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    large_store.make(ends.source, 20)
    compare = mover._compare

    def compare_and_abandon(*args: Any) -> object:
        compared = compare(*args)
        assert abandon(ends.source)
        return compared

    monkeypatch.setattr(mover, "_compare", compare_and_abandon)
    with pytest.raises(Refused) as refusal:
        move(*ends)
    assert refusal.value.code == "move.abandoned"
    assert abandon(ends.target)
    assert opened(ends) == [True, True]
    assert not any(small_store.contents(ends.target).values())


@pytest.mark.parametrize("killed", [False, True])
def test_a_target_that_refuses_opens_the_source(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Another process writes to the target after it was found empty, and before it is sealed."""
    large_store.make(ends.source, 20)
    begin = mover._begin

    def begin_late(side: Side, way: str, *args: str) -> None:
        if way == "in":
            small_store.run(ends.target, "INSERT INTO perdure.queue (name) VALUES ('early')")
        begin(side, way, *args)

    if killed:
        assert interrupt(ends, monkeypatch, "after_move_commit:raise")
    monkeypatch.setattr(mover, "_begin", begin_late)
    with pytest.raises(Refused) as refusal:
        move(*ends)
    assert refusal.value.code == "move.not_empty"
    assert opened(ends) == [True, True]


def test_a_mover_that_comes_late_opens_nothing(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another ended its move, and the jobs have already moved on."""
    large_store.make(ends.source, 20)
    third = f"sqlite:///{tmp_path / 'third.db'}"
    end = mover._end

    def end_late(side: Side, *args: str) -> None:
        monkeypatch.setattr(mover, "_end", end)
        end(side, *args)
        assert move(*ends) is not None
        assert move(ends.target, third) is not None

    monkeypatch.setattr(mover, "_end", end_late)
    assert move(*ends) is not None
    assert [*opened(ends), is_open(third)] == [False, False, True]


def test_who_may_not_seal_the_target_closes_nothing(tmp_path: Path, postgres_url: str) -> None:
    ends = Ends(f"sqlite:///{tmp_path / 'jobs.db'}", postgres_url)
    large_store.make(ends.source, 20)
    ends.migrate()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("CREATE ROLE guest LOGIN PASSWORD 'x'")
        try:
            admin.execute("GRANT USAGE ON SCHEMA perdure TO guest")
            admin.execute("GRANT ALL ON ALL TABLES IN SCHEMA perdure TO guest")
            with pytest.raises(StoreReadOnly) as forbidden:
                move(ends.source, f"{postgres_url}{'&' if '?' in postgres_url else '?'}user=guest&password=x")
        finally:
            admin.execute("DROP OWNED BY guest")
            admin.execute("DROP ROLE guest")
    assert forbidden.value.code == "store.forbidden"
    assert opened(ends) == [True, True]
