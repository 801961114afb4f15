-- Settings of queues: declared by code, changed by operators; and pauses that end by themselves.

ALTER TABLE perdure.queue
    ADD COLUMN resume_at timestamptz,
    -- The default of its jobs.
    ADD COLUMN timeout bigint CHECK (timeout > 0),
    -- The most jobs that run at the same time, in all workers.
    ADD COLUMN concurrency integer CHECK (concurrency >= 1),
    -- What the code declares, by setting.
    ADD COLUMN declared json,
    -- The names of the settings that an operator has set. backoff, timeout and concurrency hold the values in effect.
    ADD COLUMN edited json;

-- Until now only operators could set a back-off.
UPDATE perdure.queue SET edited = '["backoff"]' WHERE backoff IS NOT NULL;
