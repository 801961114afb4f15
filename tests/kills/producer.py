"""Enqueues jobs of every sort for as long as it may: ``python -m tests.kills.producer SEED STOP``.

It keeps the workers busy without drowning them, and ends when the file STOP appears.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

from perdure.client.task import Task
from perdure.model.job import ENDED
from perdure.ops import browse
from tests.kills import app as tasks
from tests.kills.app import app

BACKLOG = 40
KEYS = 60

KINDS: list[Task[[int], Any]] = [
    tasks.quick,
    tasks.in_a_thread,
    tasks.in_a_process,
    tasks.talks,
    tasks.fails_once,
    tasks.snoozes_once,
    tasks.in_steps,
    tasks.goes_on,
    tasks.has_children,
    tasks.pays,
    tasks.pays_async,
    tasks.is_doomed,
]


def main(seed: int, stop: Path) -> None:
    rng = random.Random(seed)
    while not stop.exists():
        if backlog() < BACKLOG:
            produce(rng)
        else:
            time.sleep(0.01)
    app.close()


def backlog() -> int:
    counts = app.store.perform(browse.count_jobs)
    return sum(n for views in counts.values() for view, n in views.items() if view not in ENDED)


def produce(rng: random.Random) -> None:
    match rng.randrange(5):
        case 0:
            # Other producers use the same keys: one that was killed may or may not have got an answer.
            key = rng.randrange(KEYS)
            tasks.quick.using(idempotency_key=f"key {key}").enqueue(key)
        case 1:
            keys = rng.sample(range(KEYS), 2)
            app.enqueue_many([tasks.in_a_thread.using(idempotency_key=f"key {key}").job(key) for key in keys])
        case 2:
            app.enqueue_many([rng.choice((tasks.quick, tasks.pays)).job(n) for n in range(5)])
        case 3:
            kind = rng.choice(KINDS)
            app.enqueue_many([kind.job(n) for n in range(5)])
        case _:
            for kind in rng.sample(KINDS, 4):
                kind.enqueue(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
