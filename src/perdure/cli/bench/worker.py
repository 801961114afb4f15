"""A worker for ``perdure bench``, in a process of its own, because most programs run their workers that way."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from perdure.cli.bench.tables import Place, app_on
from perdure.cli.failures import Away, Failure, Misuse, Unfit, failure
from perdure.cli.output import exact
from perdure.client.database import DatabaseSettings
from perdure.errors import PerdureError

PICK_UP = "bench-pick-up"
TASK = "perdure.bench.begun"
READY = "ready"


async def begun() -> int:
    """A handler that returns the time at which it began, on a clock that all processes of a machine share."""
    return time.monotonic_ns()


@contextmanager
def another_worker(place: Place) -> Iterator[None]:
    """Run a worker process until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches only this process, which ends the worker before it drops the tables
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            # The settings are not passed as arguments: other users can see arguments, and the URL may contain a
            # password.
            process.stdin.write(f"{json.dumps(place.settings)}\n")
            process.stdin.flush()
            if (said := process.stdout.readline().strip()) != READY:
                raise _startup_failure(said)
            yield
        finally:
            process.kill()


def _startup_failure(said: str) -> Failure:
    """The failure of a worker that did not start, with its own message if it sent one."""
    if not said:
        return Failure("The worker that bench started ended unexpectedly. [worker.died]")
    code, message = json.loads(said)
    return {kind.exit_code: kind for kind in (Failure, Misuse, Away, Unfit)}[code](message)


async def _work(settings: DatabaseSettings) -> None:
    async with app_on(settings) as app:
        app.task(name=TASK, queue=PICK_UP)(begun)
        async with app.worker(queues=[PICK_UP]):
            exact(READY)
            await asyncio.to_thread(sys.stdin.read)  # returns when the parent process is gone


if __name__ == "__main__":
    try:
        asyncio.run(_work(DatabaseSettings(*json.loads(sys.stdin.readline()))))
    except PerdureError as error:
        ended = failure(error)
        exact(json.dumps([ended.exit_code, ended.message]))
