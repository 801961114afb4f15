-- Who paused a queue, since when, and why.

ALTER TABLE perdure.queue
    ADD COLUMN paused_at timestamptz,
    ADD COLUMN paused_by text,
    ADD COLUMN pause_reason text;
