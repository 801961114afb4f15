-- Who paused a queue, since when, and why.

ALTER TABLE perdure.queue ADD COLUMN paused_at integer;
ALTER TABLE perdure.queue ADD COLUMN paused_by text;
ALTER TABLE perdure.queue ADD COLUMN pause_reason text;
