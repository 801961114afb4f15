"""What to do: about each reason for which a job does not run, and instead of what is refused."""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote
from typing import NamedTuple, Self

VERBS = {
    # in Python, and in a shell
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
    "run_now": ("run_now({id})", "perdure run-now {id}"),
    "cancel_jobs": ("cancel_jobs", "perdure cancel"),
    "delete_jobs": ("delete_jobs", "perdure delete"),
    "requeue_jobs": ("requeue_jobs", "perdure requeue"),
    "run_jobs_now": ("run_jobs_now", "perdure run-now"),
    "serve_queue": ("perdure worker MODULE:APP --queues {queue}",) * 2,
    # What the command line does not have.
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
    "step_ended": "{requeue_workflow} starts a new run of such steps.",
    "unique_key_taken": "Wait for its end, or {cancel_holder}.",
    "running": "{cancel_job} asks it to stop.",
    "cancel_requested": "In a thread it ends where its handler calls ctx.check(), at the latest when its time is up.",
    "lost": "Nothing: a live worker sweeps every few seconds.",
    "worker_silent": "See whether its process still runs, and whether it reaches the database.",
    "taken_over": "{job_history} shows what it did before.",
    "waiting": "{explain_parent} says what keeps the first.",
    "open": "{resolve_gate} decides it, or {resolve_otherwise}.",
    "gate_overdue": "Nothing: a live worker sweeps every few seconds.",
    "expired": "Nothing; once it is canceled, {requeue_job} starts it without an expiry.",
    "held": "Nothing: it goes on when that is free.",
    "unclaimable": "Mend its row by hand, then {run_now} lets workers claim it again; or {cancel_job}.",
    "scheduled": "{run_now} makes it due.",
    "put_off": "{run_now} makes it due.",
    "step_later": "Nothing: then it is due.",
    "retrying": "{run_now} makes it due.",
    "queue_paused": "{resume_queue} hands out its jobs again.",
    "queue_cooling": "Nothing: it passes by itself. A handler has met a limit outside and raised Throttle.",
    "no_worker": START,
    "queue_unserved": "Start one that does: {serve_queue}.",
    "task_unserved": "Start a worker of a program that has the task.",
    "task_unknown": "Check the name; if it is right, start a worker of a program that has the task.",
    "unserved": "Let one that knows the task serve the queue, too.",
    "workers_busy": "It begins when one of those ends; more workers or a higher concurrency let it begin sooner.",
    "behind": "More workers let it begin sooner, or a higher priority for such jobs.",
    "ready": "Nothing.",
    "alone": "{job_history} shows what it did before its workers died.",
    "task_disabled": "{enable_task} allows new ones.",
}
"""About a job, whose fields they are; of verbs see VERBS."""


class Advice(str):
    """For somebody who writes Python; ``shell`` says the same with commands."""

    shell: str

    def __new__(cls, python: str, shell: str = "") -> Self:
        advice = super().__new__(cls, python)
        advice.shell = shell
        return advice


def advise(template: str, **fields: str | None) -> Advice:
    """With verbs and fields in their places. A field is quoted where it is an argument of a verb."""
    given = {name: str(value) for name, value in fields.items()}
    return Advice(*(template.format_map(_Words(given, tongue)) for tongue in _TONGUES))


class _Tongue(NamedTuple):
    column: int
    quote: Callable[[str], str]


_TONGUES = (_Tongue(0, repr), _Tongue(1, quote))


class _Words(dict[str, str]):
    """The fields; a word that is none is a verb."""

    def __init__(self, fields: dict[str, str], tongue: _Tongue) -> None:
        super().__init__(fields)
        self._tongue = tongue

    def __missing__(self, verb: str) -> str:
        quoted = {name: self._tongue.quote(value) for name, value in self.items()}
        return VERBS[verb][self._tongue.column].format(**quoted)
