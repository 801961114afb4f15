"""The results of a step's parents, as its handler sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from perdure.errors import ResultMissing
from perdure.model.job import Claimed
from perdure.model.json_text import read_json
from perdure.ops.batch import CHUNK
from perdure.ops.results import (
    FIRST,
    ParentResult,
    bytes_left,
    find_ancestors,
    pages,
    read_parents,
    read_results,
)
from perdure.plan.plan import Plan, perform
from perdure.worker.handler import Handler


class StepResults:
    """The parents of one step, with the results that are in memory. It may be used from any thread.

    A result that was not read ahead is read on demand, together with the next results that fit on one page. The last
    page is kept, so reading all results in order takes one statement per page.
    """

    def __init__(self, job: Claimed, handlers: Mapping[str, Handler]) -> None:
        self._job = job
        self._handlers = handlers
        self._positions: dict[str, int] = {}
        self._page: dict[str, ParentResult] = {}
        self.parents: Sequence[ParentResult] | None = None if job.workflow_id else ()
        """The parents in the order of their creation. None until they are read."""

    def set_parents(self, parents: Sequence[ParentResult]) -> None:
        self._positions = {parent.key: position for position, parent in enumerate(parents)}
        self.parents = parents

    @property
    def succeeded(self) -> list[str]:
        """The keys of the parents that succeeded."""
        return [parent.key for parent in self.parents or () if parent.state == "succeeded"]

    def find(self, key: str) -> ParentResult | None:
        """The direct parent with this key, with its result if the result is in memory."""
        if (position := self._positions.get(key)) is None or self.parents is None:
            return None
        parent = self.parents[position]
        return self._page.get(key, parent) if parent.unread else parent

    def read_all_parents(self) -> Plan[None]:
        if self.parents is not None:
            return
        found: list[ParentResult] = []
        while True:
            after = found[-1].id if found else FIRST
            page = yield from perform(read_parents, [self._job.id], after=after, most_bytes=bytes_left(found))
            found += page[self._job.id]
            if len(page[self._job.id]) < CHUNK:
                self.set_parents(found)
                return

    def result_of(self, key: str) -> Plan[Any]:
        """The result of any ancestor of this step."""
        found = self.find(key)
        if found is None and self._job.workflow_id is not None:
            ancestors = yield from perform(find_ancestors, self._job.id, self._job.workflow_id, [key])
            found = ancestors.get(key)
        if found is None:
            raise missing(key, None)
        if found.unread:
            found = yield from self._read(found)
        return self.value(found)

    def _read(self, found: ParentResult) -> Plan[ParentResult]:
        page: Sequence[ParentResult] = [found]
        if (position := self._positions.get(found.key)) is not None and self.parents is not None:
            page = [parent for parent in next(pages(self.parents, start=position)) if parent.unread]
        results = yield from perform(read_results, [parent.id for parent in page])
        read = {parent.key: parent._replace(result=results.get(parent.id)) for parent in page}
        self._page = read
        return read[found.key]

    def value(self, found: ParentResult) -> Any:
        """The result of a step, decoded to the type that its task declares if this process knows the task."""
        if not found.has_result or found.unread:  # unread: the row was deleted a moment ago
            raise missing(found.key, found)
        if found.result is None:
            return None
        handler = self._handlers.get(found.task)
        return read_json(found.result) if handler is None else handler.results.decode(found.result)


class Results(Mapping[str, Any]):
    """The results of the parents that succeeded, by key. Any other key raises an error that says why."""

    def __init__(self, results: StepResults, read: Callable[[str], Any]) -> None:
        """``read`` reads a result that is not in memory. In an event loop, it raises an error that says what to do."""
        self._results = results
        self._read = read

    def __getitem__(self, key: str) -> Any:
        parent = self._results.find(key)
        if parent is None:
            raise ResultMissing(f"{key} is no direct parent of this step: ask ctx.result_of(...).")
        return self._read(key) if parent.unread else self._results.value(parent)

    def __contains__(self, key: object) -> bool:
        # Do not use the value, which may have to be read from the database.
        parent = self._results.find(key) if isinstance(key, str) else None
        return parent is not None and parent.has_result

    def __iter__(self) -> Iterator[str]:
        return iter(self._results.succeeded)

    def __len__(self) -> int:
        return len(self._results.succeeded)


def missing(key: str, found: ParentResult | None) -> ResultMissing:
    if found is None:
        return ResultMissing(f"{key} is none of this step's ancestors, so that it has no result for it.")
    ended = {
        "failed": "it failed",
        "canceled": "it was canceled",
        "succeeded": f"it was not kept ({found.reason})" if found.dropped else "it was deleted",
    }.get(found.state, f"it is {found.state}")
    return ResultMissing(f"The step {key} has no result: {ended}.")
