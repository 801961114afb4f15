"""Read the results of steps, for the steps that follow them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from perdure.model.job import State
from perdure.ops.batch import CHUNK, rows_of
from perdure.ops.op import Op, Param, Query, Rows, ask_all, ask_last, operation

PAGE_BYTES = 1 << 20
"""The most bytes of results per statement, unless a single result is larger. A payload has the same limit."""

FIRST = "00000000-0000-0000-0000-000000000000"


class ParentResult(NamedTuple):
    """How a parent ended, and its result if it was read."""

    key: str
    task: str
    state: State
    reason: str | None
    id: str
    run: int
    token: int
    size: int | None
    """Bytes of the result as JSON; None if there is no result."""
    result: str | None

    @property
    def dropped(self) -> bool:
        """Whether the parent had a result that could not be stored. This is False for a parent that had no result."""
        return self.size is None and self.reason is not None and self.reason.startswith("result.")

    @property
    def has_result(self) -> bool:
        return self.state == "succeeded" and not self.dropped

    @property
    def unread(self) -> bool:
        """Whether the parent has a result that was not read yet."""
        return self.size is not None and self.result is None and self.state == "succeeded"


@operation("read")
def read_parents(
    steps: Sequence[str], *, after: str = FIRST, most_bytes: int = PAGE_BYTES
) -> Op[dict[str, list[ParentResult]]]:
    """The next ``CHUNK`` parents of each step, in the order of creation; fewer on the last page.

    ``after``: the id of the last parent read before. Results are included as long as the results for one step take at
    most ``most_bytes`` together.
    """
    rows = yield from ask_last(
        "read_parents", children=rows_of(steps), after=after, n=CHUNK, bytes=most_bytes
    )
    found: dict[str, list[ParentResult]] = {step: [] for step in steps}
    for child, *parent in rows:
        found[child].append(ParentResult(*parent))
    return found


@operation("read")
def read_results(ids: Sequence[str]) -> Op[dict[str, str | None]]:
    """Results by step id. The caller must make sure that they are not too large."""
    return dict((yield from ask_last("read_results", ids=rows_of(ids))))


@operation("read")
def find_ancestors(step: str, workflow: str, keys: Sequence[str]) -> Op[dict[str, ParentResult]]:
    """The ancestors of a step that have these keys, by key.

    Most of these ancestors are parents, which are found without a search up the graph. One search finds all others.
    """

    def asked(keys: Sequence[str]) -> Mapping[str, Param]:
        return {"id": step, "workflow": workflow, "keys": rows_of(keys), "bytes": PAGE_BYTES}

    (rows,) = yield from ask_all(Query("find_parents", asked(keys)))
    found = _by_key(rows)
    if far := [key for key in keys if key not in found]:
        (rows,) = yield from ask_all(Query("find_ancestors", asked(far)), final=True)
        found |= _by_key(rows)
    return found


def _by_key(rows: Rows) -> dict[str, ParentResult]:
    return {row[0]: ParentResult(*row) for row in rows}


def pages(parents: Sequence[ParentResult], *, start: int = 0) -> Iterator[Sequence[ParentResult]]:
    """Split the parents from ``start`` on into groups that one statement can read."""
    page: list[ParentResult] = []
    taken = 0
    for index in range(start, len(parents)):
        parent = parents[index]
        size = parent.size or 0
        if page and (taken + size > PAGE_BYTES or len(page) == CHUNK):
            yield page
            page, taken = [], 0
        page.append(parent)
        taken += size
    if page:
        yield page


def bytes_of(parents: Iterable[ParentResult]) -> int:
    """The bytes of these parents' results, whether they were read or not."""
    return sum(parent.size or 0 for parent in parents)


def bytes_left(parents: Iterable[ParentResult]) -> int:
    """How many of the ``PAGE_BYTES`` are left for the results of the next parents."""
    return max(0, PAGE_BYTES - bytes_of(parent for parent in parents if parent.result is not None))
