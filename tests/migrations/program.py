"""A program that migrates a database: ``python -m tests.migrations.program URL``."""

from __future__ import annotations

import sys

from tests.migrations.database import Database


def main(url: str) -> None:
    with Database(url).store() as store:
        sys.stdin.readline()
        print(*store.migrate())


if __name__ == "__main__":
    main(*sys.argv[1:])
