"""Processes that migrate and are killed, by the dozen: one program that is started once and forks each of them.

Reads a failpoint a line, and answers each with how that process ended and the versions that it finished.
"""

from __future__ import annotations

import json
import os
import sys

from perdure.internal import failpoints
from tests.migrations.database import Database


def main(url: str) -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            migrate(url, line.strip(), writing)
        os.close(writing)
        with os.fdopen(reading) as told:
            versions = json.loads(told.read() or "[]")
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), versions]), flush=True)


def migrate(url: str, failpoint: str, writing: int) -> None:
    failpoints._faults, failpoints.armed = failpoints.parse(failpoint), bool(failpoint)
    versions = Database(url).migrate()
    os.write(writing, json.dumps(versions).encode())
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
