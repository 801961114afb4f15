-- How many jobs may run at once: of a task, of a task's jobs with the same key, and of all tasks that share a named limit.

ALTER TABLE perdure.task ADD COLUMN concurrency integer CHECK (concurrency >= 1);
-- An alias shares the limit of its task.
ALTER TABLE perdure.task ADD COLUMN concurrency_scope text;
-- Whether the limit counts each concurrency key on its own.
ALTER TABLE perdure.task ADD COLUMN keyed integer NOT NULL DEFAULT 0;
-- The names of the shared limits that its jobs obey.
ALTER TABLE perdure.task ADD COLUMN limits text;
-- Whether newer jobs replace those that run, instead of waiting for them.
ALTER TABLE perdure.task ADD COLUMN cancels_running integer NOT NULL DEFAULT 0;

CREATE TABLE perdure.named_limit (
    name          text PRIMARY KEY CHECK (name <> ''),
    -- NULL: not limited for now.
    concurrency   integer CHECK (concurrency >= 1),
    -- What the code declares. An operator's edit is not overwritten by it.
    declared      integer CHECK (declared >= 1),
    edited        integer NOT NULL DEFAULT 0
) STRICT;

-- At most one row: none as long as no limit was ever set, which is version 0. Every change of a limit raises the version. A
-- claim gives the version that its worker knows, and gets nothing if that is not the current one.
CREATE TABLE perdure.limit_lock (
    id            integer PRIMARY KEY CHECK (id = 1),
    version       integer NOT NULL
) STRICT;
