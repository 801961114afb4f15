-- Workflows: graphs of steps. A step is a job, so that most of it is there already.

CREATE TABLE perdure.workflow (
    id                   text NOT NULL PRIMARY KEY,
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
    meta                 text,
    idempotency_key      text CHECK (idempotency_key <> ''),
    request              text,
    unique_key           text CHECK (unique_key <> ''),
    reason               text,
    cancel_requested_at  integer,
    created_at           integer NOT NULL,
    finished_at          integer,
    CONSTRAINT key_has_a_request CHECK ((idempotency_key IS NULL) = (request IS NULL)),
    CONSTRAINT over_has_an_end CHECK ((status IN ('succeeded', 'failed', 'canceled')) = (finished_at IS NOT NULL))
) STRICT;

CREATE UNIQUE INDEX perdure.workflow_key ON perdure.workflow (name, coalesce(tenant, ''), idempotency_key)
    WHERE idempotency_key IS NOT NULL;
-- At most one live workflow per unique key.
CREATE UNIQUE INDEX perdure.workflow_unique ON perdure.workflow (name, coalesce(tenant, ''), unique_key)
    WHERE unique_key IS NOT NULL AND status IN ('running', 'open');

-- Who waits for whom: read from the parent when it ends, from the child when it starts.
CREATE TABLE perdure.dependency (
    parent               text NOT NULL,
    child                text NOT NULL,
    mode                 text NOT NULL CHECK (mode IN ('after', 'after_done')),
    PRIMARY KEY (parent, child)
) STRICT, WITHOUT ROWID;
CREATE INDEX perdure.dependency_child ON perdure.dependency (child);

-- Appends that were applied: a retry finds its own.
CREATE TABLE perdure.mutation (
    workflow             text NOT NULL,
    key                  text NOT NULL CHECK (key <> ''),
    request              text NOT NULL,
    at                   integer NOT NULL,
    PRIMARY KEY (workflow, key)
) STRICT;

-- How long a step waits after its release.
ALTER TABLE perdure.job ADD COLUMN delay integer;

CREATE UNIQUE INDEX perdure.job_step ON perdure.job (workflow_id, step_key)
    WHERE workflow_id IS NOT NULL;
-- Gates whose time runs out.
CREATE INDEX perdure.job_gate ON perdure.job (run_at)
    WHERE state = 'open' AND timeout IS NOT NULL;
