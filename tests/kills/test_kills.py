"""Workers and producers are killed wherever they are; the journals and the ledger agree about every job."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from perdure.app import App
from perdure.internal.failpoints import Place
from perdure.model.job import ENDED, JobRow
from perdure.ops import browse
from perdure.store.store import Store
from tests.harness.waiting import until
from tests.kills.app import EFFECTS
from tests.kills.fleet import Fleet
from tests.kills.rounds import STAGES, Rounds, Stage, live_workers
from tests.kills.verdict import verdict

RANDOM = 25

FEW = [
    Stage("after_claim_before_start"),
    Stage("after_enqueue_before_answer", "producer"),
    Stage("after_flush_before_answer", most=3),
]


def test_history_and_ledger_agree_after_a_few_kills(url: str, tmp_path: Path) -> None:
    kill_and_judge(url, tmp_path, FEW, kills=1)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_history_and_ledger_agree_after_kills_at_every_place(url: str, tmp_path: Path) -> None:
    kill_and_judge(url, tmp_path, STAGES, kills=RANDOM, deaf=1)


def test_every_place_has_its_round() -> None:
    # Those of a migration have theirs in tests/migrations/test_interrupted.py, those of a move in tests/moves.
    elsewhere = {place for place in get_args(Place) if "migration" in place or "move" in place}
    assert {stage.place for stage in STAGES} == set(get_args(Place)) - elsewhere


def kill_and_judge(
    url: str, directory: Path, stages: Sequence[Stage], *, kills: int, deaf: int = 0, seed: int = 0
) -> None:
    rng = random.Random(seed)
    app = App(url)
    app.migrate()
    create_effects(app.store)
    with app, Fleet(url, directory) as fleet:
        rounds = Rounds(fleet, app.store, rng)
        plan: list[Callable[[], None]] = [partial(rounds.kill_at, stage) for stage in stages]
        plan += [rounds.kill_anyone] * kills + [rounds.deafen] * deaf
        rng.shuffle(plan)
        for play in plan:
            play()
        rounds.end()
        drain(fleet, app.store)
        until(lambda: not fleet.survivors())
        assert [str(violation) for violation in verdict(fleet.history, url)] == []
        check_ends(app.store)


def drain(fleet: Fleet, store: Store) -> None:
    """New workers finish what is left, and rescue the jobs of dead ones."""
    fresh = [fleet.start_worker() for _ in range(2)]
    names = {worker.name for worker in fresh}
    until(lambda: all_ended(store) and live_workers(store) == names)
    for worker in fresh:
        assert worker.stop() == 0, worker.log
    assert live_workers(store) == set()


def all_ended(store: Store) -> bool:
    counts = store.perform(browse.count_jobs)
    return all(view in ENDED for views in counts.values() for view in views)


def check_ends(store: Store) -> None:
    """Every job ended as it was meant to, and a payment is made exactly once."""
    jobs = store.perform(browse.list_jobs, n=1_000_000)
    by_state = {state: {job.task for job in jobs if job.state == state} for state in ENDED}
    assert by_state["failed"] <= {"tests.kills.app.is_doomed"}
    assert not by_state["canceled"]
    assert "tests.kills.app.is_doomed" not in by_state["succeeded"]
    assert sorted(effects(store)) == sorted(job.id for job in jobs if pays(job))


def pays(job: JobRow) -> bool:
    return job.task in ("tests.kills.app.pays", "tests.kills.app.pays_async")


def create_effects(store: Store) -> None:
    connection = store.connect()
    connection.execute(f"CREATE TABLE {EFFECTS} (job TEXT NOT NULL)")
    connection.commit()
    connection.close()


def effects(store: Store) -> list[str]:
    connection = store.connect()
    rows = connection.execute(f"SELECT job FROM {EFFECTS}").fetchall()
    connection.close()
    return [row[0] for row in rows]
