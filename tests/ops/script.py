"""A driver that feeds scripted rows to an operation, and records its statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from perdure.model.job import NewJob
from perdure.ops.op import Op, Query, RoundTrip, Rows

T = TypeVar("T")

A, B, C = (f"0198a1b2-0000-7000-8000-00000000000{n}" for n in "abc")
"""Ids of jobs, in order."""


class Script:
    """Answers by the name of the statement: each takes the next of its answers; after the last, no rows."""

    def __init__(self, **answers: Sequence[Rows]) -> None:
        self._answers = {name: list(rows) for name, rows in answers.items()}
        self.steps: list[RoundTrip] = []

    def play(self, op: Op[T]) -> T:
        """Run an operation to its end; what it refuses, it raises."""
        answers: Any = None
        while True:
            try:
                trip = op.send(answers)
            except StopIteration as end:
                value: T = end.value
                return value
            except Exception:
                assert not self.final, "an operation may not refuse after its final step"
                raise
            answers = self._answer(trip)

    def _answer(self, trip: RoundTrip) -> list[Rows]:
        assert not self.final or not trip.queries, "an operation may not go on after its final step"
        self.steps.append(trip)
        return [self._next(query.name) for query in trip.queries]

    def _next(self, name: str) -> Rows:
        answers = self._answers.get(name)
        return answers.pop(0) if answers else []

    @property
    def asked(self) -> list[list[str]]:
        """The names of the statements, round trip by round trip."""
        return [[query.name for query in trip.queries] for trip in self.steps if trip.queries]

    @property
    def final(self) -> bool:
        """Whether COMMIT is sent with the last round trip."""
        return any(trip.final for trip in self.steps)

    @property
    def woken(self) -> set[str]:
        return {topic for trip in self.steps for topic in trip.wake}

    def params(self, name: str) -> list[Any]:
        """The parameters of a statement, for each time it ran."""
        return [dict(query.params) for query in self._queries if query.name == name]

    @property
    def _queries(self) -> list[Query]:
        return [query for trip in self.steps for query in trip.queries]


def new_job(id: str = A, **options: Any) -> NewJob:
    request = '{"v":1,"arguments":{}}' if "idempotency_key" in options else None
    return NewJob(**{"id": id, "task": "work", "payload": "{}", "request": request, **options})
