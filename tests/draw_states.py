"""Draw docs/states.md from the table of transitions: ``make docs``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from perdure.model.job import ENDED, State
from perdure.model.lifecycle import TRANSITIONS

PAGE = Path(__file__).parent.parent / "docs" / "states.md"

MEANING: dict[State, str] = {
    "waiting": "Its parents have not ended yet.",
    "ready": "It may be claimed once its `run_at` has come.",
    "running": "A worker holds its lease.",
    "open": "It is a gate that waits to be resolved.",
    "succeeded": "The handler returned.",
    "failed": "The attempts are used up, or one of them was fatal.",
    "canceled": "Somebody asked for it, the handler gave up, it expired, or a parent did not end as required.",
}

CAUSE = {
    "enqueue": "A request is stored: `waiting` if it has parents that have not ended, `open` if it is a gate.",
    "release": "The last parent ended as required; a gate becomes `open`.",
    "doom": "A parent did not end as required, so the step can never run.",
    "cancel": "Somebody cancels it, or its handler raises `Cancel`; a running job is only asked to stop.",
    "expire": "No attempt had started by `expires`; or one had failed, and the next had not started.",
    "claim": "A worker takes it; its attempt number and its token grow by one.",
    "succeed": "The handler returned, even if a cancel was requested.",
    "fail": "The handler raised, its process died, or the worker was shut down.",
    "time out": "The attempt took longer than `timeout`; a gate ends as its `on_timeout` says.",
    "lose": "Its worker fell silent and the job was rescued.",
    "throttle": "The handler raised `Throttle`; costs no attempt and cools the queue.",
    "snooze": "The handler raised `Snooze`; costs no attempt.",
    "continue": "The handler raised `Continue`; a new run begins with the checkpoint.",
    "give back": "The claim is returned before user code began; costs no attempt.",
    "resolve": "Somebody resolves the gate.",
    "event": "Not built yet: the event that it waits for arrives.",
    "requeue": "Somebody asks for a new run; a job that succeeded runs again only as part of its workflow.",
}


TEXT = """\
# The states of a job

<!-- Drawn by `make docs` from src/perdure/model/lifecycle.py; a test compares. -->

A job that has ended no longer changes, unless a requeue starts a new run. `waiting` and `open` belong to
[workflows](workflows.md). `Job.state` is one of these:

| state | meaning |
|---|---|
{states}

Counts, lists, filters, actions and commands show a job that is stored as `ready` as exactly one of these states, for
example `app.count_jobs()`, `app.list_jobs(state="retrying")` and `perdure jobs --state held`. The first row that
applies counts:

| seen as | when |
|---|---|
| `held` | No worker can claim it, due or not, until somebody acts ([held jobs](operating.md#held-jobs)). |
| `ready` | Its `run_at` has come: the next free worker claims it. |
| `retrying` | Its `run_at` is in the future, and its last attempt ended with an error. |
| `scheduled` | Its `run_at` is in the future. |

Lists of `scheduled` and of `retrying` jobs begin with the one that is due first, all others with the newest.

```mermaid
stateDiagram-v2
{arrows}
```

Where several states may follow, the job becomes `canceled` if a cancel was requested while it ran, `failed` if it
has no attempt left, and otherwise `ready`.

| from | by | to | cause |
|---|---|---|---|
{transitions}
"""


def page() -> str:
    return TEXT.format(
        states="\n".join(f"| `{state}` | {MEANING[state]} |" for state in get_args(State)),
        arrows="\n".join(f"    {arrow}" for arrow in _arrows()),
        transitions="\n".join(_transitions()),
    )


def _arrows() -> Iterator[str]:
    """One for each pair of states, with all that leads from the one to the other."""
    verbs: dict[tuple[State | None, State], list[str]] = {}
    for (before, verb), targets in TRANSITIONS.items():
        for after in sorted(targets, key=get_args(State).index):
            verbs.setdefault((before, after), []).append(verb)
    for (before, after), causes in verbs.items():
        yield f"{before or '[*]'} --> {after}: {', '.join(causes)}"
    for ended in sorted(ENDED, key=get_args(State).index):
        yield f"{ended} --> [*]"


def _transitions() -> Iterator[str]:
    for (before, verb), targets in TRANSITIONS.items():
        after = ", ".join(f"`{state}`" for state in get_args(State) if state in targets)
        yield f"| {f'`{before}`' if before else '—'} | {verb} | {after} | {CAUSE[verb]} |"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
