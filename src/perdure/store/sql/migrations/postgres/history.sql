-- Which migrations this schema has had. Made by the runner before the first of them.
CREATE TABLE IF NOT EXISTS perdure.migration (
    version       integer PRIMARY KEY,
    name          text NOT NULL,
    -- SHA-256 of the file: an edited migration is noticed.
    checksum      text NOT NULL,
    finished      boolean NOT NULL,
    applied_at    timestamptz NOT NULL DEFAULT now()
);
