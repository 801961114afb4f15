-- Workflows: graphs of steps. A step is a job, so that most of it is there already.

CREATE TABLE perdure.workflow (
    id                   uuid PRIMARY KEY,
    name                 text NOT NULL CHECK (name <> ''),
    tenant               text CHECK (tenant <> ''),
    status               text NOT NULL CHECK (status IN ('running', 'open', 'succeeded', 'failed', 'canceled')),
    run                  integer NOT NULL DEFAULT 1 CHECK (run >= 1),
    -- Its steps by what they are up to, counted under the lock of this row: the status follows from these.
    waiting              integer NOT NULL CHECK (waiting >= 0),
    active               integer NOT NULL CHECK (active >= 0),
    open                 integer NOT NULL CHECK (open >= 0),
    spoiled              integer NOT NULL CHECK (spoiled >= 0),
    total                integer NOT NULL CHECK (total >= 1),
    result_step          text,
    meta                 json,
    idempotency_key      text CHECK (idempotency_key <> ''),
    request              json,
    unique_key           text CHECK (unique_key <> ''),
    reason               text,
    cancel_requested_at  timestamptz,
    created_at           timestamptz NOT NULL,
    finished_at          timestamptz,
    CONSTRAINT key_has_a_request CHECK ((idempotency_key IS NULL) = (request IS NULL)),
    CONSTRAINT over_has_an_end CHECK ((status IN ('succeeded', 'failed', 'canceled')) = (finished_at IS NOT NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE UNIQUE INDEX workflow_key ON perdure.workflow (name, coalesce(tenant, ''), idempotency_key)
    WHERE idempotency_key IS NOT NULL;
-- At most one live workflow per unique key.
CREATE UNIQUE INDEX workflow_unique ON perdure.workflow (name, coalesce(tenant, ''), unique_key)
    WHERE unique_key IS NOT NULL AND status IN ('running', 'open');

-- Who waits for whom: read from the parent when it ends, from the child when it starts.
CREATE TABLE perdure.dependency (
    parent               uuid NOT NULL,
    child                uuid NOT NULL,
    mode                 text NOT NULL CHECK (mode IN ('after', 'after_done')),
    PRIMARY KEY (parent, child)
);
CREATE INDEX dependency_child ON perdure.dependency (child);

-- Appends that were applied: a retry finds its own.
CREATE TABLE perdure.mutation (
    workflow             uuid NOT NULL,
    key                  text NOT NULL CHECK (key <> ''),
    request              json NOT NULL,
    at                   timestamptz NOT NULL,
    PRIMARY KEY (workflow, key)
);

-- How long a step waits after its release.
ALTER TABLE perdure.job ADD COLUMN delay bigint;

CREATE UNIQUE INDEX job_step ON perdure.job (workflow_id, step_key)
    WHERE workflow_id IS NOT NULL;
-- Gates whose time runs out.
CREATE INDEX job_gate ON perdure.job (run_at)
    WHERE state = 'open' AND timeout IS NOT NULL;
