"""A virtual environment for each peer, below build/: made once, kept until what it should hold changes."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from bench.peers.requirements import REQUIREMENTS

PLACE = Path(__file__).parent.parent / "build" / "bench" / "venvs"
PATIENCE = 600.0


class NotInstalled(Exception):
    """There is no such environment; the message says why."""


def python_of(name: str, *, place: Path = PLACE) -> Path:
    """The Python that has the packages of this peer."""
    directory = place / name
    python = directory / "bin" / "python"
    wanted = "\n".join((sys.version, *REQUIREMENTS[name]))
    marker = directory / "installed"
    if marker.exists() and marker.read_text() == wanted and python.exists():
        return python
    _install(directory, python, REQUIREMENTS[name])
    marker.write_text(wanted)
    return python


def _install(directory: Path, python: Path, requirements: tuple[str, ...]) -> None:
    print(f"Installing {', '.join(requirements)}", file=sys.stderr)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    try:
        venv.create(directory, clear=True, with_pip=True)
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=PATIENCE
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotInstalled(f"no virtual environment: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalled(" ".join(lines or done.stderr.splitlines()[-3:])[:500] or "pip failed")
