"""A claim from all queues takes the first jobs of all, however many queues there are."""

from __future__ import annotations

import random

from tests.conformance.world import World, ids


def test_the_first_jobs_of_many_queues_come_in_order(world: World) -> None:
    rng = random.Random(3)
    work, other = world.task(), world.task("other")
    requests = []
    for queue in range(40):
        # In some queues, the first job is due much later, or its task is not known to the worker.
        if queue % 4 == 0:
            requests.append(work.using(queue=f"q{queue}", priority=9, delay=3600).job())
        elif queue % 4 == 1:
            requests.append(other.using(queue=f"q{queue}", priority=9).job())
        requests += [
            work.using(queue=f"q{queue}", priority=rng.randrange(3), delay=rng.randrange(60)).job()
            for _ in range(3)
        ]
    jobs = world.app.enqueue_many(requests)
    world.advance(60)
    rows = [row for row in map(world.row, jobs) if row.task == "work" and row.priority < 9]
    expected = [row.id for row in sorted(rows, key=lambda row: (-row.priority, row.run_at, row.id))]
    claimed: list[str] = []
    while some := world.operations.claim(world.worker, tasks=["work"], n=7):
        claimed += ids(some)
    assert claimed == expected
