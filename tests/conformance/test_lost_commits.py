"""An enqueue whose commit was never answered is run again, with the same ids."""

from __future__ import annotations

from perdure.ids import new_ids
from perdure.ops import enqueue
from perdure.options import Options
from tests.conformance.world import World


def test_jobs_alike_that_are_there_already_are_not_written_again(world: World) -> None:
    world.task(queue="mail")
    world.app.sync()
    jobs = [(id, "{}") for id in new_ids(2500)]
    for _ in range(2):
        queue = world.store.perform(enqueue.enqueue_alike, "work", Options(), jobs, frozenset())
        assert (queue, world.count("job")) == ("mail", 2500)
