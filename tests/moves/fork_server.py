"""Processes that move and are killed, by the dozen: one program that is started once and forks each of them.

Reads a failpoint a line, and answers each with how that process ended and what was refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from perdure.errors import PerdureError
from perdure.internal import failpoints
from perdure.move import move
from perdure.store.move import move as mover
from tests.moves.ends import Ends

ROOT = Path(__file__).parents[2]


@contextmanager
def fork_server(ends: Ends, *, batch: int) -> Iterator[Callable[[str], tuple[int, str]]]:
    """Move in a new process with a failpoint; returns how it ended, and the code of what was refused."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.moves.fork_server", *ends, str(batch)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def run(failpoint: str) -> tuple[int, str]:
        stdin.write(f"{failpoint}\n")
        stdin.flush()
        code, refused = json.loads(stdout.readline())
        return code, refused

    with process:
        yield run


def main(source: str, target: str, batch: str) -> None:
    vars(mover)["_MOST_ROWS"] = int(batch)
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            _move(source, target, line.strip(), writing)
        os.close(writing)
        with os.fdopen(reading) as told:
            refused = told.read()
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), refused]), flush=True)


def _move(source: str, target: str, failpoint: str, writing: int) -> None:
    failpoints._faults, failpoints.armed = failpoints.parse(failpoint), bool(failpoint)
    try:
        move(source, target)
    except PerdureError as error:
        os.write(writing, error.code.encode())
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
