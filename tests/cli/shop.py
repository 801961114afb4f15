"""An app on a real clock, the operations of a worker, and ways to run the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from click.testing import CliRunner, Result

from perdure import App
from perdure.cli import program
from perdure.client.job import Job
from perdure.model.job import SECOND, Claimed
from perdure.model.lifecycle import Outcome

NOBODY = "0198a1b2-0000-7000-8000-000000000000"


def send(to: str = "ann", n: int = 0) -> str:
    return to


class Shop:
    def __init__(self, url: str) -> None:
        self.url = url
        self.app = App(url)
        self.send = self.app.task(name="mail.send", queue="mail", backoff=3600)(send)

    def close(self) -> None:
        self.app.close()

    def serve(self, *, name: str = "ann", tasks: tuple[str, ...] = ("mail.send",), **options: Any) -> None:
        self.app.operations.register(f"{name}-1", name=name, lease=600 * SECOND, tasks=tasks, **options)

    def claim(self) -> Claimed:
        (job,) = self.app.operations.claim("ann-1", tasks=["mail.send"], n=1)
        return job

    def end(self, end: Callable[..., Outcome], *args: Any, **options: Any) -> Job[Any]:
        """Enqueue one, claim it, and end its attempt so."""
        job = self.send.enqueue("ann")
        claimed = self.claim()
        assert claimed.id == job.id
        assert self.app.operations.finish([end(claimed.lease, *args, **options)]).refused == []
        return job

    def run(self, *args: str, **options: Any) -> Result:
        """A verb on this database."""
        return run(*args, "--url", self.url, **options)

    def json(self, *args: str) -> Any:
        result = self.run(*args, "--json")
        assert (result.exit_code, result.stderr) == (0, "")
        return json.loads(result.stdout)


def run(*args: str, **options: Any) -> Result:
    """The command line in this process. What is no answer of its own is raised."""
    result = CliRunner().invoke(program, args, prog_name="perdure", **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
