-- Which migrations this schema has had. Made by the runner before the first of them.
CREATE TABLE IF NOT EXISTS perdure.migration (
    version       integer NOT NULL PRIMARY KEY,
    name          text NOT NULL,
    -- SHA-256 of the file: an edited migration is noticed.
    checksum      text NOT NULL,
    finished      integer NOT NULL CHECK (finished IN (0, 1)),
    applied_at    integer NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS integer))
) STRICT;
