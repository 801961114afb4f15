-- The statements that SQLite needs in another form, or not at all, in the order of sqlite.sql. "differs" says why.

-- fragment: has_tag
EXISTS (SELECT FROM json_array_elements_text(CASE json_typeof(j.tags) WHEN 'array' THEN j.tags END) AS tag
                        WHERE tag = CAST(:tag AS text))

-- fragment: has_text
(strpos(CAST(j.payload AS text), CAST(:text AS text)) > 0 OR strpos(CAST(j.payload AS text), CAST(:escaped AS text)) > 0)

-- fragment: next_token
-- If a row has a value that is larger than perdure stores, this sum overflows, and the claim fails before it reads the
-- value.
token + 1 + CASE WHEN too_large() THEN 2147483647 ELSE 0 END

-- fragment: asked_queues
-- The named queues, in their order. If none are named, all queues with ready jobs: one index lookup for each.
every AS (
    SELECT '' AS queue WHERE CAST(:queues AS text) IS NULL
    UNION ALL
    SELECT (SELECT j.queue FROM perdure.job j
             WHERE j.state = 'ready' AND j.held IS NULL AND j.queue > every.queue
             ORDER BY j.queue LIMIT 1)
      FROM every WHERE every.queue IS NOT NULL),
asked AS (
    SELECT queue, CAST(0 AS bigint) AS rank FROM every WHERE queue <> ''
    UNION ALL
    SELECT value, rank FROM json_array_elements_text(CAST(:queues AS json)) WITH ORDINALITY AS q (value, rank))

-- fragment: names_of_limits
json_array_elements_text(t.limits) AS given (value)

-- fragment: running_jobs
-- Jobs that run, found worker by worker: with statistics from a time when nothing ran, the planner would scan the table.
owner AS (
    SELECT (SELECT j.worker FROM perdure.job j WHERE j.state = 'running' ORDER BY j.worker LIMIT 1) AS worker
    UNION ALL
    SELECT (SELECT j.worker FROM perdure.job j
             WHERE j.state = 'running' AND j.worker > owner.worker ORDER BY j.worker LIMIT 1)
      FROM owner WHERE owner.worker IS NOT NULL),
running AS MATERIALIZED (
    SELECT j.id, j.queue, j.task, j.concurrency_key
      FROM owner CROSS JOIN LATERAL (
           SELECT * FROM perdure.job WHERE state = 'running' AND worker = owner.worker) j)

-- fragment: no_job
-- A row that is no job: as many NULLs as a claimed job has columns.
NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL

-- fragment: workflow_finished_at
CASE WHEN x.status IN ('running', 'open') THEN NULL ELSE coalesce(workflow.finished_at, :now) END

-- name: claim_window
-- differs: this is a cheap form of claim_jobs, for one queue and priority that had enough jobs the last time. Most of the
-- cost of a claim on a server is the start of its plan, and this plan is a third as large. Before :since there are mostly
-- dead index entries; claim_jobs finds the few jobs there. If other jobs come first, or if this worker does not know the
-- task of one of the first jobs, the statement claims nothing and returns 'more'. It also returns 'more' if it finds too
-- few jobs while there are others behind them.
WITH
head AS MATERIALIZED (
    SELECT j.task, j.run_at FROM perdure.job j
     WHERE j.state = 'ready' AND j.held IS NULL AND j.queue = :queue AND j.priority = :priority
       AND j.run_at BETWEEN coalesce(instant(:since), '-infinity') AND :now
     ORDER BY j.run_at, j.id LIMIT :n),
ahead AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM perdure.job j
                    WHERE j.state = 'ready' AND j.held IS NULL AND j.queue = :queue AND j.priority > :priority)
        OR EXISTS (SELECT FROM perdure.job j
                    WHERE j.state = 'ready' AND j.held IS NULL
                      AND j.queue IN texts(:ahead))
        OR CAST(:ahead AS text) IS NULL AND (
           EXISTS (SELECT FROM perdure.job j WHERE j.state = 'ready' AND j.held IS NULL AND j.queue < :queue)
        OR EXISTS (SELECT FROM perdure.job j WHERE j.state = 'ready' AND j.held IS NULL AND j.queue > :queue))
        OR EXISTS (SELECT FROM head
                    WHERE head.task NOT IN texts(:tasks))
        AS any),
taken AS MATERIALIZED (
    SELECT id, token, attempt, {claimed_columns}, coalesce(expires_at <= :now, false) AS late
      FROM perdure.job j
     WHERE NOT (SELECT ahead.any FROM ahead)
       AND j.state = 'ready' AND j.held IS NULL AND j.queue = :queue AND j.priority = :priority
       -- Begin at the first row found above, so that the dead index entries before it are not read a second time.
       AND j.run_at BETWEEN (SELECT min(head.run_at) FROM head) AND :now
       AND j.task IN texts(:tasks)
       AND {not_left_to_sweeper}
       AND NOT EXISTS (SELECT 1 FROM perdure.queue q WHERE q.name = :queue AND ({queue_is_closed} OR {queue_is_limited}))
       AND {worker_may_claim}
     ORDER BY j.run_at, j.id LIMIT :n
       FOR UPDATE SKIP LOCKED),
-- Exactly the locked rows are written. There is no RETURNING here, because it would store the rows a second time.
claimed AS (
    UPDATE perdure.job
       SET {set_claimed}
     -- Rows are found by primary key only: in a join with the CTE, stale statistics could cause a scan of the table.
     WHERE id = ANY (ARRAY(SELECT taken.id FROM taken WHERE NOT taken.late))),
expired AS (
    UPDATE perdure.job SET {set_expired}
     WHERE id = ANY (ARRAY(SELECT taken.id FROM taken WHERE taken.late)))
SELECT CAST(id AS text) AS id, token + 1 AS token, attempt + 1 AS attempt, {claimed_columns},
       CASE WHEN late THEN 'canceled' ELSE 'running' END AS state
  FROM taken
UNION ALL
SELECT {no_job}, 'more'
 WHERE (SELECT ahead.any FROM ahead)
    OR (SELECT count(*) FROM taken) < :n AND (
       EXISTS (SELECT FROM perdure.job j
                WHERE j.state = 'ready' AND j.held IS NULL AND j.queue = :queue AND j.priority < :priority)
    OR EXISTS (SELECT FROM perdure.job j
                WHERE j.state = 'ready' AND j.held IS NULL
                  AND j.queue IN texts(:behind)));

-- name: claim_jobs
-- differs: many workers claim at once. A group is one priority of a queue, split by task if this worker does not know all
-- of its tasks. First the statement reads the first jobs of each group without locks, and counts how many of the first :n
-- jobs each group has: its share. Then it locks that many rows of each group, and skips rows that other claims have
-- locked. So the order is kept, and only claimed rows are locked.
WITH RECURSIVE
{asked_queues},
near AS (
    -- The first :n jobs are in at most :n queues: in those whose own first job comes first. A queue whose first job is not
    -- for this claim stays, because the queue's place is not known.
    SELECT queue, rank
      FROM (SELECT asked.queue, asked.rank, first.usable,
                   row_number() OVER (PARTITION BY first.usable
                                          ORDER BY asked.rank, first.priority DESC, first.run_at, first.id) AS place
              FROM asked CROSS JOIN LATERAL (
                   SELECT j.priority, j.run_at, j.id, j.run_at <= :now AND j.task IN texts(:tasks) AS usable
                     FROM perdure.job j
                    WHERE j.state = 'ready' AND j.held IS NULL AND j.queue = asked.queue
                    ORDER BY j.priority DESC, j.run_at, j.id LIMIT 1) first
             WHERE {asked_queue_is_claimable}) placed
     WHERE place <= :n OR NOT usable),
head (queue, rank, priority, known, run_ats, ids, found) AS (
    -- Go down the priorities of each queue, from above the highest, until there are enough jobs.
    SELECT queue, rank, 32768, true, CAST('{}' AS timestamptz[]), CAST('{}' AS uuid[]), 0 FROM near
    UNION ALL
    SELECT head.queue, head.rank, next.priority, next.known AND first.known, first.run_ats, first.ids,
           head.found + CASE WHEN first.known THEN cardinality(first.ids) ELSE 0 END
      FROM head CROSS JOIN LATERAL (
           SELECT CAST(j.priority AS integer), j.run_at,
                  j.task IN texts(:tasks)
             FROM perdure.job j
            WHERE j.state = 'ready' AND j.held IS NULL AND j.queue = head.queue AND j.priority < head.priority
            ORDER BY j.priority DESC, j.run_at, j.id LIMIT 1) next (priority, run_at, known)
           CROSS JOIN LATERAL (
           SELECT bool_and(due.task IN texts(:tasks)),
                  array_agg(due.run_at), array_agg(due.id)
             FROM (SELECT j.task, j.run_at, j.id FROM perdure.job j
                    WHERE next.known AND j.state = 'ready' AND j.held IS NULL
                      AND j.queue = head.queue AND j.priority = next.priority
                      -- Begin at the first row: before it are the dead index entries of claimed jobs, until a vacuum.
                      AND j.run_at BETWEEN next.run_at AND :now
                    ORDER BY j.run_at, j.id LIMIT :n) due) first (known, run_ats, ids)
     WHERE head.found < :n),
due AS (
    -- The first jobs in order. If they include a task that this worker does not know: the first jobs of each known task.
    SELECT queue, rank, priority, NULL AS task, row.run_at, row.id
      FROM head CROSS JOIN ROWS FROM (unnest(run_ats), unnest(ids)) AS row (run_at, id)
     WHERE known
    UNION ALL
    SELECT head.queue, head.rank, head.priority, known.task, row.run_at, row.id
      FROM head CROSS JOIN json_array_elements_text(CAST(:tasks AS json)) AS known (task) CROSS JOIN LATERAL (
           SELECT j.run_at, j.id FROM perdure.job j
            WHERE j.state = 'ready' AND j.held IS NULL
              AND j.queue = head.queue AND j.priority = head.priority AND j.task = known.task AND j.run_at <= :now
            ORDER BY j.run_at, j.id LIMIT :n) row
     WHERE NOT head.known
     ORDER BY rank, priority DESC, run_at, id LIMIT :n),
share AS MATERIALIZED (
    SELECT queue, priority, task, min(run_at) AS since, count(*) AS n FROM due GROUP BY queue, priority, task),
taken AS MATERIALIZED (
    SELECT locked.id FROM share CROSS JOIN LATERAL (
           SELECT j.id FROM perdure.job j
            WHERE j.state = 'ready' AND j.held IS NULL
              AND j.queue = share.queue AND j.priority = share.priority AND j.run_at BETWEEN share.since AND :now
              AND j.task IN texts(:tasks)
            ORDER BY j.run_at, j.id LIMIT share.n
              FOR UPDATE SKIP LOCKED) locked
     WHERE share.task IS NULL
    UNION ALL
    SELECT locked.id FROM share CROSS JOIN LATERAL (
           SELECT j.id FROM perdure.job j
            WHERE j.state = 'ready' AND j.held IS NULL
              AND j.queue = share.queue AND j.priority = share.priority AND j.task = share.task
              AND j.run_at BETWEEN share.since AND :now
            ORDER BY j.run_at, j.id LIMIT share.n
              FOR UPDATE SKIP LOCKED) locked
     WHERE share.task IS NOT NULL),
claimed AS (
    UPDATE perdure.job
       SET {set_claimed_or_expired}
     -- Rows are found by primary key only: in a join with the CTE, stale statistics could cause a scan of the table.
     WHERE id = ANY (ARRAY(SELECT taken.id FROM taken)) AND {not_left_to_sweeper}
    RETURNING CAST(id AS text) AS id, token, attempt, {claimed_columns}, state)
SELECT * FROM claimed
UNION ALL
-- Other transactions have locked some of the first jobs. If they have locked all, the worker runs claim_skipping_locked.
SELECT {no_job}, 'locked'
 WHERE (SELECT count(*) FROM taken) < (SELECT CAST(sum(n) AS bigint) FROM share);

-- name: claim_skipping_locked
-- differs: another transaction may lock the first rows for a long time. claim_jobs counts its shares without locks, and
-- then finds nothing to lock, although other groups have work. This statement locks rows as it reads them. It costs more,
-- so it runs only when claim_jobs found all of its first jobs locked.
WITH RECURSIVE
{asked_queues},
grp (queue, rank, priority) AS (
    SELECT queue, rank, 32768 FROM asked
     WHERE {asked_queue_is_claimable}
    UNION ALL
    SELECT grp.queue, grp.rank, (SELECT CAST(j.priority AS integer) FROM perdure.job j
                                  WHERE j.state = 'ready' AND j.held IS NULL
                                    AND j.queue = grp.queue AND j.priority < grp.priority
                                  ORDER BY j.priority DESC LIMIT 1)
      FROM grp WHERE grp.priority IS NOT NULL),
locked AS MATERIALIZED (
    SELECT grp.rank, grp.priority, row.run_at, row.id
      FROM grp CROSS JOIN json_array_elements_text(CAST(:tasks AS json)) AS known (task) CROSS JOIN LATERAL (
           SELECT j.run_at, j.id FROM perdure.job j
            WHERE j.state = 'ready' AND j.held IS NULL
              AND j.queue = grp.queue AND j.priority = grp.priority AND j.task = known.task AND j.run_at <= :now
            ORDER BY j.run_at, j.id LIMIT :n
              FOR UPDATE SKIP LOCKED) row
     WHERE grp.priority < 32768)
UPDATE perdure.job
   SET {set_claimed}
 WHERE id = ANY (ARRAY(SELECT id FROM locked ORDER BY rank, priority DESC, run_at, id LIMIT :n)) AND {not_expired}
RETURNING CAST(id AS text), token, attempt, {claimed_columns}, state;

-- name: count_limited
-- differs: see running_jobs.
-- The running jobs of limited tasks and queues, except those that are about to end.
WITH RECURSIVE
{running_jobs}
SELECT queue, task, concurrency_key, count(*)
  FROM running
 WHERE (task IN texts(:limited_tasks) OR queue IN texts(:limited_queues)) AND id NOT IN ids(:ended)
 GROUP BY 1, 2, 3;

-- name: find_limited
-- differs: LATERAL.
-- The first due jobs of each limited task, and in limited queues of each task, in each queue and priority. Nothing is locked.
WITH RECURSIVE
{asked_queues},
grp (queue, rank, priority) AS (
    SELECT queue, rank, 32768 FROM asked
     WHERE {asked_queue_is_open}
    UNION ALL
    SELECT grp.queue, grp.rank, (SELECT CAST(j.priority AS integer) FROM perdure.job j
                                  WHERE j.state = 'ready' AND j.held IS NULL
                                    AND j.queue = grp.queue AND j.priority < grp.priority
                                  ORDER BY j.priority DESC LIMIT 1)
      FROM grp WHERE grp.priority IS NOT NULL)
SELECT CAST(row.id AS text), grp.rank, grp.priority, row.run_at, grp.queue, known.task, row.concurrency_key
  FROM grp CROSS JOIN json_array_elements_text(CAST(:tasks AS json)) AS known (task) CROSS JOIN LATERAL (
       SELECT j.id, j.run_at, j.concurrency_key FROM perdure.job j
        WHERE j.state = 'ready' AND j.held IS NULL
          AND j.queue = grp.queue AND j.priority = grp.priority AND j.task = known.task AND j.run_at <= :now
          AND {not_expired}
        ORDER BY j.run_at, j.id LIMIT :n) row
 WHERE grp.priority < 32768 AND (known.task IN texts(:limited_tasks) OR grp.queue IN texts(:limited_queues));

-- name: find_by_key
-- differs: LATERAL.
-- The first due jobs of each concurrency key of a task, in one queue and priority. A key that is full, or has no due job,
-- gives one row without a job. So :n also bounds how many keys are looked at.
WITH RECURSIVE
every AS (
    SELECT (SELECT j.concurrency_key FROM perdure.job j
             WHERE j.state = 'ready' AND j.held IS NULL AND j.queue = :queue AND j.priority = :priority AND j.task = :task
               AND j.concurrency_key IS NOT NULL AND j.concurrency_key >= :after
             ORDER BY j.concurrency_key LIMIT 1) AS key
    UNION ALL
    SELECT (SELECT j.concurrency_key FROM perdure.job j
             WHERE j.state = 'ready' AND j.held IS NULL AND j.queue = :queue AND j.priority = :priority AND j.task = :task
               AND j.concurrency_key IS NOT NULL AND j.concurrency_key > every.key
             ORDER BY j.concurrency_key LIMIT 1)
      FROM every WHERE every.key IS NOT NULL)
SELECT CAST(row.id AS text), row.run_at, every.key
  FROM every LEFT JOIN LATERAL (
       SELECT j.id, j.run_at FROM perdure.job j
        WHERE every.key NOT IN texts(:full)
          AND j.state = 'ready' AND j.held IS NULL AND j.queue = :queue AND j.priority = :priority AND j.task = :task
          AND j.concurrency_key IS NOT NULL AND j.concurrency_key = every.key AND j.run_at <= :now
          AND {not_expired}
        ORDER BY j.run_at, j.id LIMIT :each) row ON true
 WHERE every.key IS NOT NULL
 LIMIT :n;

-- name: claim_limited
-- differs: rows are locked, except those that somebody holds.
-- Runs after lock_limits, in the same transaction: what runs is counted as of then. So no other claim can exceed a limit
-- together with this one. The jobs are in the order of their ids in the array. Those after the first :n are spare: they are
-- claimed, and locked, only in place of others.
WITH RECURSIVE
{running_jobs},
chosen AS MATERIALIZED (
    SELECT j.id, asked.rank, j.queue, j.task, j.concurrency_key
      FROM json_array_elements_text(CAST(:ids AS json)) WITH ORDINALITY AS asked (id, rank) CROSS JOIN LATERAL (
           SELECT * FROM perdure.job
            WHERE id = CAST(asked.id AS uuid) AND state = 'ready' AND run_at <= :now AND {not_expired}
              -- With "held IS NULL", a plan that was made on an empty table would read all ready jobs for each id.
              AND coalesce(held, '') = ''
              AND NOT EXISTS (SELECT 1 FROM perdure.queue q WHERE q.name = queue AND {queue_is_closed})
              FOR UPDATE SKIP LOCKED) j
     WHERE {worker_may_claim}
     LIMIT :n),
counted AS (
    SELECT CAST(NULL AS uuid) AS id, CAST(0 AS bigint) AS rank, queue, task, concurrency_key, count(*) AS n
      FROM running GROUP BY queue, task, concurrency_key
    UNION ALL
    SELECT id, rank, queue, task, concurrency_key, 1 FROM chosen),
{beyond_limits}
UPDATE perdure.job
   SET {set_claimed}
 WHERE id = ANY (ARRAY(SELECT id FROM chosen EXCEPT SELECT id FROM beyond))
RETURNING CAST(id AS text), token, attempt, {claimed_columns}, state;

-- name: set_aside
-- differs: rows are locked, except those that others have locked. LATERAL makes the planner use the claim's index.
-- Looks at each priority of the given queues. If nothing is due soon in a priority, its jobs are set aside and leave the
-- claim's index. But nothing is done unless there are more than :few such priorities.
WITH RECURSIVE
head (queue, priority, run_at) AS (
    SELECT queue, 32768, CAST(NULL AS timestamptz) FROM json_array_elements_text(CAST(:queues AS json)) AS queue
    UNION ALL
    SELECT head.queue, next.priority, next.run_at
      FROM head CROSS JOIN LATERAL (
           SELECT CAST(j.priority AS integer), j.run_at FROM perdure.job j
            WHERE j.state = 'ready' AND j.held IS NULL AND j.queue = head.queue AND j.priority < head.priority
            ORDER BY j.priority DESC, j.run_at, j.id LIMIT 1) next (priority, run_at)),
idle AS MATERIALIZED (
    SELECT queue, priority FROM head WHERE run_at > :now + span(:ahead)),
later AS MATERIALIZED (
    SELECT row.id
      FROM idle CROSS JOIN LATERAL (
           SELECT j.id FROM perdure.job j
            WHERE j.state = 'ready' AND j.held IS NULL AND j.queue = idle.queue AND j.priority = idle.priority
              AND j.run_at > :now + span(:ahead)
            ORDER BY j.run_at, j.id LIMIT :n
              FOR UPDATE SKIP LOCKED) row
     WHERE (SELECT count(*) FROM idle) > :few
     LIMIT :n)
UPDATE perdure.job SET held = 'later'
 WHERE id = ANY (ARRAY(SELECT later.id FROM later))
RETURNING 1;

-- name: hold_damaged
-- differs: how a JSON array becomes rows, the bounds of counters, and how the size of values is checked.
UPDATE perdure.job
   SET held = 'unclaimable',
       reason = CASE
           WHEN token >= 2147483647 THEN 'Its token is ' || CAST(token AS text) || ', and a claim adds 1.'
           WHEN attempt >= 2147483647 THEN 'Its attempt is ' || CAST(attempt AS text) || ', and a claim adds 1.'
           ELSE 'A value in the row is too large.' END
 WHERE id = ANY (ARRAY(
           SELECT j.id FROM perdure.job j
            WHERE j.id IN ids(:ids)
              AND j.state = 'ready' AND j.held IS NULL
              FOR UPDATE SKIP LOCKED))
   AND (token >= 2147483647 OR attempt >= 2147483647 OR too_large())
RETURNING CAST(id AS text), reason;

-- name: show_isolation
-- differs: a caller's transaction may have another isolation level.
SELECT current_setting('transaction_isolation');

-- name: insert_jobs
-- differs: how a JSON array becomes rows. A task that is unknown or disabled joins as NULL, which the table refuses. Such
-- a row contains none of the caller's values, because the server writes a refused row into its log.
-- The rows are inserted in their original order, whatever the join does, so that two batches cannot deadlock.
INSERT INTO perdure.job (id, task, queue, payload, {each option: COLUMN}, state, priority, max_attempts, timeout, run_at,
                         expires_at, unique_key, parent_job, created_at)
SELECT x.id, t.name, CASE WHEN t.name IS NOT NULL THEN coalesce(x.queue, t.queue) END,
       CASE WHEN t.name IS NOT NULL THEN CAST(x.payload AS json) END,
       {each option: CASE WHEN t.name IS NOT NULL THEN CAST(x.COLUMN AS TYPE) END}, 'ready',
       coalesce(x.priority, t.priority), coalesce(x.max_attempts, t.max_attempts), coalesce(x.timeout, t.timeout),
       coalesce(instant(x.run_at), :now + span(x.delay), :now),
       coalesce(instant(x.expires_at), :now + span(x.expires_in)),
       CASE WHEN t.name IS NOT NULL THEN x.unique_key END, x.parent_job, :now
  FROM ROWS FROM (json_to_recordset(CAST(:jobs AS json)) AS (
       id uuid, task text, queue text, payload text, {each option: COLUMN text}, priority smallint,
       max_attempts integer, timeout bigint, run_at bigint, delay bigint, expires_at bigint, expires_in bigint,
       unique_key text, parent_job uuid)) WITH ORDINALITY AS x
       LEFT JOIN perdure.task t ON t.name = x.task AND t.enabled
 ORDER BY x.ordinality
    ON CONFLICT DO NOTHING
RETURNING id, queue, run_at <= :now;

-- name: insert_same_options
-- differs: how a JSON object becomes rows. A value that all jobs share is a parameter, and nothing is returned. The jobs
-- may have been written by an earlier commit whose reply was lost. Only the first job is checked for this, while ON
-- CONFLICT DO NOTHING would check each. The statement takes half the time of insert_jobs.
INSERT INTO perdure.job (id, task, queue, payload, {each option: COLUMN}, state, priority, max_attempts, timeout, run_at,
                         expires_at, created_at)
SELECT CAST(x.key AS uuid), t.name, coalesce(t.given_queue, t.queue), CAST(x.value AS json), {each option: t.COLUMN}, 'ready',
       coalesce(CAST(:priority AS smallint), t.priority), coalesce(CAST(:max_attempts AS integer), t.max_attempts),
       coalesce(CAST(:timeout AS bigint), t.timeout), coalesce(:now + span(:delay), :now),
       coalesce(instant(:expires_at), :now + span(:expires_in)), :now
  FROM (SELECT 1) AS one LEFT JOIN (
       -- For an unknown or disabled task, keep the payload out of the server's log: see insert_jobs.
       SELECT *, CAST(:queue AS text) AS given_queue, {each option: CAST(:COLUMN AS TYPE) AS COLUMN}
         FROM perdure.task WHERE name = :task AND enabled) t ON true
       LEFT JOIN json_each_text(CAST(:jobs AS json)) AS x ON t.name IS NOT NULL
 WHERE NOT EXISTS (SELECT FROM perdure.job WHERE id = CAST(:first AS uuid));

-- name: insert_keys
-- differs: how a JSON array becomes rows.
INSERT INTO perdure.key (task, tenant, key, job, request)
SELECT x.task, coalesce(x.tenant, ''), x.idempotency_key, x.id, CAST(x.request AS json)
  FROM json_to_recordset(CAST(:jobs AS json)) AS x (
       task text, tenant text, idempotency_key text, id uuid, request text)
    ON CONFLICT DO NOTHING
RETURNING job;

-- name: sync_tasks
-- differs: how a JSON array becomes rows.
INSERT INTO perdure.task (name, queue, priority, max_attempts, timeout, backoff, max_crashes, redact,
                          concurrency, concurrency_scope, keyed, cancels_running, limits, synced_at)
SELECT x.name, x.queue, x.priority, x.max_attempts, x.timeout, CAST(x.backoff AS json), x.max_crashes,
       CAST(x.redact AS json), x.concurrency, x.concurrency_scope, x.keyed, x.cancels_running, CAST(x.limits AS json), :now
  FROM json_to_recordset(CAST(:tasks AS json)) AS x (
       name text, queue text, priority smallint, max_attempts integer, timeout bigint, backoff text,
       max_crashes integer, redact text, concurrency integer, concurrency_scope text, keyed boolean,
       cancels_running boolean, limits text)
    ON CONFLICT (name) DO UPDATE
   SET queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts,
       timeout = excluded.timeout, backoff = excluded.backoff, max_crashes = excluded.max_crashes,
       redact = excluded.redact, concurrency = excluded.concurrency, concurrency_scope = excluded.concurrency_scope,
       keyed = excluded.keyed, cancels_running = excluded.cancels_running, limits = excluded.limits, synced_at = :now;

-- name: disable_other_tasks
-- differs: how a JSON array becomes rows.
UPDATE perdure.task SET enabled = false
 WHERE enabled AND name NOT IN (SELECT x.name FROM json_to_recordset(CAST(:tasks AS json)) AS x (name text));

-- name: finish_succeeded
-- differs: how a JSON object becomes rows. There is no join: with statistics from a time when nothing ran, the planner
-- would scan the whole table for running jobs.
WITH given AS MATERIALIZED (SELECT CAST(:outcomes AS jsonb) AS outcomes)
UPDATE perdure.job
   SET state = 'succeeded', worker = NULL, finished_at = :now,
       result = CAST((SELECT outcomes FROM given) -> CAST(id AS text) ->> 1 AS json),
       reason = (SELECT outcomes FROM given) -> CAST(id AS text) ->> 2,
       {clear_error}
 WHERE id = ANY (ARRAY(SELECT CAST(jsonb_object_keys(outcomes) AS uuid) FROM given)) AND {lease_holds}
   AND token = CAST((SELECT outcomes FROM given) -> CAST(id AS text) ->> 0 AS integer)
   AND (workflow_id IS NULL OR (SELECT outcomes FROM given) -> CAST(id AS text) ->> 3 IS NOT NULL)
RETURNING CAST(id AS text), token;

-- name: finish_same_result
-- differs: see finish_succeeded. This statement reads the leases once for each row, instead of three times.
WITH given AS MATERIALIZED (SELECT CAST(:leases AS jsonb) AS leases),
done AS (
    UPDATE perdure.job
       SET state = 'succeeded', worker = NULL, finished_at = :now,
           result = as_json(:result), reason = CAST(:reason AS text),
           {clear_error}
     WHERE id = ANY (ARRAY(SELECT CAST(jsonb_object_keys(leases) AS uuid) FROM given)) AND {lease_holds}
       AND token = CAST((SELECT leases FROM given) ->> CAST(id AS text) AS integer) AND workflow_id IS NULL
    RETURNING 1)
SELECT count(*) FROM done;

-- name: lock_running
-- differs: rows are locked in the given order, each found by its primary key: see finish_succeeded. json is returned as
-- text: see lock_job.
SELECT j.id, j.token, j.queue, j.run, j.attempt, j.max_attempts, j.throttles, j.crashes, j.interruptions,
       j.cancel_requested_at IS NOT NULL, j.progress_done, j.progress_total,
       CAST(coalesce(q.backoff, t.backoff) AS text), t.max_crashes, j.stage, j.workflow_id
  FROM json_array_elements(CAST(:leases AS json)) AS x (value) CROSS JOIN LATERAL (
       SELECT * FROM perdure.job
        WHERE id = CAST(x.value ->> 0 AS uuid) AND token = CAST(x.value ->> 1 AS integer) AND {lease_holds}
          FOR UPDATE) j
       LEFT JOIN perdure.task t ON t.name = j.task
       LEFT JOIN perdure.queue q ON q.name = j.queue;

-- name: lock_skipping_locked
-- differs: rows are locked in the given order. Rows that others have locked are skipped.
SELECT j.id, j.token, free.id IS NOT NULL
  FROM json_array_elements(CAST(:leases AS json)) AS x (value) CROSS JOIN LATERAL (
       SELECT id, token FROM perdure.job
        WHERE id = CAST(x.value ->> 0 AS uuid) AND token = CAST(x.value ->> 1 AS integer) AND {lease_holds}
        LIMIT 1) j LEFT JOIN LATERAL (
       SELECT id FROM perdure.job
        WHERE id = j.id AND token = j.token AND {lease_holds}
          FOR UPDATE SKIP LOCKED) free ON true;

-- name: find_orphans
-- differs: locked rows are skipped. Such a row is being finished, or the next sweep finds it. A row is checked again
-- under its lock, because others may have rescued and claimed it. Rows are found by primary key: otherwise ORDER BY would
-- make the planner scan the whole table by id.
SELECT j.id, j.token, j.queue, j.run, j.attempt, j.max_attempts, j.throttles, j.crashes, j.interruptions,
       j.cancel_requested_at IS NOT NULL, j.progress_done, j.progress_total, coalesce(q.backoff, t.backoff), t.max_crashes, j.stage, j.workflow_id
  FROM perdure.job j
       LEFT JOIN perdure.task t ON t.name = j.task
       LEFT JOIN perdure.queue q ON q.name = j.queue
 WHERE j.id = ANY (ARRAY(
           SELECT r.id FROM perdure.job r
            WHERE r.state = 'running'
              AND {worker_is_gone}))
   AND j.id > :after AND j.worker IS NOT NULL
   AND (SELECT {is_live} FROM perdure.worker w WHERE w.id = j.worker) IS NOT TRUE
 ORDER BY j.id
 LIMIT :n
   FOR UPDATE OF j SKIP LOCKED;

-- name: record_attempts
-- differs: how a JSON array becomes rows. Each job is found by its primary key: see finish_succeeded.
INSERT INTO perdure.attempt (job, token, run, attempt, kind, code, message, trace, worker, started_at, finished_at,
                             delay, decided_by)
SELECT j.id, j.token, j.run, j.attempt, x.attempt_kind, x.error_code, x.error_message, x.error_trace, j.worker,
       j.started_at, :now, x.delay, x.decided_by
  FROM json_to_recordset(CAST(:changes AS json)) AS x (
       id uuid, token integer, attempt_kind text, error_code text, error_message text, error_trace text, delay bigint,
       decided_by text) CROSS JOIN LATERAL (
       SELECT * FROM perdure.job WHERE id = x.id AND token = x.token AND {lease_holds} LIMIT 1) j
 WHERE x.attempt_kind IS NOT NULL
    ON CONFLICT (job, token) DO NOTHING;

-- name: apply_changes
-- differs: how a JSON array becomes rows. Each job is found by its primary key: see finish_succeeded.
WITH given AS MATERIALIZED (
    SELECT array_agg(CAST(value ->> 'id' AS uuid)) AS ids, jsonb_object_agg(value ->> 'id', value) AS changes
      FROM json_array_elements(CAST(:changes AS json)) AS x (value))
UPDATE perdure.job
   SET (state, worker, run, attempt, run_at, started_at, finished_at, result, reason, error_kind, error_code,
        error_message, error_trace, throttles, snoozes, crashes, interruptions) = (
       SELECT x.state, NULL, x.run, x.attempt,
              CASE x.state WHEN 'ready' THEN :now + span(x.delay) ELSE job.run_at END,
              CASE x.state WHEN 'ready' THEN NULL ELSE job.started_at END,
              CASE x.state WHEN 'ready' THEN NULL ELSE :now END,
              CAST(x.result AS json),
              CASE x.state WHEN 'succeeded' THEN x.reason ELSE coalesce(x.reason, job.reason) END,
              CASE WHEN x.keep_error THEN job.error_kind ELSE x.error_kind END,
              CASE WHEN x.keep_error THEN job.error_code ELSE x.error_code END,
              CASE WHEN x.keep_error THEN job.error_message ELSE x.error_message END,
              CASE WHEN x.keep_error THEN job.error_trace ELSE x.error_trace END,
              least(job.throttles, 2147483646) + x.throttles, least(job.snoozes, 2147483646) + x.snoozes, x.crashes,
              x.interruptions
         FROM jsonb_to_record((SELECT changes FROM given) -> CAST(job.id AS text)) AS x (
              state text, run integer, attempt integer, delay bigint, result text, reason text, error_kind text,
              error_code text, error_message text, error_trace text, keep_error boolean, throttles integer,
              snoozes integer, crashes integer, interruptions integer))
 WHERE id = ANY (CAST((SELECT ids FROM given) AS uuid[])) AND {lease_holds}
   AND token = CAST((SELECT changes FROM given) -> CAST(id AS text) ->> 'token' AS integer)
RETURNING id;

-- name: save_reports
-- differs: how a JSON array becomes rows. Each job is found by its primary key: see finish_succeeded.
WITH given AS MATERIALIZED (
    SELECT array_agg(CAST(value ->> 'id' AS uuid)) AS ids, jsonb_object_agg(value ->> 'id', value) AS reports
      FROM json_array_elements(CAST(:reports AS json)) AS x (value))
UPDATE perdure.job
   SET (stage, progress_done, progress_total, progress_message, checkpoint) = (
       SELECT coalesce(x.stage, job.stage), x.done, x.total, coalesce(x.message, job.progress_message),
              coalesce(CAST(x.checkpoint AS json), job.checkpoint)
         FROM jsonb_to_record((SELECT reports FROM given) -> CAST(job.id AS text)) AS x (
              stage text, done bigint, total bigint, message text, checkpoint text))
 WHERE id = ANY (CAST((SELECT ids FROM given) AS uuid[])) AND {lease_holds}
   AND token = CAST((SELECT reports FROM given) -> CAST(id AS text) ->> 'token' AS integer);

-- name: record_events
-- differs: how a JSON array becomes rows.
INSERT INTO perdure.event (job, run, token, kind, at, detail)
SELECT x.id, x.run, x.token, x.kind, :now, CAST(x.detail AS json)
  FROM json_to_recordset(CAST(:events AS json)) AS x (id uuid, run integer, token integer, kind text, detail text);

-- name: record_logs
-- differs: how a JSON array becomes rows.
INSERT INTO perdure.log (job, token, level, message, at)
SELECT x.id, x.token, x.level, x.message, :now
  FROM json_to_recordset(CAST(:logs AS json)) AS x (id uuid, token integer, level text, message text);

-- name: find_outcomes
-- differs: how a JSON array becomes rows. Each job is found by its primary key: see finish_succeeded.
SELECT j.id, j.token, j.state, CASE WHEN j.started_at IS NULL THEN a.kind ELSE j.error_kind END
  FROM json_array_elements(CAST(:leases AS json)) AS x (value) CROSS JOIN LATERAL (
       SELECT * FROM perdure.job
        WHERE id = CAST(x.value ->> 0 AS uuid) AND token = CAST(x.value ->> 1 AS integer) AND worker IS NULL LIMIT 1) j
       LEFT JOIN perdure.attempt a ON a.job = j.id AND a.token = j.token;

-- name: ensure_queues
-- differs: how a JSON array becomes rows.
INSERT INTO perdure.queue (name)
SELECT value FROM json_array_elements_text(CAST(:names AS json)) AS value
    ON CONFLICT DO NOTHING;

-- name: expire_jobs
-- differs: locked rows are skipped. Such a row is being claimed, and the claim sees that the job has expired.
UPDATE perdure.job SET {set_expired}
 WHERE id = ANY (ARRAY(SELECT id FROM perdure.job
                        WHERE state IN ('waiting', 'ready') AND expires_at IS NOT NULL AND expires_at <= :now
                          AND workflow_id IS NULL
                        ORDER BY expires_at LIMIT :n
                          FOR UPDATE SKIP LOCKED))
RETURNING id;

-- name: describe_database
-- differs: the available numbers. The table migration is joined only to find our schema. The age of the oldest snapshot is
-- of interest because a vacuum cannot remove the rows that died after it.
SELECT current_setting('server_version'), pg_database_size(current_database()),
       (SELECT CAST(sum(s.n_dead_tup) AS bigint)
          FROM pg_catalog.pg_stat_all_tables s JOIN pg_catalog.pg_class c ON c.oid = s.relid
         WHERE c.relnamespace IN (SELECT o.relnamespace
                                    FROM perdure.migration m JOIN pg_catalog.pg_class o ON o.oid = m.tableoid)),
       (SELECT CAST(extract(epoch FROM max(statement_timestamp() - a.xact_start)) * numeric '1000000' AS bigint)
          FROM pg_catalog.pg_stat_activity a
         WHERE a.datname = current_database() AND a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid());

-- name: insert_steps
-- differs: how a JSON array becomes rows. A task that is unknown or disabled joins as NULL, which the table refuses. Such
-- a row contains none of the caller's values: see insert_jobs.
INSERT INTO perdure.job (id, task, queue, payload, {each option: COLUMN}, state, priority, max_attempts, timeout, run_at,
                         expires_at, finished_at, reason, workflow_id, step_key, deps_pending, deps_unsatisfied, delay,
                         parent_job, created_at)
SELECT x.id, CASE x.task WHEN '(gate)' THEN x.task ELSE t.name END,
       CASE WHEN t.name IS NOT NULL OR x.task = '(gate)' THEN coalesce(x.queue, t.queue) END,
       CASE WHEN t.name IS NOT NULL OR x.task = '(gate)' THEN CAST(x.payload AS json) END,
       {each option: CASE WHEN t.name IS NOT NULL OR x.task = '(gate)' THEN CAST(x.COLUMN AS TYPE) END},
       coalesce(x.state, 'ready'), coalesce(x.priority, t.priority, 0), coalesce(x.max_attempts, t.max_attempts, 1),
       coalesce(x.timeout, t.timeout),
       CASE WHEN x.state = 'open' THEN :now + coalesce(span(x.timeout), interval '0')
            ELSE coalesce(instant(x.run_at), :now + span(x.delay), :now) END,
       coalesce(instant(x.expires_at), :now + span(x.expires_in)), CASE x.state WHEN 'canceled' THEN :now END,
       CASE WHEN t.name IS NOT NULL OR x.task = '(gate)' THEN x.reason END, x.workflow_id,
       CASE WHEN t.name IS NOT NULL OR x.task = '(gate)' THEN x.step_key END, coalesce(x.pending, 0), coalesce(x.unsatisfied, 0), x.delay, x.parent_job, :now
  FROM json_to_recordset(CAST(:steps AS json)) AS x (
       id uuid, workflow_id uuid, step_key text, task text, queue text, payload text, {each option: COLUMN text},
       priority smallint, max_attempts integer, timeout bigint, run_at bigint, delay bigint, expires_at bigint,
       expires_in bigint, parent_job uuid, state text, pending integer, unsatisfied integer, reason text)
       LEFT JOIN perdure.task t ON t.name = x.task AND t.enabled
    ON CONFLICT DO NOTHING;

-- name: insert_steps_same_options
-- differs: how a JSON object becomes rows: step id -> [key, payload, number of parents]. A value that all steps share is a
-- parameter, so this takes a third of the time of insert_steps.
INSERT INTO perdure.job (id, task, queue, payload, {each option: COLUMN}, state, priority, max_attempts, timeout, run_at,
                         expires_at, workflow_id, step_key, deps_pending, delay, parent_job, created_at)
SELECT CAST(x.key AS uuid), t.name, coalesce(t.given_queue, t.queue), CAST(x.value ->> 1 AS json), {each option: t.COLUMN},
       CASE x.value ->> 2 WHEN '0' THEN 'ready' ELSE 'waiting' END,
       coalesce(CAST(:priority AS smallint), t.priority), coalesce(CAST(:max_attempts AS integer), t.max_attempts),
       coalesce(CAST(:timeout AS bigint), t.timeout), coalesce(instant(:run_at), :now + span(:delay), :now),
       coalesce(instant(:expires_at), :now + span(:expires_in)), CAST(:workflow_id AS uuid), x.value ->> 0,
       CAST(x.value ->> 2 AS integer), CAST(:delay AS bigint), CAST(:parent_job AS uuid), :now
  FROM (SELECT 1) AS one LEFT JOIN (
       SELECT *, CAST(:queue AS text) AS given_queue, {each option: CAST(:COLUMN AS TYPE) AS COLUMN}
         FROM perdure.task WHERE name = :task AND enabled) t ON true
       LEFT JOIN json_each(CAST(:steps AS json)) AS x ON t.name IS NOT NULL
 -- See insert_same_options.
 WHERE NOT EXISTS (SELECT FROM perdure.job WHERE id = CAST(:first AS uuid));

-- name: insert_edges
-- differs: how a JSON object becomes rows: step id -> ids of its parents.
INSERT INTO perdure.dependency (parent, child, mode)
SELECT CAST(p.value AS uuid), CAST(x.key AS uuid), :mode
  FROM json_each(CAST(:edges AS json)) AS x CROSS JOIN LATERAL json_array_elements_text(x.value) AS p (value)
 -- See insert_same_options.
 WHERE NOT EXISTS (SELECT FROM perdure.dependency WHERE parent = CAST(:parent AS uuid) AND child = CAST(:child AS uuid));

-- name: lock_workflows_of
-- differs: rows are locked in the order of their ids. A job never changes its workflow.
SELECT {tally_columns}
  FROM perdure.workflow
 WHERE id = ANY (ARRAY(SELECT j.workflow_id FROM perdure.job j
                        WHERE j.id = ANY (ARRAY(SELECT CAST(x.value ->> 0 AS uuid)
                                                  FROM json_array_elements(CAST(:leases AS json)) AS x (value)))
                          AND j.workflow_id IS NOT NULL))
 ORDER BY id
   FOR UPDATE;

-- name: lock_workflows_skipping_locked
-- differs: rows are locked, except those that others have locked. Returns the jobs whose workflow others have locked.
WITH asked AS MATERIALIZED (
    SELECT j.id, j.workflow_id FROM perdure.job j
     WHERE j.id = ANY (ARRAY(SELECT CAST(x.value ->> 0 AS uuid) FROM json_array_elements(CAST(:leases AS json)) AS x (value)))
       AND j.workflow_id IS NOT NULL),
free AS MATERIALIZED (
    SELECT id FROM perdure.workflow
     WHERE id = ANY (ARRAY(SELECT workflow_id FROM asked))
     ORDER BY id
       FOR UPDATE SKIP LOCKED)
SELECT id FROM asked WHERE workflow_id NOT IN (SELECT id FROM free);

-- name: succeed_steps
-- differs: this combines finish_succeeded, release_steps and settle_workflows, to save a round trip. It works only for
-- workflows in which nothing has failed, because their steps can all still run. Steps of other workflows are left alone.
-- Each row is found by its primary key: see finish_succeeded.
WITH given AS MATERIALIZED (
    SELECT CAST(:outcomes AS jsonb) AS outcomes,
           ARRAY(SELECT id FROM perdure.workflow
                  WHERE id = ANY (ARRAY(SELECT CAST(json_array_elements_text(CAST(:workflows AS json)) AS uuid)))
                    AND spoiled = 0) AS sound),
done AS (
    UPDATE perdure.job
       SET state = 'succeeded', worker = NULL, finished_at = :now,
           result = CAST((SELECT outcomes FROM given) -> CAST(id AS text) ->> 1 AS json),
           reason = (SELECT outcomes FROM given) -> CAST(id AS text) ->> 2,
           {clear_error}
     WHERE id = ANY (ARRAY(SELECT CAST(jsonb_object_keys(outcomes) AS uuid) FROM given)) AND {lease_holds}
       AND token = CAST((SELECT outcomes FROM given) -> CAST(id AS text) ->> 0 AS integer)
       AND (workflow_id IS NULL OR workflow_id = ANY (CAST((SELECT sound FROM given) AS uuid[])))
    RETURNING id, token, workflow_id),
children AS MATERIALIZED (
    SELECT array_agg(child) AS ids, jsonb_object_agg(CAST(child AS text), ended) AS counts
      FROM (SELECT d.child, count(*) AS ended
              FROM done CROSS JOIN LATERAL (SELECT child FROM perdure.dependency WHERE parent = done.id) d
             GROUP BY d.child) edges),
counted AS (
    UPDATE perdure.job
       SET deps_pending = deps_pending - CAST((SELECT counts FROM children) ->> CAST(id AS text) AS integer),
           state = CASE WHEN deps_pending > CAST((SELECT counts FROM children) ->> CAST(id AS text) AS integer) THEN 'waiting'
                        ELSE {released_state} END,
           run_at = CASE WHEN deps_pending > CAST((SELECT counts FROM children) ->> CAST(id AS text) AS integer) THEN run_at
                         ELSE {released_run_at} END
     WHERE id = ANY (CAST((SELECT ids FROM children) AS uuid[])) AND state = 'waiting'
    RETURNING id, workflow_id, state, queue, run_at <= :now AS due),
moved AS MATERIALIZED (
    SELECT workflow_id AS id, CAST(sum(ended) AS integer) AS ended, CAST(sum(released) AS integer) AS released,
           CAST(sum(opened) AS integer) AS opened
      FROM (SELECT workflow_id, 1, 0, 0 FROM done WHERE workflow_id IS NOT NULL
            UNION ALL
            SELECT workflow_id, 0, CAST(state = 'ready' AS integer), CAST(state = 'open' AS integer)
              FROM counted WHERE state <> 'waiting') AS step (workflow_id, ended, released, opened)
     GROUP BY workflow_id),
settled AS (
    UPDATE perdure.workflow
       SET (status, active, waiting, open, finished_at) = (
           SELECT x.status, x.active, x.waiting, x.open,
                  {workflow_finished_at}
             FROM (SELECT CASE WHEN n.active > 0 THEN 'running' WHEN n.open > 0 THEN 'open'
                               WHEN n.waiting > 0 THEN 'running' ELSE 'succeeded' END AS status, n.*
                     FROM (SELECT workflow.active - ended + released AS active,
                                  workflow.waiting - released - opened AS waiting, workflow.open + opened AS open
                             FROM moved WHERE moved.id = workflow.id) n) x)
     WHERE id = ANY (ARRAY(SELECT moved.id FROM moved)))
SELECT CAST(id AS text), token, NULL FROM done
UNION ALL
SELECT CAST(id AS text), NULL, queue FROM counted WHERE state = 'ready' AND due;

-- name: release_steps
-- differs: how a JSON object becomes rows. Each child is found by its primary key: see finish_succeeded. Only steps whose
-- parents have all ended are returned. Counts and times are bounded: values that somebody wrote into a child by hand must
-- not make the outcome of its parent fail.
WITH given AS MATERIALIZED (
    SELECT array_agg(child) AS ids, jsonb_object_agg(CAST(child AS text), jsonb_build_array(ended, spoiled)) AS counts
      FROM (SELECT d.child, count(*) AS ended,
                   count(*) FILTER (WHERE d.mode = 'after' AND parent.succeeded = 'false') AS spoiled
              FROM json_each_text(CAST(:ended AS json)) AS parent (id, succeeded) CROSS JOIN LATERAL (
                   SELECT child, mode FROM perdure.dependency WHERE parent = CAST(parent.id AS uuid)) d
             GROUP BY d.child) edges),
counted AS (
    UPDATE perdure.job
       SET deps_pending = greatest(deps_pending, 0) - CAST((SELECT counts FROM given) -> CAST(id AS text) ->> 0 AS integer),
           deps_unsatisfied = least(deps_unsatisfied, 1000000000) + CAST((SELECT counts FROM given) -> CAST(id AS text) ->> 1 AS integer),
           state = CASE WHEN deps_pending > CAST((SELECT counts FROM given) -> CAST(id AS text) ->> 0 AS integer)
                          OR least(deps_unsatisfied, 1000000000) + CAST((SELECT counts FROM given) -> CAST(id AS text) ->> 1 AS integer) > 0 THEN 'waiting'
                        ELSE {released_state} END,
           run_at = CASE WHEN deps_pending > CAST((SELECT counts FROM given) -> CAST(id AS text) ->> 0 AS integer) THEN run_at
                         ELSE {released_run_at} END
     WHERE id = ANY (CAST((SELECT ids FROM given) AS uuid[])) AND state = 'waiting'
    RETURNING CAST(id AS text) AS id, CAST(workflow_id AS text) AS workflow_id, state, queue, run_at <= :now AS due, deps_pending)
SELECT id, workflow_id, state, queue, due FROM counted WHERE deps_pending = 0;

-- name: list_edges
-- differs: the join order is fixed, and the order of the parents: see list_waiting_edges.
SELECT d.parent, d.child, d.mode
  FROM perdure.job c CROSS JOIN LATERAL (
       SELECT parent, child, mode FROM perdure.dependency WHERE child = c.id ORDER BY parent) d
 WHERE c.workflow_id = :workflow AND c.workflow_id IS NOT NULL;

-- name: list_waiting_edges
-- differs: the join order is fixed, from child to edge to parent. Otherwise, if the rows of a table were just deleted, the
-- planner may expect one row there and try each child with each parent: 5 s for 2,000 steps, and more than the statement
-- timeout for 10,000. Parents are in the order of creation, as in SQLite's index.
SELECT d.child, d.parent, d.mode, p.step_key, p.state
  FROM perdure.job c CROSS JOIN LATERAL (
       SELECT child, parent, mode FROM perdure.dependency WHERE child = c.id ORDER BY parent) d CROSS JOIN LATERAL (
       SELECT step_key, state FROM perdure.job WHERE id = d.parent LIMIT 1) p
 WHERE c.workflow_id = :workflow AND c.workflow_id IS NOT NULL AND c.state = 'waiting';

-- name: settle_steps
-- differs: how a JSON array becomes rows. Each step is found by its primary key: see finish_succeeded.
WITH given AS MATERIALIZED (
    SELECT array_agg(CAST(value ->> 'id' AS uuid)) AS ids, jsonb_object_agg(value ->> 'id', value) AS fates
      FROM json_array_elements(CAST(:fates AS json)) AS x (value))
UPDATE perdure.job
   SET (state, run_at, finished_at, deps_pending, deps_unsatisfied, reason) = (
       SELECT x.state,
              CASE x.state WHEN 'open' THEN {gate_due}
                           WHEN 'ready' THEN {step_due}
                           ELSE job.run_at END,
              CASE x.state WHEN 'canceled' THEN :now END, x.pending, x.unsatisfied, x.reason
         FROM jsonb_to_record((SELECT fates FROM given) -> CAST(job.id AS text)) AS x (
              state text, pending integer, unsatisfied integer, reason text))
 WHERE id = ANY (CAST((SELECT ids FROM given) AS uuid[])) AND state = 'waiting'
RETURNING CAST(workflow_id AS text), state, queue, run_at <= :now;

-- name: settle_workflows
-- differs: how a JSON array becomes rows. Each workflow is found by its primary key: see finish_succeeded.
WITH given AS MATERIALIZED (
    SELECT array_agg(CAST(value ->> 'id' AS uuid)) AS ids, jsonb_object_agg(value ->> 'id', value) AS tallies
      FROM json_array_elements(CAST(:tallies AS json)) AS x (value))
UPDATE perdure.workflow
   SET (status, waiting, active, open, spoiled, total, finished_at) = (
       SELECT x.status, x.waiting, x.active, x.open, x.spoiled, least(workflow.total, 2000000000) + x.added,
              {workflow_finished_at}
         FROM jsonb_to_record((SELECT tallies FROM given) -> CAST(workflow.id AS text)) AS x (
              status text, waiting integer, active integer, open integer, spoiled integer, added integer))
 WHERE id = ANY (CAST((SELECT ids FROM given) AS uuid[]));

-- name: list_ancestors
-- differs: how a JSON array becomes rows.
WITH RECURSIVE up (id) AS (
    SELECT CAST(value AS uuid) FROM json_array_elements_text(CAST(:ids AS json)) AS value
    UNION
    SELECT d.parent FROM up JOIN perdure.dependency d ON d.child = up.id)
SELECT a.step_key FROM perdure.job a WHERE a.id IN (SELECT up.id FROM up);

-- name: read_parents
-- differs: how a JSON array becomes rows, and the order of the parents: see list_waiting_edges. Returns up to :n parents
-- of each child, after the id :after. Results are included as long as those of one child take at most :bytes.
SELECT x.child, p.step_key, p.task, p.state, p.reason, d.parent, p.run, p.token, p.size,
       CASE WHEN sum(p.size) OVER (PARTITION BY x.child ORDER BY d.parent) <= CAST(:bytes AS bigint) THEN p.result END
  FROM json_array_elements_text(CAST(:children AS json)) AS x (child) CROSS JOIN LATERAL (
       SELECT parent FROM perdure.dependency
        WHERE child = CAST(x.child AS uuid) AND parent > CAST(:after AS uuid) ORDER BY parent LIMIT :n) d CROSS JOIN LATERAL (
       SELECT step_key, task, state, reason, run, token, octet_length(CAST(result AS text)) AS size, result
         FROM perdure.job WHERE id = d.parent LIMIT 1) p
 ORDER BY x.child, d.parent;

-- name: find_parents
-- differs: how a JSON array becomes rows. Results are included as in read_parents.
SELECT p.step_key, p.task, p.state, p.reason, p.id, p.run, p.token, p.size,
       CASE WHEN sum(p.size) OVER (ORDER BY p.id) <= CAST(:bytes AS bigint) THEN p.result END
  FROM json_array_elements_text(CAST(:keys AS json)) AS x (key) CROSS JOIN LATERAL (
       SELECT step_key, task, state, reason, id, run, token, octet_length(CAST(result AS text)) AS size, result
         FROM perdure.job
        WHERE workflow_id = :workflow AND step_key = x.key AND workflow_id IS NOT NULL LIMIT 1) p
 WHERE EXISTS (SELECT FROM perdure.dependency d WHERE d.parent = p.id AND d.child = :id);

-- name: find_ancestors
-- differs: how a JSON array becomes rows. One walk serves all keys. Results are included as in read_parents.
WITH RECURSIVE up (id) AS (
    SELECT parent FROM perdure.dependency WHERE child = :id
    UNION
    SELECT d.parent FROM up JOIN perdure.dependency d ON d.child = up.id)
SELECT p.step_key, p.task, p.state, p.reason, p.id, p.run, p.token, p.size,
       CASE WHEN sum(p.size) OVER (ORDER BY p.id) <= CAST(:bytes AS bigint) THEN p.result END
  FROM json_array_elements_text(CAST(:keys AS json)) AS x (key) CROSS JOIN LATERAL (
       SELECT step_key, task, state, reason, id, run, token, octet_length(CAST(result AS text)) AS size, result
         FROM perdure.job
        WHERE workflow_id = :workflow AND step_key = x.key AND workflow_id IS NOT NULL LIMIT 1) p
 WHERE p.id IN (SELECT up.id FROM up);

-- name: record_requeues
-- differs: how a JSON array becomes rows, and how columns become JSON.
INSERT INTO perdure.event (job, run, token, kind, at, detail)
SELECT id, run, token, 'requeued', :now,
       json_strip_nulls(json_build_object(
           'reason', CAST(:reason AS text), 'by', CAST(:by AS text), 'was', state, 'because', reason,
           'checkpoint', CASE CAST(:keep_checkpoint AS integer) WHEN 0 THEN CAST(checkpoint AS text) END,
           'result', CAST(result AS text)))
  FROM perdure.job
 WHERE id IN ids(:ids);

-- name: requeue_steps
-- differs: how a JSON array becomes rows. Each step is found by its primary key: see finish_succeeded.
WITH given AS MATERIALIZED (
    SELECT array_agg(CAST(value ->> 'id' AS uuid)) AS ids, jsonb_object_agg(value ->> 'id', value) AS fates
      FROM json_array_elements(CAST(:fates AS json)) AS x (value))
UPDATE perdure.job
   SET {reset_for_requeue}, checkpoint = NULL,
       (state, run_at, deps_pending, deps_unsatisfied) = (
       SELECT x.state, CASE x.state WHEN 'open' THEN {gate_due} ELSE :now END,
              x.pending, x.unsatisfied
         FROM jsonb_to_record((SELECT fates FROM given) -> CAST(job.id AS text)) AS x (
              state text, pending integer, unsatisfied integer))
 WHERE id = ANY (CAST((SELECT ids FROM given) AS uuid[])) AND state IN ('succeeded', 'failed', 'canceled')
RETURNING state, queue;

-- name: find_jobs
-- differs: how JSON is read. The statement is planned for its actual parameters, so that only the branch for :through is
-- left. OFFSET 0 fences a branch off from ORDER BY, which would otherwise make the planner scan the whole table by id.
-- The last row shows where the range ended.
WITH looked AS MATERIALIZED (
    (SELECT id FROM perdure.job
      WHERE CAST(:through AS text) = 'id' AND id < :before ORDER BY id DESC LIMIT CAST(:length AS bigint))
    UNION ALL
    (SELECT id FROM (SELECT id FROM perdure.job
                      WHERE CAST(:through AS text) = 'claim' AND state = 'ready' AND held IS NULL AND run_at > :now
                     UNION ALL
                     SELECT id FROM perdure.job
                      WHERE CAST(:through AS text) = 'claim' AND state = 'ready' AND held = 'later' AND run_at > :now
                     OFFSET 0) later
      WHERE id < :before ORDER BY id DESC LIMIT CAST(:length AS bigint))
    UNION ALL
    (SELECT id FROM (SELECT id FROM perdure.job
                      WHERE CAST(:through AS text) = 'running' AND state = 'running' OFFSET 0) running
      WHERE id < :before ORDER BY id DESC LIMIT CAST(:length AS bigint))
    UNION ALL
    (SELECT job FROM perdure.key
      WHERE CAST(:through AS text) = 'key' AND key = CAST(:idempotency_key AS text) AND job < :before
      ORDER BY job DESC LIMIT CAST(:length AS bigint))),
found AS (
    SELECT j.id, j.state, j.workflow_id
      FROM perdure.job j
     WHERE j.id = ANY (ARRAY(SELECT id FROM looked))
       AND {fits_filter}
     ORDER BY j.id DESC
     LIMIT CAST(:n AS bigint))
SELECT id, state, workflow_id FROM found
UNION ALL
(SELECT id, NULL, NULL FROM looked
  WHERE (SELECT count(*) FROM looked) = CAST(:length AS bigint)
  ORDER BY id LIMIT 1);

-- name: lock_jobs
-- differs: rows are locked in the given order. For rows that others have locked, only the id is returned.
SELECT j.id, free.id IS NOT NULL, free.state, free.run_at <= :now, free.held, free.error_kind, free.error_code,
       free.finished_at, free.run, free.token, free.worker, free.unique_key, free.task, coalesce(free.tenant, ''),
       free.workflow_id
  FROM json_array_elements_text(CAST(:ids AS json)) AS x (value) CROSS JOIN LATERAL (
       SELECT id FROM perdure.job WHERE id = CAST(x.value AS uuid) LIMIT 1) j LEFT JOIN LATERAL (
       SELECT * FROM perdure.job WHERE id = j.id FOR UPDATE SKIP LOCKED) free ON true;

-- name: expire_key_holders
-- differs: how a JSON array becomes rows. Like expire_active, for the jobs that have the unique keys of these jobs.
UPDATE perdure.job SET {set_expired}
 WHERE id = ANY (ARRAY(
           SELECT holder.id
             FROM json_array_elements_text(CAST(:ids AS json)) AS x (value) CROSS JOIN LATERAL (
                  SELECT task, tenant, unique_key FROM perdure.job WHERE id = CAST(x.value AS uuid) LIMIT 1) j
                  CROSS JOIN LATERAL (
                  SELECT id FROM perdure.job
                   WHERE task = j.task AND coalesce(tenant, '') = coalesce(j.tenant, '') AND unique_key = j.unique_key
                     AND unique_key IS NOT NULL AND state IN ('waiting', 'ready', 'running', 'open')
                     AND expires_at <= :now LIMIT 1) holder))
   -- coalesce() keeps the planner from using the index job_expires: it would read all expired jobs.
   AND state IN ('waiting', 'ready') AND coalesce(expires_at <= :now, false);

-- name: find_taken_keys
-- differs: how a JSON array becomes rows. Returns the given jobs whose unique key an active job has.
SELECT CAST(j.id AS text)
  FROM json_array_elements_text(CAST(:ids AS json)) AS x (value) CROSS JOIN LATERAL (
       SELECT id, task, tenant, unique_key FROM perdure.job WHERE id = CAST(x.value AS uuid) LIMIT 1) j CROSS JOIN LATERAL (
       SELECT 1 FROM perdure.job
        WHERE task = j.task AND coalesce(tenant, '') = coalesce(j.tenant, '') AND unique_key = j.unique_key
          AND unique_key IS NOT NULL AND state IN ('waiting', 'ready', 'running', 'open') LIMIT 1) holder;
