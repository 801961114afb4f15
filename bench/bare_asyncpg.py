"""The limit by the other driver: SQL written by hand on asyncpg, the same rows, one statement for a cycle.

asyncpg has no pipeline, so one statement records what is done and claims the next. It runs in an environment of its
own, on tables that perdure has made, and imports nothing of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import asyncpg

from bench.peers.protocol import UNTAGGED, Peer, main, notes
from bench.workload import MAX_ATTEMPTS, QUEUE, TASK, TIMEOUT, WORKER, Ids, mails

INSERT = f"""
INSERT INTO perdure.job (id, task, queue, payload, state, priority, max_attempts, timeout, run_at, created_at)
SELECT id, '{TASK}', '{QUEUE}', payload, 'ready', 0, {MAX_ATTEMPTS}, {TIMEOUT}, now(), now()
  FROM unnest($1::uuid[], $2::text[]::json[]) AS x (id, payload)
"""

CYCLE = f"""
WITH done AS (
    UPDATE perdure.job
       SET state = 'succeeded', worker = NULL, finished_at = now(), result = 'null'
      FROM unnest($1::uuid[], $2::integer[]) AS x (id, token)
     WHERE job.id = x.id AND job.token = x.token AND job.worker IS NOT NULL)
UPDATE perdure.job
   SET state = 'running', worker = '{WORKER}', token = token + 1, attempt = attempt + 1, started_at = now()
 WHERE id = ANY (ARRAY(
           SELECT id FROM perdure.job
            WHERE state = 'ready' AND held IS NULL AND queue = '{QUEUE}' AND task = '{TASK}'
              AND run_at <= now()
            ORDER BY priority DESC, run_at, id LIMIT $3
              FOR UPDATE SKIP LOCKED))
RETURNING id, token, task, queue, priority, run_at, run, attempt, max_attempts, timeout, payload,
          checkpoint, tenant, meta, crashes, scheduled_for, workflow_id, step_key, state
"""

# As in bare_postgres.py: planned once, and every row found by an index.
PLANS = {
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
PAYLOADS = [json.dumps(mail._asdict(), separators=(",", ":")) for mail in mails(1000)]


class BareAsyncpg(Peer):
    packages = ("asyncpg",)
    kinds = ("async",)

    async def connect(self) -> None:
        self._connection = await asyncpg.connect(self.url, server_settings=PLANS)
        self._insert = await self._connection.prepare(INSERT)
        self._ids = Ids()

    async def one(self, tag: int) -> None:
        await self.many([tag])

    async def many(self, tags: Sequence[int]) -> None:
        await self._insert.fetch(self._ids.new(len(tags)), PAYLOADS[: len(tags)])

    async def remaining(self) -> int:
        return int(
            await self._connection.fetchval("SELECT count(*) FROM perdure.job WHERE state <> 'succeeded'")
        )

    def work(self, concurrency: int) -> None:
        asyncio.run(self._work(concurrency))

    async def _work(self, batch: int) -> None:
        await self.connect()
        cycle = await self._connection.prepare(CYCLE)
        ids: list[object] = []
        tokens: list[int] = []
        while True:
            jobs = await cycle.fetch(ids, tokens, batch)
            ids, tokens = [job["id"] for job in jobs], [job["token"] for job in jobs]
            for _ in jobs:
                notes.begin(UNTAGGED)
            if not jobs:
                await asyncio.sleep(0.005)


if __name__ == "__main__":
    main(BareAsyncpg)
