"""What to do about each reason for which a job does not run. The fields are the job's."""

from __future__ import annotations

START = "Start one: perdure worker MODULE:APP."

ADVICE = {
    "succeeded": "replay_job({id!r}) makes a new job like it.",
    "failed": "requeue_job({id!r}) starts a new run of it.",
    "canceled": "requeue_job({id!r}) starts a new run of it.",
    "step_ended": "requeue_workflow({workflow!r}) starts a new run of such steps.",
    "unique_key_taken": "Wait for its end, or cancel_job({holder!r}).",
    "running": "cancel_job({id!r}) asks it to stop.",
    "cancel_requested": "In a thread it ends where its handler calls ctx.check(), at the latest when its time is up.",
    "lost": "Nothing: a live worker sweeps every few seconds.",
    "waiting": "explain_job({parent!r}) tells what keeps the first.",
    "open": "resolve_gate({workflow!r}, {step!r}, 'succeeded') decides it, or 'failed' or 'canceled'.",
    "gate_overdue": "Nothing: a live worker sweeps every few seconds.",
    "expired": "Nothing; once it is canceled, requeue_job({id!r}) starts it without an expiry.",
    "held": "Nothing: it goes on when that is free.",
    "scheduled": "run_now({id!r}) makes it due.",
    "put_off": "run_now({id!r}) makes it due.",
    "step_later": "Nothing: then it is due.",
    "retrying": "run_now({id!r}) makes it due.",
    "queue_paused": "resume_queue({queue!r}) hands out its jobs again.",
    "queue_cooling": "Nothing: it passes by itself. A handler has met a limit outside and raised Throttle.",
    "no_worker": START,
    "queue_unserved": "Start one that does: perdure worker MODULE:APP --queues {queue}.",
    "task_unserved": "Start a worker of a program that has the task.",
    "task_unknown": "Check the name; if it is right, start a worker of a program that has the task.",
    "unserved": "Let one that knows the task serve the queue, too.",
    "workers_busy": "It begins when one of those ends; more workers or a higher concurrency let it begin sooner.",
    "behind": "More workers let it begin sooner, or a higher priority for such jobs.",
    "ready": "Nothing.",
    "alone": "job_history({id!r}) tells what it did before its workers died.",
    "task_disabled": "set_task({task!r}, enabled=True) allows new ones.",
}
