-- The statements that PostgreSQL needs in another form, or not at all, in the order of postgres.sql. "differs" says why.

-- fragment: has_tag
EXISTS (SELECT 1 FROM json_each(CASE WHEN json_valid(j.tags) THEN j.tags END) tag WHERE tag.value = :tag)

-- fragment: has_text
(instr(j.payload, :text) > 0 OR instr(j.payload, :escaped) > 0)

-- fragment: next_token
token + 1

-- fragment: asked_queues
-- The named queues, in their order. If none are named, all queues with ready jobs: one index lookup for each.
every(queue) AS (
    SELECT '' WHERE :queues IS NULL
    UNION ALL
    SELECT (SELECT j.queue FROM perdure.job j
             WHERE j.state = 'ready' AND j.held IS NULL AND j.queue > every.queue
             ORDER BY j.queue LIMIT 1)
      FROM every WHERE every.queue IS NOT NULL),
asked(queue, rank) AS (
    SELECT queue, 0 FROM every WHERE queue <> ''
    UNION ALL
    SELECT value, key FROM json_each(coalesce(:queues, '[]')))

-- fragment: names_of_limits
json_each(t.limits) given

-- name: claim_jobs
-- differs: there is one writer at a time, so nothing needs to be locked or skipped. SQLite has no LATERAL, so the first
-- rows of a queue and priority are passed on as a JSON array.
WITH RECURSIVE
{asked_queues},
head (queue, rank, priority, ids, above) AS (
    -- Go down the priorities of each queue, from above the highest, until there are enough jobs.
    SELECT queue, rank, 32768, '[]', 0 FROM asked
     WHERE {asked_queue_is_claimable}
    UNION ALL
    SELECT head.queue, head.rank, next.priority, coalesce(
           -- The first jobs in order. If they include a task that this worker does not know: the first jobs of each
           -- known task.
           (SELECT CASE WHEN max(due.task NOT IN texts(:tasks)) THEN NULL
                        ELSE json_group_array(due.rowid) END
              FROM (SELECT j.rowid, j.task FROM perdure.job j INDEXED BY perdure.job_claim
                     WHERE j.state = 'ready' AND j.held IS NULL
                       AND j.queue = head.queue AND j.priority = next.priority AND j.run_at <= :now
                     ORDER BY j.run_at, j.id LIMIT :n) due),
           (SELECT json_group_array(row.value) FROM json_each(:tasks) known, json_each((
                   SELECT json_group_array(due.rowid)
                     FROM (SELECT j.rowid FROM perdure.job j INDEXED BY perdure.job_claim_task
                            WHERE j.state = 'ready' AND j.held IS NULL
                              AND j.queue = head.queue AND j.priority = next.priority
                              AND j.task = known.value AND j.run_at <= :now
                            ORDER BY j.run_at, j.id LIMIT :n) due)) row)),
           head.above + json_array_length(head.ids)
      FROM head CROSS JOIN perdure.job next ON next.rowid = (
           SELECT j.rowid FROM perdure.job j INDEXED BY perdure.job_claim
            WHERE j.state = 'ready' AND j.held IS NULL AND j.queue = head.queue AND j.priority < head.priority
            ORDER BY j.priority DESC LIMIT 1)
     WHERE head.above + json_array_length(head.ids) < :n)
UPDATE perdure.job
   SET {set_claimed_or_expired}
 WHERE rowid IN (SELECT j.rowid FROM head CROSS JOIN json_each(head.ids) row CROSS JOIN perdure.job j ON j.rowid = row.value
                  ORDER BY head.rank, head.priority DESC, j.run_at, j.id LIMIT :n)
   AND {not_left_to_sweeper}
RETURNING id, token, attempt, {claimed_columns}, state;

-- name: count_limited
-- differs: the index finds the jobs that run.
-- The running jobs of limited tasks and queues, except those that are about to end.
SELECT queue, task, concurrency_key, count(*)
  FROM perdure.job INDEXED BY perdure.job_running
 WHERE state = 'running' AND (task IN texts(:limited_tasks) OR queue IN texts(:limited_queues)) AND id NOT IN ids(:ended)
 GROUP BY 1, 2, 3;

-- name: find_limited
-- differs: no LATERAL, so the first rows of a group are passed on as a JSON array.
-- The first due jobs of each limited task, and in limited queues of each task, in each queue and priority.
WITH RECURSIVE
{asked_queues},
grp (queue, rank, priority) AS (
    SELECT queue, rank, 32768 FROM asked
     WHERE {asked_queue_is_open}
    UNION ALL
    SELECT grp.queue, grp.rank, (SELECT j.priority FROM perdure.job j INDEXED BY perdure.job_claim
                                  WHERE j.state = 'ready' AND j.held IS NULL
                                    AND j.queue = grp.queue AND j.priority < grp.priority
                                  ORDER BY j.priority DESC LIMIT 1)
      FROM grp WHERE grp.priority IS NOT NULL)
SELECT j.id, grp.rank, j.priority, j.run_at, j.queue, j.task, j.concurrency_key
  FROM grp CROSS JOIN json_each(:tasks) known CROSS JOIN json_each((
       SELECT json_group_array(due.rowid)
         FROM (SELECT j.rowid FROM perdure.job j INDEXED BY perdure.job_claim_task
                WHERE j.state = 'ready' AND j.held IS NULL
                  AND j.queue = grp.queue AND j.priority = grp.priority AND j.task = known.value AND j.run_at <= :now
                  AND {not_expired}
                ORDER BY j.run_at, j.id LIMIT :n) due)) row CROSS JOIN perdure.job j ON j.rowid = row.value
 WHERE grp.priority < 32768 AND (known.value IN texts(:limited_tasks) OR grp.queue IN texts(:limited_queues));

-- name: find_by_key
-- differs: no LATERAL.
-- The first due jobs of each concurrency key of a task, in one queue and priority. A key that is full, or has no due job,
-- gives one row without a job. So :n also bounds how many keys are looked at. The CASE keeps SQLite from testing whether a
-- key is full for each of its jobs.
WITH RECURSIVE
every AS (
    SELECT (SELECT j.concurrency_key FROM perdure.job j INDEXED BY perdure.job_claim_key
             WHERE j.state = 'ready' AND j.held IS NULL AND j.queue = :queue AND j.priority = :priority AND j.task = :task
               AND j.concurrency_key IS NOT NULL AND j.concurrency_key >= :after
             ORDER BY j.concurrency_key LIMIT 1) AS key
    UNION ALL
    SELECT (SELECT j.concurrency_key FROM perdure.job j INDEXED BY perdure.job_claim_key
             WHERE j.state = 'ready' AND j.held IS NULL AND j.queue = :queue AND j.priority = :priority AND j.task = :task
               AND j.concurrency_key IS NOT NULL AND j.concurrency_key > every.key
             ORDER BY j.concurrency_key LIMIT 1)
      FROM every WHERE every.key IS NOT NULL)
SELECT j.id, j.run_at, every.key
  FROM every LEFT JOIN json_each(CASE WHEN every.key NOT IN texts(:full) THEN (
       SELECT json_group_array(due.rowid)
         FROM (SELECT j.rowid FROM perdure.job j INDEXED BY perdure.job_claim_key
                WHERE j.state = 'ready' AND j.held IS NULL AND j.queue = :queue AND j.priority = :priority AND j.task = :task
                  AND j.concurrency_key IS NOT NULL AND j.concurrency_key = every.key AND j.run_at <= :now
                  AND {not_expired}
                ORDER BY j.run_at, j.id LIMIT :each) due) END) row ON true LEFT JOIN perdure.job j ON j.rowid = row.value
 WHERE every.key IS NOT NULL
 LIMIT :n;

-- name: claim_limited
-- differs: nothing to lock.
-- The jobs are in the order of their ids in the array. Those after the first :n are spare: they are claimed only in place
-- of others.
WITH
chosen AS MATERIALIZED (
    SELECT j.id, asked.key + 1 AS rank, j.queue, j.task, j.concurrency_key
      FROM json_each(:ids) asked CROSS JOIN perdure.job j ON j.id = asked.value
     WHERE j.state = 'ready' AND j.held IS NULL AND j.run_at <= :now AND (j.expires_at IS NULL OR j.expires_at > :now)
       AND NOT EXISTS (SELECT 1 FROM perdure.queue q WHERE q.name = j.queue AND {queue_is_closed})
       AND {worker_may_claim}
     ORDER BY asked.key LIMIT :n),
counted AS (
    SELECT NULL AS id, 0 AS rank, queue, task, concurrency_key, count(*) AS n
      FROM perdure.job INDEXED BY perdure.job_running WHERE state = 'running'
     GROUP BY queue, task, concurrency_key
    UNION ALL
    SELECT id, rank, queue, task, concurrency_key, 1 FROM chosen),
{beyond_limits}
UPDATE perdure.job
   SET {set_claimed}
 WHERE id IN (SELECT id FROM chosen EXCEPT SELECT id FROM beyond)
RETURNING id, token, attempt, {claimed_columns}, state;

-- name: set_aside
-- differs: there is no LATERAL, and nothing to lock.
-- Looks at each priority of the given queues. If nothing is due soon in a priority, its jobs are set aside and leave the
-- claim's index. But nothing is done unless there are more than :few such priorities.
WITH RECURSIVE
head (queue, priority, run_at) AS (
    SELECT value, 32768, NULL FROM json_each(:queues)
    UNION ALL
    SELECT next.queue, next.priority, next.run_at
      FROM head CROSS JOIN perdure.job next ON next.rowid = (
           SELECT j.rowid FROM perdure.job j INDEXED BY perdure.job_claim
            WHERE j.state = 'ready' AND j.held IS NULL AND j.queue = head.queue AND j.priority < head.priority
            ORDER BY j.priority DESC, j.run_at, j.id LIMIT 1)),
idle AS MATERIALIZED (
    SELECT queue, priority FROM head WHERE run_at > :now + span(:ahead))
UPDATE perdure.job SET held = 'later'
 WHERE rowid IN (
       SELECT j.rowid
         FROM idle CROSS JOIN perdure.job j INDEXED BY perdure.job_claim
           ON j.state = 'ready' AND j.held IS NULL AND j.queue = idle.queue AND j.priority = idle.priority
          AND j.run_at > :now + span(:ahead)
        WHERE (SELECT count(*) FROM idle) > :few
        LIMIT :n)
RETURNING 1;

-- name: hold_damaged
-- differs: how a JSON array becomes rows, and the bounds of counters. The connection itself limits the size of values.
UPDATE perdure.job
   SET held = 'unclaimable',
       reason = CASE
           WHEN token >= 9223372036854775807 THEN 'Its token is ' || CAST(token AS text) || ', and a claim adds 1.'
           ELSE 'Its attempt is ' || CAST(attempt AS text) || ', and a claim adds 1.' END
 WHERE id IN ids(:ids) AND state = 'ready' AND held IS NULL
   AND (token >= 9223372036854775807 OR attempt >= 9223372036854775807)
RETURNING id, reason;

-- name: insert_jobs
-- differs: how a JSON array becomes rows. A task that is unknown or disabled joins as NULL, which the table refuses.
INSERT INTO perdure.job (id, task, queue, payload, {each option: COLUMN}, state, priority, max_attempts, timeout, run_at,
                         expires_at, unique_key, parent_job, created_at)
SELECT x.value ->> 'id', t.name, coalesce(x.value ->> 'queue', t.queue), x.value ->> 'payload',
       {each option: x.value ->> 'COLUMN'}, 'ready', coalesce(x.value ->> 'priority', t.priority),
       coalesce(x.value ->> 'max_attempts', t.max_attempts), coalesce(x.value ->> 'timeout', t.timeout),
       coalesce(x.value ->> 'run_at', :now + coalesce(x.value ->> 'delay', 0)),
       coalesce(x.value ->> 'expires_at', :now + (x.value ->> 'expires_in')),
       x.value ->> 'unique_key', x.value ->> 'parent_job', :now
  FROM json_each(:jobs) x LEFT JOIN perdure.task t ON t.name = x.value ->> 'task' AND t.enabled
 WHERE true
    ON CONFLICT DO NOTHING
RETURNING id, queue, run_at <= :now;

-- name: insert_same_options
-- differs: how a JSON object becomes rows. To check the first job would put all of them into a temporary table, while ON
-- CONFLICT costs nothing.
INSERT INTO perdure.job (id, task, queue, payload, {each option: COLUMN}, state, priority, max_attempts, timeout, run_at,
                         expires_at, created_at)
SELECT x.key, t.name, coalesce(:queue, t.queue), x.value, {each option: :COLUMN}, 'ready',
       coalesce(:priority, t.priority), coalesce(:max_attempts, t.max_attempts), coalesce(:timeout, t.timeout),
       :now + coalesce(:delay, 0), coalesce(:expires_at, :now + :expires_in), :now
  FROM (SELECT 1) LEFT JOIN perdure.task t ON t.name = :task AND t.enabled CROSS JOIN json_each(:jobs) x
 WHERE :first IS NOT NULL
    ON CONFLICT DO NOTHING;

-- name: insert_keys
-- differs: how a JSON array becomes rows.
INSERT INTO perdure.key (task, tenant, key, job, request)
SELECT value ->> 'task', coalesce(value ->> 'tenant', ''), value ->> 'idempotency_key', value ->> 'id', value ->> 'request'
  FROM json_each(:jobs)
 WHERE true
    ON CONFLICT DO NOTHING
RETURNING job;

-- name: sync_tasks
-- differs: how a JSON array becomes rows.
INSERT INTO perdure.task (name, queue, priority, max_attempts, timeout, backoff, max_crashes, redact,
                          concurrency, concurrency_scope, keyed, cancels_running, limits, synced_at)
SELECT value ->> 'name', value ->> 'queue', value ->> 'priority', value ->> 'max_attempts', value ->> 'timeout',
       value ->> 'backoff', value ->> 'max_crashes', value ->> 'redact',
       value ->> 'concurrency', value ->> 'concurrency_scope', value ->> 'keyed', value ->> 'cancels_running',
       value ->> 'limits', :now
  FROM json_each(:tasks)
 WHERE true
    ON CONFLICT (name) DO UPDATE
   SET queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts,
       timeout = excluded.timeout, backoff = excluded.backoff, max_crashes = excluded.max_crashes,
       redact = excluded.redact, concurrency = excluded.concurrency, concurrency_scope = excluded.concurrency_scope,
       keyed = excluded.keyed, cancels_running = excluded.cancels_running, limits = excluded.limits, synced_at = :now;

-- name: disable_other_tasks
-- differs: how a JSON array becomes rows.
UPDATE perdure.task SET enabled = 0
 WHERE enabled AND name NOT IN (SELECT value ->> 'name' FROM json_each(:tasks));

-- name: finish_succeeded
-- differs: how a JSON object becomes rows.
UPDATE perdure.job AS job
   SET state = 'succeeded', worker = NULL, finished_at = :now, result = x.value ->> 1, reason = x.value ->> 2,
       {clear_error}
  FROM json_each(:outcomes) x
 WHERE job.id = x.key AND job.token = x.value ->> 0 AND {lease_holds}
   AND (job.workflow_id IS NULL OR x.value ->> 3 IS NOT NULL)
RETURNING id, token;

-- name: finish_same_result
-- differs: how a JSON object becomes rows. SQLite itself counts the changed rows: RETURNING would take a sixth of the
-- statement's time.
UPDATE perdure.job AS job
   SET state = 'succeeded', worker = NULL, finished_at = :now, result = :result, reason = :reason,
       {clear_error}
  FROM json_each(:leases) x
 WHERE job.id = x.key AND job.token = x.value AND {lease_holds} AND job.workflow_id IS NULL;

-- name: lock_running
-- differs: there are no row locks. The write transaction is the lock.
SELECT j.id, j.token, j.queue, j.run, j.attempt, j.max_attempts, j.throttles, j.crashes, j.interruptions,
       j.cancel_requested_at IS NOT NULL, j.progress_done, j.progress_total, coalesce(q.backoff, t.backoff), t.max_crashes, j.stage, j.workflow_id
  FROM json_each(:leases) x
       CROSS JOIN perdure.job j ON j.id = x.value ->> 0 AND j.token = x.value ->> 1 AND {lease_holds}
       LEFT JOIN perdure.task t ON t.name = j.task
       LEFT JOIN perdure.queue q ON q.name = j.queue;

-- name: lock_skipping_locked
-- differs: there are no row locks to skip. The write transaction is the only lock.
SELECT j.id, j.token, 1
  FROM json_each(:leases) x
       CROSS JOIN perdure.job j ON j.id = x.value ->> 0 AND j.token = x.value ->> 1 AND {lease_holds};

-- name: find_orphans
-- differs: there is one writer at a time, so there are no locked rows to skip. The index must be named: otherwise ORDER BY
-- would make SQLite scan the whole table by id.
SELECT j.id, j.token, j.queue, j.run, j.attempt, j.max_attempts, j.throttles, j.crashes, j.interruptions,
       j.cancel_requested_at IS NOT NULL, j.progress_done, j.progress_total, coalesce(q.backoff, t.backoff), t.max_crashes, j.stage, j.workflow_id
  FROM perdure.job j INDEXED BY perdure.job_running
       LEFT JOIN perdure.task t ON t.name = j.task
       LEFT JOIN perdure.queue q ON q.name = j.queue
 WHERE j.state = 'running' AND j.id > :after
   AND {worker_is_gone}
 ORDER BY j.id
 LIMIT :n;

-- name: record_attempts
-- differs: how a JSON array becomes rows.
INSERT INTO perdure.attempt (job, token, run, attempt, kind, code, message, trace, worker, started_at, finished_at,
                             delay, decided_by)
SELECT j.id, j.token, j.run, j.attempt, x.value ->> 'attempt_kind', x.value ->> 'error_code', x.value ->> 'error_message',
       x.value ->> 'error_trace', j.worker, j.started_at, :now, x.value ->> 'delay', x.value ->> 'decided_by'
  FROM json_each(:changes) x
       CROSS JOIN perdure.job j ON j.id = x.value ->> 'id' AND j.token = x.value ->> 'token' AND {lease_holds}
 WHERE x.value ->> 'attempt_kind' IS NOT NULL
    ON CONFLICT (job, token) DO NOTHING;

-- name: apply_changes
-- differs: how a JSON array becomes rows.
UPDATE perdure.job AS job
   SET state = x.value ->> 'state', worker = NULL, run = x.value ->> 'run', attempt = x.value ->> 'attempt',
       run_at = CASE x.value ->> 'state' WHEN 'ready' THEN :now + (x.value ->> 'delay') ELSE job.run_at END,
       started_at = CASE x.value ->> 'state' WHEN 'ready' THEN NULL ELSE job.started_at END,
       finished_at = CASE x.value ->> 'state' WHEN 'ready' THEN NULL ELSE :now END,
       result = x.value ->> 'result',
       reason = CASE x.value ->> 'state' WHEN 'succeeded' THEN x.value ->> 'reason' ELSE coalesce(x.value ->> 'reason', job.reason) END,
       error_kind = CASE WHEN x.value ->> 'keep_error' THEN job.error_kind ELSE x.value ->> 'error_kind' END,
       error_code = CASE WHEN x.value ->> 'keep_error' THEN job.error_code ELSE x.value ->> 'error_code' END,
       error_message = CASE WHEN x.value ->> 'keep_error' THEN job.error_message ELSE x.value ->> 'error_message' END,
       error_trace = CASE WHEN x.value ->> 'keep_error' THEN job.error_trace ELSE x.value ->> 'error_trace' END,
       throttles = least(job.throttles, 2147483646) + (x.value ->> 'throttles'),
       snoozes = least(job.snoozes, 2147483646) + (x.value ->> 'snoozes'),
       crashes = x.value ->> 'crashes', interruptions = x.value ->> 'interruptions'
  FROM json_each(:changes) x
 WHERE job.id = x.value ->> 'id' AND job.token = x.value ->> 'token' AND {lease_holds}
RETURNING id;

-- name: save_reports
-- differs: how a JSON array becomes rows.
UPDATE perdure.job AS job
   SET stage = coalesce(x.value ->> 'stage', job.stage), progress_done = x.value ->> 'done', progress_total = x.value ->> 'total',
       progress_message = coalesce(x.value ->> 'message', job.progress_message),
       checkpoint = coalesce(x.value ->> 'checkpoint', job.checkpoint)
  FROM json_each(:reports) x
 WHERE job.id = x.value ->> 'id' AND job.token = x.value ->> 'token' AND {lease_holds};

-- name: record_events
-- differs: how a JSON array becomes rows.
INSERT INTO perdure.event (job, run, token, kind, at, detail)
SELECT value ->> 'id', value ->> 'run', value ->> 'token', value ->> 'kind', :now, value ->> 'detail'
  FROM json_each(:events);

-- name: record_logs
-- differs: how a JSON array becomes rows.
INSERT INTO perdure.log (job, token, level, message, at)
SELECT value ->> 'id', value ->> 'token', value ->> 'level', value ->> 'message', :now
  FROM json_each(:logs);

-- name: find_outcomes
-- differs: how a JSON array becomes rows.
SELECT j.id, j.token, j.state, CASE WHEN j.started_at IS NULL THEN a.kind ELSE j.error_kind END
  FROM json_each(:leases) x
       CROSS JOIN perdure.job j ON j.id = x.value ->> 0 AND j.token = x.value ->> 1 AND j.worker IS NULL
       LEFT JOIN perdure.attempt a ON a.job = j.id AND a.token = j.token;

-- name: ensure_queues
-- differs: how a JSON array becomes rows.
INSERT INTO perdure.queue (name)
SELECT value FROM json_each(:names)
 WHERE true
    ON CONFLICT DO NOTHING;

-- name: expire_jobs
-- differs: there are no locked rows to skip.
UPDATE perdure.job SET {set_expired}
 WHERE rowid IN (SELECT rowid FROM perdure.job
                  WHERE state IN ('waiting', 'ready') AND expires_at IS NOT NULL AND expires_at <= :now
                    AND workflow_id IS NULL
                  ORDER BY expires_at LIMIT :n)
RETURNING id;

-- name: describe_database
-- differs: the available numbers. There is one file and no server. The store itself reads the size of the WAL.
SELECT sqlite_version(), page_count * page_size, NULL, NULL
  FROM pragma_page_count(), pragma_page_size();

-- name: insert_steps
-- differs: how a JSON array becomes rows. A task that is unknown or disabled joins as NULL, which the table refuses.
INSERT INTO perdure.job (id, task, queue, payload, {each option: COLUMN}, state, priority, max_attempts, timeout, run_at,
                         expires_at, finished_at, reason, workflow_id, step_key, deps_pending, deps_unsatisfied, delay,
                         parent_job, created_at)
SELECT x.value ->> 'id', CASE x.value ->> 'task' WHEN '(gate)' THEN '(gate)' ELSE t.name END,
       coalesce(x.value ->> 'queue', t.queue), x.value ->> 'payload', {each option: x.value ->> 'COLUMN'},
       coalesce(x.value ->> 'state', 'ready'), coalesce(x.value ->> 'priority', t.priority, 0),
       coalesce(x.value ->> 'max_attempts', t.max_attempts, 1), coalesce(x.value ->> 'timeout', t.timeout),
       CASE WHEN x.value ->> 'state' = 'open' THEN :now + coalesce(x.value ->> 'timeout', 0)
            ELSE coalesce(x.value ->> 'run_at', :now + coalesce(x.value ->> 'delay', 0)) END,
       coalesce(x.value ->> 'expires_at', :now + (x.value ->> 'expires_in')),
       CASE x.value ->> 'state' WHEN 'canceled' THEN :now END, x.value ->> 'reason', x.value ->> 'workflow_id',
       x.value ->> 'step_key', coalesce(x.value ->> 'pending', 0), coalesce(x.value ->> 'unsatisfied', 0), x.value ->> 'delay',
       x.value ->> 'parent_job', :now
  FROM json_each(:steps) x LEFT JOIN perdure.task t ON t.name = x.value ->> 'task' AND t.enabled
 WHERE true
    ON CONFLICT DO NOTHING;

-- name: insert_steps_same_options
-- differs: how a JSON object becomes rows: step id -> [key, payload, number of parents]. A value that all steps share is a
-- parameter, so this takes a third of the time of insert_steps.
INSERT INTO perdure.job (id, task, queue, payload, {each option: COLUMN}, state, priority, max_attempts, timeout, run_at,
                         expires_at, workflow_id, step_key, deps_pending, delay, parent_job, created_at)
SELECT x.key, t.name, coalesce(:queue, t.queue), x.value ->> 1, {each option: :COLUMN},
       CASE x.value ->> 2 WHEN 0 THEN 'ready' ELSE 'waiting' END, coalesce(:priority, t.priority),
       coalesce(:max_attempts, t.max_attempts), coalesce(:timeout, t.timeout),
       coalesce(:run_at, :now + coalesce(:delay, 0)), coalesce(:expires_at, :now + :expires_in), :workflow_id,
       x.value ->> 0, x.value ->> 2, :delay, :parent_job, :now
  FROM (SELECT 1) LEFT JOIN perdure.task t ON t.name = :task AND t.enabled CROSS JOIN json_each(:steps) x
 WHERE :first IS NOT NULL
    ON CONFLICT DO NOTHING;

-- name: insert_edges
-- differs: how a JSON object becomes rows: step id -> ids of its parents.
INSERT INTO perdure.dependency (parent, child, mode)
SELECT p.value, x.key, :mode
  FROM json_each(:edges) x, json_each(x.value) p
 WHERE :parent <> :child
    ON CONFLICT DO NOTHING;

-- name: lock_workflows_of
-- differs: there are no row locks. The write transaction is the lock.
SELECT {tally_columns}
  FROM perdure.workflow
 WHERE id IN (SELECT j.workflow_id FROM json_each(:leases) x CROSS JOIN perdure.job j ON j.id = x.value ->> 0
               WHERE j.workflow_id IS NOT NULL)
 ORDER BY id;

-- name: count_down
-- differs: how a JSON object becomes rows. On PostgreSQL, release_steps does this, too.
UPDATE perdure.job AS job
   SET deps_pending = greatest(job.deps_pending, 0) - x.ended, deps_unsatisfied = least(job.deps_unsatisfied, 1000000000) + x.spoiled
  FROM (SELECT d.child, count(*) AS ended, sum(d.mode = 'after' AND NOT parent.value) AS spoiled
          FROM json_each(:ended) parent CROSS JOIN perdure.dependency d ON d.parent = parent.key
         GROUP BY d.child) x
 WHERE job.id = x.child AND job.state = 'waiting';

-- name: release_steps
-- differs: how a JSON object becomes rows. count_down has already counted. Only steps whose parents have all ended are
-- returned.
UPDATE perdure.job
   SET state = CASE WHEN deps_unsatisfied > 0 THEN 'waiting' ELSE {released_state} END, run_at = {released_run_at}
 WHERE id IN (SELECT d.child FROM json_each(:ended) parent CROSS JOIN perdure.dependency d ON d.parent = parent.key)
   AND state = 'waiting' AND deps_pending = 0
RETURNING id, workflow_id, state, queue, run_at <= :now;

-- name: list_edges
-- differs: CROSS JOIN fixes the join order.
SELECT d.parent, d.child, d.mode
  FROM perdure.job c CROSS JOIN perdure.dependency d ON d.child = c.id
 WHERE c.workflow_id = :workflow AND c.workflow_id IS NOT NULL;

-- name: list_waiting_edges
-- differs: CROSS JOIN fixes the join order.
SELECT d.child, d.parent, d.mode, p.step_key, p.state
  FROM perdure.job c CROSS JOIN perdure.dependency d ON d.child = c.id CROSS JOIN perdure.job p ON p.id = d.parent
 WHERE c.workflow_id = :workflow AND c.workflow_id IS NOT NULL AND c.state = 'waiting';

-- name: settle_steps
-- differs: how a JSON array becomes rows.
UPDATE perdure.job AS job
   SET state = x.value ->> 'state',
       run_at = CASE x.value ->> 'state' WHEN 'open' THEN {gate_due}
                                         WHEN 'ready' THEN {step_due}
                                         ELSE job.run_at END,
       finished_at = CASE x.value ->> 'state' WHEN 'canceled' THEN :now END,
       deps_pending = x.value ->> 'pending', deps_unsatisfied = x.value ->> 'unsatisfied', reason = x.value ->> 'reason'
  FROM json_each(:fates) x
 WHERE job.id = x.value ->> 'id' AND job.state = 'waiting'
RETURNING workflow_id, state, queue, run_at <= :now;

-- name: settle_workflows
-- differs: how a JSON array becomes rows.
UPDATE perdure.workflow AS workflow
   SET status = x.value ->> 'status', waiting = x.value ->> 'waiting', active = x.value ->> 'active', open = x.value ->> 'open',
       spoiled = x.value ->> 'spoiled', total = least(workflow.total, 2000000000) + (x.value ->> 'added'),
       finished_at = CASE WHEN x.value ->> 'status' IN ('running', 'open') THEN NULL ELSE coalesce(workflow.finished_at, :now) END
  FROM json_each(:tallies) x
 WHERE workflow.id = x.value ->> 'id';

-- name: list_ancestors
-- differs: how a JSON array becomes rows.
WITH RECURSIVE up (id) AS (
    SELECT value FROM json_each(:ids)
    UNION
    SELECT d.parent FROM up JOIN perdure.dependency d ON d.child = up.id)
SELECT a.step_key FROM up CROSS JOIN perdure.job a ON a.id = up.id;

-- name: read_parents
-- differs: how a JSON array becomes rows. There is no LATERAL, so the last parent of each child's page is found first.
-- Returns up to :n parents of each child, after the id :after. Results are included as long as those of one child take at
-- most :bytes. The sizes are summed up without the results, because a window function keeps every column of its input.
WITH asked(child, last) AS MATERIALIZED (
    SELECT x.value, (SELECT d.parent FROM perdure.dependency d WHERE d.child = x.value AND d.parent > :after
                      ORDER BY d.parent LIMIT 1 OFFSET :n - 1)
      FROM json_each(:children) x),
found(child, id, size) AS MATERIALIZED (
    SELECT asked.child, p.id, length(CAST(p.result AS blob))
      FROM asked CROSS JOIN perdure.dependency d ON d.child = asked.child AND d.parent > :after
             AND d.parent <= coalesce(asked.last, 'g') CROSS JOIN perdure.job p ON p.id = d.parent),
summed(child, id, size, total) AS MATERIALIZED (
    SELECT child, id, size, sum(size) OVER (PARTITION BY child ORDER BY id) FROM found)
SELECT f.child, p.step_key, p.task, p.state, p.reason, p.id, p.run, p.token, f.size,
       CASE WHEN f.total <= :bytes THEN p.result END
  FROM summed f CROSS JOIN perdure.job p ON p.id = f.id
 ORDER BY f.child, f.id;

-- name: find_parents
-- differs: how a JSON array becomes rows. Results are included as in read_parents.
WITH found(id, size) AS MATERIALIZED (
    SELECT p.id, length(CAST(p.result AS blob))
      FROM json_each(:keys) x CROSS JOIN perdure.job p
        ON p.workflow_id = :workflow AND p.step_key = x.value AND p.workflow_id IS NOT NULL
     WHERE EXISTS (SELECT 1 FROM perdure.dependency d WHERE d.parent = p.id AND d.child = :id)),
summed(id, size, total) AS MATERIALIZED (SELECT id, size, sum(size) OVER (ORDER BY id) FROM found)
SELECT p.step_key, p.task, p.state, p.reason, p.id, p.run, p.token, f.size, CASE WHEN f.total <= :bytes THEN p.result END
  FROM summed f CROSS JOIN perdure.job p ON p.id = f.id;

-- name: find_ancestors
-- differs: how a JSON array becomes rows. One walk serves all keys. Results are included as in read_parents.
WITH RECURSIVE up(id) AS (
    SELECT parent FROM perdure.dependency WHERE child = :id
    UNION
    SELECT d.parent FROM up JOIN perdure.dependency d ON d.child = up.id),
found(id, size) AS MATERIALIZED (
    SELECT p.id, length(CAST(p.result AS blob))
      FROM json_each(:keys) x CROSS JOIN perdure.job p
        ON p.workflow_id = :workflow AND p.step_key = x.value AND p.workflow_id IS NOT NULL
     WHERE p.id IN (SELECT up.id FROM up)),
summed(id, size, total) AS MATERIALIZED (SELECT id, size, sum(size) OVER (ORDER BY id) FROM found)
SELECT p.step_key, p.task, p.state, p.reason, p.id, p.run, p.token, f.size, CASE WHEN f.total <= :bytes THEN p.result END
  FROM summed f CROSS JOIN perdure.job p ON p.id = f.id;

-- name: record_requeues
-- differs: how a JSON array becomes rows, and how columns become JSON.
INSERT INTO perdure.event (job, run, token, kind, at, detail)
SELECT j.id, j.run, j.token, 'requeued', :now,
       json_patch('{}', json_object('reason', :reason, 'by', :by, 'was', j.state, 'because', j.reason, 'checkpoint',
                                    CASE :keep_checkpoint WHEN 0 THEN j.checkpoint END, 'result', j.result))
  FROM json_each(:ids) x CROSS JOIN perdure.job j ON j.id = x.value;

-- name: requeue_steps
-- differs: how a JSON array becomes rows.
UPDATE perdure.job AS job
   SET {reset_for_requeue}, checkpoint = NULL,
       state = x.value ->> 'state',
       run_at = CASE x.value ->> 'state' WHEN 'open' THEN {gate_due} ELSE :now END,
       deps_pending = x.value ->> 'pending', deps_unsatisfied = x.value ->> 'unsatisfied'
  FROM json_each(:fates) x
 WHERE job.id = x.value ->> 'id' AND job.state IN ('succeeded', 'failed', 'canceled')
RETURNING state, queue;

-- name: find_jobs
-- differs: how JSON is read. The index must be named: otherwise ORDER BY would make SQLite scan the whole table by id. The
-- last row shows where the range ended.
WITH looked AS MATERIALIZED (
    SELECT id FROM (SELECT id FROM perdure.job WHERE :through = 'id' AND id < :before ORDER BY id DESC LIMIT :length)
    UNION ALL
    SELECT id FROM (SELECT id FROM perdure.job INDEXED BY perdure.job_claim
                     WHERE :through = 'claim' AND state = 'ready' AND held IS NULL AND run_at > :now AND id < :before
                    UNION ALL
                    SELECT id FROM perdure.job INDEXED BY perdure.job_later
                     WHERE :through = 'claim' AND state = 'ready' AND held = 'later' AND run_at > :now AND id < :before
                     ORDER BY id DESC LIMIT :length)
    UNION ALL
    SELECT id FROM (SELECT id FROM perdure.job INDEXED BY perdure.job_running
                     WHERE :through = 'running' AND state = 'running' AND id < :before
                     ORDER BY id DESC LIMIT :length)
    UNION ALL
    SELECT job FROM (SELECT job FROM perdure.key
                      WHERE :through = 'key' AND key = :idempotency_key AND job < :before
                      ORDER BY job DESC LIMIT :length)),
found AS (
    SELECT j.id, j.state, j.workflow_id
      FROM perdure.job j
     -- For a join, if there are statistics, SQLite would build a Bloom filter from the whole table.
     WHERE j.id IN (SELECT id FROM looked)
       AND {fits_filter}
     ORDER BY j.id DESC
     LIMIT :n)
SELECT id, state, workflow_id FROM found
UNION ALL
SELECT id, NULL, NULL
  FROM (SELECT id FROM looked WHERE (SELECT count(*) FROM looked) = :length ORDER BY id LIMIT 1);

-- name: lock_jobs
-- differs: there are no row locks. The write transaction is the lock.
SELECT j.id, 1, j.state, j.run_at <= :now, j.held, j.error_kind, j.error_code, j.finished_at, j.run, j.token, j.worker,
       j.unique_key, j.task, coalesce(j.tenant, ''), j.workflow_id
  FROM json_each(:ids) x CROSS JOIN perdure.job j ON j.id = x.value;

-- name: expire_key_holders
-- differs: how a JSON array becomes rows. Like expire_active, for the jobs that have the unique keys of these jobs.
UPDATE perdure.job SET {set_expired}
 WHERE rowid IN (SELECT holder.rowid
                   FROM json_each(:ids) x CROSS JOIN perdure.job j ON j.id = x.value CROSS JOIN perdure.job holder
                        ON holder.task = j.task AND coalesce(holder.tenant, '') = coalesce(j.tenant, '')
                           AND holder.unique_key = j.unique_key AND holder.unique_key IS NOT NULL
                           AND holder.state IN ('waiting', 'ready', 'running', 'open'))
   AND state IN ('waiting', 'ready') AND expires_at <= :now;

-- name: find_taken_keys
-- differs: how a JSON array becomes rows. Returns the given jobs whose unique key an active job has.
SELECT j.id
  FROM json_each(:ids) x CROSS JOIN perdure.job j ON j.id = x.value
 WHERE EXISTS (SELECT 1 FROM perdure.job holder
                WHERE holder.task = j.task AND coalesce(holder.tenant, '') = coalesce(j.tenant, '')
                  AND holder.unique_key = j.unique_key AND holder.unique_key IS NOT NULL
                  AND holder.state IN ('waiting', 'ready', 'running', 'open'));
