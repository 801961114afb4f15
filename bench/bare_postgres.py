"""The work done by SQL written by hand on psycopg: the least that can be done for the same rows.

Prepared statements, arrays taken apart by unnest, the timeouts perdure sets (once for the connection: no pooler
stands in between), and one round trip per transaction, through libpq's pipeline itself: psycopg's own
``pipeline()`` was a third slower for one insert. It leaves out what perdure looks at besides (paused and cooling
queues, expiry, tasks it does not know), the order of what was claimed, and the wake-up of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import postgres
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import TextBinaryLoader

from bench.bare_group import GroupCommit
from bench.workload import MAX_ATTEMPTS, QUEUE, RESULT, TASK, TIMEOUT, WORKER, Ids, Mail

INSERT = f"""
INSERT INTO perdure.job (id, task, queue, payload, state, priority, max_attempts, timeout, run_at, created_at)
VALUES ($1, '{TASK}', '{QUEUE}', $2, 'ready', 0, {MAX_ATTEMPTS}, {TIMEOUT}, now(), now())
""".encode()

INSERT_MANY = f"""
INSERT INTO perdure.job (id, task, queue, payload, state, priority, max_attempts, timeout, run_at, created_at)
SELECT id, '{TASK}', '{QUEUE}', payload, 'ready', 0, {MAX_ATTEMPTS}, {TIMEOUT}, now(), now()
  FROM unnest($1::uuid[], $2::json[]) AS x (id, payload)
""".encode()

FINISH = b"""
UPDATE perdure.job SET state = 'succeeded', worker = NULL, finished_at = now(), result = $3
 WHERE id = $1 AND token = $2 AND worker IS NOT NULL
"""

FINISH_MANY = b"""
UPDATE perdure.job
   SET state = 'succeeded', worker = NULL, finished_at = now(), result = $3
  FROM unnest($1::uuid[], $2::integer[]) AS x (id, token)
 WHERE job.id = x.id AND job.token = x.token AND job.worker IS NOT NULL
"""

CLAIM = f"""
UPDATE perdure.job
   SET state = 'running', worker = '{WORKER}', token = token + 1, attempt = attempt + 1, started_at = now()
 WHERE id = ANY (ARRAY(
           SELECT id FROM perdure.job
            WHERE state = 'ready' AND held IS NULL AND queue = '{QUEUE}' AND task = '{TASK}'
              AND run_at <= now()
            ORDER BY priority DESC, run_at, id LIMIT $1
              FOR UPDATE SKIP LOCKED))
RETURNING id::text, token, task, queue, priority, run_at, run, attempt, max_attempts, timeout, payload,
          checkpoint, tenant, meta, crashes, scheduled_for, workflow_id::text, step_key, state
""".encode()

# Each statement is planned once and finds its rows by an index, as perdure's do. Left alone, the server plans
# the claim anew each time, for its limit is a parameter, and at times joins the outcomes to all that runs.
PLANS = (
    "-c statement_timeout=30s -c lock_timeout=5s -c idle_in_transaction_session_timeout=30s"
    " -c plan_cache_mode=force_generic_plan -c jit=off"
    " -c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
)

STATEMENTS = {
    b"insert": INSERT,
    b"insert_many": INSERT_MANY,
    b"finish": FINISH,
    b"finish_many": FINISH_MANY,
    b"claim": CLAIM,
}


class BarePostgres:
    """On a database that perdure has migrated: the same table and indexes."""

    def __init__(self, url: str, *, result: str = RESULT) -> None:
        """``result``: what every job returns, in JSON."""
        self._url = url
        self._result = result
        self._connection = psycopg.connect(url, autocommit=True, options=PLANS)
        self._pgconn = self._connection.pgconn
        for name, text in STATEMENTS.items():
            prepared = self._pgconn.prepare(name, text)
            assert prepared.status == ExecStatus.COMMAND_OK, prepared.error_message
        self._pgconn.enter_pipeline_mode()
        self._pgconn.nonblocking = 0  # libpq itself waits, faster than Python
        self._reader = Transformer(_adapters())
        self._ids = Ids()
        self._encode = msgspec.json.Encoder().encode
        self._claimed: list[tuple[Any, ...]] = []
        self._group = GroupCommit(self.enqueue_many)

    def enqueue(self, mail: Mail) -> None:
        (id,) = self._ids.new(1)
        self._run((b"insert", [id.encode(), self._payload(mail)]))

    def enqueue_together(self, mail: Mail) -> None:
        self._group.join(mail)

    def enqueue_many(self, mails: Sequence[Mail]) -> None:
        payloads = [_quoted(self._payload(mail).decode()) for mail in mails]
        self._run((b"insert_many", [_array(self._ids.new(len(mails))), _array(payloads)]))

    def cycle(self, n: int) -> int:
        claim = (b"claim", [b"%d" % n])
        if self._claimed:
            done, claimed = self._run(self._finish(self._claimed), claim)
            assert done.command_tuples == len(self._claimed)
        else:
            (claimed,) = self._run(claim)
        self._reader.set_pgresult(claimed)
        self._claimed = self._reader.load_rows(0, claimed.ntuples, tuple)
        return len(self._claimed)

    def tidy(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE) perdure.job")

    def close(self) -> None:
        self._group.close()
        self._connection.close()

    def _finish(self, jobs: Sequence[tuple[Any, ...]]) -> tuple[bytes, list[bytes]]:
        if len(jobs) == 1:
            return b"finish", [jobs[0][0].encode(), b"%d" % jobs[0][1], self._result.encode()]
        ids, tokens = [job[0] for job in jobs], [str(job[1]) for job in jobs]
        return b"finish_many", [_array(ids), _array(tokens), self._result.encode()]

    def _payload(self, mail: Mail) -> bytes:
        to, subject, number = mail
        return self._encode({"to": to, "subject": subject, "number": number})

    def _run(self, *queries: tuple[bytes, list[bytes]]) -> list[PGresult]:
        """One transaction, one round trip."""
        pgconn = self._pgconn
        for name, params in queries:
            pgconn.send_query_prepared(name, params, result_format=Format.BINARY)
        pgconn.pipeline_sync()
        results: list[PGresult] = []
        while True:
            if (result := pgconn.get_result()) is None:  # the end of one statement's results
                continue
            if result.status == ExecStatus.PIPELINE_SYNC:
                return results
            assert result.status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK), result.error_message
            results.append(result)


def _adapters() -> AdaptersMap:
    """What the driver reads without a line of Python: JSON as text, times as microseconds since 2000."""
    adapters = AdaptersMap(postgres.adapters)
    adapters.register_loader(postgres.types["json"].oid, TextBinaryLoader)
    adapters.register_loader(postgres.types["timestamptz"].oid, Int8BinaryLoader)
    return adapters


def _array(values: Sequence[str]) -> bytes:
    return f"{{{','.join(values)}}}".encode()


def _quoted(text: str) -> str:
    """A text as an element of an array."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
