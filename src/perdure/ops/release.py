"""Decide about the steps that wait for ended steps, and settle their workflows, in the transaction that ends the steps.

A waiting step is released if it can run now. It is doomed if it can never run, and a doomed step is canceled.

Lock order: workflows by id, then jobs by id. Every operation that ends a step holds the lock of its workflow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from perdure.model.graph import Edge, Fate, Tally, Waiting, cascade
from perdure.model.job import ENDED, State
from perdure.ops.batch import rows_of
from perdure.ops.op import Answers, Op, Query, Row, Rows, ask_all
from perdure.ops.topics import queue_topics


class Tallies(dict[str, Tally]):
    """The tallies of locked workflows, by id."""

    def __init__(self, rows: Rows = ()) -> None:
        super().__init__((row[0], _tally(row)) for row in rows)
        self._before = {id: msgspec.structs.astuple(tally) for id, tally in self.items()}
        self.tenants: dict[str, str | None] = {row[0]: row[-1] for row in rows}
        self.added: dict[str, int] = {}

    def move(self, workflow: str | None, before: State, after: State, n: int = 1) -> None:
        """Count steps that changed their state. If the workflow's row is gone, do nothing."""
        if (tally := self.get(workflow or "")) is not None:
            tally.move(before, after, n)

    def settle(self) -> list[Query]:
        """Set the status of each workflow from its counts. Return the statement that writes the changed tallies."""
        for tally in self.values():
            tally.status = tally.settled()
        changed = [
            {**msgspec.structs.asdict(tally), "added": self.added.get(id, 0)}
            for id, tally in sorted(self.items())
            if msgspec.structs.astuple(tally) != self._before[id] or id in self.added
        ]
        return [Query("settle_workflows", {"tallies": rows_of(changed)})] if changed else []


class End(NamedTuple):
    """A step that ended: its workflow, its state before and its state now."""

    workflow: str
    before: State
    state: State


class Released(NamedTuple):
    """The result of ``release``. ``answers``: the answers to the writes. ``wake``: the topics of the released steps.

    ``queues``: the queues of steps that can run now, by step id. Steps after a doomed step are left out, but ``wake``
    has their topics.
    """

    answers: Answers
    wake: frozenset[str]
    queues: Mapping[str, str]


def release(tallies: Tallies, ends: Mapping[str, End], *writes: Query) -> Op[Released]:
    """Perform writes that end steps, then release or doom the steps that wait for them, and update the tallies."""
    for end, number in Counter(ends.values()).items():
        tallies.move(end.workflow, end.before, end.state, number)
    ended = rows_of({id: end.state == "succeeded" for id, end in sorted(ends.items())})
    *answers, _, rows = yield from ask_all(
        *writes,
        Query("count_down", {"ended": ended}, only="embedded"),
        Query("release_steps", {"ended": ended}),
    )
    queues: dict[str, str] = {}
    doomed: dict[str, list[str]] = {}
    for id, workflow, state, queue, due in rows:
        if state == "waiting":
            doomed.setdefault(workflow or "", []).append(id)
            continue
        tallies.move(workflow, "waiting", state)
        if state == "ready" and due:
            queues[id] = queue
    wake = queue_topics(queues.values())
    if doomed:
        wake |= queue_topics((yield from _doom(tallies, doomed)))
    return Released(answers, wake, queues)


def _doom(tallies: Tallies, doomed: Mapping[str, Sequence[str]]) -> Op[set[str]]:
    """Cancel doomed steps, and decide about all steps after them; return the queues of steps that can run now.

    Each graph is read once, and all changes are written at once.
    """
    fates: list[Fate] = []
    for workflow, ids in sorted(doomed.items()):
        if not workflow:
            continue  # damaged rows, without a workflow: the steps after them cannot be found
        steps, edges = yield from ask_all(
            Query("list_waiting", {"workflow": workflow}), Query("list_waiting_edges", {"workflow": workflow})
        )
        fates += cascade(ids, (_waiting(row) for row in steps), (Edge(*row) for row in edges))
    (rows,) = yield from ask_all(Query("settle_steps", {"fates": rows_of(fates)}))
    for workflow, state, _, _ in rows:
        tallies.move(workflow, "waiting", state)
    return {queue for _, state, queue, due in rows if state == "ready" and due}


def ends_of(jobs: Iterable[tuple[str, str | None, State]], before: State = "running") -> dict[str, End]:
    """The steps among these jobs that ended. A job is given by its id, its workflow and its new state."""
    return {id: End(workflow, before, state) for id, workflow, state in jobs if workflow and state in ENDED}


def _tally(row: Row) -> Tally:
    id, status, waiting, active, opened, spoiled, canceling, _ = row
    return Tally(id, status, waiting, active, opened, spoiled, bool(canceling))


def _waiting(row: Row) -> Waiting:
    id, key, gate, pending, unsatisfied = row
    return Waiting(id, key, bool(gate), pending, unsatisfied)
