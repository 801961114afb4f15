-- Statements that both databases run. store/statements.py explains the notations that it rewrites. States are literals,
-- because a generic plan cannot use the partial indexes if the state is a parameter.

-- fragment: lease_holds
-- Fencing: together with `token = …` this refuses a write of a running job whose lease was taken away. The next claim
-- raises the token, and a rescue clears the worker (docs/decisions/0005). Every use must also compare the token.
worker IS NOT NULL

-- fragment: queue_is_paused
-- Whether the queue of row q is paused now. A pause may end by itself.
(q.paused AND (q.resume_at IS NULL OR q.resume_at > :now))

-- fragment: queue_is_closed
-- Whether no job may be claimed now from the queue of row q. Every claim uses this fragment, so a condition that closes
-- a whole queue belongs here.
({queue_is_paused} OR q.cool_until > :now)

-- fragment: worker_may_claim
-- A worker that was retired, or that a restored database does not know, must not claim until it has registered anew.
-- Otherwise the next sweep would take its jobs away while they run. A worker that does not know the current limits must
-- not claim until it has read them.
EXISTS (SELECT 1 FROM perdure.worker w WHERE w.id = :worker AND {is_live})
       AND CAST(:limits AS bigint) = coalesce((SELECT version FROM perdure.limit_lock WHERE id = 1), 0)

-- fragment: queue_is_limited
-- Whether the queue of row q has a limit. Only limited claims hand out the jobs of such a queue.
q.concurrency IS NOT NULL

-- fragment: next_queues_and_priorities
-- The second half of `every` (queue), which begins with an empty name: all queues with ready jobs, one index lookup for
-- each. And `grp`: the priorities of these queues.
    SELECT (SELECT j.queue FROM perdure.job j
             WHERE j.state = 'ready' AND j.held IS NULL AND j.queue > every.queue
             ORDER BY j.queue LIMIT 1)
      FROM every WHERE every.queue IS NOT NULL),
grp (queue, priority) AS (
    SELECT queue, 32768 FROM every WHERE queue <> ''
    UNION ALL
    SELECT grp.queue, (SELECT CAST(j.priority AS integer) FROM perdure.job j INDEXED BY perdure.job_claim
                        WHERE j.state = 'ready' AND j.held IS NULL
                          AND j.queue = grp.queue AND j.priority < grp.priority
                        ORDER BY j.priority DESC LIMIT 1)
      FROM grp WHERE grp.priority IS NOT NULL)

-- fragment: task_cancels_running
t.cancels_running AND t.concurrency IS NOT NULL

-- fragment: end_pause
paused = false, paused_at = NULL, paused_by = NULL, pause_reason = NULL, resume_at = NULL

-- fragment: asked_queue_is_claimable
NOT EXISTS (SELECT 1 FROM perdure.queue q WHERE q.name = asked.queue AND ({queue_is_closed} OR {queue_is_limited}))
       AND {worker_may_claim}

-- fragment: asked_queue_is_open
NOT EXISTS (SELECT 1 FROM perdure.queue q WHERE q.name = asked.queue AND {queue_is_closed})
       AND {worker_may_claim}

-- fragment: beyond_limits
-- The jobs in `counted` (id, rank, queue, task, concurrency_key, n) for which a limit has no free slot. Jobs that run
-- already have the rank 0, and n alike share one row. The limit for a task's concurrency keys does not apply to a job
-- without a key.
under AS (
    SELECT c.id, c.rank, c.n, 'task' AS kind, coalesce(t.concurrency_scope, t.name) AS name,
           CASE WHEN t.keyed THEN c.concurrency_key ELSE '' END AS key, t.concurrency
      FROM counted c JOIN perdure.task t ON t.name = c.task
     WHERE t.concurrency IS NOT NULL AND (NOT t.keyed OR c.concurrency_key <> '')
    UNION ALL
    SELECT c.id, c.rank, c.n, 'named', l.name, '', l.concurrency
      FROM counted c JOIN perdure.task t ON t.name = c.task
           CROSS JOIN {names_of_limits} JOIN perdure.named_limit l ON l.name = given.value
     WHERE l.concurrency IS NOT NULL
    UNION ALL
    SELECT c.id, c.rank, c.n, 'queue', q.name, '', q.concurrency
      FROM counted c JOIN perdure.queue q ON q.name = c.queue
     WHERE {queue_is_limited}),
beyond AS (
    SELECT id
      FROM (SELECT id, rank, concurrency,
                   CAST(sum(n) OVER (PARTITION BY kind, name, key ORDER BY rank ROWS UNBOUNDED PRECEDING) AS bigint) AS position
              FROM under) placed
     WHERE rank > 0 AND position > concurrency)

-- fragment: not_expired
(expires_at IS NULL OR expires_at > :now)

-- fragment: not_left_to_sweeper
-- An expired step is left to the sweeper, which also decides about the steps that wait for it.
(workflow_id IS NULL OR {not_expired})

-- fragment: set_claimed
state = 'running', worker = :worker, attempt = attempt + 1, started_at = :now, reason = NULL, token = {next_token}

-- fragment: set_expired
state = 'canceled', finished_at = :now, reason = 'expired'

-- fragment: set_claimed_or_expired
state = CASE WHEN expires_at <= :now THEN 'canceled' ELSE 'running' END,
       worker = CASE WHEN expires_at <= :now THEN NULL ELSE :worker END,
       token = CASE WHEN expires_at <= :now THEN token ELSE {next_token} END,
       attempt = CASE WHEN expires_at <= :now THEN attempt ELSE attempt + 1 END,
       started_at = CASE WHEN expires_at <= :now THEN started_at ELSE :now END,
       finished_at = CASE WHEN expires_at <= :now THEN :now END,
       reason = CASE WHEN expires_at <= :now THEN 'expired' END

-- fragment: claimed_columns
-- The columns of a claimed job, after id, token and attempt.
task, queue, priority, run_at, run, max_attempts, timeout, payload, checkpoint, tenant, meta, crashes, interruptions,
       scheduled_for, workflow_id, step_key

-- fragment: is_live
-- Whether the worker of row w is live.
w.retired_at IS NULL

-- fragment: is_silent
-- Whether the worker of row w is to be retired. After a change of the clock, at :steady_since, this takes a whole lease.
-- The worker that asks lives.
{is_live} AND expires_at <= :now AND id <> :sweeper
   AND (CAST(:steady_since AS bigint) IS NULL OR instant(:steady_since) + wait(lease) <= :now)

-- fragment: task_columns
name, queue, priority, max_attempts, timeout, backoff, max_crashes, enabled, redact, concurrency, concurrency_scope, keyed,
       CAST(limits AS text), cancels_running

-- fragment: worker_columns
id, name, lease, tasks, queues, slots, started_at, beat_at, expires_at, retired_at

-- fragment: worker_is_gone
-- Whether the worker of a running job is not live, so that it will not finish the job.
NOT EXISTS (SELECT 1 FROM perdure.worker w WHERE w.id = worker AND {is_live})

-- fragment: clear_error
error_kind = NULL, error_code = NULL, error_message = NULL, error_trace = NULL

-- fragment: reset_for_requeue
-- The columns that a new run resets. The statement around this decides about the checkpoint.
run = run + 1, attempt = 0, expires_at = NULL, started_at = NULL, finished_at = NULL, cancel_requested_at = NULL, held = NULL,
       reason = NULL, result = NULL, crashes = 0, interruptions = 0, throttles = 0, snoozes = 0, {clear_error}, stage = NULL,
       progress_done = NULL, progress_total = NULL, progress_message = NULL

-- fragment: gate_due
-- The due time of a gate that opens is the end of its timeout.
:now + wait(timeout)

-- fragment: step_due
-- A released step is due after its delay.
greatest(run_at, :now + wait(delay))

-- fragment: released_state
CASE task WHEN '(gate)' THEN 'open' ELSE 'ready' END

-- fragment: released_run_at
CASE task WHEN '(gate)' THEN {gate_due} ELSE {step_due} END

-- fragment: tally_columns
id, status, waiting, active, open, spoiled, cancel_requested_at IS NOT NULL, tenant

-- fragment: due_jobs
-- Jobs that are due and not held. Due jobs that are still set aside are in another index.
(SELECT queue, task, run_at FROM perdure.job
          WHERE state = 'ready' AND held IS NULL AND run_at <= :now
         UNION ALL
         SELECT queue, task, run_at FROM perdure.job
          WHERE state = 'ready' AND held = 'later' AND run_at <= :now) due

-- fragment: visible_state
-- The state that people see. model/visible_state.py has the same rule in Python. A job that is set aside (held = 'later')
-- is not shown as held.
CASE WHEN state <> 'ready' THEN state
            WHEN held <> 'later' THEN 'held'
            WHEN run_at <= :now THEN 'ready'
            WHEN error_kind IS NOT NULL THEN 'retrying'
            ELSE 'scheduled' END

-- fragment: fits_filter
-- Whether the job of row j meets the conditions of a filter. NULL means no condition.
(CAST(:queue AS text) IS NULL OR j.queue = CAST(:queue AS text))
       AND (CAST(:task AS text) IS NULL OR j.task = CAST(:task AS text))
       AND (CAST(:tenant AS text) IS NULL OR j.tenant = CAST(:tenant AS text))
       AND (CAST(:states AS text) IS NULL OR {visible_state} IN texts(:states))
       AND (CAST(:tag AS text) IS NULL OR {has_tag})
       AND (CAST(:idempotency_key AS text) IS NULL
            OR EXISTS (SELECT 1 FROM perdure.key k WHERE k.job = j.id AND k.key = CAST(:idempotency_key AS text)))
       AND (CAST(:unique_key AS text) IS NULL OR j.unique_key = CAST(:unique_key AS text))
       AND (CAST(:error_code AS text) IS NULL OR j.error_code = CAST(:error_code AS text))
       AND (CAST(:created_after AS bigint) IS NULL OR j.created_at >= instant(:created_after))
       AND (CAST(:created_before AS bigint) IS NULL OR j.created_at < instant(:created_before))
       AND (CAST(:finished_after AS bigint) IS NULL OR j.finished_at >= instant(:finished_after))
       AND (CAST(:finished_before AS bigint) IS NULL OR j.finished_at < instant(:finished_before))
       AND (CAST(:text AS text) IS NULL OR {has_text})

-- name: get_job
SELECT {each job field: COLUMN}
  FROM perdure.job
 WHERE id = :id;

-- name: read_jobs
SELECT {each job field: COLUMN}
  FROM perdure.job
 WHERE id IN ids(:ids)
 ORDER BY id DESC;

-- name: count_jobs
-- Gates are left out: no worker runs them, and nobody chose the queue that their rows name.
SELECT queue,
       {visible_state},
       count(*)
  FROM perdure.job
 WHERE task <> '(gate)'
   AND (CAST(:queue AS text) IS NULL OR queue = CAST(:queue AS text))
   AND (CAST(:tenant AS text) IS NULL OR tenant = CAST(:tenant AS text))
 GROUP BY 1, 2
 ORDER BY 1, 2;

-- name: oldest_ready
SELECT queue, min(run_at)
  FROM {due_jobs}
 WHERE (CAST(:queue AS text) IS NULL OR queue = CAST(:queue AS text))
 GROUP BY queue
 ORDER BY queue;

-- name: list_ready
-- The jobs that could run now, by queue and task. The oldest job shows the lag.
SELECT queue, task, count(*), min(run_at)
  FROM {due_jobs}
 GROUP BY queue, task
 ORDER BY queue, task;

-- name: find_later
-- The matching jobs that are not due yet, soonest first, in a scan range that begins after the given time and id. The
-- last row shows where the range ended.
WITH looked AS MATERIALIZED (
    SELECT id, run_at
      FROM (SELECT id, run_at FROM perdure.job INDEXED BY perdure.job_claim
             WHERE state = 'ready' AND held IS NULL AND run_at > :now AND (run_at, id) > (instant(:due), :after)
            UNION ALL
            SELECT id, run_at FROM (
                   SELECT id, run_at FROM perdure.job INDEXED BY perdure.job_later
                    WHERE state = 'ready' AND held = 'later' AND run_at > :now AND (run_at, id) > (instant(:due), :after)
                    ORDER BY run_at, id LIMIT :length) aside) later
     ORDER BY run_at, id LIMIT :length),
found AS (
    SELECT j.id, j.run_at
      FROM perdure.job j
     WHERE j.id = ANY (ARRAY(SELECT id FROM looked))
       AND {fits_filter}
     ORDER BY j.run_at, j.id
     LIMIT :n)
SELECT id, run_at, true FROM found
UNION ALL
SELECT id, run_at, false
  FROM (SELECT id, run_at FROM looked
         WHERE (SELECT count(*) FROM looked) = :length
         ORDER BY run_at DESC, id DESC LIMIT 1) last;

-- name: find_run_at
SELECT run_at FROM perdure.job WHERE id = :id;

-- name: find_jobs_between
SELECT id, task, state, workflow_id
  FROM perdure.job
 WHERE id >= :first AND id <= :last
 ORDER BY id DESC
 LIMIT :n;

-- name: list_newest
SELECT id, queue, task, state, run_at, started_at, finished_at
  FROM perdure.job
 WHERE id < :before
 ORDER BY id DESC
 LIMIT :n;

-- name: find_front
-- The first job of a queue: the job that a claim would take next.
SELECT id
  FROM perdure.job
 WHERE state = 'ready' AND held IS NULL AND queue = :queue AND run_at <= :now
 ORDER BY priority DESC, run_at, id
 LIMIT 1;

-- name: find_due
SELECT id, priority, run_at
  FROM perdure.job
 WHERE state = 'ready' AND held IS NULL AND queue = :queue AND run_at <= :now AND {not_expired}
   AND task IN texts(:tasks)
 ORDER BY priority DESC, run_at, id
 LIMIT :n OFFSET :skip;

-- name: list_due_queues
-- The queues that a claim may scan. Each queue takes one index lookup.
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
   AND NOT EXISTS (SELECT 1 FROM perdure.queue q
                    WHERE q.name = every.queue AND ({queue_is_closed} OR {queue_is_limited}));

-- name: claim_chosen
-- Like claim_jobs, for one known row. A locked row is skipped.
UPDATE perdure.job SET {set_claimed}
 WHERE id = ANY (ARRAY(
           SELECT id FROM perdure.job
            WHERE id = :id AND state = 'ready' AND held IS NULL AND run_at <= :now AND {not_expired}
              AND NOT EXISTS (SELECT 1 FROM perdure.queue q WHERE q.name = queue AND {queue_is_closed})
              AND NOT EXISTS (SELECT 1 FROM perdure.queue q WHERE q.name = queue AND {queue_is_limited})
              AND {worker_may_claim}
              FOR UPDATE SKIP LOCKED))
RETURNING CAST(id AS text), token, attempt, {claimed_columns}, state;

-- name: read_limit_version
SELECT version FROM perdure.limit_lock WHERE id = 1;

-- name: lock_limits
-- This lock makes claims of limited jobs and changes of limits run one after the other.
SELECT version FROM perdure.limit_lock WHERE id = 1 FOR UPDATE;

-- name: change_limits
INSERT INTO perdure.limit_lock AS l (id, version) VALUES (1, 1)
    ON CONFLICT (id) DO UPDATE SET version = l.version + 1;

-- name: list_limited_tasks
SELECT name, concurrency, coalesce(concurrency_scope, name), keyed, CAST(limits AS text), cancels_running
  FROM perdure.task
 WHERE concurrency IS NOT NULL OR limits IS NOT NULL;

-- name: list_limited_queues
SELECT name, concurrency
  FROM perdure.queue q
 WHERE {queue_is_limited};

-- name: list_named_limits
SELECT name, concurrency, declared, edited
  FROM perdure.named_limit
 ORDER BY name;

-- name: set_limit
INSERT INTO perdure.named_limit (name, concurrency, edited) VALUES (:name, :concurrency, true)
    ON CONFLICT (name) DO UPDATE SET concurrency = excluded.concurrency, edited = true;

-- name: declare_limit
-- A limit that an operator has set stays in effect.
INSERT INTO perdure.named_limit AS l (name, concurrency, declared) VALUES (:name, :concurrency, :concurrency)
    ON CONFLICT (name) DO UPDATE
   SET declared = excluded.declared, concurrency = CASE WHEN l.edited THEN l.concurrency ELSE excluded.declared END;

-- name: reset_limit
UPDATE perdure.named_limit SET concurrency = declared, edited = false
 WHERE name = :name
RETURNING concurrency;

-- name: list_running_jobs
SELECT id, queue, task, concurrency_key
  FROM perdure.job
 WHERE state = 'running' AND worker IS NOT NULL
 ORDER BY started_at, id;

-- name: count_due_limited
-- How many jobs are due in each queue and priority, by task, and how many of them have a concurrency key. Only limited
-- tasks are counted, and in limited queues all tasks. Counting stops at :most, because more would be expensive and
-- nobody needs the exact number.
WITH RECURSIVE
every AS (
    SELECT CAST('' AS text) AS queue
    UNION ALL
{next_queues_and_priorities}
SELECT queue, task, due, keyed
  FROM (SELECT grp.queue, t.name AS task,
               (SELECT count(*)
                  FROM (SELECT 1 FROM perdure.job j INDEXED BY perdure.job_claim_task
                         WHERE j.state = 'ready' AND j.held IS NULL
                           AND j.queue = grp.queue AND j.priority = grp.priority AND j.task = t.name AND j.run_at <= :now
                         ORDER BY j.run_at, j.id LIMIT :most) first) AS due,
               CASE WHEN t.keyed THEN
               (SELECT count(nullif(concurrency_key, ''))
                  FROM (SELECT j.concurrency_key FROM perdure.job j INDEXED BY perdure.job_claim_task
                         WHERE j.state = 'ready' AND j.held IS NULL
                           AND j.queue = grp.queue AND j.priority = grp.priority AND j.task = t.name AND j.run_at <= :now
                         ORDER BY j.run_at, j.id LIMIT :most) first) ELSE 0 END AS keyed
          FROM grp CROSS JOIN perdure.task t
         WHERE grp.priority < 32768
           AND (t.concurrency IS NOT NULL OR t.limits IS NOT NULL
                OR EXISTS (SELECT 1 FROM perdure.queue q WHERE q.name = grp.queue AND {queue_is_limited}))) counted
 WHERE due > 0;

-- name: find_keyless
-- The first due jobs of a task in one queue and priority to which no concurrency key applies.
SELECT id, run_at
  FROM perdure.job INDEXED BY perdure.job_claim_key
 WHERE state = 'ready' AND held IS NULL AND queue = :queue AND priority = :priority AND task = :task
   AND concurrency_key IS NOT NULL AND concurrency_key = '' AND run_at <= :now
   AND {not_expired}
 ORDER BY run_at, id LIMIT :n;

-- name: find_superseded
-- The jobs that newer ones replace: of each task that cancels running jobs, or of each of its keys, all jobs that run or are
-- due, except the newest. A job that was asked to stop is not listed again.
WITH RECURSIVE
every AS (
    SELECT CAST('' AS text) AS queue WHERE EXISTS (SELECT 1 FROM perdure.task t WHERE {task_cancels_running})
    UNION ALL
{next_queues_and_priorities},
candidate AS (
    SELECT j.id, j.task, j.concurrency_key, j.cancel_requested_at
      FROM perdure.job j
     WHERE j.state = 'running' AND j.worker IS NOT NULL
       AND j.task IN (SELECT t.name FROM perdure.task t WHERE {task_cancels_running})
    UNION ALL
    SELECT j.id, j.task, j.concurrency_key, j.cancel_requested_at
      FROM grp CROSS JOIN perdure.task t
           JOIN perdure.job j ON j.state = 'ready' AND j.held IS NULL
                             AND j.queue = grp.queue AND j.priority = grp.priority AND j.task = t.name AND j.run_at <= :now
     WHERE grp.priority < 32768 AND {task_cancels_running}
       -- A job that cannot start replaces none.
       AND NOT EXISTS (SELECT 1 FROM perdure.queue q WHERE q.name = grp.queue AND ({queue_is_closed} OR {queue_is_limited})))
SELECT id
  FROM (SELECT c.id, c.cancel_requested_at, t.concurrency,
               row_number() OVER (PARTITION BY coalesce(t.concurrency_scope, t.name),
                                               CASE WHEN t.keyed THEN c.concurrency_key ELSE '' END
                                      ORDER BY c.id DESC) AS place
          FROM candidate c JOIN perdure.task t ON t.name = c.task
         WHERE NOT t.keyed OR c.concurrency_key <> '') placed
 WHERE place > concurrency AND cancel_requested_at IS NULL
 ORDER BY id LIMIT :n;

-- name: count_ahead
-- How many jobs come before a job in its queue: two ranges of the claim's index. Counting stops at a thousand, because
-- more would be expensive and nobody needs the exact number.
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

-- name: record_event
INSERT INTO perdure.event (job, run, token, kind, at, detail)
VALUES (:id, :run, :token, :kind, :now, as_json(:detail));

-- name: list_logs
SELECT token, level, message, at
  FROM perdure.log
 WHERE job = :id
 ORDER BY id;

-- name: list_tasks
SELECT {task_columns}
  FROM perdure.task
 ORDER BY name;

-- name: describe_tasks
SELECT {task_columns}, CAST(config AS text), synced_at
  FROM perdure.task
 ORDER BY name;

-- name: count_by_task
-- The jobs that are ready or running. Only their partial indexes are read, so ended jobs cost nothing.
SELECT task,
       {visible_state},
       count(*)
  FROM perdure.job
 WHERE state = 'ready' AND held IS NULL
 GROUP BY 1, 2
UNION ALL
SELECT task,
       {visible_state},
       count(*)
  FROM perdure.job
 WHERE state = 'ready' AND held = 'later'
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

-- name: configure_task
UPDATE perdure.task SET config = as_json(:config) WHERE name = :name
RETURNING name;

-- name: list_queues
SELECT {each queue field: COLUMN}
  FROM perdure.queue
 ORDER BY name;

-- name: lock_queues
-- Rows are locked in the order of their names.
SELECT name, throttles, cool_until, :now, backoff
  FROM perdure.queue
 WHERE name IN texts(:names)
 ORDER BY name
   FOR UPDATE;

-- name: lock_settings
-- Rows are locked in the order of their names.
SELECT {each queue field: COLUMN}
  FROM perdure.queue
 WHERE name IN texts(:names)
 ORDER BY name
   FOR UPDATE;

-- name: write_settings
UPDATE perdure.queue
   SET backoff = as_json(:backoff), timeout = :timeout, concurrency = :concurrency, declared = as_json(:declared),
       edited = as_json(:edited)
 WHERE name = :name;

-- name: list_live_settings
-- The settings of queues that workers need.
SELECT name, timeout, CASE WHEN {queue_is_paused} THEN resume_at END, :now
  FROM perdure.queue q
 WHERE timeout IS NOT NULL OR (resume_at IS NOT NULL AND {queue_is_paused})
 ORDER BY name;

-- name: pause_queue
-- If the queue is already paused, only the operator, the reason and the end change.
INSERT INTO perdure.queue AS q (name, paused, paused_at, paused_by, pause_reason, resume_at)
VALUES (:name, true, :now, :by, :reason, instant(:resume_at))
    ON CONFLICT (name) DO UPDATE
       SET paused = true, paused_at = CASE WHEN {queue_is_paused} THEN q.paused_at ELSE excluded.paused_at END,
           paused_by = excluded.paused_by, pause_reason = excluded.pause_reason, resume_at = excluded.resume_at;

-- name: lock_pause
SELECT paused_at, paused_by, pause_reason, resume_at
  FROM perdure.queue q
 WHERE name = :name AND {queue_is_paused}
   FOR UPDATE;

-- name: resume_queue
UPDATE perdure.queue SET {end_pause}
 WHERE name = :name;

-- name: end_pauses
UPDATE perdure.queue SET {end_pause}
 WHERE paused AND resume_at <= :now
RETURNING name;

-- name: cool_queue
UPDATE perdure.queue SET throttles = :throttles, cool_until = :now + span(:cool) WHERE name = :name;

-- name: warm_queue
UPDATE perdure.queue SET throttles = 0, cool_until = NULL WHERE name = :name;

-- name: find_job
SELECT id, queue, state, run, attempt
  FROM perdure.job
 WHERE id = :id;

-- name: lock_job
-- An operator's action locks the job's row, so that its decision is still right when it writes. json is returned as
-- text, because the codec of a caller's connection would decode json.
SELECT state, run, token, worker, CAST(checkpoint AS text), CAST(result AS text), unique_key, task,
       coalesce(tenant, ''), run_at <= :now, workflow_id, step_key, held
  FROM perdure.job
 WHERE id = :id
   FOR UPDATE;

-- name: hold_job
-- A row that another transaction has locked is skipped.
UPDATE perdure.job SET held = 'unclaimable', reason = :reason
 WHERE id = ANY (ARRAY(SELECT j.id FROM perdure.job j WHERE j.id = :id AND j.state = 'ready' AND j.held IS NULL
                          FOR UPDATE SKIP LOCKED))
RETURNING id;

-- name: expire_active
-- An expired job that nobody has canceled yet must not answer a new request with the same unique key.
UPDATE perdure.job SET {set_expired}
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
 WHERE {is_live}
RETURNING id;

-- name: beat_worker
UPDATE perdure.worker AS w SET beat_at = :now, expires_at = :now + wait(lease)
 WHERE id = :worker AND {is_live}
RETURNING id;

-- name: find_worker
SELECT {is_live} FROM perdure.worker w WHERE id = :worker;

-- name: retire_worker
UPDATE perdure.worker AS w SET retired_at = :now WHERE id = :worker AND {is_live};

-- name: retire_silent_workers
UPDATE perdure.worker AS w SET retired_at = :now
 WHERE {is_silent}
RETURNING id;

-- name: find_silent_workers
SELECT id FROM perdure.worker w WHERE {is_silent} ORDER BY id;

-- name: retire_silent_chosen
UPDATE perdure.worker AS w SET retired_at = :now
 WHERE id IN texts(:ids) AND {is_silent}
RETURNING id;

-- name: lead
-- The leader stays the leader. Another worker takes over when the lead has expired, when the leader is retired, or when
-- its own lease has expired: a leader without a heartbeat would never retire itself.
INSERT INTO perdure.leader AS l (name, worker, expires_at) VALUES (:name, :worker, :now + span(:lease))
    ON CONFLICT (name) DO UPDATE SET worker = excluded.worker, expires_at = excluded.expires_at
 WHERE l.worker = excluded.worker OR l.expires_at <= :now
    OR NOT EXISTS (SELECT 1 FROM perdure.worker w WHERE w.id = l.worker AND {is_live} AND w.expires_at > :now)
RETURNING worker;

-- name: list_workers
SELECT {worker_columns}
  FROM perdure.worker w
 WHERE {is_live}
 ORDER BY started_at, id;

-- name: list_workers_of_job
-- The workers that ran attempts of a job, including retired workers.
SELECT {worker_columns}
  FROM perdure.worker w
 WHERE id = ANY (ARRAY(SELECT worker FROM perdure.attempt WHERE job = :id AND worker IS NOT NULL
                        UNION
                       SELECT worker FROM perdure.job WHERE id = :id AND worker IS NOT NULL))
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
-- The columns that a replay copies. json is returned as text: see lock_job.
SELECT task, queue, CAST(payload AS text) AS payload, {each option: CAST(COLUMN AS text) AS COLUMN}, priority,
       max_attempts, unique_key
  FROM perdure.job
 WHERE id = :id;

-- name: mark_replay
-- The timeout is copied here, because a request cannot express "no timeout".
UPDATE perdure.job
   SET replay_of = :source, timeout = (SELECT s.timeout FROM perdure.job s WHERE s.id = :source),
       concurrency_key = (SELECT s.concurrency_key FROM perdure.job s WHERE s.id = :source),
       scheduled_for = (SELECT s.scheduled_for FROM perdure.job s WHERE s.id = :source)
 WHERE id = :id;

-- name: find_replay
SELECT replay_of FROM perdure.job WHERE id = :id;

-- name: forget_put_off
-- Tokens grow by one with each claim, and this statement runs with each postponed attempt. So it is enough to read the
-- hundred tokens up to :token. Older attempts are not read again.
DELETE FROM perdure.attempt
 WHERE job = :id AND token > CAST(:token AS integer) - 100 AND token <= CAST(:token AS integer)
   AND kind IN ('snoozed', 'throttled');

-- name: get_workflow
-- json is returned as text: see lock_job.
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

-- name: find_workflows_between
SELECT id, name, status
  FROM perdure.workflow
 WHERE id >= :first AND id <= :last
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

-- name: insert_workflow
INSERT INTO perdure.workflow (id, name, tenant, status, waiting, active, open, spoiled, total, result_step, meta,
                              idempotency_key, request, unique_key, created_at)
VALUES (:id, :name, :tenant, :status, :waiting, :active, :open, 0, :total, :result_step, as_json(:meta), :idempotency_key, as_json(:request),
        :unique_key, :now)
    ON CONFLICT DO NOTHING
RETURNING id;

-- name: lock_workflows
-- Rows are locked in the order of their ids.
SELECT {tally_columns}
  FROM perdure.workflow
 WHERE id IN ids(:ids)
 ORDER BY id
   FOR UPDATE;

-- name: lock_orphan_workflows
-- Rows are sorted by id. The steps of a workflow that another transaction has locked are left to the next sweep.
SELECT {tally_columns}
  FROM perdure.workflow
 WHERE id = ANY (ARRAY(SELECT r.workflow_id FROM perdure.job r INDEXED BY perdure.job_running
                        WHERE r.state = 'running' AND r.workflow_id IS NOT NULL
                          AND {worker_is_gone}))
 ORDER BY id
   FOR UPDATE SKIP LOCKED;

-- name: list_steps
SELECT id, step_key, task, queue, state, run, attempt, max_attempts, run_at, created_at, started_at, finished_at,
       deps_pending, deps_unsatisfied, timeout, reason, error_kind, error_code, error_message, held
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

-- name: find_failed_step
-- The step of a workflow that failed first.
SELECT step_key, error_code, error_message, reason
  FROM perdure.job
 WHERE workflow_id = :workflow AND workflow_id IS NOT NULL AND state = 'failed'
 ORDER BY finished_at, id
 LIMIT 1;

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

-- name: find_steps
SELECT step_key, id, state
  FROM perdure.job
 WHERE workflow_id = :workflow AND workflow_id IS NOT NULL
   AND step_key IN texts(:keys);

-- name: read_results
SELECT id, result FROM perdure.job WHERE id IN ids(:ids);

-- name: find_mutation
SELECT CAST(request AS text) FROM perdure.mutation WHERE workflow = :workflow AND key = :key;

-- name: insert_mutation
INSERT INTO perdure.mutation (workflow, key, request, at) VALUES (:workflow, :key, as_json(:request), :now);

-- name: find_appended
-- The appends of a step, in all of its attempts. Their keys begin with the id of that step.
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
-- Running steps are asked to stop. If there are several requests, the first request counts.
UPDATE perdure.job
   SET cancel_requested_at = coalesce(cancel_requested_at, :now), reason = coalesce(reason, CAST(:reason AS text))
 WHERE workflow_id = :workflow AND workflow_id IS NOT NULL AND state = 'running'
RETURNING worker;

-- name: resolve_gate
UPDATE perdure.job
   SET state = CASE CAST(:resolution AS text) WHEN 'succeeded' THEN 'succeeded' WHEN 'failed' THEN 'failed' ELSE 'canceled' END,
       finished_at = :now, result = as_json(:result), reason = :reason
 WHERE id = :id AND state = 'open';

-- name: restart_workflow
UPDATE perdure.workflow SET run = run + 1, cancel_requested_at = NULL, reason = NULL
 WHERE id = :workflow;

-- name: delete_workflow
DELETE FROM perdure.workflow WHERE id = :id;

-- name: find_expired_jobs
SELECT id
  FROM perdure.job
 WHERE state IN ('waiting', 'ready') AND expires_at IS NOT NULL AND expires_at <= :now AND workflow_id IS NULL
 ORDER BY expires_at
 LIMIT :n;

-- name: expire_chosen
UPDATE perdure.job SET {set_expired}
 WHERE id IN ids(:ids)
   AND state IN ('waiting', 'ready') AND expires_at IS NOT NULL AND expires_at <= :now AND workflow_id IS NULL
RETURNING id;

-- name: find_expired_steps
SELECT DISTINCT workflow_id
  FROM perdure.job
 WHERE state IN ('waiting', 'ready') AND expires_at IS NOT NULL AND expires_at <= :now AND workflow_id IS NOT NULL
 LIMIT :n;

-- name: expire_steps
-- deps_pending shows in which state a step was: only a waiting step has parents that have not ended.
UPDATE perdure.job SET {set_expired}
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

-- name: record_last_attempts
-- Copies the last attempts of jobs into the ledger, unless they are there already, before a requeue resets the rows.
INSERT INTO perdure.attempt (job, token, run, attempt, kind, code, message, trace, worker, started_at, finished_at)
SELECT id, token, run, attempt, coalesce(error_kind, state), error_code, error_message, error_trace, NULL, started_at,
       finished_at
  FROM perdure.job
 WHERE id IN ids(:ids)
   AND started_at IS NOT NULL
    ON CONFLICT (job, token) DO NOTHING;

-- name: cancel_jobs
-- A running job is asked to stop. If there are several requests, the first request counts. Any other job is canceled
-- now.
UPDATE perdure.job
   SET state = CASE state WHEN 'running' THEN state ELSE 'canceled' END,
       cancel_requested_at = coalesce(cancel_requested_at, :now),
       finished_at = CASE state WHEN 'running' THEN NULL ELSE :now END,
       reason = coalesce(reason, CAST(:reason AS text))
 WHERE id IN ids(:ids)
   AND state IN ('waiting', 'ready', 'running', 'open')
RETURNING state;

-- name: requeue_jobs
UPDATE perdure.job
   SET state = 'ready', run_at = :now, {reset_for_requeue},
       checkpoint = CASE WHEN CAST(:keep_checkpoint AS integer) = 1 THEN checkpoint END
 WHERE id IN ids(:ids)
   AND state IN ('failed', 'canceled')
RETURNING queue;

-- name: run_jobs_now
UPDATE perdure.job
   SET run_at = CASE WHEN run_at > :now THEN :now ELSE run_at END,
       reason = CASE held WHEN 'unclaimable' THEN NULL ELSE reason END,
       held = CASE WHEN held IN ('unclaimable', 'later') THEN NULL ELSE held END
 WHERE id IN ids(:ids)
   AND state = 'ready' AND (run_at > :now OR held = 'unclaimable')
RETURNING queue;

-- name: list_ready_queues
-- The next :n queues after :after that have jobs in the claim's index. Each queue takes one index lookup.
WITH RECURSIVE every AS (
    SELECT CAST(:after AS text) AS queue, 0 AS n
    UNION ALL
    SELECT (SELECT j.queue FROM perdure.job j
             WHERE j.state = 'ready' AND j.held IS NULL AND j.queue > every.queue
             ORDER BY j.queue LIMIT 1), every.n + 1
      FROM every WHERE every.queue IS NOT NULL AND every.n < :n)
SELECT queue
  FROM every
 WHERE queue IS NOT NULL AND n > 0;

-- name: find_due_soon
-- Jobs that were set aside and are due soon, after the given time and id.
SELECT run_at, id
  FROM perdure.job INDEXED BY perdure.job_later
 WHERE state = 'ready' AND held = 'later' AND run_at <= :now + span(:ahead) AND (run_at, id) > (instant(:due), :after)
 ORDER BY run_at, id
 LIMIT :n;

-- name: bring_back
UPDATE perdure.job SET held = NULL
 WHERE id = ANY (ARRAY(
           SELECT id FROM perdure.job
            WHERE id IN ids(:ids) AND state = 'ready' AND held = 'later'
              FOR UPDATE SKIP LOCKED))
RETURNING queue, run_at <= :now;

-- name: delete_jobs
DELETE FROM perdure.job
 WHERE id IN ids(:ids)
   AND state <> 'running';

-- name: delete_attempts
DELETE FROM perdure.attempt
 WHERE job IN ids(:ids);

-- name: delete_events
DELETE FROM perdure.event
 WHERE job IN ids(:ids);

-- name: delete_logs
DELETE FROM perdure.log
 WHERE job IN ids(:ids);

-- name: delete_keys
DELETE FROM perdure.key
 WHERE job IN ids(:ids);

-- name: keep_keys
UPDATE perdure.key SET kept_until = :now + span(:keep)
 WHERE job IN ids(:ids);

-- name: count_found
SELECT CASE CAST(:by AS text)
            WHEN 'queue' THEN queue WHEN 'task' THEN task WHEN 'tenant' THEN tenant WHEN 'error_code' THEN error_code
            WHEN 'state' THEN {visible_state} END,
       count(*)
  FROM perdure.job
 WHERE id IN ids(:ids)
 GROUP BY 1;

-- name: record_act
INSERT INTO perdure.act (at, actor, verb, subject, detail)
VALUES (:now, :actor, :verb, :subject, as_json(:detail))
RETURNING id;

-- name: amend_act
UPDATE perdure.act SET detail = as_json(:detail) WHERE id = :id;

-- name: list_acts
SELECT id, at, actor, verb AS action, subject, detail
  FROM perdure.act
 WHERE id < :before
   AND (CAST(:verb AS text) IS NULL OR verb = CAST(:verb AS text))
   AND (CAST(:actor AS text) IS NULL OR actor = CAST(:actor AS text))
   AND (CAST(:subject AS text) IS NULL OR subject = CAST(:subject AS text))
 ORDER BY id DESC
 LIMIT :n;
