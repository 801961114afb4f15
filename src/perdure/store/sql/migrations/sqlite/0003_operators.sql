-- What operators set and did.

-- What its handlers read as ctx.config.
ALTER TABLE perdure.task ADD COLUMN config text;
-- Names of arguments that are shown to nobody.
ALTER TABLE perdure.task ADD COLUMN redact text;

-- What was done to more than one job, or to something that is no job. What was done to one job is an event of it, and goes with it.
CREATE TABLE perdure.act (
    id            integer PRIMARY KEY AUTOINCREMENT,
    at            integer NOT NULL,
    actor         text CHECK (actor <> ''),
    verb          text NOT NULL CHECK (verb <> ''),
    subject       text NOT NULL,
    detail        text
) STRICT;
