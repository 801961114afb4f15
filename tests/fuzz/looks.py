"""Every way to read a job: none may fail on what it finds."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner

from perdure.cli import program
from perdure.errors import PerdureError
from tests.fuzz.ground import Ground, judge

READS = ("get_job", "job_history", "explain_job")
FACTS = ("result", "error", "progress", "meta", "tags", "reason", "run_at")
PRINTS = (("job", "{}"), ("job", "{}", "--json"), ("jobs",), ("jobs", "--json"), ("explain", "{}"))


def look_at(ground: Ground, id: str, printed: tuple[str, ...] | None = None) -> None:
    """Read with every method of the app, and with a command."""
    for verb in READS:
        str(getattr(ground.app, verb)(id))
    job = ground.app.get_job(id)
    for fact in FACTS:
        try:
            getattr(job, fact)
        except PerdureError as error:
            judge(error)
    ground.app.list_jobs()
    if printed is not None:
        answer = run(ground, *(word.format(id) for word in printed))
        assert answer.exit_code == 0, answer.output
        if "--json" in printed:
            json.loads(answer.stdout)


def run(ground: Ground, *args: str, env: dict[str, str] | None = None) -> Any:
    """Run the command line in this process. Unexpected errors are raised."""
    result = CliRunner().invoke(
        program, args, prog_name="perdure", env={"PERDURE_URL": ground.url, **(env or {})}
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        if isinstance(result.exception, PerdureError):
            judge(result.exception)
        raise result.exception
    return result
