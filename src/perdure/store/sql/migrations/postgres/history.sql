-- The history: which migrations were applied to this schema. This table is created before the first of them.
CREATE TABLE IF NOT EXISTS perdure.migration (
    version       integer PRIMARY KEY,
    name          text NOT NULL,
    -- SHA-256 of the file, so that an edited migration is noticed.
    checksum      text NOT NULL,
    finished      boolean NOT NULL,
    applied_at    timestamptz NOT NULL DEFAULT now()
);
