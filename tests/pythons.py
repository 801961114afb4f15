"""Run the suite on other versions of Python, one after another: ``make test-pythons``.

Each argument is a version to look for, such as ``3.13``, or the path of an interpreter.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build"

# Debian splits ensurepip off into python3.X-venv; one built without headers lacks the other two.
PROBE = "import ensurepip, sqlite3, ssl, sys; print('%d.%d' % sys.version_info[:2])"
NOT_FOUND = (
    "not run (not found with ensurepip, sqlite3 and ssl; install it with uv, pyenv or apt, "
    "or name one: make test-pythons PYTHONS=/path/to/python3)"
)


def main(wanted: list[str]) -> int:
    """Run the suite on each; 0 if at least one ran and none failed."""
    results = {one: run_suite(one) for one in wanted}
    for one, result in results.items():
        print(f"{one if '/' in one else f'Python {one}'}: {result}")
    return 0 if "passed" in results.values() and "failed" not in results.values() else 1


def run_suite(wanted: str) -> str:
    """Install perdure and its tools into a new environment and run the tests there."""
    python = find(wanted)
    if python is None:
        return NOT_FOUND
    environment = BUILD / f"python-{version_of(python)}"
    own = str(environment / "bin" / "python")
    print(f"Running the suite on {python} in {environment}", flush=True)
    try:
        for command in (
            [python, "-m", "venv", "--clear", str(environment)],
            [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-e", ".[dev,postgres]"],
            [own, "-m", "pytest", "-n", "auto", "-m", "not long"],
        ):
            subprocess.run(command, cwd=ROOT, check=True)
    except subprocess.CalledProcessError:
        return "failed"
    return "passed"


def find(wanted: str) -> str | None:
    """The first usable interpreter of a version, or the one at a path."""
    if "/" in wanted:
        return wanted if version_of(wanted) else None
    return next((python for python in candidates(wanted) if version_of(python) == wanted), None)


def candidates(version: str) -> Iterator[str]:
    """Where an interpreter of this version may be: on the PATH, with pyenv, with uv."""
    for directory in os.get_exec_path():
        yield os.path.join(directory, f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    releases = (pyenv / "versions").glob(f"{version}.*/bin/python{version}")
    yield from map(str, sorted(releases, key=release, reverse=True))
    # Only its own: pyenv's shims, which uv would try as well, end it with an error.
    yield from output_of("uv", "python", "find", "--managed-python", version)


def release(python: Path) -> list[int]:
    """Its version as pyenv names the directory, as numbers: 3.13.10 is newer than 3.13.9."""
    return [int(number) for number in re.findall(r"\d+", python.parent.parent.name)]


def version_of(python: str) -> str | None:
    """Such as 3.13; None if it does not run, as pyenv's shims of other versions, or cannot run the suite."""
    return next(iter(output_of(python, "-c", PROBE)), None)


def output_of(*command: str) -> list[str]:
    """The lines that a command prints; none if it fails or is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
