"""Each rule of the verdict finds a violation in an otherwise correct history."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.app import App
from perdure.model.job import SECOND, JobRow
from perdure.model.lifecycle import Succeeded
from perdure.ops.browse import AttemptRow, Traces
from tests.kills.history import History, Note
from tests.kills.verdict import RULES, Books, judge, verdict

KEY = ("tasks.pay", "", "march")


class Story:
    """What a job went through, with a child and with another that was asked for twice under one key.

    The first try fails; the worker of the second is believed dead, and its outcome comes too late; the third is
    snoozed; the fourth claim is given back; the fifth succeeds.
    """

    def __init__(self) -> None:
        self.books = Books()
        self.books.retired = {"ann": 5}
        self.notes: list[Note] = []
        self._enqueue()
        self._try_in_vain()
        self._succeed()

    def _enqueue(self) -> None:
        self.note("enqueue", "job", "lost on the way", phase="invoke")
        self.note("enqueue", "job", "lost on the way", phase="unknown")
        self.note("enqueue", "job", phase="ok", answered=["job"])
        for asked in ("keyed", "keyed again"):
            self.note("enqueue", asked, phase="invoke", keys={asked: KEY})
            self.note("enqueue", asked, phase="ok", answered=["keyed"])

    def _try_in_vain(self) -> None:
        self.note("started", "job", token=1)
        self.note("children", "stillborn", parent="job", token=1)
        self.note("accepted", "job", token=1, outcome="error")
        self.note("started", "job", token=2)
        self.note("saved", "job", token=2, checkpoint=1)
        self.note("refused", "job", token=2, outcome="succeeded")
        self.note("started", "job", token=3)
        self.note("accepted", "job", token=3, outcome="snoozed")
        self.note("released", "job", token=4)

    def _succeed(self) -> None:
        self.note("started", "job", token=5)
        self.note("found", "job", token=5, checkpoint=1)
        self.note("children", "child", parent="job", token=5)
        self.note("accepted", "job", token=5, outcome="succeeded")
        attempts = [attempt(1, 1, "error"), attempt(2, 2, "lost"), attempt(3, 3, "snoozed")]
        self.store("job", *attempts, token=5, attempt=3, snoozes=1, crashes=1)
        for id, parent in (("child", "job"), ("keyed", None)):
            self.note("started", id, token=1)
            self.note("accepted", id, token=1, outcome="succeeded")
            self.store(id, parent_job=parent)

    def note(self, what: str, *jobs: str, **more: Any) -> None:
        self.notes.append(Note(what=what, jobs=[*jobs], **more))

    def forget(self, what: str, job: str, token: int = 0) -> None:
        """A line of a journal is missing."""
        kept = [note for note in self.notes if (note.what, note.jobs, note.token) != (what, [job], token)]
        assert len(kept) < len(self.notes)
        self.notes = kept

    def store(self, id: str, *attempts: AttemptRow, **fields: Any) -> None:
        self.books[id] = Traces(row(id, **fields), [*attempts], [], [])

    def change(self, id: str, **fields: Any) -> None:
        trace = self.books[id]
        self.books[id] = trace._replace(job=msgspec.structs.replace(trace.job, **fields))

    def change_attempt(self, token: int, **fields: Any) -> None:
        trace = self.books["job"]
        attempts = [one._replace(**fields) if one.token == token else one for one in trace.attempts]
        self.books["job"] = trace._replace(attempts=attempts)

    def broken_rules(self) -> set[str]:
        return {violation.rule for violation in judge(History(self.notes), self.books)}


def row(id: str, **fields: Any) -> JobRow:
    """One that succeeded at its first try."""
    told: dict[str, Any] = dict.fromkeys(JobRow.__struct_fields__)
    told |= {"id": id, "state": "succeeded", "run": 1, "attempt": 1, "token": 1, "started_at": 1}
    told |= {"snoozes": 0, "throttles": 0, "crashes": 0}
    return JobRow(**(told | fields))


def attempt(token: int, number: int, kind: str, *, run: int = 1) -> AttemptRow:
    told: dict[str, Any] = dict.fromkeys(AttemptRow._fields)
    told |= {"token": token, "run": run, "attempt": number, "kind": kind, "worker": "ann", "finished_at": 6}
    return AttemptRow(**told)


def test_a_true_story_breaks_no_rule() -> None:
    assert Story().broken_rules() == set()


def acknowledged_and_gone(story: Story) -> None:
    story.note("enqueue", "gone", phase="invoke")
    story.note("enqueue", "gone", phase="ok", answered=["gone"])


def from_nowhere(story: Story) -> None:
    story.store("stranger", state="canceled", token=0, attempt=0, started_at=None)


def of_other_parents(story: Story) -> None:
    story.change("child", parent_job="keyed")


def of_no_parents(story: Story) -> None:
    story.change("child", parent_job=None)


def still_running(story: Story) -> None:
    story.change("keyed", state="running")


def still_ready(story: Story) -> None:
    story.change("keyed", state="ready", started_at=None)


def an_enqueue_of_unknown_end_is_still_ready(story: Story) -> None:
    story.store("lost on the way", state="ready", token=0, attempt=0, started_at=None)


def two_jobs_under_a_key(story: Story) -> None:
    """The second was never answered."""
    story.notes = [note for note in story.notes if not (note.phase == "ok" and note.jobs == ["keyed again"])]
    story.note("started", "keyed again", token=1)
    story.store("keyed again")


def two_answers_under_a_key(story: Story) -> None:
    story.note("enqueue", "third", phase="invoke", keys={"third": KEY})
    story.note("enqueue", "third", phase="ok", answered=["job"])


def another_job_without_a_key(story: Story) -> None:
    story.note("enqueue", "third", phase="invoke")
    story.note("enqueue", "third", phase="ok", answered=["job"])


def started_twice(story: Story) -> None:
    story.note("started", "job", token=5)


def accepted_twice(story: Story) -> None:
    story.note("accepted", "job", token=5, outcome="succeeded")


def accepted_and_refused(story: Story) -> None:
    story.note("refused", "job", token=5, outcome="succeeded")


def another_outcome_than_accepted(story: Story) -> None:
    story.change("keyed", state="failed", error_kind="fatal")


def another_attempt_than_accepted(story: Story) -> None:
    story.change_attempt(1, kind="lost")


def accepted_of_a_job_that_is_not_there(story: Story) -> None:
    story.note("accepted", "gone", token=1, outcome="succeeded")


def accepted_and_run_again(story: Story) -> None:
    """Its success is under an earlier token than the job has now."""
    story.note("started", "job", token=6)
    story.change("job", token=6)


def a_snooze_that_is_a_success(story: Story) -> None:
    story.change_attempt(3, kind="succeeded")


def a_snooze_that_is_not_told(story: Story) -> None:
    trace = story.books["job"]
    story.books["job"] = trace._replace(attempts=trace.attempts[:2])


def refused_and_recorded(story: Story) -> None:
    story.change_attempt(2, kind="error")


def refused_and_not_rescued(story: Story) -> None:
    trace = story.books["job"]
    story.books["job"] = trace._replace(attempts=[one for one in trace.attempts if one.kind != "lost"])


def a_success_that_nobody_ran(story: Story) -> None:
    story.forget("started", "keyed", 1)


def a_failure_that_nobody_ran(story: Story) -> None:
    story.forget("started", "job", 1)


def one_execution_too_many(story: Story) -> None:
    """Not a snooze, not a crash."""
    story.forget("released", "job", 4)
    story.note("started", "job", token=4)


def more_snoozes_than_executions(story: Story) -> None:
    story.change("job", snoozes=2)


def a_claim_that_vanished(story: Story) -> None:
    story.forget("released", "job", 4)


def given_back_after_its_start(story: Story) -> None:
    story.note("released", "job", token=3)


def started_beyond_its_token(story: Story) -> None:
    story.note("started", "job", token=6)


def started_and_not_there(story: Story) -> None:
    story.note("started", "lost on the way", token=1)


def an_attempt_that_did_not_count(story: Story) -> None:
    story.change("job", attempt=2)


def an_attempt_counted_twice(story: Story) -> None:
    story.change_attempt(2, attempt=3)


def a_crash_that_did_not_count(story: Story) -> None:
    story.change("job", crashes=0)


def a_run_from_nowhere(story: Story) -> None:
    story.change("job", run=2)


def robbed_while_it_lived(story: Story) -> None:
    story.books.retired = {}


def robbed_before_it_was_retired(story: Story) -> None:
    story.books.retired = {"ann": 7}


def a_child_of_a_failure(story: Story) -> None:
    story.note("started", "stillborn", token=1)
    story.store("stillborn", parent_job="job")


def a_child_that_is_missing(story: Story) -> None:
    del story.books["child"]
    story.forget("started", "child", 1)
    story.forget("accepted", "child", 1)


def a_checkpoint_that_is_older(story: Story) -> None:
    story.note("saved", "job", token=3, checkpoint=2)


def a_checkpoint_that_is_gone(story: Story) -> None:
    story.forget("found", "job", 5)
    story.note("found", "job", token=5, checkpoint=None)


BROKEN: list[tuple[Callable[[Story], None], str]] = [
    (acknowledged_and_gone, "acknowledged_jobs_are_there"),
    (from_nowhere, "jobs_come_from_somewhere"),
    (of_other_parents, "jobs_come_from_somewhere"),
    (of_no_parents, "jobs_come_from_somewhere"),
    (still_running, "every_job_has_ended"),
    (still_ready, "every_job_has_ended"),
    (an_enqueue_of_unknown_end_is_still_ready, "every_job_has_ended"),
    (two_jobs_under_a_key, "a_key_has_one_job"),
    (two_answers_under_a_key, "a_key_has_one_job"),
    (another_job_without_a_key, "a_key_has_one_job"),
    (started_twice, "a_lease_starts_once"),
    (accepted_twice, "a_lease_is_answered_once"),
    (accepted_and_refused, "a_lease_is_answered_once"),
    (another_outcome_than_accepted, "what_was_accepted_is_recorded"),
    (another_attempt_than_accepted, "what_was_accepted_is_recorded"),
    (accepted_of_a_job_that_is_not_there, "what_was_accepted_is_recorded"),
    (accepted_and_run_again, "what_was_accepted_is_recorded"),
    (a_snooze_that_is_a_success, "what_was_accepted_is_recorded"),
    (a_snooze_that_is_not_told, "executions_are_explained"),
    (refused_and_recorded, "what_was_refused_is_lost"),
    (refused_and_not_rescued, "what_was_refused_is_lost"),
    (a_success_that_nobody_ran, "what_is_recorded_was_started"),
    (a_failure_that_nobody_ran, "what_is_recorded_was_started"),
    (one_execution_too_many, "executions_are_explained"),
    (more_snoozes_than_executions, "executions_are_explained"),
    (a_claim_that_vanished, "executions_are_explained"),
    (given_back_after_its_start, "executions_are_explained"),
    (started_beyond_its_token, "executions_are_explained"),
    (started_and_not_there, "executions_are_explained"),
    (an_attempt_that_did_not_count, "attempts_are_counted"),
    (an_attempt_counted_twice, "attempts_are_counted"),
    (a_crash_that_did_not_count, "attempts_are_counted"),
    (a_run_from_nowhere, "attempts_are_counted"),
    (robbed_while_it_lived, "only_the_dead_lose_jobs"),
    (robbed_before_it_was_retired, "only_the_dead_lose_jobs"),
    (a_child_of_a_failure, "children_come_with_success"),
    (a_child_that_is_missing, "children_come_with_success"),
    (a_checkpoint_that_is_older, "what_was_saved_is_found"),
    (a_checkpoint_that_is_gone, "what_was_saved_is_found"),
]


@pytest.mark.parametrize(("lie", "rule"), BROKEN, ids=[lie.__name__ for lie, _ in BROKEN])
def test_a_lie_is_found(lie: Callable[[Story], None], rule: str) -> None:
    story = Story()
    lie(story)
    assert rule in story.broken_rules()


def test_every_rule_has_its_lie() -> None:
    assert {rule for _, rule in BROKEN} == {rule.__name__ for rule in RULES}


def an_enqueue_of_unknown_end_succeeded(story: Story) -> None:
    story.note("started", "lost on the way", token=1)
    story.store("lost on the way")


def killed_before_it_was_answered(story: Story) -> None:
    story.forget("accepted", "job", 5)


def canceled_while_nobody_ran_it(story: Story) -> None:
    """After a snooze: its row has still that token."""
    story.note("enqueue", "other", phase="invoke")
    story.note("started", "other", token=1)
    story.note("accepted", "other", token=1, outcome="snoozed")
    story.store("other", attempt(1, 1, "snoozed"), state="canceled", attempt=0, snoozes=1, started_at=None)


def failed_under_a_cancel(story: Story) -> None:
    story.note("enqueue", "other", phase="invoke")
    story.note("started", "other", token=1)
    story.note("accepted", "other", token=1, outcome="error")
    story.store("other", state="canceled", error_kind="error")


def went_on_after_a_shutdown(story: Story) -> None:
    """An attempt that was interrupted does not count; each continuation begins a run."""
    story.note("enqueue", "other", phase="invoke")
    for token in (1, 2, 3):
        story.note("started", "other", token=token)
    attempts = [attempt(1, 1, "interrupted"), attempt(2, 1, "continued")]
    story.store("other", *attempts, token=3, run=2)


def there_was_no_process_for_it(story: Story) -> None:
    story.note("enqueue", "other", phase="invoke")
    story.note("started", "other", token=1)
    story.note("ended", "other", token=1, outcome="released")
    story.note("accepted", "other", token=1, outcome="released")
    story.note("started", "other", token=2)
    story.store("other", token=2)


def a_child_that_did_not_wait(story: Story) -> None:
    """It was enqueued at once, by an attempt that failed."""
    story.note("children", "hasty", parent="job", token=1, at_once=True)
    story.note("started", "hasty", token=1)
    story.store("hasty", parent_job="job")


@pytest.mark.parametrize(
    "turn",
    [
        an_enqueue_of_unknown_end_succeeded,
        killed_before_it_was_answered,
        canceled_while_nobody_ran_it,
        failed_under_a_cancel,
        went_on_after_a_shutdown,
        there_was_no_process_for_it,
        a_child_that_did_not_wait,
    ],
    ids=lambda turn: turn.__name__,
)
def test_what_may_happen_breaks_no_rule(turn: Callable[[Story], None]) -> None:
    story = Story()
    turn(story)
    assert story.broken_rules() == set()


def test_diaries_are_read_from_files_and_the_ledger_from_its_database(url: str, tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.mkdir()
    with App(url) as app:
        app.migrate()
        task = app.task(name="pay")(lambda: None)
        job = task.enqueue()
        app.operations.register("ann", name="ann", lease=600 * SECOND)
        (claimed,) = app.operations.claim("ann", tasks=["pay"], n=1)
        app.operations.finish([Succeeded(claimed.lease)])
    enqueued = {"what": "enqueue", "jobs": [job.id]}
    notes: list[dict[str, Any]] = [
        {**enqueued, "phase": "invoke", "keys": {}},
        {**enqueued, "phase": "ok", "answered": [job.id]},
        {"what": "started", "jobs": [job.id], "token": 1, "worker": "ann"},
        {"what": "accepted", "jobs": [job.id], "token": 1, "outcome": "succeeded"},
    ]
    lines = [json.dumps({"at": 1, "pid": 2, **note}) for note in notes]
    (history / "1-2.jsonl").write_text("\n".join(lines) + '\n{"at": 1, "what": "sta')
    assert verdict(history, url) == []
    (history / "1-3.jsonl").write_text(lines[-1] + "\n")
    (violation,) = verdict(history, url)
    assert str(violation) == (
        f"a_lease_is_answered_once: job {job.id}: token 1 was accepted or refused 2 times"
    )
