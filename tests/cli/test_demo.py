"""`perdure demo` runs to its end, tells what happened and leaves nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from perdure import App
from perdure.cli import show
from tests.harness.processes import run_cli


def test_the_demo_ends_well_and_leaves_nothing_behind(tmp_path: Path) -> None:
    ran = run_cli("demo", cwd=tmp_path, TMPDIR=str(tmp_path))
    assert (ran.returncode, ran.stderr) == (0, "")
    rows = {
        line.split()[0]: line.split()[1:6] for line in ran.stdout.splitlines() if line.startswith("demo.")
    }
    # jobs, succeeded, failed, canceled, retried
    assert rows["demo.quick"] == ["231", "230", "0", "1", "0"]
    assert rows["demo.flaky"] == ["30", "30", "0", "0", "30"]
    assert rows["demo.doomed"] == ["10", "0", "10", "0", "10"]
    assert rows["demo.fatal"] == ["5", "0", "5", "0", "0"]
    assert max(map(len, ran.stdout.splitlines())) < 80, "lines fit a pipe"
    bars = [line for line in ran.stdout.splitlines() if line.startswith("[")]
    assert bars[-1] == "[################] 301 of 301"
    assert list(tmp_path.iterdir()) == []


def test_the_longest_line_of_the_progress_bar_fits(capsys: pytest.CaptureFixture[str]) -> None:
    class Crowded:
        async def acount_jobs(self) -> dict[str, dict[str, int]]:
            some = {"running": 20, "ready": 141, "retrying": 45, "scheduled": 36}
            return {"mail": some, "reports": {"succeeded": 48, "failed": 10, "canceled": 1}}

    assert asyncio.run(show._show(cast("App", Crowded()), 301)), "there is more to come"
    line = capsys.readouterr().out
    assert line == "[###.............] 59 of 301  running 20  ready 141  retrying 45  scheduled 36\n"
    assert len(line) <= 80
