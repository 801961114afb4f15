"""Workers in processes of their own: started, signalled, killed; their log and their exit code are read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg

from perdure import App
from perdure.client.job import Job
from perdure.request.ids import new_id
from tests.harness.waiting import until
from tests.worker import worker_app


class Hand:
    """One worker's process."""

    def __init__(self, directory: Path, env: dict[str, str], options: dict[str, Any]) -> None:
        self.path = directory / "log"
        with self.path.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "tests.worker.serve", json.dumps(options)],
                env={**os.environ, **env},
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self.path.read_text()

    def wait_for(self, text: str, *, seconds: float = 30.0) -> None:
        try:
            until(lambda: text in self.log or self.process.poll() is not None, seconds=seconds)
            assert text in self.log
        except AssertionError:
            raise AssertionError(f"the worker never said {text!r}:\n{self.log}") from None

    def stop(self, *, seconds: float = 30.0) -> int:
        """In order."""
        self.signal(signal.SIGTERM)
        return self.end(seconds=seconds)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.end()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, *, seconds: float = 30.0) -> int:
        """Wait until it is gone; its exit code."""
        return self.process.wait(seconds)


class Fleet:
    """One database, an app on it that enqueues, and workers."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.directory = directory
        self.hands: list[Hand] = []

    @cached_property
    def app(self) -> App:
        return worker_app.make(self.url)

    def start(self, *, url: str | None = None, lease: float = 1, env: Any = None, **options: Any) -> Hand:
        """A worker that has registered."""
        hand = self.start_only(url=url, lease=lease, env=env, **options)
        hand.wait_for("tasks")
        return hand

    def start_only(
        self, *, url: str | None = None, lease: float = 1, env: Any = None, **options: Any
    ) -> Hand:
        directory = self.directory / f"hand-{len(self.hands)}"
        directory.mkdir()
        surroundings = {"PERDURE_URL": url or self.url, "MILL_LEASE": str(lease), **(env or {})}
        hand = Hand(directory, surroundings, options)
        self.hands.append(hand)
        return hand

    def enqueue(self, task: str, **arguments: Any) -> Job[Any]:
        return self.app.tasks[task].enqueue(**arguments)

    def begin(self, seconds: float) -> Job[Any]:
        """A job of ``rest`` whose handler has begun: a claim alone may still be given back."""
        notes = self.directory / f"notes-{new_id()}"
        job = self.enqueue("rest", seconds=seconds, note_to=str(notes))
        until(notes.exists)
        return job

    def state(self, job: Job[Any]) -> str | None:
        return job.refresh().state

    def until_running(self, *jobs: Job[Any]) -> None:
        until(lambda: all(self.state(job) == "running" for job in jobs))

    def close(self) -> None:
        for hand in self.hands:
            if hand.process.poll() is None:
                hand.signal(signal.SIGCONT)
                hand.kill()
        if "app" in self.__dict__:
            self.app.close()


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    """Rows of a PostgreSQL database."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()
