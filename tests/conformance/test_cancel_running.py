"""``when_full="cancel_running"``: the newest jobs of a task or key run, and older ones are canceled."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import InvalidTask
from perdure.model.job import SECOND
from perdure.model.lifecycle import Canceled, Succeeded, Throttled
from tests.conformance.world import World, ids


def states(world: World, jobs: list[Any]) -> list[str]:
    rows = map(world.row, jobs)
    return [
        "stopping" if row.state == "running" and row.cancel_requested_at is not None else row.state
        for row in rows
    ]


def test_a_newer_job_asks_the_running_one_to_stop_and_follows_it(world: World) -> None:
    work = world.task(concurrency=1, when_full="cancel_running")
    jobs = [work.enqueue()]
    (old,) = world.claim(5)
    jobs.append(work.enqueue())
    assert world.claim(5) == [], "the slot is free only when the old one has stopped"
    assert states(world, jobs) == ["stopping", "ready"]
    assert world.claim(5) == []
    world.finish(Canceled(old.lease, "superseded by a newer job"))
    assert ids(world.claim(5)) == ids(jobs[1:])
    assert states(world, jobs) == ["canceled", "running"]
    assert world.row(jobs[0]).reason == "superseded by a newer job"


def test_of_several_that_wait_only_the_newest_runs(world: World) -> None:
    work = world.task(concurrency=2, when_full="cancel_running")
    jobs = [work.enqueue(n) for n in range(5)]
    assert ids(world.claim(9)) == ids(jobs[3:])
    assert states(world, jobs) == ["canceled"] * 3 + ["running"] * 2


def test_each_key_is_judged_on_its_own(world: World) -> None:
    work = world.task(concurrency=1, concurrency_key="{note}", when_full="cancel_running")
    jobs = [work.enqueue(note=note) for note in ("a", "a", "b", "", "")]
    assert ids(world.claim(9)) == ids(jobs[1:])
    assert states(world, jobs) == ["canceled"] + ["running"] * 4


def test_an_older_job_does_not_replace_a_newer_one(world: World) -> None:
    work = world.task(concurrency=1, when_full="cancel_running")
    older = work.using(delay=60).enqueue()
    newer = work.enqueue()
    assert ids(world.claim(9)) == [newer.id]
    world.advance(60)
    assert world.claim(9) == []
    assert states(world, [older, newer]) == ["canceled", "running"]


def test_a_sweep_finds_what_no_claim_looks_for(world: World) -> None:
    """No worker has a free slot."""
    work, other = world.task(concurrency=1, when_full="cancel_running"), world.task("other", concurrency=1)
    jobs = [work.enqueue(), other.enqueue(), other.enqueue()]
    world.claim(9)
    newer = work.enqueue()
    assert world.operations.supersede() == 1
    assert states(world, [*jobs, newer]) == ["stopping", "running", "ready", "ready"]
    assert world.operations.supersede() == 0


def test_other_limits_make_it_wait(world: World) -> None:
    world.app.limit("printer", concurrency=1)
    work = world.task(concurrency=2, when_full="cancel_running", limits=["printer"])
    jobs = [work.enqueue(), work.enqueue()]
    assert ids(world.claim(9)) == ids(jobs[:1])
    assert states(world, jobs) == ["running", "ready"]


@pytest.mark.parametrize("obstacle", ["paused", "cooling", "limited"])
def test_a_newer_job_that_cannot_start_replaces_none(world: World, obstacle: str) -> None:
    work = world.task(concurrency=1, when_full="cancel_running")
    jobs = [work.enqueue()]
    (old,) = world.claim(1)
    queue = "other" if obstacle == "limited" else "default"
    jobs.append(work.using(queue=queue).enqueue())
    if obstacle == "paused":
        world.app.pause_queue(queue)
    elif obstacle == "limited":
        world.app.set_queue(queue, concurrency=1)
    else:
        busy = world.task("busy")
        busy.enqueue()
        world.finish(
            Throttled(world.operations.claim(world.worker, tasks=["busy"], n=1)[0].lease, 60 * SECOND)
        )
    assert world.claim(5) == []
    assert world.operations.supersede() == 0
    assert states(world, jobs) == ["running", "ready"]
    world.finish(Succeeded(old.lease))


def test_wrong_options_are_refused(world: World) -> None:
    with pytest.raises(InvalidTask, match="when_full needs concurrency"):
        world.task("a", when_full="cancel_running")
    with pytest.raises(InvalidTask, match="when_full is 'stop': it must be 'wait' or 'cancel_running'"):
        world.task("b", concurrency=1, when_full="stop")
