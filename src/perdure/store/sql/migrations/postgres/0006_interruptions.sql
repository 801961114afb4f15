-- Interruptions of a run, which make a job a suspect.

-- How often a run was interrupted because its worker stopped: see SUSPECT_AFTER_INTERRUPTIONS in model/lifecycle.py.
ALTER TABLE perdure.job ADD COLUMN interruptions integer NOT NULL DEFAULT 0;
