-- Statements both databases run as they stand. The spellings perdure.x, :now, instant() and span() are explained in
-- store/statements.py. States are literals: a bound one loses the partial indexes under a generic plan.

-- name: get_job
SELECT {each job field: COLUMN}
  FROM perdure.job
 WHERE id = :id;

-- name: count_jobs
SELECT queue,
       CASE WHEN state <> 'ready' OR run_at <= :now THEN state
            WHEN error_kind IS NOT NULL THEN 'retrying'
            ELSE 'scheduled' END AS view,
       count(*), count(CASE state WHEN 'ready' THEN held END)
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

-- name: list_newest
SELECT id, queue, task, state, run_at, started_at, finished_at
  FROM perdure.job
 WHERE id < :before
 ORDER BY id DESC
 LIMIT :n;

-- name: find_front
-- The job that a queue is at.
SELECT id
  FROM perdure.job
 WHERE state = 'ready' AND held IS NULL AND queue = :queue AND run_at <= :now
 ORDER BY priority DESC, run_at, id
 LIMIT 1;

-- name: list_due_queues
-- The queues that a claim may look at: one step through the index for each.
WITH RECURSIVE every AS (
    SELECT CAST('' AS text) AS queue
    UNION ALL
    SELECT (SELECT j.queue FROM perdure.job j
             WHERE j.state = 'ready' AND j.held IS NULL AND j.queue > every.queue
             ORDER BY j.queue LIMIT 1)
      FROM every WHERE every.queue IS NOT NULL)
SELECT queue
  FROM every
 WHERE queue <> ''
   AND NOT EXISTS (SELECT 1 FROM perdure.queue q WHERE q.name = every.queue AND (q.paused OR q.cool_until > :now));

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
SELECT name, queue, priority, max_attempts, timeout, backoff, max_crashes, enabled, redact
  FROM perdure.task
 ORDER BY name;

-- name: describe_tasks
SELECT name, queue, priority, max_attempts, timeout, backoff, max_crashes, enabled, redact,
       CAST(config AS text), synced_at
  FROM perdure.task
 ORDER BY name;

-- name: count_by_task
-- What is to be done, through the partial indexes of what is ready and what runs: what has ended costs nothing.
SELECT task, CASE WHEN run_at <= :now THEN 'ready' WHEN error_kind IS NOT NULL THEN 'retrying' ELSE 'scheduled' END AS view,
       count(*)
  FROM perdure.job
 WHERE state = 'ready' AND held IS NULL
 GROUP BY 1, 2
UNION ALL
SELECT task, 'running', count(*)
  FROM perdure.job
 WHERE state = 'running' AND worker IS NOT NULL
 GROUP BY 1;

-- name: list_newest_tasks
SELECT DISTINCT task FROM (SELECT task FROM perdure.job ORDER BY id DESC LIMIT 10000) newest;

-- name: list_configs
SELECT name, CAST(config AS text) FROM perdure.task WHERE config IS NOT NULL;

-- name: find_enabled
SELECT enabled FROM perdure.task WHERE name = :task;

-- name: find_queue
SELECT queue FROM perdure.task WHERE name = :task;

-- name: enable_task
UPDATE perdure.task SET enabled = :enabled WHERE name = :name
RETURNING name;

-- name: list_queues
SELECT {each queue field: COLUMN}
  FROM perdure.queue
 ORDER BY name;

-- name: set_queue
-- Any of the settings; the others stay as they are.
INSERT INTO perdure.queue AS q (name, {each queue setting: COLUMN}) VALUES (:name, {each queue setting: :COLUMN})
    ON CONFLICT (name) DO UPDATE
       SET {each queue setting: COLUMN = CASE WHEN :set_COLUMN THEN excluded.COLUMN ELSE q.COLUMN END};

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

-- name: register_worker
INSERT INTO perdure.worker AS w (id, name, lease, tasks, queues, slots, started_at, beat_at, expires_at)
VALUES (:worker, :name, :lease, :tasks, :queues, :slots, :now, :now, :now + span(:lease))
    ON CONFLICT (id) DO UPDATE SET beat_at = :now, expires_at = :now + wait(excluded.lease)
 WHERE w.retired_at IS NULL
RETURNING id;

-- name: beat_worker
UPDATE perdure.worker SET beat_at = :now, expires_at = :now + wait(lease)
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
   AND (CAST(:steady_since AS bigint) IS NULL OR instant(:steady_since) + wait(lease) <= :now)
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

-- name: count_running
SELECT worker, count(*)
  FROM perdure.job
 WHERE state = 'running' AND worker IS NOT NULL
 GROUP BY worker;

-- name: find_source
-- What a replay takes over. json comes out as text: a codec of the caller's would decode it.
SELECT task, queue, CAST(payload AS text) AS payload, {each option: CAST(COLUMN AS text) AS COLUMN}, priority,
       max_attempts, unique_key
  FROM perdure.job
 WHERE id = :id;

-- name: mark_replay
-- A request cannot say what it takes from no task: that there is no timeout.
UPDATE perdure.job
   SET replay_of = :source, timeout = (SELECT s.timeout FROM perdure.job s WHERE s.id = :source),
       concurrency_key = (SELECT s.concurrency_key FROM perdure.job s WHERE s.id = :source),
       scheduled_for = (SELECT s.scheduled_for FROM perdure.job s WHERE s.id = :source)
 WHERE id = :id;

-- name: find_replay
SELECT replay_of FROM perdure.job WHERE id = :id;

-- name: forget_put_off
-- One claim after the other: a window is enough, and what failed before it is not read again.
DELETE FROM perdure.attempt
 WHERE job = :id AND token > CAST(:token AS integer) - 100 AND token <= CAST(:token AS integer)
   AND kind IN ('snoozed', 'throttled');

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

-- name: list_waiting
SELECT id, step_key, task = '(gate)', deps_pending, deps_unsatisfied
  FROM perdure.job
 WHERE workflow_id = :workflow AND workflow_id IS NOT NULL AND state = 'waiting';

-- name: list_parents
SELECT p.id, p.step_key, p.state
  FROM perdure.dependency d JOIN perdure.job p ON p.id = d.parent
 WHERE d.child = :id
 ORDER BY p.id;

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

-- name: list_acts
SELECT id, at, actor, verb, subject, detail
  FROM perdure.act
 WHERE id < :before
   AND (CAST(:verb AS text) IS NULL OR verb = CAST(:verb AS text))
   AND (CAST(:actor AS text) IS NULL OR actor = CAST(:actor AS text))
   AND (CAST(:subject AS text) IS NULL OR subject = CAST(:subject AS text))
 ORDER BY id DESC
 LIMIT :n;
