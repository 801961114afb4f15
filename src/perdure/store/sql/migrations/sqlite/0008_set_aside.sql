-- Jobs that are due much later are set aside, so that claims do not meet them.

-- Those that are due next come back.
CREATE INDEX perdure.job_later ON perdure.job (run_at, id)
    WHERE state = 'ready' AND held = 'later';
