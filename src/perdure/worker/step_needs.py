"""Decides which results one step needs before its handler begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from perdure.errors import PayloadTooLarge
from perdure.model.reference import count_references, refers, resolved
from perdure.ops.batch import CHUNK
from perdure.ops.results import ParentResult, bytes_left, bytes_of
from perdure.worker.attempt import Attempt
from perdure.worker.results import missing

MOST_AHEAD = 16 << 20
"""The most bytes of results that are read before an async handler begins.

If its parents have more, their results are read on demand. This depends only on the parents, never on other results
that the worker holds in memory, so every attempt of a step does the same.
"""

MOST_ARGUMENTS = 64 << 20
"""The most bytes of a step's arguments once references are replaced by results."""


class StepNeeds:
    """The results that one attempt needs. This class reads nothing itself."""

    def __init__(self, attempt: Attempt, first_page: Sequence[ParentResult]) -> None:
        self._attempt = attempt
        self._parents = [*first_page]
        self._known = {parent.key: parent for parent in first_page}
        self._references = count_references(attempt.job.payload)
        self.complete = len(first_page) < CHUNK
        """Whether all parents are known."""

    def add_page(self, page: Sequence[ParentResult]) -> None:
        self._parents += page
        self._known |= {parent.key: parent for parent in page}
        self.complete = len(page) < CHUNK

    @property
    def last(self) -> str:
        """The id of the last parent that is known."""
        return self._parents[-1].id

    @property
    def bytes_left(self) -> int:
        return bytes_left(self._parents)

    @property
    def unknown(self) -> list[str]:
        """The keys to which the arguments refer, without the keys of steps that are known already."""
        return [key for key in self._references if key not in self._known]

    def add_ancestors(self, found: Iterable[ParentResult]) -> None:
        self._known |= {parent.key: parent for parent in found}

    @property
    def unread(self) -> list[ParentResult]:
        """The steps whose results must be read before the handler begins."""
        keys = dict.fromkeys(self._references)
        if self.reads_ahead:
            keys |= dict.fromkeys(parent.key for parent in self._parents)
        return [self._known[key] for key in keys if key in self._known and self._known[key].unread]

    @property
    def reads_ahead(self) -> bool:
        """Whether to read the results of all parents before the handler begins.

        Async code needs this, because it cannot wait in ``ctx.results``.
        """
        handler = self._attempt.handler
        takes_context = handler.signature.context is not None
        return handler.is_async and takes_context and bytes_of(self._parents) <= MOST_AHEAD

    def check(self) -> None:
        """Raise an error if the arguments refer to a result that does not exist, or if they are too large."""
        for key in self._references:
            parent = self._known.get(key)
            if parent is None or not parent.has_result:
                raise missing(key, parent)
        if self.argument_bytes > MOST_ARGUMENTS:
            raise PayloadTooLarge(
                f"with the results they refer to, the arguments take {self.argument_bytes} bytes of JSON, more than"
                f" {MOST_ARGUMENTS}: let the handler take the context instead, and read one result at a time, with"
                " ctx.results in a thread or process, or with ctx.aresults() in async code"
            )

    @property
    def argument_bytes(self) -> int:
        """Bytes of the results in the arguments. Each result counts as often as the arguments refer to it."""
        return sum((self._known[key].size or 0) * times for key, times in self._references.items())

    def set_results(self, read: Iterable[ParentResult]) -> None:
        for parent in read:
            self._known[parent.key] = parent

    def hand_over(self) -> None:
        """Give the attempt its results, and replace the references in its arguments."""
        attempt, job = self._attempt, self._attempt.job
        parents: Sequence[ParentResult] = self._parents
        if self.reads_ahead:
            parents = [self._known[parent.key] for parent in parents]
        attempt.context.step_results.set_parents(parents)
        if refers(job.payload):
            payload = resolved(job.payload, lambda key: self._known[key].result or "null")
            attempt.job = attempt.context.row = msgspec.structs.replace(job, payload=payload)
        self._known = {}
