"""The processes that enqueue and run the measured jobs, on $PERDURE_URL. They answer with one JSON object.

    python -m bench.limits.program fill TASKS JOBS    JOBS as JSON; {"first": ID, "last": ID}
    python -m bench.limits.program work TASKS N       ends after N handlers; {"cpu": SECONDS}

This module and `tasks` use only what the base commit has too, apart from the options of limited tasks.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bench.limits.server_cpu import server_cpu
from bench.limits.tasks import Countdown, build

SERVER = "BENCH_SERVER"
"""The variable that names the data directory of the database server."""
SLOTS = 200
BULK = 1_000


class Jobs(NamedTuple):
    """Jobs of one task. ``argument``: of every job; None means random numbers below ``keys``.

    ``queues``, ``priorities``: how many they are spread over, 0 for the task's own. ``delay``: seconds until they are
    due. ``pause``: enqueue them one by one, so many seconds apart.
    """

    task: str
    n: int
    argument: int | None = None
    keys: int = 1_000
    queues: int = 0
    priorities: int = 0
    delay: float = 0.0
    pause: float = 0.0


def fill(tasks: Sequence[str], jobs: Jobs) -> None:
    app = build(tasks, Countdown(0))
    app.migrate()
    app.save_tasks()
    task: Any = app.tasks[jobs.task]
    rng = random.Random(7)
    requests = (
        task.using(**_options(jobs, i)).job(
            rng.randrange(jobs.keys) if jobs.argument is None else jobs.argument
        )
        for i in range(jobs.n)
    )
    ids: list[str] = []
    while bulk := list(islice(requests, 1 if jobs.pause else BULK)):
        ids += [job.id for job in app.enqueue_many(bulk)]
        time.sleep(jobs.pause)
    app.close()
    print(json.dumps({"first": min(ids), "last": max(ids)}))


def _options(jobs: Jobs, i: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if jobs.queues:
        options["queue"] = f"queue-{i % jobs.queues:05}"
    if jobs.priorities:
        options["priority"] = i % jobs.priorities + 1
    if jobs.delay:
        options["delay"] = jobs.delay
    return options


def work(tasks: Sequence[str], n: int) -> int:
    countdown = Countdown(n, _cpu_seconds)
    status = build(tasks, countdown).run_worker(concurrency=SLOTS)
    print(json.dumps({"cpu": countdown.cpu}))
    return status


def _cpu_seconds() -> float:
    """Of this process and, if there is one, of the database server."""
    directory = os.environ.get(SERVER)
    return time.process_time() + (server_cpu(Path(directory)) if directory else 0.0)


def main() -> int:
    command, tasks, given = sys.argv[1:]
    if command == "work":
        return work(json.loads(tasks), int(given))
    fill(json.loads(tasks), Jobs(*json.loads(given)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
