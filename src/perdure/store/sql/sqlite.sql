-- What SQLite must say differently, statement by statement as in postgres.sql.

-- name: claim_front
-- differs: a statement costs nothing before its first row, so nobody asks for less than claim_jobs.
SELECT :worker, :tasks, :n, :queue, :priority, :since, :ahead, :behind WHERE false;

-- name: claim_jobs
-- differs: one writer at a time, so there is nothing to lock or to skip; no LATERAL, so the first rows of a group travel
-- through a JSON array.
WITH RECURSIVE
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
    SELECT value, key FROM json_each(coalesce(:queues, '[]'))),
head (queue, rank, priority, ids, above) AS (
    -- Down the priorities of each queue, from above the highest, until there is enough.
    SELECT queue, rank, 32768, '[]', 0 FROM asked
     WHERE NOT EXISTS (SELECT 1 FROM perdure.queue q
                        WHERE q.name = asked.queue AND (q.paused OR q.cool_until > :now))
       -- One that was retired and has not heard of it would take back its own rescued jobs, and lose them again.
       AND NOT EXISTS (SELECT 1 FROM perdure.worker w WHERE w.id = :worker AND w.retired_at IS NOT NULL)
    UNION ALL
    SELECT head.queue, head.rank, next.priority, coalesce(
           -- What is first in order; or, where that meets a task this worker does not know, the first of each it knows.
           (SELECT CASE WHEN max(due.task NOT IN (SELECT value FROM json_each(:tasks))) THEN NULL
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
   SET state = CASE WHEN expires_at <= :now THEN 'canceled' ELSE 'running' END,
       worker = CASE WHEN expires_at <= :now THEN NULL ELSE :worker END,
       token = CASE WHEN expires_at <= :now THEN token ELSE token + 1 END,
       attempt = CASE WHEN expires_at <= :now THEN attempt ELSE attempt + 1 END,
       started_at = CASE WHEN expires_at <= :now THEN started_at ELSE :now END,
       finished_at = CASE WHEN expires_at <= :now THEN :now END,
       reason = CASE WHEN expires_at <= :now THEN 'expired' END
 WHERE rowid IN (SELECT j.rowid FROM head CROSS JOIN json_each(head.ids) row CROSS JOIN perdure.job j ON j.rowid = row.value
                  ORDER BY head.rank, head.priority DESC, j.run_at, j.id LIMIT :n)
   -- A step that expired is left to the sweeper, which also decides for those that wait for it.
   AND (workflow_id IS NULL OR expires_at IS NULL OR expires_at > :now)
RETURNING id, token, task, queue, priority, run_at, run, attempt, max_attempts, timeout, payload, checkpoint,
          tenant, meta, crashes, interruptions, scheduled_for, workflow_id, step_key, state;

-- name: claim_around
-- differs: nobody holds a row while another writes, so there is nothing to go around.
SELECT :worker, :tasks, :queues, :n WHERE false;

-- name: claim_chosen
-- differs: one writer at a time, and the size of a value is limited by the connection.
UPDATE perdure.job
   SET state = 'running', worker = :worker, attempt = attempt + 1, started_at = :now, reason = NULL, token = token + 1
 WHERE id = :id AND state = 'ready' AND held IS NULL AND run_at <= :now AND (expires_at IS NULL OR expires_at > :now)
   AND NOT EXISTS (SELECT 1 FROM perdure.worker w WHERE w.id = :worker AND w.retired_at IS NOT NULL)
RETURNING id, token, task, queue, priority, run_at, run, attempt, max_attempts, timeout, payload, checkpoint,
          tenant, meta, crashes, interruptions, scheduled_for, workflow_id, step_key, state;

-- name: find_due
-- differs: how a JSON array becomes rows.
SELECT id, priority, run_at
  FROM perdure.job
 WHERE state = 'ready' AND held IS NULL AND queue = :queue AND run_at <= :now AND (expires_at IS NULL OR expires_at > :now)
   AND task IN (SELECT value FROM json_each(:tasks))
 ORDER BY priority DESC, run_at, id
 LIMIT :n OFFSET :skip;

-- name: hold_job
-- differs: one writer at a time, so nobody holds a row.
UPDATE perdure.job SET held = 'unclaimable', reason = :reason
 WHERE id = :id AND state = 'ready' AND held IS NULL
RETURNING id;

-- name: hold_damaged
-- differs: how a JSON array becomes rows, and the bounds of counters; the size of a value is limited by the connection.
UPDATE perdure.job
   SET held = 'unclaimable',
       reason = CASE
           WHEN token >= 9223372036854775807 THEN 'Its token is ' || CAST(token AS text) || ', and a claim adds 1.'
           ELSE 'Its attempt is ' || CAST(attempt AS text) || ', and a claim adds 1.' END
 WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'ready' AND held IS NULL
   AND (token >= 9223372036854775807 OR attempt >= 9223372036854775807)
RETURNING id, reason;

-- name: lock_job
-- differs: the writer's transaction is the lock.
SELECT state, run, token, worker, checkpoint, result, unique_key, task, coalesce(tenant, ''), run_at <= :now,
       workflow_id, step_key, held
  FROM perdure.job
 WHERE id = :id;

-- name: record_event
-- differs: a document is a text.
INSERT INTO perdure.event (job, run, token, kind, at, detail)
VALUES (:id, :run, :token, :kind, :now, :detail);

-- name: show_isolation
-- differs: one writer at a time sees what is committed.
SELECT 'read committed';

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

-- name: insert_alike
-- differs: how a JSON object becomes rows. A look at the first job would put all of them into a temporary table; to meet
-- conflicts costs nothing.
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
INSERT INTO perdure.task (name, queue, priority, max_attempts, timeout, backoff, max_crashes, redact, synced_at)
SELECT value ->> 'name', value ->> 'queue', value ->> 'priority', value ->> 'max_attempts', value ->> 'timeout',
       value ->> 'backoff', value ->> 'max_crashes', value ->> 'redact', :now
  FROM json_each(:tasks)
 WHERE true
    ON CONFLICT (name) DO UPDATE
   SET queue = excluded.queue, priority = excluded.priority, max_attempts = excluded.max_attempts,
       timeout = excluded.timeout, backoff = excluded.backoff, max_crashes = excluded.max_crashes,
       redact = excluded.redact, synced_at = :now;

-- name: disable_other_tasks
-- differs: how a JSON array becomes rows.
UPDATE perdure.task SET enabled = 0
 WHERE enabled AND name NOT IN (SELECT value ->> 'name' FROM json_each(:tasks));

-- name: configure_task
-- differs: JSON is text here.
UPDATE perdure.task SET config = :config WHERE name = :name
RETURNING name;

-- name: finish_succeeded
-- differs: how a JSON object becomes rows.
UPDATE perdure.job AS job
   SET state = 'succeeded', worker = NULL, finished_at = :now, result = x.value ->> 1, reason = x.value ->> 2,
       error_kind = NULL, error_code = NULL, error_message = NULL, error_trace = NULL
  FROM json_each(:outcomes) x
 WHERE job.id = x.key AND job.token = x.value ->> 0 AND job.worker IS NOT NULL
   AND (job.workflow_id IS NULL OR x.value ->> 3 IS NOT NULL)
RETURNING id, token;

-- name: finish_alike
-- differs: how a JSON object becomes rows, and the count comes by itself. RETURNING would be a sixth of it.
UPDATE perdure.job AS job
   SET state = 'succeeded', worker = NULL, finished_at = :now, result = :result, reason = :reason,
       error_kind = NULL, error_code = NULL, error_message = NULL, error_trace = NULL
  FROM json_each(:leases) x
 WHERE job.id = x.key AND job.token = x.value AND job.worker IS NOT NULL AND job.workflow_id IS NULL;

-- name: lock_running
-- differs: the writer's transaction is the lock.
SELECT j.id, j.token, j.queue, j.run, j.attempt, j.max_attempts, j.throttles, j.crashes, j.interruptions,
       j.cancel_requested_at IS NOT NULL, j.progress_done, j.progress_total, coalesce(q.backoff, t.backoff), t.max_crashes, j.stage, j.workflow_id
  FROM json_each(:leases) x
       CROSS JOIN perdure.job j ON j.id = x.value ->> 0 AND j.token = x.value ->> 1 AND j.worker IS NOT NULL
       LEFT JOIN perdure.task t ON t.name = j.task
       LEFT JOIN perdure.queue q ON q.name = j.queue;

-- name: lock_free
-- differs: the writer's transaction is the lock, and nobody else holds one.
SELECT j.id, j.token, 1
  FROM json_each(:leases) x
       CROSS JOIN perdure.job j ON j.id = x.value ->> 0 AND j.token = x.value ->> 1 AND j.worker IS NOT NULL;

-- name: find_orphans
-- differs: one writer at a time, so there is nothing to skip. For the sake of their order alone the whole table would
-- be walked by its ids.
SELECT j.id, j.token, j.queue, j.run, j.attempt, j.max_attempts, j.throttles, j.crashes, j.interruptions,
       j.cancel_requested_at IS NOT NULL, j.progress_done, j.progress_total, coalesce(q.backoff, t.backoff), t.max_crashes, j.stage, j.workflow_id
  FROM perdure.job j INDEXED BY perdure.job_running
       LEFT JOIN perdure.task t ON t.name = j.task
       LEFT JOIN perdure.queue q ON q.name = j.queue
 WHERE j.state = 'running' AND j.id > :after
   AND NOT EXISTS (SELECT 1 FROM perdure.worker w WHERE w.id = j.worker AND w.retired_at IS NULL)
 ORDER BY j.id
 LIMIT :n;

-- name: record_attempts
-- differs: how a JSON array becomes rows.
INSERT INTO perdure.attempt (job, token, run, attempt, kind, code, message, trace, worker, started_at, finished_at,
                             delay, decided_by)
SELECT j.id, j.token, j.run, j.attempt, x.value ->> 'attempt_kind', x.value ->> 'error_code', x.value ->> 'error_message',
       x.value ->> 'error_trace', j.worker, j.started_at, :now, x.value ->> 'delay', x.value ->> 'decided_by'
  FROM json_each(:changes) x
       CROSS JOIN perdure.job j ON j.id = x.value ->> 'id' AND j.token = x.value ->> 'token' AND j.worker IS NOT NULL
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
       throttles = min(job.throttles, 2147483646) + (x.value ->> 'throttles'),
       snoozes = min(job.snoozes, 2147483646) + (x.value ->> 'snoozes'),
       crashes = x.value ->> 'crashes', interruptions = x.value ->> 'interruptions'
  FROM json_each(:changes) x
 WHERE job.id = x.value ->> 'id' AND job.token = x.value ->> 'token' AND job.worker IS NOT NULL
RETURNING id;

-- name: save_reports
-- differs: how a JSON array becomes rows.
UPDATE perdure.job AS job
   SET stage = coalesce(x.value ->> 'stage', job.stage), progress_done = x.value ->> 'done', progress_total = x.value ->> 'total',
       progress_message = coalesce(x.value ->> 'message', job.progress_message),
       checkpoint = coalesce(x.value ->> 'checkpoint', job.checkpoint)
  FROM json_each(:reports) x
 WHERE job.id = x.value ->> 'id' AND job.token = x.value ->> 'token' AND job.worker IS NOT NULL;

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

-- name: lock_queues
-- differs: the writer's transaction is the lock.
SELECT name, throttles, coalesce(cool_until > :now, false), coalesce(cool_until <= :now - span(:quiet), true), backoff
  FROM perdure.queue
 WHERE name IN (SELECT value FROM json_each(:names))
 ORDER BY name;

-- name: expire_jobs
-- differs: no row to skip.
UPDATE perdure.job SET state = 'canceled', finished_at = :now, reason = 'expired'
 WHERE rowid IN (SELECT rowid FROM perdure.job
                  WHERE state IN ('waiting', 'ready') AND expires_at IS NOT NULL AND expires_at <= :now
                    AND workflow_id IS NULL
                  ORDER BY expires_at LIMIT :n)
RETURNING id;

-- name: describe_database
-- differs: what there is to know. One file, no server; the log beside it is known to the store.
SELECT sqlite_version(), page_count * page_size, NULL, NULL
  FROM pragma_page_count(), pragma_page_size();

-- name: insert_workflow
-- differs: JSON is text here.
INSERT INTO perdure.workflow (id, name, tenant, status, waiting, active, open, spoiled, total, result_step, meta,
                              idempotency_key, request, unique_key, created_at)
VALUES (:id, :name, :tenant, :status, :waiting, :active, :open, 0, :total, :result_step, :meta, :idempotency_key, :request,
        :unique_key, :now)
    ON CONFLICT DO NOTHING
RETURNING id;

-- name: insert_mutation
-- differs: JSON is text here.
INSERT INTO perdure.mutation (workflow, key, request, at) VALUES (:workflow, :key, :request, :now);

-- name: resolve_gate
-- differs: JSON is text here.
UPDATE perdure.job
   SET state = CASE CAST(:resolution AS text) WHEN 'succeeded' THEN 'succeeded' WHEN 'failed' THEN 'failed' ELSE 'canceled' END,
       finished_at = :now, result = :result, reason = :reason
 WHERE id = :id AND state = 'open';

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

-- name: insert_alike_steps
-- differs: how a JSON object becomes rows: by its id of each step its key, its payload, and how many parents it waits
-- for. What is one value for all of them is a parameter of its own: a third of the time of insert_steps.
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
-- differs: how a JSON object becomes rows: by the id of each step those of its parents.
INSERT INTO perdure.dependency (parent, child, mode)
SELECT p.value, x.key, :mode
  FROM json_each(:edges) x, json_each(x.value) p
 WHERE :parent <> :child
    ON CONFLICT DO NOTHING;

-- name: lock_workflows
-- differs: the writer's transaction is the lock.
SELECT id, status, waiting, active, open, spoiled, cancel_requested_at IS NOT NULL, tenant
  FROM perdure.workflow
 WHERE id IN (SELECT value FROM json_each(:ids))
 ORDER BY id;

-- name: lock_workflows_of
-- differs: the writer's transaction is the lock.
SELECT id, status, waiting, active, open, spoiled, cancel_requested_at IS NOT NULL, tenant
  FROM perdure.workflow
 WHERE id IN (SELECT j.workflow_id FROM json_each(:leases) x CROSS JOIN perdure.job j ON j.id = x.value ->> 0
               WHERE j.workflow_id IS NOT NULL)
 ORDER BY id;

-- name: lock_orphan_workflows
-- differs: the writer's transaction is the lock.
SELECT id, status, waiting, active, open, spoiled, cancel_requested_at IS NOT NULL, tenant
  FROM perdure.workflow
 WHERE id IN (SELECT r.workflow_id FROM perdure.job r INDEXED BY perdure.job_running
               WHERE r.state = 'running' AND r.workflow_id IS NOT NULL
                 AND NOT EXISTS (SELECT 1 FROM perdure.worker w WHERE w.id = r.worker AND w.retired_at IS NULL))
 ORDER BY id;

-- name: lock_free_workflows
-- differs: the writer's transaction is the lock, and nobody else holds one.
SELECT :leases WHERE false;

-- name: succeed_steps
-- differs: there are no round trips to save.
SELECT :outcomes, :workflows, NULL WHERE 0;

-- name: count_down
-- differs: how a JSON object becomes rows.
UPDATE perdure.job AS job
   SET deps_pending = max(job.deps_pending, 0) - x.ended, deps_unsatisfied = min(job.deps_unsatisfied, 1000000000) + x.spoiled
  FROM (SELECT d.child, count(*) AS ended, sum(d.mode = 'after' AND NOT parent.value) AS spoiled
          FROM json_each(:ended) parent CROSS JOIN perdure.dependency d ON d.parent = parent.key
         GROUP BY d.child) x
 WHERE job.id = x.child AND job.state = 'waiting';

-- name: release_steps
-- differs: how a JSON object becomes rows. Only those that wait no longer are returned: most others would be read in vain.
UPDATE perdure.job
   SET state = CASE WHEN deps_unsatisfied > 0 THEN 'waiting' WHEN task = '(gate)' THEN 'open' ELSE 'ready' END,
       run_at = CASE WHEN task = '(gate)' THEN :now + wait(timeout)
                     ELSE max(run_at, :now + wait(delay)) END
 WHERE id IN (SELECT d.child FROM json_each(:ended) parent CROSS JOIN perdure.dependency d ON d.parent = parent.key)
   AND state = 'waiting' AND deps_pending = 0
RETURNING id, workflow_id, state, queue, run_at <= :now;

-- name: list_edges
-- differs: CROSS JOIN fixes the order.
SELECT d.parent, d.child, d.mode
  FROM perdure.job c CROSS JOIN perdure.dependency d ON d.child = c.id
 WHERE c.workflow_id = :workflow AND c.workflow_id IS NOT NULL;

-- name: list_waiting_edges
-- differs: CROSS JOIN fixes the order.
SELECT d.child, d.parent, d.mode, p.step_key, p.state
  FROM perdure.job c CROSS JOIN perdure.dependency d ON d.child = c.id CROSS JOIN perdure.job p ON p.id = d.parent
 WHERE c.workflow_id = :workflow AND c.workflow_id IS NOT NULL AND c.state = 'waiting';

-- name: settle_steps
-- differs: how a JSON array becomes rows.
UPDATE perdure.job AS job
   SET state = x.value ->> 'state',
       run_at = CASE x.value ->> 'state' WHEN 'open' THEN :now + wait(job.timeout)
                                         WHEN 'ready' THEN max(job.run_at, :now + wait(job.delay))
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
       spoiled = x.value ->> 'spoiled', total = min(workflow.total, 2000000000) + (x.value ->> 'added'),
       finished_at = CASE WHEN x.value ->> 'status' IN ('running', 'open') THEN NULL ELSE coalesce(workflow.finished_at, :now) END
  FROM json_each(:tallies) x
 WHERE workflow.id = x.value ->> 'id';

-- name: find_steps
-- differs: how a JSON array becomes rows.
SELECT step_key, id, state
  FROM perdure.job
 WHERE workflow_id = :workflow AND workflow_id IS NOT NULL AND step_key IN (SELECT value FROM json_each(:keys));

-- name: list_ancestors
-- differs: how a JSON array becomes rows.
WITH RECURSIVE up (id) AS (
    SELECT value FROM json_each(:ids)
    UNION
    SELECT d.parent FROM up JOIN perdure.dependency d ON d.child = up.id)
SELECT a.step_key FROM up CROSS JOIN perdure.job a ON a.id = up.id;

-- name: read_parents
-- differs: how a JSON array becomes rows; no LATERAL, so the last parent of each child's page is found first. Up to :n
-- parents of each child behind :after, with their results as far as these take no more than :bytes per child. Sizes are
-- summed up without the results: a window function keeps every column it is given.
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

-- name: read_results
-- differs: how a JSON array becomes rows.
SELECT p.id, p.result FROM json_each(:ids) x CROSS JOIN perdure.job p ON p.id = x.value;

-- name: find_parents
-- differs: how a JSON array becomes rows. Results come as in read_parents.
WITH found(id, size) AS MATERIALIZED (
    SELECT p.id, length(CAST(p.result AS blob))
      FROM json_each(:keys) x CROSS JOIN perdure.job p
        ON p.workflow_id = :workflow AND p.step_key = x.value AND p.workflow_id IS NOT NULL
     WHERE EXISTS (SELECT 1 FROM perdure.dependency d WHERE d.parent = p.id AND d.child = :id)),
summed(id, size, total) AS MATERIALIZED (SELECT id, size, sum(size) OVER (ORDER BY id) FROM found)
SELECT p.step_key, p.task, p.state, p.reason, p.id, p.run, p.token, f.size, CASE WHEN f.total <= :bytes THEN p.result END
  FROM summed f CROSS JOIN perdure.job p ON p.id = f.id;

-- name: find_ancestors
-- differs: how a JSON array becomes rows. One walk for all keys; results come as in read_parents.
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

-- name: record_last_attempts
-- differs: how a JSON array becomes rows. Before a requeue takes the rows: their last attempts join the ledger, unless they
-- did so when they ended.
INSERT INTO perdure.attempt (job, token, run, attempt, kind, code, message, trace, worker, started_at, finished_at)
SELECT j.id, j.token, j.run, j.attempt, coalesce(j.error_kind, j.state), j.error_code, j.error_message, j.error_trace, NULL,
       j.started_at, j.finished_at
  FROM json_each(:ids) x CROSS JOIN perdure.job j ON j.id = x.value
 WHERE j.started_at IS NOT NULL
    ON CONFLICT (job, token) DO NOTHING;

-- name: record_requeues
-- differs: how a JSON array becomes rows, and how JSON is made of columns.
INSERT INTO perdure.event (job, run, token, kind, at, detail)
SELECT j.id, j.run, j.token, 'requeued', :now,
       json_patch('{}', json_object('reason', :reason, 'by', :by, 'was', j.state, 'because', j.reason, 'checkpoint',
                                    CASE :keep_checkpoint WHEN 0 THEN j.checkpoint END, 'result', j.result))
  FROM json_each(:ids) x CROSS JOIN perdure.job j ON j.id = x.value;

-- name: requeue_steps
-- differs: how a JSON array becomes rows.
UPDATE perdure.job AS job
   SET run = job.run + 1, attempt = 0, expires_at = NULL, started_at = NULL, finished_at = NULL, cancel_requested_at = NULL,
       held = NULL, reason = NULL, result = NULL, crashes = 0, interruptions = 0, throttles = 0, snoozes = 0, error_kind = NULL,
       error_code = NULL, error_message = NULL, error_trace = NULL, stage = NULL, progress_done = NULL,
       progress_total = NULL, progress_message = NULL, checkpoint = NULL,
       state = x.value ->> 'state',
       run_at = CASE x.value ->> 'state' WHEN 'open' THEN :now + wait(job.timeout) ELSE :now END,
       deps_pending = x.value ->> 'pending', deps_unsatisfied = x.value ->> 'unsatisfied'
  FROM json_each(:fates) x
 WHERE job.id = x.value ->> 'id' AND job.state IN ('succeeded', 'failed', 'canceled')
RETURNING state, queue;

-- name: find_jobs
-- differs: how JSON is taken apart; and an index must be named, or for the sake of the order alone the whole table would
-- be walked by its ids. The last row says where the stretch ended.
WITH looked AS MATERIALIZED (
    SELECT id FROM (SELECT id FROM perdure.job WHERE :through = 'id' AND id < :before ORDER BY id DESC LIMIT :length)
    UNION ALL
    SELECT id FROM (SELECT id FROM perdure.job INDEXED BY perdure.job_claim
                     WHERE :through = 'claim' AND state = 'ready' AND held IS NULL AND run_at > :now AND id < :before
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
     -- Joined, with statistics, a Bloom filter would be made of the whole table.
     WHERE j.id IN (SELECT id FROM looked)
       AND (:queue IS NULL OR j.queue = :queue)
       AND (:task IS NULL OR j.task = :task)
       AND (:tenant IS NULL OR j.tenant = :tenant)
       AND (:states IS NULL
            OR j.state IN (SELECT value FROM json_each(:states))
            OR (j.state = 'ready' AND j.held IS NULL AND j.run_at > :now
                AND CASE WHEN j.error_kind IS NULL THEN 'scheduled' ELSE 'retrying' END
                    IN (SELECT value FROM json_each(:states))))
       AND (:tag IS NULL
            OR EXISTS (SELECT 1 FROM json_each(CASE WHEN json_valid(j.tags) THEN j.tags END) tag WHERE tag.value = :tag))
       AND (:idempotency_key IS NULL
            OR EXISTS (SELECT 1 FROM perdure.key k WHERE k.job = j.id AND k.key = :idempotency_key))
       AND (:unique_key IS NULL OR j.unique_key = :unique_key)
       AND (:error_code IS NULL OR j.error_code = :error_code)
       AND (:created_after IS NULL OR j.created_at >= :created_after)
       AND (:created_before IS NULL OR j.created_at < :created_before)
       AND (:finished_after IS NULL OR j.finished_at >= :finished_after)
       AND (:finished_before IS NULL OR j.finished_at < :finished_before)
       AND (:text IS NULL OR instr(j.payload, :text) > 0 OR instr(j.payload, :escaped) > 0)
     ORDER BY j.id DESC
     LIMIT :n)
SELECT id, state, workflow_id FROM found
UNION ALL
SELECT id, NULL, NULL
  FROM (SELECT id FROM looked WHERE (SELECT count(*) FROM looked) = :length ORDER BY id LIMIT 1);

-- name: read_jobs
-- differs: how a JSON array becomes rows.
SELECT {each job field: COLUMN}
  FROM perdure.job
 WHERE id IN (SELECT value FROM json_each(:ids))
 ORDER BY id DESC;

-- name: lock_jobs
-- differs: the writer's transaction is the lock.
SELECT j.id, 1, j.state, j.run_at <= :now, j.held, j.error_kind, j.error_code, j.finished_at, j.run, j.token, j.worker,
       j.unique_key, j.task, coalesce(j.tenant, ''), j.workflow_id
  FROM json_each(:ids) x CROSS JOIN perdure.job j ON j.id = x.value;

-- name: cancel_jobs
-- differs: how a JSON array becomes rows. A running job is asked to stop; the first request counts. Any other is stopped
-- here and now.
UPDATE perdure.job
   SET state = CASE state WHEN 'running' THEN state ELSE 'canceled' END,
       cancel_requested_at = coalesce(cancel_requested_at, :now),
       finished_at = CASE state WHEN 'running' THEN NULL ELSE :now END,
       reason = coalesce(reason, CAST(:reason AS text))
 WHERE id IN (SELECT value FROM json_each(:ids))
   AND state IN ('waiting', 'ready', 'running', 'open')
RETURNING state;

-- name: expire_twins
-- differs: how a JSON array becomes rows. As expire_active, for those whose unique key these jobs would take.
UPDATE perdure.job SET state = 'canceled', finished_at = :now, reason = 'expired'
 WHERE rowid IN (SELECT twin.rowid
                   FROM json_each(:ids) x CROSS JOIN perdure.job j ON j.id = x.value CROSS JOIN perdure.job twin
                        ON twin.task = j.task AND coalesce(twin.tenant, '') = coalesce(j.tenant, '')
                           AND twin.unique_key = j.unique_key AND twin.unique_key IS NOT NULL
                           AND twin.state IN ('waiting', 'ready', 'running', 'open'))
   AND state IN ('waiting', 'ready') AND expires_at <= :now;

-- name: find_twins
-- differs: how a JSON array becomes rows. Of these jobs those whose unique key another one has now.
SELECT j.id
  FROM json_each(:ids) x CROSS JOIN perdure.job j ON j.id = x.value
 WHERE EXISTS (SELECT 1 FROM perdure.job twin
                WHERE twin.task = j.task AND coalesce(twin.tenant, '') = coalesce(j.tenant, '')
                  AND twin.unique_key = j.unique_key AND twin.unique_key IS NOT NULL
                  AND twin.state IN ('waiting', 'ready', 'running', 'open'));

-- name: requeue_jobs
-- differs: how a JSON array becomes rows.
UPDATE perdure.job
   SET state = 'ready', run = run + 1, attempt = 0, run_at = :now, expires_at = NULL, started_at = NULL,
       finished_at = NULL, cancel_requested_at = NULL, held = NULL, reason = NULL, result = NULL, crashes = 0, interruptions = 0, throttles = 0, snoozes = 0,
       error_kind = NULL, error_code = NULL, error_message = NULL, error_trace = NULL,
       stage = NULL, progress_done = NULL, progress_total = NULL, progress_message = NULL,
       checkpoint = CASE WHEN CAST(:keep_checkpoint AS integer) = 1 THEN checkpoint END
 WHERE id IN (SELECT value FROM json_each(:ids))
   AND state IN ('failed', 'canceled')
RETURNING queue;

-- name: run_jobs_now
-- differs: how a JSON array becomes rows.
UPDATE perdure.job
   SET run_at = CASE WHEN run_at > :now THEN :now ELSE run_at END,
       reason = CASE held WHEN 'unclaimable' THEN NULL ELSE reason END,
       held = CASE held WHEN 'unclaimable' THEN NULL ELSE held END
 WHERE id IN (SELECT value FROM json_each(:ids))
   AND state = 'ready' AND (run_at > :now OR held = 'unclaimable')
RETURNING queue;

-- name: delete_jobs
-- differs: how a JSON array becomes rows.
DELETE FROM perdure.job
 WHERE id IN (SELECT value FROM json_each(:ids))
   AND state <> 'running';

-- name: delete_attempts
-- differs: how a JSON array becomes rows.
DELETE FROM perdure.attempt
 WHERE job IN (SELECT value FROM json_each(:ids));

-- name: delete_events
-- differs: how a JSON array becomes rows.
DELETE FROM perdure.event
 WHERE job IN (SELECT value FROM json_each(:ids));

-- name: delete_logs
-- differs: how a JSON array becomes rows.
DELETE FROM perdure.log
 WHERE job IN (SELECT value FROM json_each(:ids));

-- name: delete_keys
-- differs: how a JSON array becomes rows.
DELETE FROM perdure.key
 WHERE job IN (SELECT value FROM json_each(:ids));

-- name: keep_keys
-- differs: how a JSON array becomes rows.
UPDATE perdure.key SET kept_until = :now + span(:keep)
 WHERE job IN (SELECT value FROM json_each(:ids));

-- name: record_act
-- differs: JSON is text here.
INSERT INTO perdure.act (at, actor, verb, subject, detail)
VALUES (:now, :actor, :verb, :subject, :detail)
RETURNING id;

-- name: amend_act
-- differs: JSON is text here.
UPDATE perdure.act SET detail = :detail WHERE id = :id;

-- name: count_found
-- differs: how a JSON array becomes rows.
SELECT CASE :by WHEN 'queue' THEN queue WHEN 'task' THEN task WHEN 'tenant' THEN tenant WHEN 'error_code' THEN error_code
                WHEN 'state' THEN CASE WHEN state <> 'ready' OR held IS NOT NULL OR run_at <= :now THEN state
                                       WHEN error_kind IS NULL THEN 'scheduled'
                                       ELSE 'retrying' END END,
       count(*)
  FROM perdure.job
 WHERE id IN (SELECT value FROM json_each(:ids))
 GROUP BY 1;
