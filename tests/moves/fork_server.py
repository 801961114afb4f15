"""Processes that move and are killed, by the dozen: one program that is started once and forks each of them.

Reads a failpoint a line, and answers each with how that process ended and what was refused.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from perdure.errors import PerdureError
from perdure.internal import failpoints
from perdure.move import move
from perdure.store.move import move as mover
from tests.harness.processes import conversation
from tests.moves.ends import Ends


@contextmanager
def fork_server(ends: Ends, *, batch: int) -> Iterator[Callable[[str], tuple[int, str]]]:
    """Move in a new process with a failpoint; returns how it ended, and the code of what was refused."""
    with conversation("-m", "tests.moves.fork_server", *ends, batch) as ask:

        def run(failpoint: str) -> tuple[int, str]:
            code, refused = json.loads(ask(failpoint))
            return code, refused

        yield run


def main(source: str, target: str, batch: str) -> None:
    vars(mover)["_MOST_ROWS"] = int(batch)
    print("ready", flush=True)
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
