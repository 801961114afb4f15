"""DBOS with a limit of 500 for the queue."""

from __future__ import annotations

from bench.peers.dbos import Dbos
from bench.peers.protocol import main


class LimitedDbos(Dbos):
    concurrency = 500


if __name__ == "__main__":
    main(LimitedDbos)
