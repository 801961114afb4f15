-- Statements both databases run as they stand. The spellings perdure.x, :now, instant() and span() are explained in
-- store/statements.py. States are literals: a bound one loses the partial indexes under a generic plan.

-- name: get_job
SELECT id, task, queue, tenant, state, held, priority, run, attempt, max_attempts, timeout, run_at, expires_at, token,
       worker, created_at, started_at, finished_at, payload, meta, tags, stage, progress_done, progress_total,
       progress_message, checkpoint, result, reason, error_kind, error_code, error_message, error_trace,
       cancel_requested_at, throttles, snoozes, crashes, unique_key, workflow_id, step_key, parent_job, replay_of,
       scheduled_for
  FROM perdure.job
 WHERE id = :id;

-- name: list_jobs
SELECT id, task, queue, tenant, state, held, priority, run, attempt, max_attempts, timeout, run_at, expires_at, token,
       worker, created_at, started_at, finished_at, payload, meta, tags, stage, progress_done, progress_total,
       progress_message, checkpoint, result, reason, error_kind, error_code, error_message, error_trace,
       cancel_requested_at, throttles, snoozes, crashes, unique_key, workflow_id, step_key, parent_job, replay_of,
       scheduled_for
  FROM perdure.job
 WHERE id < :before
   AND (CAST(:queue AS text) IS NULL OR queue = CAST(:queue AS text))
   AND (CAST(:task AS text) IS NULL OR task = CAST(:task AS text))
   AND (CAST(:state AS text) IS NULL OR state = CAST(:state AS text))
   AND (CAST(:tenant AS text) IS NULL OR tenant = CAST(:tenant AS text))
 ORDER BY id DESC
 LIMIT :n;

-- name: list_later
-- Ready and not due: scheduled, or retrying after an error. What is held was due. They are found through the claim's
-- index, for they may be few among many that have ended; SQLite would walk all ids if it were not made to.
SELECT id, task, queue, tenant, state, held, priority, run, attempt, max_attempts, timeout, run_at, expires_at, token,
       worker, created_at, started_at, finished_at, payload, meta, tags, stage, progress_done, progress_total,
       progress_message, checkpoint, result, reason, error_kind, error_code, error_message, error_trace,
       cancel_requested_at, throttles, snoozes, crashes, unique_key, workflow_id, step_key, parent_job, replay_of,
       scheduled_for
  FROM perdure.job
 WHERE id IN (SELECT id FROM perdure.job WHERE state = 'ready' AND held IS NULL AND run_at > :now)
   AND CASE WHEN error_kind IS NULL THEN 0 ELSE 1 END = CAST(:retrying AS integer)
   AND id < :before
   AND (CAST(:queue AS text) IS NULL OR queue = CAST(:queue AS text))
   AND (CAST(:task AS text) IS NULL OR task = CAST(:task AS text))
   AND (CAST(:tenant AS text) IS NULL OR tenant = CAST(:tenant AS text))
 ORDER BY id DESC
 LIMIT :n;

-- name: count_jobs
SELECT queue,
       CASE WHEN state <> 'ready' OR run_at <= :now THEN state
            WHEN error_kind IS NOT NULL THEN 'retrying'
            ELSE 'scheduled' END AS view,
       count(*)
  FROM perdure.job
 WHERE (CAST(:queue AS text) IS NULL OR queue = CAST(:queue AS text))
   AND (CAST(:tenant AS text) IS NULL OR tenant = CAST(:tenant AS text))
 GROUP BY 1, 2
 ORDER BY 1, 2;

-- name: oldest_ready
SELECT queue, min(run_at)
  FROM perdure.job
 WHERE state = 'ready' AND held IS NULL AND run_at <= :now
   AND (CAST(:queue AS text) IS NULL OR queue = CAST(:queue AS text))
 GROUP BY queue
 ORDER BY queue;

-- name: list_ready
-- What could run now, by queue and task; the oldest tells the lag.
SELECT queue, task, count(*), min(run_at)
  FROM perdure.job
 WHERE state = 'ready' AND held IS NULL AND run_at <= :now
 GROUP BY queue, task
 ORDER BY queue, task;

-- name: count_ahead
-- What stands before a job in its queue: two ranges of the claim's index. Who is behind a thousand needs no exact number,
-- and it would not stay cheap.
SELECT count(*)
  FROM (SELECT 1 FROM perdure.job
         WHERE state = 'ready' AND held IS NULL AND queue = :queue AND priority > :priority AND run_at <= :now
        UNION ALL
        SELECT 1 FROM perdure.job
         WHERE state = 'ready' AND held IS NULL AND queue = :queue AND priority = :priority AND run_at <= :now
           AND (run_at, id) < (instant(:run_at), :id)
         LIMIT 1000) ahead;

-- name: read_clock
SELECT :now;

-- name: list_attempts
SELECT token, run, attempt, kind, code, message, trace, worker, started_at, finished_at, delay, decided_by
  FROM perdure.attempt
 WHERE job = :id
 ORDER BY token;

-- name: list_events
SELECT run, token, kind, at, detail
  FROM perdure.event
 WHERE job = :id
 ORDER BY id;

-- name: list_logs
SELECT token, level, message, at
  FROM perdure.log
 WHERE job = :id
 ORDER BY id;

-- name: list_tasks
SELECT name, queue, priority, max_attempts, timeout, backoff, max_crashes, enabled
  FROM perdure.task
 ORDER BY name;

-- name: find_queue
SELECT queue FROM perdure.task WHERE name = :task;

-- name: enable_task
UPDATE perdure.task SET enabled = :enabled WHERE name = :name
RETURNING name;

-- name: list_queues
SELECT name, paused, cool_until, throttles, backoff
  FROM perdure.queue
 ORDER BY name;

-- name: pause_queue
INSERT INTO perdure.queue (name, paused) VALUES (:name, :paused)
    ON CONFLICT (name) DO UPDATE SET paused = excluded.paused;

-- name: set_queue_backoff
INSERT INTO perdure.queue (name, backoff) VALUES (:name, :backoff)
    ON CONFLICT (name) DO UPDATE SET backoff = excluded.backoff;

-- name: cool_queue
UPDATE perdure.queue SET throttles = :throttles, cool_until = :now + span(:cool) WHERE name = :name;

-- name: find_job
SELECT id, queue, state, run, attempt
  FROM perdure.job
 WHERE id = :id;

-- name: expire_active
-- A twin that expired and that nobody has canceled yet must not answer for a new request.
UPDATE perdure.job SET state = 'canceled', finished_at = :now, reason = 'expired'
 WHERE task = :task AND coalesce(tenant, '') = :tenant AND unique_key = :unique_key
   AND unique_key IS NOT NULL AND state IN ('waiting', 'ready', 'running', 'open')
   AND state IN ('waiting', 'ready') AND expires_at <= :now AND id <> :id;

-- name: find_active
SELECT id, queue, state, run, attempt
  FROM perdure.job
 WHERE task = :task AND coalesce(tenant, '') = :tenant AND unique_key = :unique_key
   AND unique_key IS NOT NULL AND state IN ('waiting', 'ready', 'running', 'open');

-- name: find_key
SELECT job, CAST(request AS text)
  FROM perdure.key
 WHERE task = :task AND tenant = :tenant AND key = :key;

-- name: point_key
UPDATE perdure.key SET job = :job WHERE task = :task AND tenant = :tenant AND key = :key;

-- name: keep_key
UPDATE perdure.key SET kept_until = :now + span(:keep) WHERE job = :job;

-- name: delete_key
DELETE FROM perdure.key WHERE job = :job;

-- name: register_worker
INSERT INTO perdure.worker AS w (id, name, lease, tasks, queues, slots, started_at, beat_at, expires_at)
VALUES (:worker, :name, :lease, :tasks, :queues, :slots, :now, :now, :now + span(:lease))
    ON CONFLICT (id) DO UPDATE SET beat_at = :now, expires_at = :now + span(excluded.lease)
 WHERE w.retired_at IS NULL
RETURNING id;

-- name: beat_worker
UPDATE perdure.worker SET beat_at = :now, expires_at = :now + span(lease)
 WHERE id = :worker AND retired_at IS NULL
RETURNING id;

-- name: find_worker
SELECT retired_at IS NULL FROM perdure.worker WHERE id = :worker;

-- name: retire_worker
UPDATE perdure.worker SET retired_at = :now WHERE id = :worker AND retired_at IS NULL;

-- name: retire_silent_workers
-- Where the clock was set, a whole lease must have passed since.
UPDATE perdure.worker SET retired_at = :now
 WHERE retired_at IS NULL AND expires_at <= :now
   AND (CAST(:steady_since AS bigint) IS NULL OR instant(:steady_since) + span(lease) <= :now)
RETURNING id;

-- name: lead
-- The one who leads goes on; another takes over when the lease ran out, or when that worker is not live.
INSERT INTO perdure.leader AS l (name, worker, expires_at) VALUES (:name, :worker, :now + span(:lease))
    ON CONFLICT (name) DO UPDATE SET worker = excluded.worker, expires_at = excluded.expires_at
 WHERE l.worker = excluded.worker OR l.expires_at <= :now
    OR NOT EXISTS (SELECT 1 FROM perdure.worker w WHERE w.id = l.worker AND w.retired_at IS NULL)
RETURNING worker;

-- name: list_workers
SELECT id, name, lease, tasks, queues, slots, started_at, beat_at, expires_at, retired_at
  FROM perdure.worker
 WHERE retired_at IS NULL
 ORDER BY started_at, id;

-- name: list_running
SELECT id, token, cancel_requested_at IS NOT NULL
  FROM perdure.job
 WHERE worker = :worker AND state = 'running'
 ORDER BY id;

-- name: cancel_job
-- A running job is asked to stop; the first request counts. Any other is stopped here and now.
UPDATE perdure.job
   SET state = CASE state WHEN 'running' THEN state ELSE 'canceled' END,
       cancel_requested_at = coalesce(cancel_requested_at, :now),
       finished_at = CASE state WHEN 'running' THEN NULL ELSE :now END,
       reason = coalesce(reason, CAST(:reason AS text))
 WHERE id = :id AND state IN ('waiting', 'ready', 'running', 'open')
RETURNING state, worker, run, token;

-- name: requeue_job
UPDATE perdure.job
   SET state = 'ready', run = run + 1, attempt = 0, run_at = :now, expires_at = NULL, started_at = NULL,
       finished_at = NULL, cancel_requested_at = NULL, held = NULL, reason = NULL, result = NULL, crashes = 0, throttles = 0, snoozes = 0,
       error_kind = NULL, error_code = NULL, error_message = NULL, error_trace = NULL,
       stage = NULL, progress_done = NULL, progress_total = NULL, progress_message = NULL,
       checkpoint = CASE WHEN CAST(:keep_checkpoint AS integer) = 1 THEN checkpoint END
 WHERE id = :id AND run = :run AND state IN ('failed', 'canceled')
RETURNING queue;

-- name: run_now
UPDATE perdure.job SET run_at = :now
 WHERE id = :id AND state = 'ready' AND run_at > :now
RETURNING queue;

-- name: delete_job
DELETE FROM perdure.job WHERE id = :id AND state <> 'running'
RETURNING id;

-- name: delete_attempts
DELETE FROM perdure.attempt WHERE job = :id;

-- name: delete_events
DELETE FROM perdure.event WHERE job = :id;

-- name: delete_logs
DELETE FROM perdure.log WHERE job = :id;

-- name: forget_put_off
-- One claim after the other: a window is enough, and what failed before it is not read again.
DELETE FROM perdure.attempt
 WHERE job = :id AND token > CAST(:token AS integer) - 100 AND token <= CAST(:token AS integer)
   AND kind IN ('snoozed', 'throttled');

-- name: record_current_attempt
-- Before a requeue takes the row: its last attempt joins the ledger, unless it did so when it ended.
INSERT INTO perdure.attempt (job, token, run, attempt, kind, code, message, trace, worker, started_at, finished_at)
SELECT id, token, run, attempt, coalesce(error_kind, state), error_code, error_message, error_trace, NULL, started_at,
       finished_at
  FROM perdure.job
 WHERE id = :id AND started_at IS NOT NULL
    ON CONFLICT (job, token) DO NOTHING;

-- name: get_workflow
-- As text: it is also read on a caller's connection.
SELECT id, name, tenant, status, run, waiting, active, open, spoiled, total, result_step, CAST(meta AS text), unique_key,
       reason, cancel_requested_at, created_at, finished_at,
       (SELECT CAST(r.result AS text) FROM perdure.job r
         WHERE r.workflow_id = w.id AND r.step_key = w.result_step AND r.workflow_id IS NOT NULL AND r.state = 'succeeded'),
       (SELECT r.task FROM perdure.job r
         WHERE r.workflow_id = w.id AND r.step_key = w.result_step AND r.workflow_id IS NOT NULL)
  FROM perdure.workflow w
 WHERE id = :id;

-- name: list_workflows
SELECT id, name, tenant, status, run, waiting, active, open, spoiled, total, result_step, meta, unique_key, reason,
       cancel_requested_at, created_at, finished_at, NULL, NULL
  FROM perdure.workflow
 WHERE id < :before
   AND (CAST(:name AS text) IS NULL OR name = CAST(:name AS text))
   AND (CAST(:status AS text) IS NULL OR status = CAST(:status AS text))
   AND (CAST(:tenant AS text) IS NULL OR tenant = CAST(:tenant AS text))
 ORDER BY id DESC
 LIMIT :n;

-- name: find_workflow_key
SELECT id, CAST(request AS text)
  FROM perdure.workflow
 WHERE name = :name AND coalesce(tenant, '') = :tenant AND idempotency_key = :key AND idempotency_key IS NOT NULL;

-- name: find_workflow_active
SELECT id
  FROM perdure.workflow
 WHERE name = :name AND coalesce(tenant, '') = :tenant AND unique_key = :unique_key
   AND unique_key IS NOT NULL AND status IN ('running', 'open');

-- name: list_steps
SELECT id, step_key, task, queue, state, run, attempt, max_attempts, run_at, created_at, started_at, finished_at,
       deps_pending, deps_unsatisfied, timeout, reason, error_kind, error_code, error_message
  FROM perdure.job
 WHERE workflow_id = :workflow AND workflow_id IS NOT NULL
 ORDER BY id;

-- name: list_spoilers
SELECT id, step_key, state, error_code
  FROM perdure.job
 WHERE workflow_id = :workflow AND workflow_id IS NOT NULL
   AND (state = 'failed' OR (state = 'canceled' AND deps_unsatisfied = 0))
 ORDER BY state DESC, finished_at, id
 LIMIT :n;

-- name: list_edges
SELECT d.parent, d.child, d.mode
  FROM perdure.job c JOIN perdure.dependency d ON d.child = c.id
 WHERE c.workflow_id = :workflow AND c.workflow_id IS NOT NULL;

-- name: list_waiting
SELECT id, step_key, task = '(gate)', deps_pending, deps_unsatisfied
  FROM perdure.job
 WHERE workflow_id = :workflow AND workflow_id IS NOT NULL AND state = 'waiting';

-- name: list_waiting_edges
SELECT d.child, d.parent, d.mode, p.step_key, p.state
  FROM perdure.job c
       JOIN perdure.dependency d ON d.child = c.id
       JOIN perdure.job p ON p.id = d.parent
 WHERE c.workflow_id = :workflow AND c.workflow_id IS NOT NULL AND c.state = 'waiting';

-- name: list_parents
SELECT p.step_key, p.state, d.mode
  FROM perdure.dependency d JOIN perdure.job p ON p.id = d.parent
 WHERE d.child = :id
 ORDER BY p.id;

-- name: find_ancestor
WITH RECURSIVE up(id) AS (
    SELECT parent FROM perdure.dependency WHERE child = :id
    UNION
    SELECT d.parent FROM up JOIN perdure.dependency d ON d.child = up.id)
SELECT a.step_key, a.task, a.state, a.result
  FROM perdure.job a
 WHERE a.workflow_id = :workflow AND a.step_key = :key AND a.workflow_id IS NOT NULL
   AND a.id IN (SELECT up.id FROM up);

-- name: find_step
SELECT id, state, task, CAST(result AS text), reason, run, token
  FROM perdure.job
 WHERE workflow_id = :workflow AND step_key = :key AND workflow_id IS NOT NULL;

-- name: find_mutation
SELECT CAST(request AS text) FROM perdure.mutation WHERE workflow = :workflow AND key = :key;

-- name: find_appended
-- What a step has appended in its attempts: its id is the first part of the key.
SELECT CAST(request AS text) FROM perdure.mutation WHERE workflow = :workflow AND substr(key, 1, 37) = :prefix;

-- name: cancel_workflow
UPDATE perdure.workflow
   SET cancel_requested_at = :now, reason = coalesce(reason, CAST(:reason AS text))
 WHERE id = :workflow;

-- name: cancel_steps
UPDATE perdure.job
   SET state = 'canceled', finished_at = :now, cancel_requested_at = :now, reason = :reason
 WHERE workflow_id = :workflow AND workflow_id IS NOT NULL AND state IN ('waiting', 'ready', 'open');

-- name: stop_steps
-- Those that run are asked to; the first request counts.
UPDATE perdure.job
   SET cancel_requested_at = coalesce(cancel_requested_at, :now), reason = coalesce(reason, CAST(:reason AS text))
 WHERE workflow_id = :workflow AND workflow_id IS NOT NULL AND state = 'running'
RETURNING worker;

-- name: restart_workflow
UPDATE perdure.workflow SET run = run + 1, cancel_requested_at = NULL, reason = NULL
 WHERE id = :workflow;

-- name: delete_workflow
DELETE FROM perdure.workflow WHERE id = :id;

-- name: find_expired_steps
SELECT DISTINCT workflow_id
  FROM perdure.job
 WHERE state IN ('waiting', 'ready') AND expires_at IS NOT NULL AND expires_at <= :now AND workflow_id IS NOT NULL
 LIMIT :n;

-- name: expire_steps
-- Only a step that waits has parents which have not ended.
UPDATE perdure.job SET state = 'canceled', finished_at = :now, reason = 'expired'
 WHERE workflow_id = :workflow AND workflow_id IS NOT NULL
   AND state IN ('waiting', 'ready') AND expires_at IS NOT NULL AND expires_at <= :now
RETURNING id, deps_pending;

-- name: find_overdue_gates
SELECT DISTINCT workflow_id
  FROM perdure.job
 WHERE state = 'open' AND timeout IS NOT NULL AND run_at <= :now
 LIMIT :n;

-- name: time_out_gates
UPDATE perdure.job
   SET state = CASE payload ->> 'on_timeout' WHEN 'succeeded' THEN 'succeeded' WHEN 'canceled' THEN 'canceled' ELSE 'failed' END,
       finished_at = :now, reason = 'timeout'
 WHERE workflow_id = :workflow AND workflow_id IS NOT NULL AND state = 'open' AND timeout IS NOT NULL AND run_at <= :now
RETURNING id, state;
