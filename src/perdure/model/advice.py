"""Advice for people: what to do about a job that does not run, and what to do instead of a refused action."""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote
from typing import NamedTuple, Self

ACTIONS = {
    # (in Python, in a shell)
    "cancel_holder": ("cancel_job({holder})", "perdure cancel {holder}"),
    "cancel_job": ("cancel_job({id})", "perdure cancel {id}"),
    "cancel_workflow": ("cancel_workflow({workflow})", "perdure workflow {workflow} cancel"),
    "explain_parent": ("explain_job({parent})", "perdure explain {parent}"),
    "job_history": ("job_history({id})", "perdure job {id}"),
    "replay_job": ("replay_job({id})", "perdure replay {id}"),
    "requeue_job": ("requeue_job({id})", "perdure requeue {id}"),
    "requeue_workflow": ("requeue_workflow({workflow})", "perdure workflow {workflow} requeue"),
    "resolve_gate": (
        "resolve_gate({workflow}, {step}, 'succeeded')",
        "perdure workflow {workflow} gate {step} --approve",
    ),
    "resolve_otherwise": ("'failed' or 'canceled'", "--reject"),
    "resume_queue": ("resume_queue({queue})", "perdure resume {queue}"),
    "set_limit": ("set_limit({limit}, concurrency=N)", "perdure limit {limit} set N"),
    "set_queue": ("set_queue({queue}, concurrency=N)", "perdure queue {queue} set concurrency=N"),
    "run_now": ("run_now({id})", "perdure run-now {id}"),
    "cancel_jobs": ("cancel_jobs", "perdure cancel"),
    "delete_jobs": ("delete_jobs", "perdure delete"),
    "requeue_jobs": ("requeue_jobs", "perdure requeue"),
    "run_jobs_now": ("run_jobs_now", "perdure run-now"),
    "serve_queue": ("perdure worker MODULE:APP --queues {queue}",) * 2,
    # These actions have no command.
    "enable_task": ("set_task({task}, enabled=True)", "In Python, app.set_task(name, enabled=True)"),
    "start_another": ("start_workflow makes a new one", "only a program starts a new one"),
    "save_tasks": (
        "call app.save_tasks() in the program that has it",
        "start a worker of the program that has it",
    ),
}

START = "Start one: perdure worker MODULE:APP."

ADVICE = {
    "succeeded": "{replay_job} makes a new job like it.",
    "failed": "{requeue_job} starts a new run of it.",
    "canceled": "{requeue_job} starts a new run of it.",
    "step_ended": "{requeue_workflow} starts a new run of its ended steps.",
    "unique_key_taken": "Wait until that job ends, or {cancel_holder}.",
    "running": "{cancel_job} asks it to stop.",
    "cancel_requested": "A handler in a thread ends where it calls ctx.check(), or when its timeout expires.",
    "lost": "Nothing: a live worker sweeps every few seconds.",
    "worker_silent": "Check whether its process still runs, and whether it reaches the database.",
    "taken_over": "{job_history} shows what it did before.",
    "waiting": "{explain_parent} shows why the first of them has not ended.",
    "open": "{resolve_gate} resolves it, or {resolve_otherwise}.",
    "gate_overdue": "Nothing: a live worker sweeps every few seconds.",
    "expired": "Nothing. Once it is canceled, {requeue_job} runs it without an expiry.",
    "held": "Nothing: it runs once the hold is gone.",
    "unclaimable": "Repair its row by hand, then {run_now} lets workers claim it again; or {cancel_job}.",
    "scheduled": "{run_now} makes it due.",
    "put_off": "{run_now} makes it due.",
    "step_later": "Nothing: it is due at that time.",
    "retrying": "{run_now} makes it due.",
    "queue_paused": "{resume_queue} lets workers claim its jobs again.",
    "queue_cooling": "Nothing: this passes by itself. A handler hit an external limit and raised Throttle.",
    "no_worker": START,
    "queue_unserved": "Start one that does: {serve_queue}.",
    "task_unserved": "Start a worker of a program that has the task.",
    "task_unknown": "Check the name; if it is right, start a worker of a program that has the task.",
    "unserved": "Let a worker that knows the task also serve the queue.",
    "limit_full": "Wait until a slot is free, or {cancel_holder}. {set_limit} changes the limit.",
    "queue_limit_full": "Wait until a slot is free, or {cancel_holder}. {set_queue} changes the limit.",
    "declared_limit_full": "Wait until a slot is free, or {cancel_holder}. The code declares the limit.",
    "workers_busy": "It starts when one of those jobs ends; more workers or a higher concurrency start it sooner.",
    "behind": "More workers, or a higher priority for jobs like it, start it sooner.",
    "ready": "Nothing.",
    "alone": "{job_history} shows what it did before its workers died.",
    "task_disabled": "{enable_task} allows new jobs.",
}
"""Advice by reason. A name in braces is a field of the job or an entry of ``ACTIONS``."""


class Advice(str):
    """Advice for Python code; ``shell`` is the same advice as commands."""

    shell: str

    def __new__(cls, python: str, shell: str = "") -> Self:
        advice = super().__new__(cls, python)
        advice.shell = shell
        return advice


def advise(template: str, **fields: str | None) -> Advice:
    """Fill in the template's actions and fields. Within an action, fields are quoted for Python or for the shell."""
    given = {name: str(value) for name, value in fields.items()}
    return Advice(*(template.format_map(_Words(given, language)) for language in _LANGUAGES))


class _Language(NamedTuple):
    column: int
    quote: Callable[[str], str]


_LANGUAGES = (_Language(0, repr), _Language(1, quote))


class _Words(dict[str, str]):
    """The fields of a template. Any other name in the template is an action."""

    def __init__(self, fields: dict[str, str], language: _Language) -> None:
        super().__init__(fields)
        self._language = language

    def __missing__(self, action: str) -> str:
        quoted = {name: self._language.quote(value) for name, value in self.items()}
        return ACTIONS[action][self._language.column].format(**quoted)
