"""Another Python beside a test, told line by line what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent


@contextmanager
def companion(script: str, *args: object) -> Iterator[Callable[[str], str]]:
    """A program that says ready, then answers each line with one. Call it to tell it a line."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script, *map(str, args)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        stdin, stdout = program.stdin, program.stdout
        assert stdin is not None
        assert stdout is not None
        assert stdout.readline() == "ready\n"

        def tell(line: str) -> str:
            stdin.write(f"{line}\n")
            stdin.flush()
            return stdout.readline().removesuffix("\n")

        yield tell
        stdin.close()
        assert program.wait(60) == 0
