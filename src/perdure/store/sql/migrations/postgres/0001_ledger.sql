-- The ledger: jobs, the attempts before their current one, keys, queues, tasks and workers.

CREATE TABLE perdure.task (
    name          text PRIMARY KEY CHECK (name <> ''),
    queue         text NOT NULL CHECK (queue <> ''),
    priority      smallint NOT NULL,
    max_attempts  integer NOT NULL CHECK (max_attempts >= 1),
    timeout       bigint CHECK (timeout > 0),
    backoff       json NOT NULL,
    max_crashes   integer CHECK (max_crashes >= 1),
    enabled       boolean NOT NULL DEFAULT true,
    synced_at     timestamptz NOT NULL
);

CREATE TABLE perdure.queue (
    name          text PRIMARY KEY CHECK (name <> ''),
    paused        boolean NOT NULL DEFAULT false,
    -- A queue cools until then: some limit outside was hit. The exponent counts limiter events.
    cool_until    timestamptz,
    throttles     integer NOT NULL DEFAULT 0 CHECK (throttles >= 0),
    backoff       json
);

CREATE TABLE perdure.worker (
    id            text PRIMARY KEY CHECK (id <> ''),
    name          text NOT NULL,
    lease         bigint NOT NULL CHECK (lease > 0),
    tasks         json NOT NULL,
    -- NULL: it serves every queue.
    queues        json,
    slots         integer NOT NULL,
    started_at    timestamptz NOT NULL,
    beat_at       timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    retired_at    timestamptz
) WITH (fillfactor = 50);

-- Which worker does what only one should do.
CREATE TABLE perdure.leader (
    name          text PRIMARY KEY,
    worker        text NOT NULL,
    expires_at    timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE perdure.job (
    id                   uuid PRIMARY KEY,
    task                 text NOT NULL,
    queue                text NOT NULL CHECK (queue <> ''),
    tenant               text CHECK (tenant <> ''),
    -- json, not jsonb: it must come back as it was sent.
    payload              json NOT NULL,
    meta                 json,
    tags                 json,
    state                text NOT NULL
        CHECK (state IN ('waiting', 'ready', 'running', 'open', 'succeeded', 'failed', 'canceled')),
    -- What keeps a ready job from being claimed: a limit, a strike, fairness.
    held                 text,
    priority             smallint NOT NULL,
    run                  integer NOT NULL DEFAULT 1 CHECK (run >= 1),
    attempt              integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    max_attempts         integer NOT NULL CHECK (max_attempts >= 1),
    timeout              bigint CHECK (timeout > 0),
    run_at               timestamptz NOT NULL,
    expires_at           timestamptz,
    -- Grows by one at each claim and is never reset: every write of a running job names it.
    token                integer NOT NULL DEFAULT 0 CHECK (token >= 0),
    worker               text,
    started_at           timestamptz,
    finished_at          timestamptz,
    stage                text,
    progress_done        bigint,
    progress_total       bigint,
    progress_message     text,
    checkpoint           json,
    result               json,
    reason               text,
    error_kind           text,
    error_code           text,
    error_message        text,
    error_trace          text,
    cancel_requested_at  timestamptz,
    throttles            integer NOT NULL DEFAULT 0,
    snoozes              integer NOT NULL DEFAULT 0,
    crashes              integer NOT NULL DEFAULT 0,
    unique_key           text CHECK (unique_key <> ''),
    concurrency_key      text,
    workflow_id          uuid,
    step_key             text,
    deps_pending         integer NOT NULL DEFAULT 0,
    deps_unsatisfied     integer NOT NULL DEFAULT 0,
    parent_job           uuid,
    replay_of            uuid,
    scheduled_for        timestamptz,
    created_at           timestamptz NOT NULL,
    CONSTRAINT running_has_a_worker CHECK ((state = 'running') = (worker IS NOT NULL)),
    CONSTRAINT ended_has_an_end CHECK ((state IN ('succeeded', 'failed', 'canceled')) = (finished_at IS NOT NULL)),
    CONSTRAINT progress_fits CHECK (progress_done >= 0 AND progress_total >= 0 AND progress_done <= progress_total)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.05);

-- The claim reads at most n due rows of each (queue, priority) ...
CREATE INDEX job_claim ON perdure.job (queue, priority DESC, run_at, id)
    WHERE state = 'ready' AND held IS NULL;
-- ... and by task only where it meets tasks that its worker does not know.
CREATE INDEX job_claim_task ON perdure.job (queue, priority DESC, task, run_at, id)
    WHERE state = 'ready' AND held IS NULL;
-- What the database believes a worker runs.
CREATE INDEX job_running ON perdure.job (worker)
    WHERE state = 'running';
-- At most one active job per unique key.
CREATE UNIQUE INDEX job_unique ON perdure.job (task, coalesce(tenant, ''), unique_key)
    WHERE unique_key IS NOT NULL AND state IN ('waiting', 'ready', 'running', 'open');
-- Only jobs that expire pay for it.
CREATE INDEX job_expires ON perdure.job (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('waiting', 'ready');

CREATE TABLE perdure.key (
    task          text NOT NULL,
    -- '' is the global scope.
    tenant        text NOT NULL,
    key           text NOT NULL CHECK (key <> ''),
    job           uuid NOT NULL,
    request       json NOT NULL,
    kept_until    timestamptz,
    PRIMARY KEY (task, tenant, key)
);
CREATE INDEX key_job ON perdure.key (job);

CREATE TABLE perdure.attempt (
    job           uuid NOT NULL,
    token         integer NOT NULL,
    run           integer NOT NULL,
    attempt       integer NOT NULL,
    kind          text NOT NULL,
    code          text,
    message       text,
    trace         text,
    worker        text,
    started_at    timestamptz,
    finished_at   timestamptz NOT NULL,
    -- What it waited for before the next try, and what decided that.
    delay         bigint,
    decided_by    text,
    PRIMARY KEY (job, token)
);

CREATE TABLE perdure.event (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job           uuid NOT NULL,
    run           integer NOT NULL,
    token         integer NOT NULL,
    kind          text NOT NULL,
    at            timestamptz NOT NULL,
    detail        json
);
CREATE INDEX event_job ON perdure.event (job, id);

CREATE TABLE perdure.log (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job           uuid NOT NULL,
    token         integer NOT NULL,
    level         text NOT NULL,
    message       text NOT NULL,
    at            timestamptz NOT NULL
);
CREATE INDEX log_job ON perdure.log (job, id);
