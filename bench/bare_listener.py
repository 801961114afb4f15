"""A bare LISTEN-and-claim loop: what is picked up here can hardly be picked up sooner.

Run as a process of its own: it claims one job at each notice and answers with the time, as a handler would.
"""

from __future__ import annotations

import sys
import time

import psycopg

CHANNEL = "bare"
CLAIM = b"""
UPDATE perdure.job SET state = 'running', worker = 'bare', token = token + 1, attempt = attempt + 1, started_at = now()
 WHERE id = (SELECT id FROM perdure.job
              WHERE state = 'ready' AND held IS NULL AND queue = 'bare' AND run_at <= now()
              ORDER BY priority DESC, run_at, id LIMIT 1
                FOR UPDATE SKIP LOCKED)
RETURNING id
"""
INSERT = b"""
INSERT INTO perdure.job (id, task, queue, payload, state, priority, max_attempts, timeout, run_at, created_at)
VALUES (gen_random_uuid(), 'bare', 'bare', '{}', 'ready', 0, 8, 900000000, now(), now())
"""


def main(url: str) -> None:
    with (
        psycopg.connect(url, autocommit=True) as ear,
        psycopg.connect(url, autocommit=True, prepare_threshold=0) as hand,
    ):
        ear.execute(f"LISTEN {CHANNEL}".encode())
        print("ready", flush=True)
        for _ in ear.notifies():
            if hand.execute(CLAIM).fetchone():
                print(time.monotonic_ns(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
