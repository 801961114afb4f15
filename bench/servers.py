"""The databases a benchmark measures: both on one real disk, every commit on it before it returns."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import psycopg

from bench.report import Report
from tests.postgres import DURABLE, Server, with_database

DIRECTORY = "PERDURE_BENCH_DIR"
IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}

SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "shared_buffers",
)


class Databases:
    """Makes new, empty databases: files in one directory and databases of one server there."""

    def __init__(self, directory: Path, server: Server) -> None:
        self.directory = directory
        self._server = server

    def new(self, kind: str, name: str) -> str:
        """The URL of an empty database; ``kind`` is sqlite or postgres."""
        if kind == "sqlite":
            return f"sqlite:///{self.directory / name}.db"
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return with_database(self._server.url(), name)

    @property
    def data_directory(self) -> Path:
        """Of the server."""
        return self._server.data_directory


def copy(template: str, name: str) -> str:
    """The URL of a copy of this database, to which nobody is connected."""
    if template.startswith("postgresql"):
        source = template.rpartition("/")[2]
        with psycopg.connect(with_database(template, "postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}"'.encode())
        return with_database(template, name)
    file = Path(template.removeprefix("sqlite:///"))
    target = file.with_name(f"{name}.db")
    for suffix in ("", "-wal"):
        if Path(f"{file}{suffix}").exists():
            shutil.copy(f"{file}{suffix}", f"{target}{suffix}")
    return f"sqlite:///{target}"


def remove(url: str) -> None:
    if url.startswith("postgresql"):
        name = url.rpartition("/")[2]
        with psycopg.connect(with_database(url, "postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())
        return
    for suffix in ("", "-wal", "-shm"):
        Path(f"{url.removeprefix('sqlite:///')}{suffix}").unlink(missing_ok=True)


@contextmanager
def databases(report: Report, *, synchronous: bool = True, **settings: str) -> Iterator[Databases]:
    """A directory and a server for as long as the block lasts; nothing of them is left behind.

    ``synchronous``: whether a commit of the server waits for the disk. ``settings``: more of the server's.
    """
    with tempfile.TemporaryDirectory(prefix="perdure-bench-", dir=_disk()) as name:
        directory = Path(name)
        directory.chmod(0o755)  # for the server's own user, where we are root
        _tell_about_machine(report, directory)
        commit = "on" if synchronous else "off"
        usual = {**DURABLE, "synchronous_commit": commit, "shared_buffers": "512MB"}
        with Server.start({**usual, **settings}, directory) as server:
            _tell_about_postgres(report, server.url())
            yield Databases(directory, server)


def _disk() -> Path:
    """A directory that is not in memory."""
    if chosen := os.environ.get(DIRECTORY):
        if file_system(Path(chosen)) in IN_MEMORY:
            raise SystemExit(f"{DIRECTORY} names a directory in memory: a commit there proves nothing.")
        return Path(chosen)
    for place in (Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()):
        if place.is_dir() and file_system(place) not in IN_MEMORY:
            return place
    raise SystemExit(f"Every temporary directory is in memory; name one on a disk: {DIRECTORY}=...")


def file_system(path: Path) -> str:
    """Its type, where the system tells."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    kinds = {line.split()[1]: line.split()[2] for line in mounts.read_text().splitlines()}
    here = path.resolve()
    return next((kinds[str(place)] for place in (here, *here.parents) if str(place) in kinds), "unknown")


def _tell_about_machine(report: Report, directory: Path) -> None:
    report.fact(python=platform.python_version(), cores=os.cpu_count(), file_system=file_system(directory))
    report.figure("sync of 8 kB to the disk", _sync_time(directory) * 1e6, "µs")


def _sync_time(directory: Path) -> float:
    times = []
    with (directory / "probe").open("wb", buffering=0) as file:
        for _ in range(50):
            file.seek(0)
            file.write(os.urandom(8192))
            start = perf_counter()
            os.fdatasync(file.fileno())
            times.append(perf_counter() - start)
    return median(times)


def _tell_about_postgres(report: Report, url: str) -> None:
    with psycopg.connect(url) as connection:
        shown = {
            name: connection.execute("SELECT current_setting(%s)", [name]).fetchone() for name in SETTINGS
        }
    report.fact(
        database="postgres",
        driver=f"psycopg {psycopg.__version__} ({psycopg.pq.__impl__})",
        **{name: row[0] for name, row in shown.items() if row},
    )
