"""Type checks: mypy and pyright accept the correct samples and refuse the wrong ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SAMPLES = Path(__file__).parent / "typing_samples"


def marked() -> set[str]:
    """Every line that must be refused, as ``file:line``."""
    return {
        f"{sample.name}:{number}"
        for sample in SAMPLES.glob("*.py")
        for number, line in enumerate(sample.read_text().splitlines(), 1)
        if "# refused: " in line
    }


def run(*command: str) -> str:
    """What a checker says of the samples; it ends with 1 where it finds something, otherwise it broke."""
    ran = subprocess.run(
        [sys.executable, "-m", *command, *map(str, sorted(SAMPLES.glob("*.py")))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        # Or pyright mentions newer versions of itself among its answers.
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return ran.stdout


def test_mypy_refuses_exactly_the_lines_that_are_wrong() -> None:
    said = run("mypy", "--strict", "--show-absolute-path")
    found = re.findall(r"^(.+):(\d+): error: .*$", said, re.MULTILINE)
    assert {f"{Path(file).name}:{line}" for file, line in found} == marked()


def test_pyright_refuses_exactly_the_lines_that_are_wrong() -> None:
    said = json.loads(run("pyright", "--outputjson", "--pythonpath", sys.executable))["generalDiagnostics"]
    assert {f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}" for each in said} == marked()


def test_there_is_something_to_refuse() -> None:
    assert len(marked()) > 40
