-- Limited claims find the jobs of one concurrency key after the other.

CREATE INDEX perdure.job_claim_key ON perdure.job (queue, priority DESC, task, concurrency_key, run_at, id)
    WHERE state = 'ready' AND held IS NULL AND concurrency_key IS NOT NULL;
