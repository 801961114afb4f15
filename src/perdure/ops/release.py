"""What the end of steps does to those that wait for them, and to their workflows, in the transaction that ends them.

Lock order: workflows by their ids, then jobs by theirs. Whatever ends a step holds the lock of its workflow.
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
    """The workflows that are locked, by their ids."""

    def __init__(self, rows: Rows = ()) -> None:
        super().__init__((row[0], _tally(row)) for row in rows)
        self._before = {id: msgspec.structs.astuple(tally) for id, tally in self.items()}
        self.tenants: dict[str, str | None] = {row[0]: row[-1] for row in rows}
        self.added: dict[str, int] = {}

    def move(self, workflow: str | None, before: State, after: State, n: int = 1) -> None:
        """Count steps that went from one state to another. A workflow whose row is gone counts nothing."""
        if (tally := self.get(workflow or "")) is not None:
            tally.move(before, after, n)

    def settle(self) -> list[Query]:
        """What the counts of those that changed make of their status, to be written."""
        for tally in self.values():
            tally.status = tally.settled()
        changed = [
            {**msgspec.structs.asdict(tally), "added": self.added.get(id, 0)}
            for id, tally in sorted(self.items())
            if msgspec.structs.astuple(tally) != self._before[id] or id in self.added
        ]
        return [Query("settle_workflows", {"tallies": rows_of(changed)})] if changed else []


class End(NamedTuple):
    """A step that ended: in which state it was before, and in which it is now."""

    workflow: str
    before: State
    state: State


class Released(NamedTuple):
    """``answers``: those of the statements that went along. ``wake``: whom the released steps concern.

    ``queues``: those of the steps that can run now, by their ids, but for what a failure has released.
    """

    answers: Answers
    wake: frozenset[str]
    queues: Mapping[str, str]


def release(tallies: Tallies, ends: Mapping[str, End], *writes: Query) -> Op[Released]:
    """Perform these writes, which end steps, and decide for whatever waits for them. The tallies change along."""
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
    """Cancel what can no longer run, and go on down the graph. It is read once and written once."""
    fates: list[Fate] = []
    for workflow, ids in sorted(doomed.items()):
        if not workflow:
            continue  # steps that say of no workflow that it is theirs: nothing tells what follows them
        steps, edges = yield from ask_all(
            Query("list_waiting", {"workflow": workflow}), Query("list_waiting_edges", {"workflow": workflow})
        )
        fates += cascade(ids, (_waiting(row) for row in steps), (Edge(*row) for row in edges))
    (rows,) = yield from ask_all(Query("settle_steps", {"fates": rows_of(fates)}))
    for workflow, state, _, _ in rows:
        tallies.move(workflow, "waiting", state)
    return {queue for _, state, queue, due in rows if state == "ready" and due}


def ends_of(jobs: Iterable[tuple[str, str | None, State]], before: State = "running") -> dict[str, End]:
    """Of jobs, their workflows and their new states: the steps that ended."""
    return {id: End(workflow, before, state) for id, workflow, state in jobs if workflow and state in ENDED}


def _tally(row: Row) -> Tally:
    id, status, waiting, active, opened, spoiled, canceling, _ = row
    return Tally(id, status, waiting, active, opened, spoiled, bool(canceling))


def _waiting(row: Row) -> Waiting:
    id, key, gate, pending, unsatisfied = row
    return Waiting(id, key, bool(gate), pending, unsatisfied)
