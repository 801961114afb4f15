-- What operators set and did.

ALTER TABLE perdure.task
    -- What its handlers read as ctx.config.
    ADD COLUMN config json,
    -- Names of arguments that are shown to nobody.
    ADD COLUMN redact json;

-- What was done to more than one job, or to something that is no job. What was done to one job is an event of it, and goes with it.
CREATE TABLE perdure.act (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at            timestamptz NOT NULL,
    actor         text CHECK (actor <> ''),
    verb          text NOT NULL CHECK (verb <> ''),
    subject       text NOT NULL,
    detail        json
);
