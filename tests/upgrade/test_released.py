"""Compatibility with releases: databases that they created, and programs that still run them."""

from __future__ import annotations

import json
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from perdure import App
from perdure.model.job import SECOND
from tests.harness import processes

WHEELS = sorted(Path(__file__).parent.glob("perdure-*.whl"))
assert WHEELS, "a release is committed here"
MIGRATIONS = "perdure/store/sql/migrations/"

SHOP = """
import json, sys
from perdure import App, __version__
app = App(sys.argv[1])

@app.task(name="double")
async def double(n: int) -> int:
    return 2 * n

app.migrate()
if sys.argv[2] == "enqueue":
    jobs = [double.using(idempotency_key=f"key-{n}").enqueue(n=n) for n in range(int(sys.argv[3]))]
    print(json.dumps([__version__, *(job.id for job in jobs)]))
else:
    sys.exit(app.run_worker(burst=True))
"""

pytestmark = pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.stem.split("-")[1])


def run(wheel: Path, *args: str) -> str:
    """A program that imports the release, and ends well."""
    done = start(wheel, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(wheel: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """A wheel is a place to import from."""
    return processes.run("-W", "default", "-c", SHOP, *args, env={"PYTHONPATH": str(wheel)})


def today(url: str, **options: Any) -> App:
    app = App(url)

    @app.task(name="double", **options)
    async def double(n: int) -> int:
        return 2 * n

    return app


def test_its_migrations_are_those_of_today(wheel: Path) -> None:
    here = files("perdure")
    with ZipFile(wheel) as released:
        names = [name for name in released.namelist() if name.startswith(MIGRATIONS)]
        assert len(names) >= 4
        for name in names:
            assert here.joinpath(*Path(name).parts[1:]).read_bytes() == released.read(name), name


def test_jobs_of_the_release_are_run_today(wheel: Path, url: str) -> None:
    version, *ids = json.loads(run(wheel, url, "enqueue", "3"))
    assert wheel.name.startswith(f"perdure-{version}-")
    with today(url) as app:
        app.migrate()
        again = [app.tasks["double"].using(idempotency_key=f"key-{n}").enqueue(n=n).id for n in range(3)]
        assert again == ids
        assert app.run_worker(burst=True) == 0
        assert [app.get_job(id).get(1) for id in ids] == [0, 2, 4]


def test_jobs_of_the_release_obey_limits_of_today(wheel: Path, url: str) -> None:
    """Except those of keys, as docs/limiting.md says: they were enqueued before the task had keys."""
    _, *ids = json.loads(run(wheel, url, "enqueue", "4"))
    with today(url, concurrency=1, concurrency_key="{n}", limits=["printer"]) as app:
        app.migrate()
        app.limit("printer", concurrency=2)
        later = [app.tasks["double"].enqueue(n=n).id for n in (7, 7)]
        app.operations.register("worker", name="worker", lease=3600 * SECOND, tasks=["double"])

        def claim() -> list[str]:
            return [job.id for job in app.operations.claim("worker", tasks=["double"], n=9)]

        assert claim() == ids[:2]
        assert claim() == []
        assert app.explain_job(ids[2]).code == "limit_full"
        app.set_limit("printer", concurrency=None)
        app.set_queue("default", concurrency=3)
        assert claim() == ids[2:3]
        app.set_queue("default", concurrency=1)
        assert claim() == []
        app.reset_queue("default")
        assert claim() == [ids[3], later[0]]
        assert app.explain_job(later[1]).code == "limit_full"


def test_a_release_that_lacks_a_migration_refuses_a_database_of_today(wheel: Path, url: str) -> None:
    """It would end steps without a thought for those that wait for them."""
    with today(url) as app:
        app.migrate()
        job = app.tasks["double"].enqueue(n=1)
        refused = start(wheel, url, "work")
        assert refused.returncode == 1
        assert "SchemaNewer: The database has migration 0002 workflows" in refused.stderr
        assert job.refresh().state == "ready"
