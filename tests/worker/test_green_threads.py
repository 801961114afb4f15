"""A worker refuses to start where gevent or eventlet has replaced threads: its heartbeat would never run."""

from __future__ import annotations

import pytest

from tests.harness import processes

PROGRAM = """
{patch}
from perdure import App

app = App("sqlite:///:memory:")

@app.task(name="work")
def work() -> None: ...

work.enqueue()
{run}
print("served", app.count_jobs()["default"])
"""
RUN = "app.run_worker(burst=True, processes=0)"
BESIDE = """
import asyncio

async def main() -> None:
    async with app.worker(processes=0):
        await asyncio.sleep(5)

asyncio.run(main())
"""
GEVENT = "import gevent.monkey; gevent.monkey.patch_all()"
EVENTLET = "import eventlet; eventlet.monkey_patch()"


def outcome(patch: str, run: str = RUN) -> str:
    program = PROGRAM.format(patch=patch, run=run)
    ended = processes.run("-W", "default", "-c", program)
    return ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("patch", "name"), [(GEVENT, "gevent"), pytest.param(EVENTLET, "eventlet", marks=pytest.mark.long)]
)
def test_patched_threads_are_refused(patch: str, name: str) -> None:
    said = outcome(patch)
    assert f"InvalidConfig: {name} has replaced threads" in said
    assert "served" not in said


@pytest.mark.long
def test_a_worker_beside_a_program_refuses_them_too() -> None:
    assert "InvalidConfig: gevent has replaced threads" in outcome(GEVENT, BESIDE)


@pytest.mark.long
@pytest.mark.parametrize("patch", ["import gevent.monkey", "import eventlet.patcher"])
def test_libraries_that_patch_no_threads_do_no_harm(patch: str) -> None:
    assert "served {'succeeded': 1}" in outcome(patch)
