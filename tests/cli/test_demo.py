"""`perdure demo` runs to its end, tells what happened and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_demo_ends_well_and_leaves_nothing_behind(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "perdure", "demo"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
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
