-- The ledger: jobs, the attempts before their current one, keys, queues, tasks and workers.

CREATE TABLE perdure.task (
    name          text NOT NULL PRIMARY KEY CHECK (name <> ''),
    queue         text NOT NULL CHECK (queue <> ''),
    priority      integer NOT NULL CHECK (priority BETWEEN -32768 AND 32767),
    max_attempts  integer NOT NULL CHECK (max_attempts >= 1),
    timeout       integer CHECK (timeout > 0),
    backoff       text NOT NULL,
    max_crashes   integer CHECK (max_crashes >= 1),
    enabled       integer NOT NULL DEFAULT 1 CHECK (enabled IN (0, 1)),
    synced_at     integer NOT NULL
) STRICT;

CREATE TABLE perdure.queue (
    name          text NOT NULL PRIMARY KEY CHECK (name <> ''),
    paused        integer NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    -- A queue cools until then: some limit outside was hit. The exponent counts limiter events.
    cool_until    integer,
    throttles     integer NOT NULL DEFAULT 0 CHECK (throttles >= 0),
    backoff       text
) STRICT;

CREATE TABLE perdure.worker (
    id            text NOT NULL PRIMARY KEY CHECK (id <> ''),
    name          text NOT NULL,
    lease         integer NOT NULL CHECK (lease > 0),
    tasks         text NOT NULL,
    -- NULL: it serves every queue.
    queues        text,
    slots         integer NOT NULL,
    started_at    integer NOT NULL,
    beat_at       integer NOT NULL,
    expires_at    integer NOT NULL,
    retired_at    integer
) STRICT;

-- Which worker does what only one should do.
CREATE TABLE perdure.leader (
    name          text NOT NULL PRIMARY KEY,
    worker        text NOT NULL,
    expires_at    integer NOT NULL
) STRICT;

CREATE TABLE perdure.job (
    id                   text NOT NULL PRIMARY KEY,
    task                 text NOT NULL,
    queue                text NOT NULL CHECK (queue <> ''),
    tenant               text CHECK (tenant <> ''),
    -- Text, so that it comes back as it was sent.
    payload              text NOT NULL,
    meta                 text,
    tags                 text,
    state                text NOT NULL
        CHECK (state IN ('waiting', 'ready', 'running', 'open', 'succeeded', 'failed', 'canceled')),
    -- What keeps a ready job from being claimed: a limit, a strike, fairness.
    held                 text,
    priority             integer NOT NULL CHECK (priority BETWEEN -32768 AND 32767),
    run                  integer NOT NULL DEFAULT 1 CHECK (run >= 1),
    attempt              integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    max_attempts         integer NOT NULL CHECK (max_attempts >= 1),
    timeout              integer CHECK (timeout > 0),
    run_at               integer NOT NULL,
    expires_at           integer,
    -- Grows by one at each claim and is never reset: every write of a running job names it.
    token                integer NOT NULL DEFAULT 0 CHECK (token >= 0),
    worker               text,
    started_at           integer,
    finished_at          integer,
    stage                text,
    progress_done        integer,
    progress_total       integer,
    progress_message     text,
    checkpoint           text,
    result               text,
    reason               text,
    error_kind           text,
    error_code           text,
    error_message        text,
    error_trace          text,
    cancel_requested_at  integer,
    throttles            integer NOT NULL DEFAULT 0,
    snoozes              integer NOT NULL DEFAULT 0,
    crashes              integer NOT NULL DEFAULT 0,
    unique_key           text CHECK (unique_key <> ''),
    concurrency_key      text,
    workflow_id          text,
    step_key             text,
    deps_pending         integer NOT NULL DEFAULT 0,
    deps_unsatisfied     integer NOT NULL DEFAULT 0,
    parent_job           text,
    replay_of            text,
    scheduled_for        integer,
    created_at           integer NOT NULL,
    CONSTRAINT running_has_a_worker CHECK ((state = 'running') = (worker IS NOT NULL)),
    CONSTRAINT ended_has_an_end CHECK ((state IN ('succeeded', 'failed', 'canceled')) = (finished_at IS NOT NULL)),
    CONSTRAINT progress_fits CHECK (progress_done >= 0 AND progress_total >= 0 AND progress_done <= progress_total)
) STRICT;

-- The claim reads at most n due rows of each (queue, priority) ...
CREATE INDEX perdure.job_claim ON perdure.job (queue, priority DESC, run_at, id)
    WHERE state = 'ready' AND held IS NULL;
-- ... and by task only where it meets tasks that its worker does not know.
CREATE INDEX perdure.job_claim_task ON perdure.job (queue, priority DESC, task, run_at, id)
    WHERE state = 'ready' AND held IS NULL;
-- What the database believes a worker runs.
CREATE INDEX perdure.job_running ON perdure.job (worker)
    WHERE state = 'running';
-- At most one active job per unique key.
CREATE UNIQUE INDEX perdure.job_unique ON perdure.job (task, coalesce(tenant, ''), unique_key)
    WHERE unique_key IS NOT NULL AND state IN ('waiting', 'ready', 'running', 'open');
-- Only jobs that expire pay for it.
CREATE INDEX perdure.job_expires ON perdure.job (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('waiting', 'ready');

CREATE TABLE perdure.key (
    task          text NOT NULL,
    -- '' is the global scope.
    tenant        text NOT NULL,
    key           text NOT NULL CHECK (key <> ''),
    job           text NOT NULL,
    request       text NOT NULL,
    kept_until    integer,
    PRIMARY KEY (task, tenant, key)
) STRICT;
CREATE INDEX perdure.key_job ON perdure.key (job);

CREATE TABLE perdure.attempt (
    job           text NOT NULL,
    token         integer NOT NULL,
    run           integer NOT NULL,
    attempt       integer NOT NULL,
    kind          text NOT NULL,
    code          text,
    message       text,
    trace         text,
    worker        text,
    started_at    integer,
    finished_at   integer NOT NULL,
    -- What it waited for before the next try, and what decided that.
    delay         integer,
    decided_by    text,
    PRIMARY KEY (job, token)
) STRICT;

CREATE TABLE perdure.event (
    id            integer PRIMARY KEY AUTOINCREMENT,
    job           text NOT NULL,
    run           integer NOT NULL,
    token         integer NOT NULL,
    kind          text NOT NULL,
    at            integer NOT NULL,
    detail        text
) STRICT;
CREATE INDEX perdure.event_job ON perdure.event (job, id);

CREATE TABLE perdure.log (
    id            integer PRIMARY KEY AUTOINCREMENT,
    job           text NOT NULL,
    token         integer NOT NULL,
    level         text NOT NULL,
    message       text NOT NULL,
    at            integer NOT NULL
) STRICT;
CREATE INDEX perdure.log_job ON perdure.log (job, id);
