"""`perdure demo` runs to its end, tells what happened and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

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
    assert list(tmp_path.iterdir()) == []
